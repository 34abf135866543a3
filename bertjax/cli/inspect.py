"""Show what a model will see, masks marked, its parameters, or what a corpus holds."""

import argparse

from bertjax.cli.config_args import add_config, load
from bertjax.cli.files import check_output
from bertjax.cli.jax_setup import skip_missing_tpu
from data_pipelines.errors import InputError

ORDER = 30
EXAMPLE = "bertjax inspect --config pretraining:smoke,data=corpora/mine --steps 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    add_config(parser, what)
    what.add_argument(
        "--corpus", metavar="DIR", help="what `bertjax prepare` wrote, to be looked at instead"
    )
    run = [
        parser.add_argument("--steps", type=int, help="steps that are shown (1)"),
        parser.add_argument("--start", type=int, help="the first of them (0)"),
        parser.add_argument("--rows", type=int, help="rows of each that are shown, at most (4)"),
        parser.add_argument("--num-processes", type=int, help="hosts that share the batches (1)"),
        parser.add_argument("--process-id", type=int, help="the host whose rows are shown (0)"),
        parser.add_argument(
            "--output",
            metavar="FILE.npz",
            help="a file for the arrays, [steps, rows, ...], instead (none)",
        ),
        parser.add_argument(
            "--params", action="store_true", default=None, help="show a table of parameters instead"
        ),
    ]
    parser.set_defaults(run_options=[action.dest for action in run])


def run(args: argparse.Namespace) -> None:
    if args.corpus:
        given = [f"--{name}" for name in args.run_options if getattr(args, name) is not None]
        if args.rest or given:
            what = given[0] if given else "--config.*"
            raise InputError(f"{what} is of a run: leave it out where --corpus is looked at.")
        from bertjax.reports.corpus import describe_corpus

        for line in describe_corpus(args.corpus):
            print(line)
        return
    from bertjax.inference.inspection import parameter_table, save_batches, show_batches

    start, steps, hosts, host, rows = (
        default if given is None else given
        for given, default in (
            (args.start, 0),
            (args.steps, 1),
            (args.num_processes, 1),
            (args.process_id, 0),
            (args.rows, 4),
        )
    )
    if start < 0:
        raise InputError(f"--start={start} is no step: count them from 0.")
    if not 0 <= host < hosts:
        raise InputError(f"--host={host} is none of --num-processes={hosts}: count them from 0.")
    if rows < 1:
        raise InputError(f"--rows={rows} must be at least 1.")
    skip_missing_tpu()
    config = load(args)
    if args.params:
        print(parameter_table(config))
    elif args.output:
        check_output(args.output)
        save_batches(config, start, steps, hosts, host, args.output)
    else:
        for text in show_batches(config, start, steps, hosts, host, rows):
            print(text)
