"""Named entities from the vectors of a model that is left as it is (table 7 of the paper).

    python -m experiments.ablations.feature_based --output DIR --config OPTIONS \
      [--seeds N] [--config.FIELD=VALUE ...]

OPTIONS are those of `experiments/token_classification.py`, such as
init=MODEL,data=DIR,train_file=a.conll,eval_file=b.conll.
Six rows, each the layers that a two-layer BiLSTM of 768 units reads, and the whole model fine-tuned
as the seventh. Every row is a `bertjax sweep`, printed before it runs; what is there is not
repeated, so the same line again goes on after whatever ended it. DIR/features.json, .md and .html
have the scores on the dev set, and the processor minutes of a run, start and compiling included.
"""

import argparse
import json
import pathlib

from experiments.ablations.commands import run_once
from experiments.ablations.results import VariantResult, write_results
from experiments.ablations.tables import AblationTable, Finding, Variant
from experiments.token_classification import FEATURE_LAYERS

SCORES = ("precision", "recall", "f1")
CAPTION = "Vectors of a frozen model for named entities (table 7 of the paper)."
FINE_TUNED = "fine-tuned"


def findings() -> list[Finding]:
    """What the paper found between the rows, in their order and the fine-tuned model last."""
    names = [*FEATURE_LAYERS, FINE_TUNED]
    said = [
        ("fine-tuning is better than vectors", FINE_TUNED, "concat_last_four"),
        ("four layers side by side are better than the last", "concat_last_four", "last"),
        ("their weighted sum is better than the last", "sum_last_four", "last"),
        ("the layer below the last is better than the last", "second_to_last", "last"),
        ("the embeddings are the worst", "last", "embeddings"),
    ]
    return [Finding(text, names.index(a), names.index(b), ("f1",)) for text, a, b in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--config", required=True, metavar="OPTIONS")
    parser.add_argument("--seeds", type=int, default=1)
    args, rest = parser.parse_known_args()
    rows = []
    for name in (*FEATURE_LAYERS, FINE_TUNED):
        workdir = args.output / name
        given = args.config + (f",features={name}" if name in FEATURE_LAYERS else "")
        command = ["sweep", "--config", f"token_classification:{given}", "--workdir", str(workdir)]
        command += [f"--seeds={args.seeds}", *rest]
        minutes = run_once(args.output / f"{name}.record.json", [command]).minutes / args.seeds
        runs = json.loads((workdir / "sweep.json").read_text())["runs"]
        scores = {score: [run["scores"][score] for run in runs] for score in SCORES}
        num_degenerate = sum(run["failed"] for run in runs)
        rows.append(
            VariantResult(
                name.replace("_", " "),
                None,
                scores | {"processor minutes": [minutes]},
                num_degenerate,
            )
        )
    table = AblationTable(CAPTION, [Variant(row.name) for row in rows], findings())
    print(write_results(args.output / "features", table, rows))


if __name__ == "__main__":
    main()
