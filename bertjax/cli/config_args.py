"""`--config NAME[:OPTIONS]` and the `--config.FIELD=VALUE` that come with it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.config.config import Config


def add_config(
    parser: argparse.ArgumentParser,
    group: argparse._MutuallyExclusiveGroup | None = None,
    default_text: str = "",
) -> None:
    """To a parser, or to a group in which something else may be given instead.

    Args:
      otherwise: what is taken where none is given; "" where one must be.
    """
    (group or parser).add_argument(
        "--config",
        required=not (group or default_text),
        metavar="NAME[:OPTIONS]",
        help="a configuration that `bertjax config` lists, or FILE.py with get_config(**options), "
        "and KEY=VALUE,... for its options; --config.FIELD=VALUE overrides a field"
        + (f" ({default_text})" if default_text else ""),
    )
    parser.set_defaults(parse_extra_args=parse_overrides)


def load(args: argparse.Namespace) -> "Config":
    """The configuration that the arguments name; see `make_run_config`."""
    from bertjax.workdir.run_config import make_run_config

    checkpoint = args.checkpoint[0] if "checkpoint" in args else None
    return make_run_config(args.config, args.rest, vars(args).get("workdir"), checkpoint)


def parse_overrides(rest: Sequence[str]) -> dict[str, str]:
    """`--config.a.b=value` arguments as {"a.b": "value"}.

    Raises:
      InputError: an argument is none of these.
    """
    reject_unknown_arguments([item for item in rest if not item.startswith("--config.")])
    overrides = {}
    for item in rest:
        name, equals, value = item.removeprefix("--config.").partition("=")
        if not equals:
            raise InputError(f"{item} has no value: write {item}=VALUE.")
        overrides[name] = value
    return overrides


def reject_unknown_arguments(rest: Sequence[str]) -> None:
    """What a verb without `--config` does with arguments that its parser does not know."""
    if rest:
        raise InputError(f"{rest[0]} is no argument of this command: see --help.")
