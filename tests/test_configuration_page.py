"""docs/configuration.md is generated from the fields, and complete."""

import pathlib

from bertjax.cli.config import fields_page
from bertjax.config.config import Config
from bertjax.tasks import registry

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "configuration.md"


def test_page_is_generated_from_the_fields() -> None:
    assert PAGE.read_text() == fields_page(), f"run: bertjax config --fields > {PAGE}"


def test_page_describes_every_field() -> None:
    fields = [*Config().to_dict().items()]
    names = {name for name, value in fields if not isinstance(value, dict)}
    names |= {f"{name}.{key}" for name, value in fields if isinstance(value, dict) for key in value}
    names |= {f"data.{name}" for task in registry.TASKS for name in registry.data_fields()[task]}
    cells = [
        line.strip("|").split(" | ") for line in fields_page().splitlines() if line[:3] == "| `"
    ]
    assert {row[0].strip(" `") for row in cells} == names
    assert all(len(row) == 4 and row[3].strip(" |") for row in cells)
