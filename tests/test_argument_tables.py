"""The documents name every argument of Trainer and of google-research/bert."""

import dataclasses
import json
import pathlib
import re

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.workdir.workdir import flatten_config

ROOT = pathlib.Path(__file__).parent.parent
NAMES = json.loads((ROOT / "tests" / "goldens" / "argument_names.json").read_text())


def cells(page: str) -> list[list[str]]:
    """Return the cells of each row of the tables of a page."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]


def test_from_trainer_lists_every_argument_once() -> None:
    assert len(NAMES["TrainingArguments"]) > 100
    rows = [row for row in cells("from-trainer.md") if len(row) == 3]  # two: of older versions
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    others = ["EarlyStoppingCallback", "compute_metrics"]  # of Trainer
    others += ["compute_loss", "compute_loss_func"]
    others += ["hyperparameter_search", "warmup_ratio"]  # the latter of earlier versions
    assert sorted(listed) == sorted([*NAMES["TrainingArguments"], *others])
    assert all(row[1] for row in cells("from-trainer.md"))


def test_configuration_of_from_trainer_is_valid(tmp_path: pathlib.Path) -> None:
    (block,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "docs" / "from-trainer.md").read_text(), re.S
    )
    (tmp_path / "mine.yaml").write_text(block)
    config = load_config(str(tmp_path / "mine.yaml"), {}, registry.data_fields())
    assert config.optimizer.learning_rate == 5e-5 and config.early_stopping == 3


def test_coming_from_lists_every_flag_of_the_original() -> None:
    flags = {name for script, names in NAMES.items() if "_" in script for name in names}
    rows = cells("coming-from.md")
    listed = {name for row in rows for name in re.findall(r"`--(\w+)", row[0])}
    assert len(flags) > 40 and flags <= listed


def test_named_fields_exist() -> None:
    fields = {name for name in flatten_config(Config()) if not name.startswith("data.")}
    for task in registry.TASKS:
        fields |= {f"data.{name}" for name in registry.data_fields()[task]}
    sections = {field.name for field in dataclasses.fields(Config)}
    for page in ("from-trainer.md", "coming-from.md"):
        for row in cells(page):
            for name in re.findall(r"`(\w+\.\w+)(?:=[^`]*)?`", " ".join(row[1:2])):
                if name.split(".")[0] in sections:
                    assert name in fields, (page, name)
