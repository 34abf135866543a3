"""List the configurations that come with bertjax, print or copy one, or tell every field."""

import argparse
import ast
import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etils import epath

from bertjax.cli.files import output
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from data_pipelines.fields import Field

ORDER = 25
EXAMPLE = "bertjax config pretraining --output mine.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the one that is printed (a list of all)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a new file that it is copied to (printed)",
    )
    parser.add_argument(
        "--fields",
        action="store_true",
        help="every field that a configuration may have, with type, default and meaning, instead",
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.config.config_file import builtin_configs, find_config_file

    if args.fields:
        if args.name or args.output:
            raise InputError(f"--fields is of all tasks: leave {args.name or '--output'} out.")
        print(fields_page(), end="")
        return
    if not args.name:
        if args.output:
            raise InputError(f"--output={args.output} is for one configuration: give its NAME.")
        own = builtin_configs()
        width = max(map(len, own))
        for name, file in own.items():
            print(f"{name:{width}}  {_first_line(file)}")
        return
    text = find_config_file(args.name).read_text()
    if not args.output:
        print(text, end="")
        return
    target = epath.Path(args.output)
    if target.suffix != ".py":
        raise InputError(f"--output={target} is no Python file: a configuration ends in .py.")
    if target.is_file():
        raise InputError(f"--output={target} exists: name another file, or remove it.")
    with output(args.output) as sink:
        sink.write(text)
    print(f"{target}: train with it by --config {target}.")


def _first_line(file: epath.Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


_HEAD = """\
# Every field of a configuration

`--config.FIELD=VALUE` sets a field, such as `--config.seed=1` or `--config.optimizer.warmup=5%`.
Any other has the value that the configuration gives it, or else the default below. A duration is a
number of steps or a text: "200 steps", "3 epochs", "5000 examples", "10%" of the run, which of what
happens again and again is at least {least} steps; `steps`, `checkpoint_every` and `eval_every` may
also be a time, "30 minutes" or "2 hours". This page is what `bertjax config --fields` prints.
"""


def fields_page() -> str:
    """Every field of a configuration, in tables of Markdown."""
    from bertjax.config.config import MIN_INTERVAL_STEPS, Config
    from bertjax.tasks import registry

    hints = typing.get_type_hints(Config)
    tables = [
        _HEAD.format(least=MIN_INTERVAL_STEPS),
        _table("The run", "", _dataclass_fields(Config)),
    ]
    for name, section in hints.items():
        if dataclasses.is_dataclass(section):
            tables.append(
                _table(f"`{name}`: {_title(section)}", f"{name}.", _dataclass_fields(section))
            )
    for name in registry.TASK_MODULES:
        task = registry.find(name)
        title = f"`data` of task `{name}`: {_title(task)}"
        tables.append(_table(title, "data.", task.DATA_FIELDS))
    return "\n".join(tables)


def _dataclass_fields(section: Any) -> dict[str, "Field"]:
    """The fields of a dataclass that are no sections themselves."""
    return {each.name: each for each in dataclasses.fields(section) if each.metadata}


def _title(thing: Any) -> str:
    title = thing.__doc__.partition("\n")[0].rstrip(".")
    return title[0].lower() + title[1:]


def _table(title: str, prefix: str, fields: Mapping[str, "Field"]) -> str:
    lines = [f"## {title}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = json.dumps(field.default) if isinstance(field.default, str) else field.default
        kind, description = _type_name(field), field.metadata["description"].replace("|", r"\|")
        lines.append(f"| `{prefix}{name}` | {kind} | `{default}` | {description} |")
    return "\n".join([*lines, ""])


def _type_name(field: "Field") -> str:
    from bertjax.config.durations import Duration

    kind = field.type or type(field.default)  # a task's own fields have the type of their default
    kinds = typing.get_args(kind) or (kind,)
    names = ["None" if each is type(None) else each.__name__ for each in kinds]
    return "duration" if kind == Duration else " or ".join(names)
