"""README and docs/: every command parses, every field, subcommand and link exists."""

import collections
import re
import shlex

import pytest
from documented_commands import (
    FENCES,
    INSTALLED,
    PAGES,
    ROOT,
    RUNNERS,
    DocumentedCommand,
    code_blocks,
    documented_commands,
    find_runner,
)

from bertjax.cli import main as cli
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry

COMMANDS = documented_commands()
FILE_SUFFIXES = {"safetensors"}  # `model.safetensors` looks like a field
PROGRAMS = [line for line in COMMANDS if re.match(r"python (-m )?experiments[./]", line.command)]
BERTJAX_COMMANDS = [line for line in COMMANDS if line.words[0] == "bertjax"]


def test_code_blocks_name_their_language() -> None:
    for page in PAGES:
        for language, block in code_blocks(page.read_text()):
            assert not language or language in FENCES, f"{page.name}: {language!r} of {block!r}"
        assert page.read_text().count("```") % 2 == 0


def test_every_command_is_run_by_a_test(capsys) -> None:
    counts = collections.Counter(find_runner(line.command) for line in COMMANDS)
    for runner, max_commands, _ in RUNNERS:
        assert 0 < counts[runner] <= max_commands, f"{counts[runner]} commands for {runner}"
    installed = (ROOT / INSTALLED).read_text().splitlines()
    for _, command in COMMANDS:
        if find_runner(command) == INSTALLED:
            assert not {*command.split(" && ")} - {*installed}, command
    with capsys.disabled():
        print(f"\n{len(COMMANDS)} commands in README and docs, run by:")
        for runner, count in counts.most_common():
            print(f"  {count:3}  {runner or 'test_commands_run_as_printed'}")


@pytest.mark.parametrize("line", BERTJAX_COMMANDS, ids=lambda line: f"{line.page} {line.command}")
def test_commands_parse(line: DocumentedCommand, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    command = line.command.replace("mine.py:", "pretraining:")  # mine.py is a copy of it
    command = re.sub(r"runs/\w+/config\.json", "pretraining", command)  # which a run writes
    try:
        args, extra = cli._parser().parse_known_args(shlex.split(command)[1:])
    except SystemExit as stop:
        assert stop.code == 0, "usage error"  # --version exits with 0
        return
    overrides = args.parse_extra_args(extra)
    if getattr(args, "config", None):
        config = load_config(args.config, overrides, registry.data_fields(), lambda _: BertConfig())
        config.resolve(examples_per_epoch=10**6)
    if "topology" in args:
        Topology(args.topology)


@pytest.mark.parametrize("line", PROGRAMS, ids=lambda line: line.command)
def test_experiment_programs_exist_with_their_options(line: DocumentedCommand) -> None:
    name = line.words[2] if line.words[1] == "-m" else line.words[1].removesuffix(".py")
    program = ROOT / name.replace(".", "/")
    file = program / "__main__.py" if program.is_dir() else program.with_suffix(".py")
    source = file.read_text()
    if "make_parser" in source:
        source += (ROOT / "experiments/bench/harness.py").read_text()
    for word in line.words:
        if word.startswith("--") and not word.startswith("--config."):
            option = word.partition("=")[0]
            assert option == "--config" or f'"{option}"' in source, option


def test_named_fields_and_subcommands_exist() -> None:
    sections = {
        name: set(value) for name, value in Config().to_dict().items() if isinstance(value, dict)
    }
    sections["data"] = {name for fields in registry.data_fields().values() for name in fields}
    subcommands = cli.find_subcommands()
    for page in PAGES:
        for span in re.findall(r"`([^`]+)`", re.sub(r"```[\s\S]*?```", "", page.read_text())):
            name = span.removeprefix("--config.").partition("=")[0]
            section, _, field = name.partition(".")
            if (
                section in sections
                and re.fullmatch(r"[a-z]\w*", field)
                and field not in FILE_SUFFIXES
            ):
                assert field in sections[section], f"{page.name}: {span}"
            elif span.startswith("--config.") and name.islower():
                assert name in Config().to_dict(), f"{page.name}: {span}"
            elif span.startswith("bertjax ") and span != "bertjax SUBCOMMAND":
                word = span.split()[1]
                assert word in subcommands or word.startswith("--"), f"{page.name}: {span}"


def test_readme_links_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_coming_from_lists_every_field_and_class() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    for field in huggingface.FIELDS:
        assert f"`{field}`" in page
    for head in HEADS.values():
        source = getattr(head.sums, "__module__", "bertjax.model.losses")
        if source.partition(".")[0] != "bertjax":  # registered by another test
            continue
        # transformers has no class of the heads that a task registers.
        has_class = source.startswith("bertjax.model.")
        row = rf"\| {f'`Flax{head.architecture}`' if has_class else 'none.*'} \|.*`{head.name}`"
        assert re.search(row, page), head.name
