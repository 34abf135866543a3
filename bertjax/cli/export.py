"""Export a model to a runtime other than bertjax: JAX alone, TensorFlow or ONNX."""

import argparse

from bertjax.cli.files import (
    add_checkpoint,
    check_directory,
    check_output,
    report_lost_pooling,
)
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed
from data_pipelines.paths import check_file

ORDER = 92
EXAMPLE = "bertjax export --checkpoint runs/smoke --to stablehlo --output smoke.stablehlo"
FORMATS = ["stablehlo", "savedmodel", "onnx"]
_MIN_AGREEMENT = 0.95


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
    parser.add_argument(
        "--int8",
        metavar="FILE",
        help="with --to onnx: int8 weights, if they hardly change the answers to the inputs in "
        "FILE, which has a format of `bertjax predict --input` (float32 weights)",
    )
    parser.add_argument(
        "--min-agreement",
        type=float,
        metavar="SHARE",
        help="with --int8: share of equal answers, or mean cosine of embeddings, below which "
        f"nothing is written ({_MIN_AGREEMENT})",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import find_format

    if args.int8 is None:
        if args.min_agreement is not None:
            raise InputError(
                f"--min-agreement={args.min_agreement}: is of --int8. Give FILE to it."
            )
    else:
        args.min_agreement = _MIN_AGREEMENT if args.min_agreement is None else args.min_agreement
        if args.to != "onnx":
            raise InputError(f"--int8={args.int8}: for --to onnx alone. Leave it out.")
        if not 0 <= args.min_agreement <= 1:
            raise InputError(f"--min-agreement={args.min_agreement}: not in [0, 1]. Give a share.")
        check_file(args.int8)
        check_installed("--int8", "onnxruntime", install="'bertjax[onnx]'")
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
    from bertjax.cli.input_files import input_file_reader
    from bertjax.inference.export.onnx_model import write_onnx
    from bertjax.inference.export.quantization import Int8Gate
    from bertjax.inference.export.saved_model import write_saved_model
    from bertjax.inference.export.stablehlo import write_stablehlo

    if args.to == "onnx":
        gate = args.int8 and Int8Gate(input_file_reader(args.int8), args.min_agreement)
        signature = write_onnx(args.checkpoint, args.output, args.task, gate)
    else:
        write = {"stablehlo": write_stablehlo, "savedmodel": write_saved_model}[args.to]
        signature = write(args.checkpoint, args.output, args.task)
    for name, specs in signature._asdict().items():
        arrays = (f"{spec.name} [{', '.join(map(str, spec.shape))}]" for spec in specs)
        print(f"{name}: {', '.join(arrays)}")
    print(f"{args.output}: exported to {args.to}.")
    if args.to != "onnx":
        report_lost_pooling(args.checkpoint, args.output)
