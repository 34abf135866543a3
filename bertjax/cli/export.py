"""Export a model as a program that runs without bertjax."""

import argparse

from bertjax.cli.files import add_checkpoint, check_output

ORDER = 92
EXAMPLE = "bertjax export --checkpoint runs/smoke --to stablehlo --output smoke.stablehlo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    parser.add_argument("--to", required=True, choices=["stablehlo"], help="format of the program")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="file of the program; FILE.json describes its inputs and outputs",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import find_format

    for path in (args.output, f"{args.output}.json"):
        check_output(path)
    find_format(args.checkpoint)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.stablehlo import write_stablehlo

    metadata = write_stablehlo(args.checkpoint, args.output)
    for name in ("inputs", "outputs"):
        arrays = (f"{a['name']} [{', '.join(map(str, a['shape']))}]" for a in metadata[name])
        print(f"{name}: {', '.join(arrays)}")
    print(f"{args.output}: runs on {', '.join(metadata['platforms'])}.")
