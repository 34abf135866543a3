"""Print sequences of a run with their masks, its parameters, or statistics of a corpus."""

import argparse

from bertjax.cli.config_args import add_config, load
from bertjax.cli.files import check_output
from bertjax.cli.jax_setup import skip_missing_tpu
from data_pipelines.errors import InputError

ORDER = 30
EXAMPLE = "bertjax inspect --config pretraining:smoke,data=corpora/mine --steps 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    subject = parser.add_mutually_exclusive_group(required=True)
    add_config(parser, subject)
    subject.add_argument(
        "--corpus", metavar="DIR", help="corpus that `bertjax prepare` wrote, instead of a run"
    )
    run = [
        parser.add_argument("--steps", type=int, help="number of steps to print (1)"),
        parser.add_argument("--start", type=int, help="first step (0)"),
        parser.add_argument(
            "--sequences", type=int, help="largest number of sequences to print a step (4)"
        ),
        parser.add_argument("--num-processes", type=int, help="processes that share a batch (1)"),
        parser.add_argument(
            "--process-id", type=int, help="process whose sequences are printed (0)"
        ),
        parser.add_argument(
            "--output",
            metavar="FILE.npz",
            help="write the arrays, [steps, sequences, ...], to this file instead (none)",
        ),
        parser.add_argument(
            "--params",
            action="store_true",
            default=None,
            help="print a table of parameters instead",
        ),
    ]
    parser.set_defaults(run_options=[action.dest for action in run])


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    if args.corpus:
        run_flags = [
            f"--{name.replace('_', '-')}"
            for name in args.run_options
            if getattr(args, name) is not None
        ]
        if args.overrides or run_flags:
            argument = run_flags[0] if run_flags else "--config.*"
            raise InputError(f"{argument}: belongs to a run, not to --corpus. Leave it out.")
        from bertjax.reports.corpus import describe_corpus

        for line in describe_corpus(args.corpus):
            print(line)
        return
    from bertjax.inference.inspection import parameter_table, save_batches, show_batches

    start, steps, num_processes, process_id, max_sequences = (
        default if value is None else value
        for value, default in (
            (args.start, 0),
            (args.steps, 1),
            (args.num_processes, 1),
            (args.process_id, 0),
            (args.sequences, 4),
        )
    )
    if start < 0:
        raise InputError(f"--start={start}: not a step. Steps count from 0.")
    if not 0 <= process_id < num_processes:
        raise InputError(
            f"--process-id={process_id}: not below --num-processes={num_processes}. Count from 0."
        )
    if max_sequences < 1:
        raise InputError(f"--sequences={max_sequences}: below 1. Give at least 1.")
    skip_missing_tpu()
    config = load(args)
    if args.params:
        print(parameter_table(config))
    elif args.output:
        check_output(args.output)
        save_batches(config, start, steps, num_processes, process_id, args.output)
    else:
        for text in show_batches(config, start, steps, num_processes, process_id, max_sequences):
            print(text)
