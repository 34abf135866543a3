"""The paper's ablations: what is compared, and what is said of it."""

import argparse
import itertools
import json
import pathlib

import pytest

from bertjax.tasks import registry
from bertjax.training.config import Config, load_config
from experiments.ablations import __main__ as ablations
from experiments.ablations import features, recipes
from experiments.ablations.__main__ import Ablation
from experiments.ablations.results import Row, verdicts, write_results
from experiments.ablations.tables import TABLES, TASKS, Finding, Table, Variant

SIZES, SHARES = ("2-128", "4-256"), (0.1, 0.5, 1.0)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_configuration_of_its_own(name) -> None:
    table = TABLES[name](SIZES, SHARES)
    runs = [(v.pretraining, v.share, *v.finetuning.items()) for v in table.variants]
    assert len(set(runs)) == len(runs)
    for variant in table.variants:
        options = {"model": "2-128", "recipe": "paper", **variant.options}
        spec = ",".join(f"{name}={value}" for name, value in options.items())
        config = load_config(
            f"experiments/pretrain.py:{spec}", variant.fields, registry.data_fields()
        )
        registry.objective(config.resolve())


@pytest.mark.parametrize("name", TABLES)
def test_every_command_has_a_configuration(name, tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(ablations, "bertjax", lambda *words: commands.append(words))
    args = argparse.Namespace(
        **{"table": name, "output": tmp_path, "corpus": "corpus", "recipe": "modern", "seeds": 1},
        **{"size": "2-128", "sizes": "2-128,4-256", "milestones": "0.5,1", "steps": 10},
        **{"task": [f"{task}=data" for task in TASKS], "pretrain": ["seq_len=64"]},
        finetune=["all.batch_size=8", "ner-features.model.bilstm=128"],
    )
    ablation = Ablation(args)
    for variant in ablation.table.variants:
        model = ablation._pretrain(variant)
        for task in TASKS:
            ablation._fine_tune(variant, model, task)
    assert len(commands) == (1 + len(TASKS)) * len(ablation.table.variants)
    for command in commands:
        configuration(command)
    (of_two_layers,) = {
        configuration(command).model.feature_layers
        for command in commands
        if "features=concat_last_four" in " ".join(command) and "4-256" not in " ".join(command)
    }
    assert of_two_layers == "-2..-1"


def configuration(command: list[str]) -> Config:
    flags = [word.partition("=") for word in command if word.startswith("--config.")]
    fields = {flag.removeprefix("--config."): value for flag, _, value in flags}
    return load_config(command[command.index("--config") + 1], fields, registry.data_fields())


def test_so_has_every_command_of_the_recipes(tmp_path, monkeypatch) -> None:
    steps = {}

    def train(*command: str) -> None:
        workdir = pathlib.Path(command[command.index("--workdir") + 1])
        workdir.mkdir(parents=True)
        row = workdir.parent.parent.name
        steps[row] = steps.get(row, 0) + configuration(command).total_steps

    monkeypatch.setattr(recipes, "bertjax", train)
    monkeypatch.setattr(recipes, "read_metrics", lambda _: [{"mlm_loss": 6.0}])
    told = ["--output", str(tmp_path), "--corpus", "corpus", "--steps", "60", "--size", "2-128"]
    monkeypatch.setattr("sys.argv", ["recipes", *told, "--seeds", "1", "--config.batch_size=8"])
    recipes.main()
    assert steps.pop("modern-a-third-of-the-steps") == 20
    assert set(steps.values()) == {60} and len(steps) == 2 + len(recipes.CHANGES)
    assert "| modern | - | 6.0000 |" in (tmp_path / "recipes.md").read_text()


def test_tables_share_the_models_that_are_alike() -> None:
    plain = [TABLES[name](SIZES, SHARES).variants[0].pretraining for name in TABLES]
    assert plain == ["plain", "plain", "model=2-128", "plain"]
    small, large = TABLES["sizes"](SIZES, SHARES).variants
    options = {"model": "2-128", "recipe": "modern", "data": "corpus"}
    assert small.beside(options).pretraining == "plain"
    assert large.beside(options) == large


@pytest.mark.parametrize("name", TABLES)
def test_findings_are_of_rows_that_there_are(name) -> None:
    table = TABLES[name](SIZES, SHARES)
    for finding in table.findings:
        assert finding.better != finding.worse
        assert {finding.better, finding.worse} <= {*range(len(table.variants))}


def test_so_are_those_of_features() -> None:
    found = features.findings()
    assert {each.better for each in found} | {each.worse for each in found} == {0, 1, 2, 3, 4, 6}
    assert features.FEATURES.keys() == {
        *("embeddings", "second_to_last", "last"),
        *("sum_last_four", "concat_last_four", "sum_all"),
    }


def rows(high: list[float], low: list[float]) -> list[Row]:
    return [Row(name, 9.0, {"qnli accuracy": each}, 0) for name, each in (("a", high), ("b", low))]


@pytest.mark.parametrize(
    ("high", "low", "verdict"),
    [
        ([0.8, 0.9], [0.5, 0.6], "+0.3000 ± 0.1000, shows here."),
        ([0.8, 0.9], [0.8, 0.8], "+0.0500 ± 0.0707, does not show here."),
        ([0.5, 0.6], [0.8, 0.9], "-0.3000 ± 0.1000, is the other way round here."),
        ([0.8], [0.5], "+0.3000, of one run each."),
    ],
)
def test_a_finding_shows_beyond_the_spread_of_the_seeds(high, low, verdict) -> None:
    (said,) = verdicts(Finding("a helps", 0, 1), rows(high, low))
    assert said == f"a helps: qnli accuracy {verdict}"
    assert verdicts(Finding("a helps", 0, 1, ("squad",)), rows(high, low)) == []


def test_a_table_has_every_score_and_nothing_chosen(tmp_path) -> None:
    table = Table("Caption.", [Variant("a"), Variant("b")], [Finding("a helps", 0, 1)])
    text = write_results(tmp_path / "x", table, rows([0.25, 0.75], [0.5, 0.5]))
    assert "| a | 9.00 | 0.5000 ± 0.3536 | 0 |" in text.splitlines()
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["rows"][0]["scores"] == {"qnli accuracy": [0.25, 0.75]}
    lines = itertools.chain(text.splitlines(), (tmp_path / "x.html").read_text().splitlines())
    assert sum("does not show here" in line for line in lines) == 2
