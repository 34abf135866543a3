"""The entry point of the command line: its parser, exit statuses and one-line errors."""

import argparse
import errno
import json
import logging
import re
import shlex
import subprocess
import sys

import pytest
from conftest import bertjax, process_environment, sample_text
from toy_tasks import EXPERIMENTS

import bertjax.cli.main as main_module
from bertjax.cli import config, preflight
from bertjax.cli.main import _OnceFilter, _parser, find_subcommands, main
from bertjax.errors import CommandError
from data_pipelines.errors import InputError


@pytest.mark.parametrize("subcommand", find_subcommands())
def test_example_parses(subcommand: str) -> None:
    module = find_subcommands()[subcommand]
    program, *arguments = shlex.split(module.EXAMPLE)
    args, unknown = _parser().parse_known_args(arguments)
    assert (program, arguments[0], unknown, args.run) == ("bertjax", subcommand, [], module.run)


@pytest.mark.parametrize("subcommand", find_subcommands())
def test_options_have_help_and_default(subcommand: str) -> None:
    (subcommands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = subcommands.choices[subcommand]
    exclusive = [a for group in parser._mutually_exclusive_groups for a in group._group_actions]
    for action in parser._actions:
        help_text = (action.help or "").replace("%(default)s", str(action.default))
        meaning, default = re.fullmatch(r"(.*?)(?: \(([^()]+)\))?", help_text).groups()
        name = action.option_strings or action.dest
        assert meaning.count(" "), f"{name}: {help_text!r} has no description"
        if not (action.required or action in exclusive or action.nargs == 0):
            assert default, f"{name}: {help_text!r} does not end with its default in brackets"
            assert action.default in (None, "", []) or default == str(action.default), name


def test_repeated_options_add_up() -> None:
    parse = _parser().parse_args
    args = parse(["prepare", "--input", "a", "b", "--input", "c", "--vocab", "v", "--output", "o"])
    assert args.input == ["a", "b", "c"]
    assert parse(["predict", "--checkpoint", "x", "--text", "a", "--text", "b"]).text == ["a", "b"]


def test_numbers_are_limited_by_what_they_count(capsys) -> None:
    parse = _parser().parse_args
    args = parse(["serve", "--checkpoint", "x", "--max-body-bytes", str(1 << 31)])
    assert args.max_body_bytes == 1 << 31
    for option, value in (("max-body-bytes", (1 << 31) + 1), ("max-inputs", 10_000_001)):
        with pytest.raises(SystemExit):
            parse(["serve", "--checkpoint", "x", f"--{option}", str(value)])
        assert f"argument --{option}: {value} is above {value - 1:,}" in capsys.readouterr().err


def test_subcommands_are_listed_in_order() -> None:
    expected = [
        "vocab",
        "prepare",
        "inspect",
        "preflight",
        "train",
        "evaluate",
        "predict",
        "convert",
    ]
    subcommands = find_subcommands()
    assert [name for name in subcommands if name in expected] == expected
    assert len({module.ORDER for module in subcommands.values()}) == len(subcommands)


def test_main_without_subcommand_prints_help(capsys) -> None:
    assert main([]) == 2
    help_text = capsys.readouterr().err
    for subcommand in find_subcommands():
        assert re.search(rf"^    {subcommand}\b", help_text, re.MULTILINE), subcommand


def test_main_prints_the_version(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == "bertjax 0.1.0\n"


def config_program(setup: str) -> str:
    """Return a program that runs `bertjax config` after replacing `config.run`."""
    head = "import os, sys; from bertjax.cli import config, main"
    return f"{head}\n{setup}\nsys.exit(main.main(['config']))"


def test_main_ends_silently_on_a_closed_pipe() -> None:
    program = config_program("config.run = lambda args: [print('x' * 999) for _ in range(9999)]")
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=process_environment(),
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_only_the_subcommand_preflight_compiles_for_other_devices(monkeypatch) -> None:
    compiles: list[bool] = []
    monkeypatch.setattr(
        main_module, "choose_platforms", lambda compiles_only: compiles.append(compiles_only)
    )
    _, *preflight_arguments = shlex.split(preflight.EXAMPLE)
    for module, arguments in ((config, ["config", "preflight"]), (preflight, preflight_arguments)):
        monkeypatch.setattr(module, "run", lambda args: None)
        assert main(arguments) == 0
    assert compiles == [False, True]


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("error", ["ValueError", "KeyError", "FileNotFoundError", "TypeError"])
def test_main_keeps_tracebacks_of_faults(error: str) -> None:
    setup = f"def run(args): raise {error}('by mistake')\nconfig.run = run"
    done = run_python(config_program(setup))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and f"{error}: " in done.stderr.splitlines()[-1]


class InterruptedCommandError(CommandError):
    status = 75


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("no luck"), 2),
        (CommandError("no luck"), 1),
        (InterruptedCommandError("no luck"), 75),
        (OSError(errno.ENOSPC, "no luck"), 1),
        (PermissionError(errno.EACCES, "no luck"), 1),
        (ConnectionResetError("no luck"), 1),
    ],
    ids=repr,
)
def test_main_reports_user_and_machine_errors_in_one_line(
    error: Exception, status: int, monkeypatch, capsys
) -> None:
    def run(args: object) -> None:
        raise error

    monkeypatch.setattr(config, "run", run)
    assert main(["config"]) == status
    output = capsys.readouterr().err
    assert output.startswith("bertjax: ") and "no luck" in output and output.count("\n") == 1


def test_main_reports_a_closed_stdout() -> None:
    program = config_program("config.run = lambda args: (os.fstat(1), print('x'))")
    done = run_python(f"import os; os.close(1); import sys; sys.stdout = None\n{program}")
    assert done.returncode == 1
    assert done.stderr.startswith("bertjax: standard output is closed")


@pytest.mark.slow
def test_commands_lead_from_text_to_filled_masks(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(sample_text(seed=2, documents=40))

    def run(*arguments: object, **options: object) -> str:
        done = bertjax(*arguments, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("vocab", "--input", "text.txt", "--vocab-size", 90, "--output", "vocab.txt")
    run("prepare", "--input", "text.txt", "--vocab", "vocab.txt", "--output", "corpus",
        "--workers", 2, "--eval-fraction", 0.1)  # fmt: skip
    config = [
        "--config",
        f"{EXPERIMENTS}/pretraining.py:smoke,data=corpus",
        "--config.model.vocab_size=90",
    ]
    run("train", *config, "--workdir", "run")
    scores = json.loads(run("evaluate", *config, "--checkpoint", "run", "--output", "scores"))
    assert scores == json.loads((tmp_path / "scores" / "scores.json").read_text())
    answer = json.loads(
        run("predict", "--checkpoint", "run", "--input", "-", "--output", "-", input="ba [MASK] .")
    )
    assert len(answer["masks"]) == 1
    question = ["--checkpoint", "run", "--field", "question=ba?", "--field", "context=ba do"]
    error = bertjax("predict", *question, cwd=tmp_path).stderr
    assert "This model fills [MASK]s" in error and error.endswith("[MASK].'\n")
    assert run("report", "run").strip().endswith(".html")


def test_messages_about_data_are_logged_once() -> None:
    once = _OnceFilter()
    names = ["data_pipelines", "data_pipelines", "bertjax", "bertjax", "data_pipelines.text"]
    records = [logging.LogRecord(name, logging.INFO, "", 0, "%s", ("a",), None) for name in names]
    assert [once.filter(record) for record in records] == [True, False, True, True, False]
