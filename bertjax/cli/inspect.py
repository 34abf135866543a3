"""Show what a model will see, masks marked, its parameters, or what a corpus holds."""

import argparse

from bertjax.cli.configuration import add_config, load
from bertjax.cli.devices import pass_over_absent_tpu
from bertjax.cli.files import check_output
from data_pipelines.errors import InputError

ORDER = 30
EXAMPLE = "bertjax inspect --config experiments/pretrain.py:smoke,data=corpora/mine --steps 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    add_config(parser, what)
    what.add_argument("--corpus", metavar="DIR", help="what `bertjax prepare` wrote")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="first step")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--save", metavar="FILE.npz", help="arrays [steps, rows, ...] instead")
    parser.add_argument("--params", action="store_true", help="table of parameters instead")


def run(args: argparse.Namespace) -> None:
    if args.corpus:
        if args.rest:
            raise InputError("--config.* are of a run: leave them out where --corpus is looked at.")
        from bertjax.reports.corpus import describe

        for line in describe(args.corpus):
            print(line)
        return
    from bertjax.runs.inspection import parameter_table, save_batches, show_batches

    if args.start < 0:
        raise InputError(f"--start={args.start} is no step: count them from 0.")
    pass_over_absent_tpu()
    config = load(args)
    if args.params:
        print(parameter_table(config))
    elif args.save:
        check_output(args.save)
        save_batches(config, args.start, args.steps, args.hosts, args.host, args.save)
    else:
        for text in show_batches(config, args.start, args.steps, args.hosts, args.host):
            print(text)
