"""experiments/ablations: configurations of all rows, records of runs, results."""

import argparse
import collections
import itertools
import json
import pathlib
import subprocess
import sys
import time

import jax
import pytest

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.errors import EXIT_DIVERGED
from bertjax.model.bert import param_shapes
from bertjax.tasks import registry
from experiments.ablations import __main__ as ablations
from experiments.ablations import adaptation, commands, feature_based, recipes
from experiments.ablations.__main__ import Ablation
from experiments.ablations.architectures import count_parameters, fit_encoders, make_table
from experiments.ablations.tables import TABLES, TASKS, make_tables

TABLE_SIZES = {"vocab_size": 8192, "max_position_embeddings": 512, "type_vocab_size": 2}
ABLATION_TABLES = make_tables(("2-128", "4-256"), (0.1, 0.5, 1.0))
ABLATION_TABLES[ablations.ARCHITECTURES] = make_table("2-128", TABLE_SIZES)


@pytest.mark.slow
def test_run_bertjax_passes_sigterm_on_and_exits_as_the_command(tmp_path) -> None:
    command = tmp_path / "python"
    command.write_text(f"""#!/bin/sh
trap 'touch {tmp_path}/saved; exit 75' TERM
touch {tmp_path}/started
while true; do sleep 0.05; done
""")
    command.chmod(0o700)
    program = f"""
import sys
from experiments.ablations.commands import run_bertjax
sys.executable = {str(command)!r}
run_bertjax("train")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait() == 75
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("name", ABLATION_TABLES)
def test_table_rows_have_distinct_valid_configurations(name) -> None:
    table = ABLATION_TABLES[name]
    runs = [(v.pretraining_name, v.step_fraction, *v.finetuning.items()) for v in table.variants]
    assert len(set(runs)) == len(runs)
    for variant in itertools.chain.from_iterable(
        row.directions() if row.is_pair else [row] for row in table.variants
    ):
        options = {"model": "2-128", "recipe": "modern", **variant.options}
        spec = ",".join(f"{name}={value}" for name, value in options.items())
        config = load_config(f"pretraining:{spec}", variant.fields, registry.data_fields())
        registry.make_objective(config.resolve())


def make_ablation(output: pathlib.Path, **fields: object) -> Ablation:
    args = {"output": output, "corpus": "corpus", "recipe": "modern", "seeds": 1, "size": "2-128"}
    args |= {"sizes": "2-128,4-256", "milestones": "0.5,1", "steps": 10}
    args |= {"task": [], "pretrain": [], "finetune": []}
    return Ablation(argparse.Namespace(**args | fields))


@pytest.mark.parametrize("name", ABLATION_TABLES)
def test_ablation_commands_have_valid_configurations(name, tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(ablations, "run_bertjax", lambda *words: commands.append(words))
    monkeypatch.setattr(ablations, "run_once", lambda _, sweeps: commands.extend(sweeps))
    ablation = make_ablation(
        tmp_path,
        table=name,
        task=[f"{task}={tmp_path}" for task in TASKS],
        pretrain=["max_seq_length=64", "model.vocab_size=8192"],
        finetune=["all.batch_size=8", "ner-features.model.bilstm=128"],
    )
    for variant in ablation.table.variants:
        model = ablation._pretrain(variant)
        for task in TASKS:
            ablation._fine_tune(variant, model, task)
    num_pairs = sum(variant.is_pair for variant in ablation.table.variants)
    assert len(commands) == (1 + len(TASKS)) * len(ablation.table.variants) + 2 * num_pairs
    commands = [command for command in commands if command[0] != "convert"]
    for command in commands:
        configuration(command)
    feature_layers = {
        configuration(command).model.feature_layers
        for command in commands
        if "features=concat_last_four" in " ".join(command) and "4-256" not in " ".join(command)
    }
    # Those of the rows of features, and of a transformer of a pair, which has one layer.
    others = {"0..-1", "-1..-1"} if name == ablations.ARCHITECTURES else set()
    assert feature_layers == {"-2..-1"} | others


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("size", "vocab_size"), [("2-128", 8192), ("mini", 30522), ("6-512", 8192), ("base", 30522)]
)
def test_architectures_have_equally_many_parameters(size, vocab_size) -> None:
    encoders = fit_encoders(size, TABLE_SIZES | {"vocab_size": vocab_size})
    bert, transformer, lstm = (count_parameters(encoders[name]) for name in ENCODER_KINDS)
    assert 2 * transformer == pytest.approx(bert, rel=0.01) == pytest.approx(2 * lstm, rel=0.01)
    for config in encoders.values():
        assert config.feed_forward_size >= config.hidden_size
        counted = sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)["encoder"]))
        assert counted == count_parameters(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "2-64"}, "--size 2-64: with a vocabulary of 30522, half of its parameters are"),
        ({"size": "bogus"}, "--size bogus: model='bogus': unknown"),
        ({"pretrain": ["model.vocab_size=8k"]}, "--size 2-128: invalid literal for int"),
    ],
)
def test_architectures_reject_sizes_that_do_not_fit(tmp_path, fields, message) -> None:
    with pytest.raises(SystemExit, match=message):
        make_ablation(tmp_path, table=ablations.ARCHITECTURES, **fields)


def test_ways_keep_their_learning_rate_unless_one_is_given(tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(ablations, "run_once", lambda _, sweeps: commands.extend(sweeps))
    given = ["all.optimizer.learning_rate=2e-4", "all.steps=9", "features.steps=7"]
    ablation = make_ablation(
        tmp_path, table=ablations.ARCHITECTURES, task=[f"mrpc={tmp_path}"], finetune=given,
        pretrain=["model.vocab_size=8192"],
    )  # fmt: skip
    for variant in ablation.table.variants[:2]:
        ablation._fine_tune(variant, tmp_path, "mrpc")
    configs = [configuration(command) for command in commands]
    rates = [(config.optimizer.learning_rate, config.steps) for config in configs]
    assert rates == [(2e-4, 9), (1e-3, 7)]


def configuration(command: list[str]) -> Config:
    flags = [word.partition("=") for word in command if word.startswith("--config.")]
    fields = {flag.removeprefix("--config."): value for flag, _, value in flags}
    return load_config(command[command.index("--config") + 1], fields, registry.data_fields())


ENCODER_KINDS = ("bert", "transformer", "lstm")
Steps = dict[str, list[int]]  # of each run, by the name of its row


@pytest.fixture
def train(monkeypatch) -> Steps:
    """Stub of `bertjax train` that records steps and writes an eval loss of 6.

    Runs of the row "local attention init" diverge.
    """
    steps: Steps = collections.defaultdict(list)

    def run(words: list[str]) -> int:
        command = words[3:]
        workdir = pathlib.Path(command[command.index("--workdir") + 1])
        row = workdir.parent.parent.name
        steps[row].append(configuration(command).total_steps)
        workdir.mkdir(parents=True, exist_ok=True)
        metrics = {"step": 1, "split": "eval", "mlm_loss": 6.0}
        (workdir / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
        return EXIT_DIVERGED if row.startswith("local") else 0

    monkeypatch.setattr(commands, "run_process", run)
    return steps


def run_recipes(monkeypatch, output: pathlib.Path, *options: str, steps: int = 60) -> str:
    argv = ["recipes", "--output", str(output), "--corpus", "corpus", "--size", "2-128"]
    argv += ["--steps", str(steps), "--config.batch_size=8", *options]
    monkeypatch.setattr("sys.argv", argv)
    recipes.main()
    return (output / "recipes.md").read_text()


@pytest.mark.seconds
def test_recipes_commands_have_valid_configurations(train, tmp_path, monkeypatch) -> None:
    table = run_recipes(monkeypatch, tmp_path, "--seeds", "1")
    steps = {row: sum(run_steps) for row, run_steps in train.items()}
    assert steps.pop("modern-a-third-of-the-steps") == 20
    assert set(steps.values()) == {60} and len(steps) == 2 + len(recipes.CHANGES)
    assert "| modern | - | 6.0000 |" in table
    with pytest.raises(SystemExit, match="--only Mon: no row has this name"):
        run_recipes(monkeypatch, tmp_path, "--only", "Muon", "Mon")


@pytest.mark.seconds
def test_recipes_count_diverged_runs_and_continue(train, tmp_path, monkeypatch) -> None:
    lines = run_recipes(monkeypatch, tmp_path, "--seeds", "2").splitlines()
    (row,) = [line for line in lines if line.startswith("| local")]
    assert row.startswith("| local attention init | - | - |") and row.endswith("| 2 |")
    assert len(train["modern"]) == 4
    assert run_recipes(monkeypatch, tmp_path, "--seeds", "2").splitlines() == lines
    assert len(train["local-attention-init"]) == 2
    monkeypatch.setattr(commands, "run_process", lambda _: 7)
    with pytest.raises(SystemExit) as stop:  # other settings, so the commands run again
        run_recipes(monkeypatch, tmp_path, "--seeds", "2", "--config.optimizer.learning_rate=1e-5")
    assert stop.value.code == 7


@pytest.mark.seconds
def test_recipes_repeat_only_changed_commands(train, tmp_path, monkeypatch) -> None:
    run_recipes(monkeypatch, tmp_path, "--seeds", "1", "--only", "Muon")
    run_recipes(monkeypatch, tmp_path, "--seeds", "2", "--only", "Muon")
    assert train["Muon"] == [60, 60]
    run_recipes(monkeypatch, tmp_path, "--seeds", "1", "--only", "Muon", steps=80)
    assert train["Muon"] == [60, 60, 80]  # a real run rejects the other number of steps


AdaptationRuns = dict[str, list[Config]]  # "base" or row and seed -> configurations of its commands


@pytest.fixture
def adapt(monkeypatch) -> AdaptationRuns:
    """Stub of `bertjax train` and `evaluate`; the runs of seed 1 with replay diverge."""
    runs: AdaptationRuns = collections.defaultdict(list)

    def run(words: list[str]) -> int:
        command = words[3:]
        option = {"train": "--workdir", "evaluate": "--output"}[command[0]]
        directory = pathlib.Path(command[command.index(option) + 1])
        # ROW/SEED/STAGE, ROW/SEED.scores or base.scores
        run_directory = directory.parent if command[0] == "train" else directory.with_suffix("")
        is_base = run_directory.name == adaptation.BASE
        name = "" if is_base else f"{run_directory.parent.name} "
        runs[name + run_directory.name].append(configuration(command))
        directory.mkdir(parents=True)
        scores = {"domain/mlm_loss": 5.0 if is_base else 4.0, "general/mlm_loss": 3.0}
        (directory / "scores.json").write_text(json.dumps(scores))
        return EXIT_DIVERGED if run_directory.match("*-replay/1") else 0

    monkeypatch.setattr(commands, "run_process", run)
    return runs


def run_adaptation(monkeypatch, output: pathlib.Path, *options: str) -> list[str]:
    argv = ["adaptation", "--output", str(output), "--init", "", "--steps", "50", *options]
    argv += ["--domain", "corpora/domain", "--general", "corpora/general"]
    monkeypatch.setattr("sys.argv", [*argv, "--config.batch_size=8"])
    adaptation.main()
    return (output / "adaptation.md").read_text().splitlines()


@pytest.mark.seconds
def test_adaptation_rows_differ_in_stages_and_replay_alone(adapt, tmp_path, monkeypatch) -> None:
    lines = run_adaptation(monkeypatch, tmp_path, "--seeds", "1")
    evaluated = [configs.pop() for configs in adapt.values()]
    assert len({json.dumps(config.to_dict()) for config in evaluated}) == 1
    assert evaluated[0].data["dir"] == "corpora/domain+corpora/general"
    assert not evaluated[0].eval_batches
    stages = {
        name: [(config.data["objective"], config.total_steps) for config in configs]
        for name, configs in adapt.items()
    }
    assert stages == {
        "base": [],
        "masked-LM 0": [("mlm", 50)],
        "CLM-first-20-of-the-steps 0": [("clm", 10), ("mlm", 40)],
        "CLM-first-50-of-the-steps 0": [("clm", 25), ("mlm", 25)],
        "masked-LM-with-replay 0": [("mlm", 50)],
    }
    (detour, masked) = adapt["CLM-first-20-of-the-steps 0"]
    assert masked.init.endswith("CLM-first-20-of-the-steps/0/clm") and detour.init == ""
    directories = {name: configs[0].data["dir"] for name, configs in adapt.items() if configs}
    assert directories.pop("masked-LM-with-replay 0") == "corpora/domain+corpora/general"
    assert set(directories.values()) == {"corpora/domain"}
    assert any(line.startswith("| base | - | 5.0000 | 3.0000 |") for line in lines)


@pytest.mark.seconds
def test_adaptation_counts_diverged_runs_and_resumes(adapt, tmp_path, monkeypatch) -> None:
    lines = run_adaptation(monkeypatch, tmp_path, "--seeds", "2")
    rows = [line for line in lines if line.startswith("| masked LM")]
    assert [line.rpartition("|")[0].split("|")[-1].strip() for line in rows] == ["0", "1"]
    seeds = {config.seed for name, runs in adapt.items() if "LM" in name for config in runs[:-1]}
    assert seeds == {0, 1}
    count = sum(map(len, adapt.values()))
    assert run_adaptation(monkeypatch, tmp_path, "--seeds", "2") == lines
    assert sum(map(len, adapt.values())) == count


def test_run_once_exits_on_failure(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(commands, "run_process", lambda _: 75)
    with pytest.raises(SystemExit) as stop:
        commands.run_once(tmp_path / "record.json", [["train"]])
    assert stop.value.code == 75 and not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 1234, "milestones": "0.1,0.5,1"}, "--steps 1234: .* Use a multiple of 10"),
        ({"steps": 0}, "--steps 0: no step. Train for one or more"),
        ({"milestones": "0.5,1.5"}, r"--milestones 1.5: not in \(0, 1\]"),
        ({"milestones": "0.33333,1"}, r"--milestones 0.33333: not in \(0, 1\]. Write thousandths"),
        (
            {"milestones": "0.1;1"},
            "--milestones 0.1;1: '0.1;1' is no number. Write them as 0.1,0.2",
        ),
        ({"milestones": "0.1,1/0"}, "--milestones 0.1,1/0: '1/0' is no number"),
    ],
)
def test_ablation_rejects_milestones_between_steps(tmp_path, fields, message) -> None:
    with pytest.raises(SystemExit, match=message):
        make_ablation(tmp_path, table="steps", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": ["mrpc=/nowhere"]}, "--task mrpc=/nowhere: does not exist. Name a directory"),
        ({"task": ["mrpc=/", "mrpc=/tmp"]}, "--task mrpc=/tmp: mrpc has a value already"),
        ({"seeds": 0}, "--seeds 0: no run. Train with one or more"),
        (
            {"finetune": ["mrcp.batch_size=4"]},
            "--finetune mrcp.batch_size=4: no runs of mrcp. .* with one of all, qnli.$",
        ),
        ({"finetune": ["batch_size=4"]}, "--finetune batch_size=4: no runs of batch_size"),
        ({"finetune": ["qnli.bach_size=4"]}, "bach_size=4: there is no such field. Did you mean b"),
        ({"pretrain": ["max_seq_length=x"]}, "max_seq_length='x': is of type str. Use int"),
        ({"table": "sizes", "sizes": "2-128,bogus"}, "model='bogus': unknown"),
    ],
)
def test_ablation_rejects_arguments_of_any_run_before_the_first(tmp_path, fields, message) -> None:
    defaults = {"table": "objectives", "output": tmp_path, "task": [f"qnli={tmp_path}"]}
    with pytest.raises(SystemExit, match=message):
        make_ablation(**defaults | fields)


def test_ablation_takes_data_of_tfds_and_of_buckets(tmp_path) -> None:
    make_ablation(tmp_path, table="masking", task=["mrpc=tfds:glue/mrpc", "qnli=gs://bucket/qnli"])


@pytest.mark.parametrize("module", [adaptation, feature_based, recipes])
def test_other_ablations_reject_unusable_arguments(module, monkeypatch) -> None:
    required = ["--init", "a", "--domain", "a", "--general", "a", "--corpus", "a", "--steps", "9"]
    required += ["--config", "data=a"]
    monkeypatch.setattr("sys.argv", ["ablation", *required, "--output", "out", "--seeds", "0"])
    with pytest.raises(SystemExit, match="--seeds 0: no run"):
        module.main()


def test_ablation_of_few_steps_saves_every_step(tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(ablations, "run_bertjax", lambda *words: commands.append(words))
    ablation = make_ablation(tmp_path, table="objectives", steps=3, milestones="0.1,1")
    ablation._pretrain(ablation.table.variants[0])
    assert configuration(commands[0]).checkpoint_every == 1


def test_tables_share_pretrained_models() -> None:
    plain = [ABLATION_TABLES[name].variants[0].pretraining_name for name in TABLES]
    assert plain == ["plain", "plain", "model=2-128", "plain"]
    small, large = ABLATION_TABLES["sizes"].variants
    options = {"model": "2-128", "recipe": "modern", "data": "corpus"}
    assert small.without_shared_options(options).pretraining_name == "plain"
    assert large.without_shared_options(options) == large


@pytest.mark.parametrize("name", TABLES)
def test_findings_refer_to_existing_rows(name) -> None:
    table = ABLATION_TABLES[name]
    for finding in table.findings:
        assert finding.better_row != finding.worse_row
        assert {finding.better_row, finding.worse_row} <= {*range(len(table.variants))}


def test_adaptation_findings_compare_with_masked_lm() -> None:
    compared = [(finding.better_row, finding.worse_row) for finding in adaptation.FINDINGS]
    assert compared == [(2, 1), (3, 1), (4, 1)]


def test_feature_based_findings_refer_to_existing_rows() -> None:
    compared = {
        row
        for finding in feature_based.findings()
        for row in (finding.better_row, finding.worse_row)
    }
    assert compared == {0, 1, 2, 3, 4, 6}
    assert feature_based.FEATURE_LAYERS.keys() == {
        *("embeddings", "second_to_last", "last"),
        *("sum_last_four", "concat_last_four", "sum_all"),
    }
