"""Evaluate a checkpoint."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertjax.cli.config_args import add_config, check_config, load
from bertjax.cli.distributed import add_distributed_arguments, initialize_distributed
from bertjax.cli.files import add_task, as_json, check_directory, open_output
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from etils import epath

    from bertjax.config.config import Config

ORDER = 60
EXAMPLE = "bertjax evaluate --checkpoint runs/smoke --output runs/smoke/scores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_config(parser, default_text="that of the checkpoint")
    add_distributed_arguments(parser)
    parser.add_argument(
        "--checkpoint",
        required=True,
        nargs="+",
        metavar="DIR",
        help="checkpoint, workdir or, with --config, another model directory; several form an "
        "ensemble",
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="directory for scores and predictions"
    )
    add_task(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import find_format

    check_directory(args.output, "--output")
    for path in args.checkpoint:
        find_format(path)
    check_config(args)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from etils import epath

    from bertjax.html.tables import align_columns, eval_set_table
    from bertjax.mesh import distributed
    from bertjax.mesh.watchdog import Watchdog
    from bertjax.tasks.task import EVALUATION_FILE
    from bertjax.training.evaluator import evaluate

    config = load(args)
    directory = epath.Path(args.output)
    _check_same_evaluation(directory / EVALUATION_FILE, args.checkpoint, config)
    initialize_distributed(args, config, handles_preemption=False)
    enable_compilation_cache()
    with Watchdog(config.watchdog_minutes):
        evaluation = evaluate(config, *args.checkpoint)
    if distributed.is_process_0():
        run_info = {"checkpoints": args.checkpoint, "config": config.to_dict()}
        contents = {
            name if isinstance(content, str) else f"{name}.json": content
            for name, content in evaluation.files.items()
        }
        contents |= {"scores.json": evaluation.scores, EVALUATION_FILE: run_info}
        texts = {
            name: content if isinstance(content, str) else as_json(content, indent=1)
            for name, content in contents.items()
        }
        table = eval_set_table(evaluation.scores)  # empty for a single eval set
        if table.rows:
            print(align_columns(*table), flush=True)
        else:
            rows = [(name, f"{score:.4f}") for name, score in evaluation.scores.items()]
            print(align_columns(("score", ""), rows), file=sys.stderr)
            if not sys.stdout.isatty():  # a program reads it
                print(texts["scores.json"], flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        # Written last: without it a report rejects files of two evaluations.
        (directory / EVALUATION_FILE).unlink(missing_ok=True)
        for name, text in texts.items():
            with open_output(str(directory / name)) as sink:
                sink.write(text)
        names = ", ".join(texts)
        print(
            f"wrote {names} to {directory}.{_next_command(config.task, args.output)}",
            file=sys.stderr,
        )


def _next_command(task: str, output: str) -> str:
    """Return " Next: " with the command for a report of the evaluation; "" if the task has none."""
    from bertjax.tasks import registry
    from bertjax.tasks.task import Task

    if registry.find_task(task).report.__func__ is Task.report.__func__:  # type: ignore[attr-defined]
        return ""
    return f" Next: bertjax report {shlex.quote(output)}{registry.task_argument(task)}"


def _check_same_evaluation(
    file: "epath.Path", checkpoints: Sequence[str], config: "Config"
) -> None:
    """Raise InputError if the output holds an evaluation of other checkpoints or other data."""
    from bertjax.workdir.workdir import RESUMABLE_FIELDS, config_difference
    from data_pipelines.schema import read_json_object

    try:
        earlier = read_json_object(file, {"checkpoints": [str], "config": {str: object}}, "")
    except InputError:
        return  # none, or an incomplete one
    evaluated, fields = earlier["checkpoints"], earlier["config"]
    if list(map(os.path.normpath, evaluated)) != list(map(os.path.normpath, checkpoints)):
        raise InputError(
            f"--output={file.parent}: holds the scores of {' '.join(evaluated)}. Name another."
        )
    # Scores depend on the data; init is the checkpoint.
    decisive = {"data.dir", "data.num_generated", "eval_batches", "metrics"}
    ignored = RESUMABLE_FIELDS - decisive | {"init"}
    if difference := config_difference(fields, config, ignored):
        name, before, now = difference
        raise InputError(
            f"--output={file.parent}: holds scores for {name}={before!r}, not {now!r}. "
            "Name another."
        )
