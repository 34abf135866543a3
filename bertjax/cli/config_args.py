"""Arguments `--config NAME[:OPTIONS]` and `--config.FIELD=VALUE`."""

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
    """Add `--config` and its overrides.

    Args:
      parser: parser of the subcommand.
      group: group of alternatives to `--config`, if there are any.
      default_text: description of the default; "" if `--config` is required.
    """
    (group or parser).add_argument(
        "--config",
        required=not (group or default_text),
        metavar="NAME[:OPTIONS]",
        help="configuration that `bertjax config` lists, or FILE.py with get_config(**options); "
        "OPTIONS are KEY=VALUE,...; --config.FIELD=VALUE overrides a field"
        + (f" ({default_text})" if default_text else ""),
    )
    parser.set_defaults(parse_extra_args=parse_overrides)


def load(args: argparse.Namespace) -> "Config":
    """Return the configuration that the arguments name; see `make_run_config`."""
    from bertjax.workdir.run_config import make_run_config

    checkpoint = args.checkpoint[0] if "checkpoint" in args else None
    return make_run_config(args.config, args.overrides, vars(args).get("workdir"), checkpoint)


def parse_overrides(extra: Sequence[str]) -> dict[str, str]:
    """Return `--config.a.b=value` arguments as {"a.b": "value"}.

    Raises:
      InputError: an argument has another form.
    """
    reject_unknown_arguments([item for item in extra if not item.startswith("--config.")])
    overrides = {}
    for item in extra:
        name, equals, value = item.removeprefix("--config.").partition("=")
        if not equals:
            raise InputError(f"{item}: no value. Write {item}=VALUE.")
        overrides[name] = value
    return overrides


def reject_unknown_arguments(extra: Sequence[str]) -> None:
    """Raise InputError for the first of some arguments that the parser does not know."""
    if extra:
        raise InputError(f"{extra[0]}: unknown argument. See --help.")
