"""`bertjax config`: list and copy configurations, write docs/configuration.md."""

import os

import pytest
from documented_commands import ROOT

from bertjax.cli.config import fields_page
from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.config.config_file import builtin_configs
from bertjax.tasks import registry

PAGE = ROOT / "docs" / "configuration.md"


@pytest.mark.seconds
def test_config_lists_prints_and_copies(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed.keys() == builtin_configs().keys()
    for name, path in builtin_configs().items():
        assert main(["config", name]) == 0
        assert capsys.readouterr().out == path.read_text()
        assert path.read_text().startswith(f'"""{listed[name]}\n')
    assert main(["config", "glue", "--output", "mine.py"]) == 0
    assert (tmp_path / "mine.py").read_text() == builtin_configs()["glue"].read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gleu"], "--config=gleu: there is no such configuration. Did you mean glue?"),
        (["--output", "mine.py"], "--output=mine.py: copies one configuration. Give its NAME"),
        (["glue", "--output", "mine.txt"], "--output=mine.txt: not a Python file"),
        (["glue", "--output", "here.py"], "--output=here.py: exists. Name another file"),
        (["glue", "--fields"], "--fields: lists all tasks. Leave glue out"),
    ],
)
def test_config_rejects_invalid_copies(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("before")
    assert message in refused("config", *arguments)
    assert os.listdir() == ["here.py"] and (tmp_path / "here.py").read_text() == "before"


def test_configuration_page_is_generated_from_the_fields() -> None:
    assert PAGE.read_text() == fields_page(), f"run: bertjax config --fields > {PAGE}"


def test_configuration_page_describes_every_field() -> None:
    fields = Config().to_dict().items()
    names = {name for name, value in fields if not isinstance(value, dict)}
    names |= {f"{name}.{key}" for name, value in fields if isinstance(value, dict) for key in value}
    names |= {f"data.{name}" for task in registry.TASKS for name in registry.data_fields()[task]}
    lines = [line for line in fields_page().splitlines() if line.startswith("| `")]
    rows = [line.strip("|").split(" | ") for line in lines]
    assert {row[0].strip(" `") for row in rows} == names
    assert all(len(row) == 4 and row[3].strip(" |") for row in rows)
