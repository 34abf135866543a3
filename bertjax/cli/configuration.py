"""`--config NAME[:OPTIONS]` and the `--config.FIELD=VALUE` that come with it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.model.encoder import BertConfig
    from bertjax.training.config import Config


def add_config(
    parser: argparse.ArgumentParser,
    group: argparse._MutuallyExclusiveGroup | None = None,
    otherwise: str = "",
) -> None:
    """To a parser, or to a group in which something else may be given instead.

    Args:
      otherwise: what is taken where none is given; "" where one must be.
    """
    (group or parser).add_argument(
        "--config",
        required=not (group or otherwise),
        metavar="NAME[:OPTIONS]",
        help="a configuration that `bertjax config` lists, or FILE.py with get_config(**options), "
        "and KEY=VALUE,... for its options; --config.FIELD=VALUE overrides a field"
        + (f" ({otherwise})" if otherwise else ""),
    )
    parser.set_defaults(parse_rest=parse_overrides)


def load(args: argparse.Namespace) -> "Config":
    """The configuration that the arguments name.

    A checkpoint to evaluate says what model it is, as what a run begins with does; that may be gone
    once the run has a checkpoint of its own. Where none is named, the checkpoint's own is taken.
    """
    from bertjax.formats.opening import find_model, own_config
    from bertjax.tasks import registry
    from bertjax.training.checkpoint import has_checkpoint
    from bertjax.training.config import load_config

    def model_of(init: str) -> "BertConfig":
        resumed = "workdir" in args and has_checkpoint(args.workdir)
        return find_model(args.workdir if resumed else init)

    named = {"init": repr(args.checkpoint[0])} if "checkpoint" in args else {}
    source = args.config or own_config(args.checkpoint[0])
    return load_config(source, named | args.rest, registry.data_fields(), model_of)


def parse_overrides(rest: Sequence[str]) -> dict[str, str]:
    """`--config.a.b=value` arguments as {"a.b": "value"}.

    Raises:
      InputError: an argument is none of these.
    """
    refuse([item for item in rest if not item.startswith("--config.")])
    overrides = {}
    for item in rest:
        name, equals, value = item.removeprefix("--config.").partition("=")
        if not equals:
            raise InputError(f"{item} has no value: write {item}=VALUE.")
        overrides[name] = value
    return overrides


def refuse(rest: Sequence[str]) -> None:
    """What a verb without `--config` does with arguments that its parser does not know."""
    if rest:
        raise InputError(f"{rest[0]} is no argument of this command: see --help.")
