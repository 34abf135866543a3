"""Export a model to a runtime other than bertjax: JAX alone, TensorFlow or ONNX."""

import argparse

from bertjax.cli.files import add_checkpoint, check_directory, check_output
from data_pipelines.libraries import check_installed

ORDER = 92
EXAMPLE = "bertjax export --checkpoint runs/smoke --to stablehlo --output smoke.stablehlo"
FORMATS = ["stablehlo", "savedmodel", "onnx"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    parser.add_argument("--to", required=True, choices=FORMATS, help="format of the export")
    parser.add_argument(
        "--output",
        required=True,
        metavar="PATH",
        help="file of a StableHLO program, beside which PATH.json describes its inputs and "
        "outputs; new directory of the other formats",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import find_format

    if args.to == "stablehlo":
        for path in (args.output, f"{args.output}.json"):
            check_output(path)
    else:
        check_directory(args.output, "--output")
    if args.to == "savedmodel":
        check_installed("--to savedmodel", "tensorflow", install="tensorflow-cpu")
    if args.to == "onnx":
        check_installed("--to onnx", "onnx", install="'bertjax[onnx]'")
    find_format(args.checkpoint)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.export.onnx_model import write_onnx
    from bertjax.inference.export.saved_model import write_saved_model
    from bertjax.inference.export.stablehlo import write_stablehlo

    write = {"stablehlo": write_stablehlo, "savedmodel": write_saved_model, "onnx": write_onnx}
    signature = write[args.to](args.checkpoint, args.output, args.task)
    for name, specs in signature._asdict().items():
        arrays = (f"{spec.name} [{', '.join(map(str, spec.shape))}]" for spec in specs)
        print(f"{name}: {', '.join(arrays)}")
    print(f"{args.output}: exported to {args.to}.")
