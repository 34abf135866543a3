"""List the built-in configurations, print or copy one, or list every field."""

import argparse
import ast
import dataclasses
import json
import shlex
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertjax.cli.files import check_new_file, open_output
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from etils import epath

    from data_pipelines.fields import Field

ORDER = 25
EXAMPLE = "bertjax config pretraining --output mine.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="configuration to print (lists all configurations)"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="copy the configuration to this new file (prints it)"
    )
    parser.add_argument(
        "--fields",
        action="store_true",
        help="print the fields of all tasks, with type, default and description",
    )


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.config.config_file import builtin_configs, find_config_file

    if args.fields:
        if args.name or args.output:
            raise InputError(f"--fields: lists all tasks. Leave {args.name or '--output'} out.")
        print(fields_page(), end="")
        return
    if not args.name:
        if args.output:
            raise InputError(f"--output={args.output}: copies one configuration. Give its NAME.")
        configs = builtin_configs()
        width = max(map(len, configs))
        for name, file in configs.items():
            print(f"{name:{width}}  {_first_line(file)}")
        return
    text = find_config_file(args.name).read_text()
    if not args.output:
        print(text, end="")
        return
    if not args.output.endswith(".py"):
        raise InputError(f"--output={args.output}: not a Python file. Name one that ends in .py.")
    check_new_file(args.output)
    with open_output(args.output) as file:
        file.write(text)
    print(f"{args.output}: use it by --config {shlex.quote(args.output)}.")


def _first_line(file: "epath.Path") -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


_PAGE_INTRODUCTION = """\
# Every field of a configuration

`--config.FIELD=VALUE` sets a field, for example `--config.seed=1` or
`--config.optimizer.warmup=5%`. Other fields have the value of the configuration file, or else the
default below. A duration is a number of steps or a text: "200 steps", "3 epochs", "5000 examples"
or "10%" of the run. An interval in percent is at least {min_interval} steps. `steps`, `eval_every`,
`checkpoint_every` and `keep_period` may also be a time, "30 minutes" or "2 hours".
`bertjax config --fields` prints this page.
"""


def fields_page() -> str:
    """Return a Markdown page that lists every field of a configuration."""
    from bertjax.config.config import MIN_INTERVAL_STEPS, Config
    from bertjax.tasks import registry

    hints = typing.get_type_hints(Config)
    tables = [
        _PAGE_INTRODUCTION.format(min_interval=MIN_INTERVAL_STEPS),
        _table("The run", "", _dataclass_fields(Config)),
    ]
    for name, section in hints.items():
        if dataclasses.is_dataclass(section):
            tables.append(
                _table(f"`{name}`: {_title(section)}", f"{name}.", _dataclass_fields(section))
            )
    for name in registry.TASKS:
        task = registry.find_task(name)
        title = f"`data` of task `{name}`: {_title(task)}"
        tables.append(_table(title, "data.", task.DATA_FIELDS))
    return "\n".join(tables)


def _dataclass_fields(section: Any) -> dict[str, "Field"]:
    """Return the fields of a dataclass that are not sections themselves, by name."""
    return {field.name: field for field in dataclasses.fields(section) if field.metadata}


def _title(section: Any) -> str:
    title = section.__doc__.partition("\n")[0].rstrip(".")
    return title[0].lower() + title[1:]


def _table(title: str, prefix: str, fields: Mapping[str, "Field"]) -> str:
    lines = [f"## {title}", "", "| field | type | default | description |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = json.dumps(field.default) if isinstance(field.default, str) else field.default
        description = field.metadata["description"].replace("|", r"\|")
        lines.append(f"| `{prefix}{name}` | {_type_name(field)} | `{default}` | {description} |")
    return "\n".join([*lines, ""])


def _type_name(field: "Field") -> str:
    from bertjax.config.durations import Duration

    field_type = field.type or type(field.default)  # `data` fields have the type of their default
    if field_type == Duration:
        return "duration"
    types = typing.get_args(field_type) or (field_type,)
    return " or ".join("None" if t is type(None) else t.__name__ for t in types)
