"""Documentation: every command parses, every field and link exists."""

import collections
import re
import shlex

import pytest
from documented_commands import (
    FENCES,
    INSTALLED,
    PAGES,
    ROOT,
    RUN_BY,
    Printed,
    blocks,
    printed,
    run_by,
)

from bertjax.cli import main as cli
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry

COMMANDS = printed()
FILES = {"safetensors"}  # whose names look like those of fields
PROGRAMS = [each for each in COMMANDS if re.match(r"python (-m )?experiments[./]", each.command)]
OURS = [each for each in COMMANDS if each.words[0] == "bertjax"]


def test_code_blocks_name_their_language() -> None:
    for page in PAGES:
        for kind, block in blocks(page.read_text()):
            assert not kind or kind in FENCES, f"{page.name}: {kind!r} of {block!r}"
            assert page.read_text().count("```") % 2 == 0


def test_every_command_is_run_by_a_test(capsys) -> None:
    counts = collections.Counter(run_by(each) for each in COMMANDS)
    for who, most, _ in RUN_BY:
        assert 0 < counts[who] <= most, f"{counts[who]} commands are left to {who}"
    installed = (ROOT / INSTALLED).read_text().splitlines()
    for each in COMMANDS:
        if run_by(each) == INSTALLED:
            assert not {*each.command.split(" && ")} - {*installed}, each.command
    with capsys.disabled():
        print(f"\n{len(COMMANDS)} commands in README and docs, run by:")
        for who, count in counts.most_common():
            print(f"  {count:3}  {who or 'test_commands_run_as_printed'}")


@pytest.mark.parametrize("each", OURS, ids=lambda each: f"{each.page} {each.command}")
def test_commands_parse(each: Printed, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    command = each.command.replace("mine.py:", "pretraining:")  # of which it is a copy
    try:
        args, rest = cli._parser().parse_known_args(shlex.split(command)[1:])
    except SystemExit as stop:
        assert stop.code == 0, "the parser refuses it"  # --version ends here
        return
    overrides = args.parse_extra_args(rest)
    if getattr(args, "config", None):
        config = load_config(args.config, overrides, registry.data_fields(), lambda _: BertConfig())
        config.resolve(sequences_per_epoch=10**6)
    if "topology" in args:
        Topology(args.topology)


@pytest.mark.parametrize("each", PROGRAMS, ids=lambda each: each.command)
def test_experiment_programs_exist_with_their_options(each: Printed) -> None:
    name = each.words[2] if each.words[1] == "-m" else each.words[1].removesuffix(".py")
    program = ROOT / name.replace(".", "/")
    file = program / "__main__.py" if program.is_dir() else program.with_suffix(".py")
    source = file.read_text()
    if "make_parser" in source:
        source += (ROOT / "experiments/bench/harness.py").read_text()
    for word in each.words:
        if word.startswith("--") and not word.startswith("--config."):
            option = word.partition("=")[0]
            assert option == "--config" or f'"{option}"' in source, option


def test_named_fields_and_subcommands_exist() -> None:
    known = {name for task in registry.TASKS for name in registry.data_fields()[task]}
    sections = {
        name: set(value) for name, value in Config().to_dict().items() if isinstance(value, dict)
    }
    sections["data"] = known
    verbs = cli.find_subcommands()
    for page in PAGES:
        for span in re.findall(r"`([^`]+)`", re.sub(r"```[\s\S]*?```", "", page.read_text())):
            name = span.removeprefix("--config.").partition("=")[0]
            section, _, field = name.partition(".")
            if section in sections and re.fullmatch(r"[a-z]\w*", field) and field not in FILES:
                assert field in sections[section], f"{page.name}: {span}"
            elif span.startswith("--config.") and name.islower():
                assert name in Config().to_dict(), f"{page.name}: {span}"
            elif span.startswith("bertjax ") and span != "bertjax SUBCOMMAND":
                verb = span.split()[1]
                assert verb in verbs or verb.startswith("--"), f"{page.name}: {span}"


def test_readme_links_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_coming_from_lists_every_field_and_class() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    for field in huggingface._FIELDS:
        assert f"`{field}`" in page
    for head in HEADS.values():
        if head.module.__module__.partition(".")[0] != "bertjax":  # of another test
            continue
        row = rf"\| `Flax{head.architecture}` \|.*`{head.name}`"
        assert re.search(row, page), head.architecture
