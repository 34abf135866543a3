"""Check that the checkpoints of a run came from its data, code and seed."""

import argparse

from bertjax.cli.config_args import parse_overrides
from bertjax.cli.files import add_task
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists

ORDER = 105
EXAMPLE = "bertjax audit runs/smoke --segments 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="workdir of a run; one with a loss of its own needs --config.loss=MODULE:FUNCTION",
    )
    parser.add_argument(
        "--segments",
        type=int,
        default=0,
        metavar="N",
        help="number of segments between checkpoints, chosen at random; 0 for all (0)",
    )
    add_task(parser)
    parser.set_defaults(parse_extra_args=parse_overrides)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_exists(args.directory, "Name a workdir.")
    for name in args.overrides:
        if name != "loss":
            raise InputError(
                f"--config.{name}: an audit repeats the run as it was configured, and reads "
                "--config.loss alone. Leave it out."
            )
    if args.segments < 0:
        raise InputError(f"--segments={args.segments}: is negative. Use 0 for all segments.")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.reports.audit import TOLERANCE, Audit, AuditError

    enable_compilation_cache()
    audit, failed = Audit(args.directory, args.overrides.get("loss")), []
    for result in audit.run(args.segments):
        tolerance = f"at most {TOLERANCE} {result.tolerance_reason}"
        expected = tolerance if result.tolerance_reason else "the same bits"
        found = "the same bits" if result.is_identical else f"a difference of {result.distance:.2g}"
        name = f"{result.start:,} to {result.end:,}"
        print(f"steps {name}: {found}, expected {expected}", flush=True)
        if not result.is_accepted:
            failed.append(name)
    if failed:
        raise AuditError(
            f"{args.directory}: steps {', '.join(failed)} do not lead from one checkpoint to the "
            "next. Data, code, packages, seed or a checkpoint have changed, or a field such as "
            "mesh or gradient_accumulation_steps at a deleted checkpoint in between."
        )
    print(f"{args.directory}: the checkpoints came from these data, code and seed.")
