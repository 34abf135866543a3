"""Arguments `--config NAME[:OPTIONS]` and `--config.FIELD=VALUE`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists, is_remote
from data_pipelines.text.tfds import TFDS, check_tfds_installed

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
        help="configuration that `bertjax config` lists, FILE.py with get_config(**options), or "
        "fields in FILE.json or FILE.yaml; OPTIONS are KEY=VALUE,...; --config.FIELD=VALUE "
        "overrides a field" + (f" ({default_text})" if default_text else ""),
    )
    parser.set_defaults(parse_extra_args=parse_overrides)


def check_config(args: argparse.Namespace, needs_data: bool = True) -> None:
    """Check `--config` and its overrides as far as JAX is not needed.

    It sets `args.config_fields` to the fields of the configuration file, None without one.

    Args:
      args: parsed arguments.
      needs_data: whether the command reads `data.dir`.

    Raises:
      InputError: the configuration file or an option is invalid, or the directory `data.dir` or the
        model `init` does not exist, or needs a library that is not installed.
    """
    from etils import epath

    from bertjax.config.config_file import override_fields, run_config_file
    from bertjax.formats.detection import find_format
    from bertjax.workdir.model_records import pin_recorded_commits

    args.config_fields = run_config_file(args.config) if args.config else None
    fields = override_fields(args.config_fields or {}, args.overrides)
    workdir, data = vars(args).get("workdir"), fields.get("data")
    # A run that has a checkpoint does not need the model that it was initialized from.
    resumes = workdir and (epath.Path(workdir) / "checkpoints").exists()
    if workdir:
        pin_recorded_commits(workdir)
    if (init := fields.get("init")) and isinstance(init, str) and not resumes:
        find_format(init)
    directory = data.get("dir") if isinstance(data, Mapping) else None
    if not (needs_data and directory and isinstance(directory, str)):
        return
    if directory.startswith(TFDS):
        check_tfds_installed(directory)
    elif not is_remote(directory):
        # `+` joins corpora.
        for path in [directory] if os.path.exists(directory) else directory.split("+"):
            check_exists(
                path, "Set data.dir to a directory, or write a corpus by `bertjax prepare`."
            )


def load(args: argparse.Namespace) -> "Config":
    """Return the configuration of arguments that `check_config` has checked."""
    from bertjax.workdir.run_config import make_run_config

    checkpoint = args.checkpoint[0] if "checkpoint" in args else None
    return make_run_config(
        args.config_fields, args.overrides, vars(args).get("workdir"), checkpoint
    )


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
