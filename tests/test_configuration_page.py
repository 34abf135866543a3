"""docs/configuration.md is what the code says of its fields, and says all of them."""

import pathlib

from bertjax.cli.config import fields_page
from bertjax.config.config import Config
from bertjax.tasks import registry

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == fields_page(), f"write it anew: bertjax config --fields > {PAGE}"


def test_every_field_has_a_line_and_each_line_a_meaning() -> None:
    fields = [*Config().to_dict().items()]
    names = {name for name, value in fields if not isinstance(value, dict)}
    names |= {f"{name}.{key}" for name, own in fields if isinstance(own, dict) for key in own}
    names |= {
        f"data.{name}" for task in registry.TASK_MODULES for name in registry.data_fields()[task]
    }
    cells = [
        line.strip("|").split(" | ") for line in fields_page().splitlines() if line[:3] == "| `"
    ]
    assert {row[0].strip(" `") for row in cells} == names
    assert all(len(row) == 4 and row[3].strip(" |") for row in cells)
