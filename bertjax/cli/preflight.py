"""Say whether a run fits a topology, and how fast it will be."""

import argparse
import os
from typing import TYPE_CHECKING

from bertjax.cli.config_args import add_config, load
from bertjax.cli.files import check_output, output
from bertjax.errors import RunError
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.config.config import Config
    from bertjax.preflight.analysis import PreflightReport
    from bertjax.preflight.topology import Topology

ORDER = 40
EXAMPLE = "bertjax preflight --config pretraining:model=base --topology v5e:4x4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--topology",
        required=True,
        metavar="KIND:SHAPE",
        help="the devices, such as v5e:4x4, h100:2x8 or cpu:1",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="a file for what is printed, for a program (none)"
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=0,
        metavar="N",
        help="those of a sweep, which are trained at once, as many on each device; 0 for a run by "
        "itself (%(default)s)",
    )
    parser.add_argument(
        "--search",
        choices=["batch"],
        help="find the most rows a device that fit instead, to one in a hundred; compiles a "
        "program for each try (none)",
    )


def run(args: argparse.Namespace) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs, so no accelerator is taken
    from bertjax.preflight.analysis import preflight, suggested_fixes
    from bertjax.preflight.report import format_report
    from bertjax.preflight.topology import Topology

    if args.json:
        check_output(args.json)
    topology, config = Topology(args.topology), load(args)
    if args.search and args.runs:
        raise InputError("--search is for one run: leave --runs out.")
    verdict = (
        _search_batch_size(config, topology)
        if args.search
        else preflight(config, topology, runs=args.runs)
    )
    print(format_report(verdict), flush=True)
    if args.json:
        with output(args.json) as sink:
            sink.write(verdict.to_json())
    if not verdict.train.fits and not args.runs:
        for change, changed in suggested_fixes(config, topology):
            print(f"\nwith {change}: {format_report(changed).splitlines()[0]}", flush=True)


def _search_batch_size(config: "Config", topology: "Topology") -> "PreflightReport":
    """Prints the most rows a device that fit; returns the verdict on the most of all."""
    from bertjax.preflight.analysis import largest_batch

    found = []
    for remat in (False, True):
        verdict = largest_batch(config, topology, remat)
        rows = "none fits" if verdict is None else f"{verdict.train.per_device_batch_size} fit"
        print(f"rows a device {'with' if remat else 'without'} remat: {rows}", flush=True)
        found += [verdict] if verdict else []
    if not found:
        raise RunError(
            f"not even {config.gradient_accumulation_steps} rows a device, one in each part of the accumulation, "
            f"fit {topology.name}: use more devices or a mesh that splits the model."
        )
    print()
    return max(found, key=lambda verdict: verdict.train.per_device_batch_size)
