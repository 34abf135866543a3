"""Score a checkpoint."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etils import epath

from bertjax.cli.config_args import add_config, load
from bertjax.cli.distributed import add_distributed_arguments, join, run_in_child
from bertjax.cli.files import as_json, check_directory, output
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.config.config import Config

ORDER = 60
EXAMPLE = "bertjax evaluate --checkpoint runs/smoke --output runs/smoke/scores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, default_text="that of the run which made the checkpoint")
    add_distributed_arguments(parser)
    parser.add_argument(
        "--checkpoint",
        required=True,
        nargs="+",
        metavar="DIR",
        help="a checkpoint or a workdir; several are an ensemble",
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="a directory for scores and predictions"
    )


def run(args: argparse.Namespace) -> int | None:
    if (status := run_in_child(args)) is not None:
        return status
    from bertjax.html.tables import align_columns, eval_set_table
    from bertjax.mesh import distributed
    from bertjax.tasks.task import EVALUATION_FILE
    from bertjax.training.evaluator import evaluate

    skip_missing_tpu()
    check_directory(args.output, "--output")
    config = load(args)
    directory = epath.Path(args.output)
    _check_same_evaluation(directory / EVALUATION_FILE, args.checkpoint, config)
    join(args, handles_preemption=False)
    enable_compilation_cache()
    found = evaluate(config, *args.checkpoint)
    if distributed.is_process_0():
        table = eval_set_table(found.scores)  # of many sets, of which scores.json says all
        if table.rows:
            print(align_columns(*table), flush=True)
        else:
            rows = [(name, f"{score:.4f}") for name, score in found.scores.items()]
            print(align_columns(("score", ""), rows), file=sys.stderr)
            if not sys.stdout.isatty():  # for a program
                print(json.dumps(found.scores, indent=1), flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        about = {"checkpoints": args.checkpoint, "config": config.to_dict()}
        said = {"scores.json": found.scores, EVALUATION_FILE: about}
        contents = {
            name if isinstance(content, str) else f"{name}.json": content
            for name, content in found.files.items()
        }
        for name, content in (contents | said).items():
            with output(str(directory / name)) as sink:
                sink.write(content if isinstance(content, str) else as_json(content, indent=1))
        names = ", ".join(contents | said)
        print(f"written to {directory}: {names}. bertjax report {directory}", file=sys.stderr)
    return None


def _check_same_evaluation(file: epath.Path, checkpoints: Sequence[str], config: "Config") -> None:
    """Lets no evaluation be written over by that of other checkpoints or other data."""
    from bertjax.workdir.workdir import RESUMABLE_FIELDS, config_difference

    try:
        earlier = json.loads(file.read_text())
        of, fields = earlier["checkpoints"], earlier["config"]
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return  # there is none, or none that is whole
    if [os.path.normpath(path) for path in of] != [os.path.normpath(path) for path in checkpoints]:
        raise InputError(f"{file.parent} has the scores of {' '.join(of)}: give another --output.")
    # Scores depend on the data; init is the checkpoint.
    free = RESUMABLE_FIELDS - {"data.dir", "eval_batches"} | {"init"}
    if found := config_difference(fields, config, free):
        name, before, now = found
        raise InputError(
            f"{file.parent} has the scores by {name}={before!r}, and here it is {now!r}: give "
            "another --output."
        )
