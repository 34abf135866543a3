"""Named entity recognition with a frozen encoder (table 7 of the paper).

    python -m experiments.ablations.feature_based --output DIR --config OPTIONS \
      [--seeds N] [--config.FIELD=VALUE ...]

OPTIONS are those of `experiments/token_classification.py`, such as
init=MODEL,data=DIR,train_file=a.conll,eval_file=b.conll. Six rows differ in the layers that a
two-layer BiLSTM of 768 units reads; the seventh fine-tunes the whole model. Every row is a `bertjax
sweep`, printed before it runs. The same command resumes after an interruption. DIR/features.json,
.md and .html have the scores on the eval set and the CPU minutes a run, with start and compilation.
"""

import argparse
import json

from experiments.ablations.commands import check_seeds, local_path, run_once
from experiments.ablations.results import VariantResult, write_results
from experiments.ablations.tables import Finding
from experiments.token_classification import FEATURE_LAYERS

SCORES = ("precision", "recall", "f1")
CAPTION = "Named entities with a frozen encoder (table 7 of the paper)."
FINE_TUNED = "fine-tuned"


def findings() -> list[Finding]:
    """Return the paper's findings; the fine-tuned model is the last row."""
    names = [*FEATURE_LAYERS, FINE_TUNED]
    claims = [
        ("fine-tuning is better than features", FINE_TUNED, "concat_last_four"),
        ("the last four layers are better than the last", "concat_last_four", "last"),
        ("their weighted sum is better than the last", "sum_last_four", "last"),
        ("the second-to-last layer is better than the last", "second_to_last", "last"),
        ("the embeddings are the worst", "last", "embeddings"),
    ]
    return [Finding(text, names.index(a), names.index(b), ("f1",)) for text, a, b in claims]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--config", required=True, metavar="OPTIONS")
    parser.add_argument("--seeds", type=int, default=1)
    args, extra_flags = parser.parse_known_args()
    check_seeds(args.seeds)
    rows = []
    for name in (*FEATURE_LAYERS, FINE_TUNED):
        workdir = args.output / name
        options = args.config + (f",features={name}" if name in FEATURE_LAYERS else "")
        config = f"token_classification:{options}"
        command = ["sweep", "--config", config, "--workdir", str(workdir)]
        command += [f"--seeds={args.seeds}", *extra_flags]
        _, minutes = run_once(args.output / f"{name}.record.json", [command])
        runs = json.loads((workdir / "sweep.json").read_text())["runs"]
        scores = {score: [run["scores"][score] for run in runs] for score in SCORES}
        scores["CPU minutes"] = [minutes / args.seeds]
        num_degenerate = sum(run["failed"] for run in runs)
        rows.append(VariantResult(name.replace("_", " "), None, scores, num_degenerate))
    print(write_results(args.output / "features", CAPTION, rows, findings()))


if __name__ == "__main__":
    main()
