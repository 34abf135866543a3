"""A small English encoder, pre-trained on the texts of the speedrun for hours of two cores.

    python -m experiments.small_encoder --text FILE FILE --data DIR --workdir DIR

Trains 6 layers of 256 in three stages, each initialized from the one before: a causal LM; a masked
LM; and with next sentence prediction, longer sequences and a falling masking rate, half of whose
sequences are sentences beside changed copies of themselves (`pairs`). The text, vocabulary and eval
split are those of the speedrun (experiments/speedrun), whose data directory serves as --data. The
same command resumes. WORKDIR/model is the encoder in the layout of `transformers`, WORKDIR/scores
has its loss on the eval split.
"""

import argparse
import os
import pathlib
from collections.abc import Mapping, Sequence

from experiments.ablations.commands import local_path, override_flags, run_bertjax
from experiments.small_encoder.pairs import prepare_pairs
from experiments.speedrun.eval_split import VOCAB_SIZE, evaluate, prepare_data

NUM_PAIRS = 200_000
CONFIG = "pretraining:model=6-256,recipe=modern,objective={}"
_SHARED: Mapping[str, object] = {
    "model.vocab_size": VOCAB_SIZE,
    "model.dtype": "float32",
    "checkpoint_every": 50,
    "keep_period": 0,
    "eval_every": 250,
    "eval_batches": 20,
}
STAGES: Mapping[str, tuple[str, Mapping[str, object]]] = {  # objective and fields of each
    "clm": ("clm", {"batch_size": 64, "steps": 2000}),
    "mlm": (
        "mlm",
        {"batch_size": 64, "steps": 9000, "optimizer.schedule": "wsd", "optimizer.warmup": "5%"},
    ),
    "pairs": (
        "mlm_nsp",
        {
            "data.mlm_probability": "0.3..0.15",
            "batch_size": 32,
            "max_seq_length": 256,
            "steps": 3000,
            "optimizer.warmup": 0,
        },
    ),
}


def make_stage(
    name: str, workdir: pathlib.Path, data: pathlib.Path
) -> tuple[str, dict[str, object]]:
    """Return the configuration of a stage and its overridden fields."""
    names, (objective, changes) = list(STAGES), STAGES[name]
    fields: dict[str, object] = {**_SHARED, **changes, "data.dir": str(data / "corpus")}
    if name == names[-1]:
        fields["data.dir"] = f"{data / 'corpus'}+{data / 'pairs'}"
        fields["data.mixture_weights"] = "1+1"
    if index := names.index(name):
        fields["init"] = str(workdir / names[index - 1])
    return CONFIG.format(objective), fields


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.small_encoder", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--data", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--workdir", type=local_path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # one a core is faster than one for both
    corpus = prepare_data(args.text, args.data)
    prepare_pairs(corpus, args.data / "vocab.txt", args.data / "pairs", NUM_PAIRS)
    for name in STAGES:
        config, fields = make_stage(name, args.workdir, args.data)
        target = ["--workdir", str(args.workdir / name), "--config", config]
        run_bertjax("train", *target, *override_flags(fields))
    last = args.workdir / list(STAGES)[-1]
    print(evaluate(last, args.workdir / "scores", corpus))
    if not (args.workdir / "model").exists():
        run_bertjax("convert", "--to", "hf", str(last), str(args.workdir / "model"))


if __name__ == "__main__":
    main()
