"""Print sequences of a run with their masks, its parameters, or statistics of a corpus."""

import argparse
import functools

from bertjax.cli.config_args import add_config, check_config, load
from bertjax.cli.files import check_output
from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists

ORDER = 30
_OPTIONS_OF_BATCHES = {"--steps", "--start", "--sequences", "--output"}
_OPTIONS_OF_BATCHES |= {"--num-processes", "--process-id"}
EXAMPLE = "bertjax inspect --config pretraining:smoke,data=corpora/mine --steps 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    subject = parser.add_mutually_exclusive_group(required=True)
    add_config(parser, subject)
    subject.add_argument(
        "--corpus", metavar="DIR", help="corpus that `bertjax prepare` wrote, instead of a run"
    )
    add_number = functools.partial(parser.add_argument, type=int)
    add_number("--steps", default=1, help="number of steps to print (%(default)s)")
    add_number("--start", default=0, help="first step (%(default)s)")
    add_number("--sequences", default=4, help="most sequences to print a step (%(default)s)")
    add_number("--num-processes", default=1, help="processes that share a batch (%(default)s)")
    add_number("--process-id", default=0, help="process whose sequences are printed (%(default)s)")
    parser.add_argument(
        "--output",
        metavar="FILE.npz",
        help="write the arrays, [steps, sequences, ...], to this file instead (none)",
    )
    parser.add_argument("--params", action="store_true", help="print a table of parameters instead")


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    if args.corpus:
        for word in args.argv:
            if word.startswith("--") and not word.startswith("--corpus"):
                flag = word.partition("=")[0]
                raise InputError(f"{flag}: belongs to a run, not to --corpus. Leave it out.")
        check_exists(args.corpus, "Name a corpus that `bertjax prepare` wrote.")
        return
    given = {word.partition("=")[0] for word in args.argv}
    if args.params and (unread := given & _OPTIONS_OF_BATCHES):
        raise InputError(f"{min(unread)}: is about batches, not --params. Leave it out.")
    if args.output and "--sequences" in given:
        raise InputError("--sequences: --output has all of them. Leave one of the two out.")
    if args.start < 0:
        raise InputError(f"--start={args.start}: not a step. Steps count from 0.")
    if not 0 <= args.process_id < args.num_processes:
        raise InputError(
            f"--process-id={args.process_id}: not below --num-processes={args.num_processes}. "
            "Count from 0."
        )
    for name in ("steps", "sequences"):
        if (number := getattr(args, name)) < 1:
            raise InputError(f"--{name}={number}: below 1. Give at least 1.")
    if args.output:
        check_output(args.output)
    check_config(args, needs_data=not args.params)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    if args.corpus:
        from bertjax.reports.corpus import describe_corpus

        for line in describe_corpus(args.corpus):
            print(line)
        return
    from bertjax.inference.inspection import parameter_table, save_batches, show_batches

    selection = load(args), args.start, args.steps, args.num_processes, args.process_id
    if args.params:
        print(parameter_table(selection[0]))
    elif args.output:
        save_batches(*selection, args.output)
    else:
        for text in show_batches(*selection, args.sequences):
            print(text)
