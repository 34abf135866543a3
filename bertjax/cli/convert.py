"""Convert a model from one format to another."""

import argparse
import os
import tempfile

from bertjax.cli.files import add_task, check_directory, report_lost_pooling
from data_pipelines.errors import InputError
from data_pipelines.hub import is_hub, parse_hub_path

ORDER = 90
EXAMPLE = "bertjax convert --to hf runs/base-2 exported"
FORMATS = ["hf", "tf1", "bertjax"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--from", dest="format_name", choices=FORMATS, help="format of SRC (detected)"
    )
    parser.add_argument("--to", required=True, choices=FORMATS, help="format of DST")
    parser.add_argument(
        "--right-to-left",
        default="",
        metavar="DIR",
        help="language model from right to left; SRC is one from left to right, and DST gets the "
        "encoders of both, to fine-tune as a pair (ELMo)",
    )
    parser.add_argument(
        "--all-steps",
        action="store_true",
        help="convert every kept checkpoint of the workdir SRC, each to DST/checkpoint-STEP; "
        "checkpoints that are there stay as they are (the best or newest one)",
    )
    parser.add_argument("source", metavar="SRC", help="model directory, checkpoint or workdir")
    parser.add_argument(
        "target",
        metavar="DST",
        help="new directory, or hf://ORG/NAME, a repository on the Hub, private if it is new",
    )
    add_task(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import check_tensorflow, find_format

    if is_hub(args.target):
        parse_hub_path(args.target)
        if args.to != "hf":
            raise InputError(f"--to {args.to}: the Hub takes models of Hugging Face. Use hf.")
    else:
        check_directory(os.path.dirname(args.target) or ".", "DST")
    args.format_name = args.format_name or find_format(args.source)
    if args.all_steps:
        _check_all_steps(args)
    if args.right_to_left:
        find_format(args.right_to_left)
        if args.to != "bertjax":
            raise InputError(f"--to {args.to}: only the bertjax format has pairs. Use bertjax.")
    if args.to == "tf1":
        check_tensorflow(args.target)


def _check_all_steps(args: argparse.Namespace) -> None:
    from bertjax.checkpointing.lookup import has_checkpoint

    if args.format_name != "bertjax" or not has_checkpoint(args.source):
        raise InputError(f"--all-steps: {args.source} is no workdir with checkpoints. Name one.")
    if args.right_to_left or is_hub(args.target):
        other = "--right-to-left" if args.right_to_left else f"DST {args.target}"
        raise InputError(f"--all-steps: {other} takes one model. Convert the checkpoints singly.")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    if not args.all_steps:
        _convert(args)
        return
    from etils import epath

    from bertjax.checkpointing.checkpointer import Checkpointer

    checkpoints, directory = Checkpointer(epath.Path(args.source) / "checkpoints"), args.target
    epath.Path(directory).mkdir(parents=True, exist_ok=True)
    for step in checkpoints.all_steps():
        args.source = str(checkpoints.path(step))
        args.target = str(epath.Path(directory) / f"checkpoint-{step}")
        if epath.Path(args.target).exists():
            print(f"{args.target}: exists, and stays as it is.")
        else:
            _convert(args)


def _convert(args: argparse.Namespace) -> None:
    """Convert the model SRC to DST, and print what it is."""
    from bertjax.checkpointing.lookup import read_checkpoint
    from bertjax.inference.convert import convert
    from bertjax.workdir.run_record import read_calibration
    from data_pipelines.hub import create_repository, upload

    format_name = args.format_name
    deleted, keeps_card = list[str](), False
    if is_hub(args.target):
        create_repository(args.target)  # fails before the conversion
        with tempfile.TemporaryDirectory() as directory:
            exported = os.path.join(directory, "model")
            model = convert(args.source, exported, format_name, args.to, args.right_to_left)
            deleted, keeps_card = upload(exported, args.target)
    else:
        model = convert(args.source, args.target, format_name, args.to, args.right_to_left)
    shape = f"{model.config.num_hidden_layers} layers, {model.config.hidden_size} wide"
    print(f"{args.target}: {', '.join(model.params)} of {shape}, from {format_name} to {args.to}.")
    if deleted:
        print(f"{args.target}: deleted, of an earlier model: {', '.join(deleted)}.")
    if keeps_card:
        print(f"{args.target}: its README.md is kept. For a new card, delete it and convert again.")
    if format_name != "bertjax" or args.to == "tf1" or args.right_to_left:
        report_lost_pooling(args.source, args.target)
    exports = format_name == "bertjax" and args.to != format_name
    calibration = read_checkpoint(args.source, read_calibration) if exports else {}
    if calibration and not model.inference:
        names = ", ".join(calibration)
        print(f"{args.target} lacks {names}: add --task MODULE:CLASS of its task.")
    if model.tokenizer is None:
        print(f"{args.source} has no vocabulary: add vocab.txt and convert again.")
    if model.unexpected_keys:
        print(f"not converted, unknown heads: {', '.join(model.unexpected_keys)}")
