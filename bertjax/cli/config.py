"""List the configurations that come with bertjax, print or copy one."""

import argparse
import ast

from etils import epath

from bertjax.cli.files import output
from data_pipelines.errors import InputError

ORDER = 25
EXAMPLE = "bertjax config pretrain --output mine.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the one that is printed (a list of all)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a new file to copy it to, of which --config FILE is then what --config NAME was "
        "(printed)",
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.training.config_file import find_file, own_files

    if not args.name:
        if args.output:
            raise InputError(f"--output={args.output} is for one configuration: give its NAME.")
        own = own_files()
        width = max(map(len, own))
        for name, file in own.items():
            print(f"{name:{width}}  {_first_line(file)}")
        return
    text = find_file(args.name).read_text()
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
