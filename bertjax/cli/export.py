"""Write a model as a program that runs without bertjax."""

import argparse

from bertjax.cli.files import add_checkpoint, check_output
from bertjax.cli.jax_setup import skip_missing_tpu

ORDER = 92
EXAMPLE = "bertjax export --checkpoint runs/smoke --to stablehlo --output smoke.stablehlo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint(parser)
    parser.add_argument("--to", required=True, choices=["stablehlo"], help="what it is written in")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="a file for the program; what it takes and gives is written to FILE.json",
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.inference.stablehlo import write_stablehlo

    for path in (args.output, f"{args.output}.json"):
        check_output(path)
    skip_missing_tpu()
    about = write_stablehlo(args.checkpoint, args.output)
    for name in ("inputs", "outputs"):
        said = (f"{each['name']} [{', '.join(map(str, each['shape']))}]" for each in about[name])
        print(f"{name}: {', '.join(said)}")
    print(f"{args.output}: from inputs to outputs on {', '.join(about['platforms'])}.")
