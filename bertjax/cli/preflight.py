"""Report whether a run fits a topology, and its estimated speed."""

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.config_args import add_config, check_config, load
from bertjax.cli.files import check_output, open_output
from bertjax.errors import CommandError
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.config.config import Config
    from bertjax.preflight.report import PreflightReport
    from bertjax.preflight.topology import Topology

ORDER = 40
EXAMPLE = "bertjax preflight --config pretraining:model=base --topology v5e:4x4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_config(parser)
    parser.add_argument(
        "--topology",
        required=True,
        metavar="KIND:SHAPE",
        help="devices, such as v5e:4x4, h100:2x8 or cpu:1",
    )
    parser.add_argument("--json", metavar="FILE", help="file for the report as JSON (none)")
    parser.add_argument(
        "--parallel-runs",
        type=int,
        default=0,
        metavar="N",
        help="runs of a sweep that are trained in one program, spread over the devices; 0 for a "
        "single run (%(default)s)",
    )
    parser.add_argument(
        "--search",
        choices=["batch"],
        help="find the largest per-device batch size that fits, within 1%%; compiles a program "
        "for each try (none)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    if args.json:
        check_output(args.json)
    if args.parallel_runs < 0:
        raise InputError(
            f"--parallel-runs={args.parallel_runs}: is negative. Use 0 for a single run."
        )
    if args.search and args.parallel_runs:
        raise InputError("--search: searches for a single run. Leave --parallel-runs out.")
    check_config(args, needs_data=False)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.preflight.analysis import preflight
    from bertjax.preflight.report import format_report, format_result
    from bertjax.preflight.search import suggested_fixes
    from bertjax.preflight.topology import Topology
    from bertjax.sweeps.grid import check_parallel

    topology, config = Topology(args.topology), load(args)
    if args.parallel_runs:
        check_parallel(config)
    report = (
        _search_batch_size(config, topology)
        if args.search
        else preflight(config, topology, num_runs=args.parallel_runs)
    )
    print(format_report(report), flush=True)
    if args.json:
        with open_output(args.json) as sink:
            sink.write(report.to_json())
    if not report.train.fits and not args.parallel_runs:
        for change, changed in suggested_fixes(config, topology):
            print(f"\nwith {change}: {format_result(changed)}", flush=True)


def _search_batch_size(config: "Config", topology: "Topology") -> "PreflightReport":
    """Print the largest batch sizes with and without remat; return the larger one's report."""
    from bertjax.preflight.search import largest_batch

    reports = []
    for remat in (False, True) if config.model.encoder == "transformer" else (False,):
        report = largest_batch(config, topology, remat)
        size = "none fits" if report is None else f"{report.train.per_device_batch_size:,}"
        print(
            f"largest per-device batch size {'with' if remat else 'without'} remat: {size}",
            flush=True,
        )
        reports += [report] if report else []
    if not reports:
        raise CommandError(
            f"batch_size: not even one sequence per device and microbatch fits {topology.name}. "
            "Use more devices, or a mesh that splits the model."
        )
    print()
    return max(reports, key=lambda report: report.train.per_device_batch_size)
