"""Configurations: files, options, overrides, types, durations and validation."""

import dataclasses
import itertools
import pathlib
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config import durations
from bertjax.config.config import MIN_INTERVAL_STEPS, Config
from bertjax.config.config_file import builtin_configs, run_config_file
from bertjax.config.loading import MODEL_FIELDS, load_config, parse_config, read_config
from bertjax.model.bert_config import BertConfig
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.tasks import registry
from data_pipelines.errors import InputError

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
FIELDS = {"pretraining": {"dir": "", "workers": None, "mlm_probability": 0.15, "masking": "token"}}


def load(arg: str = "", **overrides: str) -> Config:
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(f"{PRETRAIN}:{arg}", fields, registry.data_fields())


def parse(**raw: object) -> Config:
    return parse_config(raw, FIELDS)


def test_parse_config_fills_in_defaults() -> None:
    assert parse() == parse_config(Config().to_dict(), FIELDS)


def test_parse_config_inverts_to_dict() -> None:
    config = load("model=mini,recipe=lamb,data=somewhere")
    assert parse_config(config.to_dict(), registry.data_fields()) == config


@pytest.mark.parametrize(
    ("field", "nearest"),
    [
        ("sede", "seed"),
        ("batchsize", "batch_size"),
        ("model.num_hiden_layers", "model.num_hidden_layers"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("mesh.dat", "mesh.data"),
        ("data.maskin", "data.masking"),
    ],
)
def test_load_config_suggests_the_nearest_field(field: str, nearest: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{field}=1: there is no such field\. Did you mean {nearest}\?"
    ):
        load_config(f"{PRETRAIN}:data=x", {field: "1"}, registry.data_fields())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"seed": "one"}, "seed='one': is of type str. Use int"),
        ({"seed": True}, "seed=True: is of type bool. Use int"),
        ({"batch_size": 2.5}, "batch_size=2.5: is of type float. Use int"),
        ({"packing": 1}, "packing=1: is of type int. Use bool"),
        ({"model": 3}, "model=3: is not a section. Set fields such as model.vocab_size"),
        ({"data": 3}, "data=3: is not a section"),
        ({"task": ["pretraining"]}, r"task=\['pretraining'\]: is of type list. Use str"),
        ({"batch_size": 0}, "batch_size=0: is too small. Use at least 1"),
        (
            {"batch_size": 10, "gradient_accumulation_steps": 4},
            "batch_size=10: is not a multiple of gradient_accumulation_steps=4",
        ),
        (
            {"max_seq_length": 513},
            "max_seq_length=513: is more than model.max_position_embeddings=512",
        ),
        ({"model": {"num_attention_heads": 7}}, "num_attention_heads"),
        ({"profile": "5"}, "profile='5': is not START:STOP"),
        ({"profile": "9:5"}, "profile='9:5': is not START:STOP"),
        ({"tensorboard": "examples+text"}, r"'text' is unknown. Use examples\+parameters"),
    ],
)
def test_parse_config_rejects_invalid_values(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw)


def test_load_config_rejects_an_unknown_task() -> None:
    with pytest.raises(
        InputError, match=r"task='translate': unknown task. Use multiple_choice, pretraining"
    ):
        load("data=x", task="translate")


def test_parse_config_converts_whole_numbers() -> None:
    config = parse(seed=3.0, optimizer={"learning_rate": 1})
    assert (config.seed, type(config.seed)) == (3, int)
    assert type(config.optimizer.learning_rate) is float


@given(steps=st.integers(1, 10**9))
def test_resolve_keeps_steps(steps: int) -> None:
    assert parse(steps=steps, optimizer={"warmup": 0}).resolve().steps == steps


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (7, 7),
        ("7 steps", 7),
        ("1 step", 1),
        ("10%", 20),
        ("5.25 percent", 11),
        ("100 examples", 10),
        ("101 examples", 11),
        ("1 epoch", 50),
        ("0.5 epochs", 25),
    ],
)
def test_resolve_converts_durations_of_all_units(duration: int | str, steps: int) -> None:
    config = parse(steps=200, batch_size=10, log_every=duration, optimizer={"warmup": 0})
    assert config.resolve(examples_per_epoch=500).log_every == steps


INTERVALS = ["log_every", "checkpoint_every", "eval_every", "keep_period"]


@given(steps=st.integers(1, 10**6), percent=st.integers(1, 100), name=st.sampled_from(INTERVALS))
def test_resolve_rounds_percentages_up_to_the_shortest_interval(
    steps: int, percent: int, name: str
) -> None:
    config = parse(steps=steps, optimizer={"warmup": 0}, **{name: f"{percent}%"}).resolve()
    assert getattr(config, name) == max(MIN_INTERVAL_STEPS, -(-percent * steps // 100)) >= 10


@pytest.mark.parametrize("name", INTERVALS)
@pytest.mark.parametrize("duration", [1, "3 steps", "20 examples"])
def test_resolve_keeps_intervals_in_steps(name: str, duration: int | str) -> None:
    config = parse(steps=20, batch_size=10, optimizer={"warmup": 0}, **{name: duration}).resolve()
    assert getattr(config, name) in (1, 2, 3)


def test_resolve_keeps_a_keep_period_of_zero_percent() -> None:
    assert parse(steps=20, keep_period="0%").resolve().keep_period == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": "soon"}, "steps='soon': not a duration"),
        (
            {"steps": "10%"},
            "steps='10%': the number of steps of the run is unknown. Use steps or epochs",
        ),
        ({"steps": 0}, "steps=0: is 0 steps. Use at least 1"),
        ({"steps": 10, "log_every": 0}, "log_every=0: is 0 steps"),
        ({"log_every": "5 minutes"}, "log_every='5 minutes': only steps, eval_every"),
        ({"checkpoint_every": "0 hours"}, "checkpoint_every='0 hours': is 0. Use more"),
        ({"steps": 10, "log_every": "0%"}, "log_every='0%': is 0 steps"),
        ({"steps": 10, "optimizer": {"warmup": 11}}, "optimizer.warmup=11: is not from 0"),
        ({"steps": 10, "optimizer": {"decay_steps": 9}}, "decay_steps=9"),
        ({"steps": "0 hours"}, "steps='0 hours': is a time budget of 0"),
        (
            {"steps": "0 hours", "optimizer": {"warmup": 9}},
            "steps='0 hours': is a time budget of 0",
        ),
        (
            {"steps": "2h", "optimizer": {"warmup": 100}},
            "warmup=100: not a part of a run with a time budget",
        ),
        (
            {"steps": "2h", "optimizer": {"decay_steps": "50%"}},
            "decay_steps='50%': ends before the",
        ),
        (
            {"steps": "2h", "log_every": "1%"},
            "log_every='1%': the number of steps of the run is unknown",
        ),
        (
            {"steps": "2h", "batch_size_rampup": 4},
            "batch_size_rampup=4: needs a number of steps, and steps='2h' is a time",
        ),
        ({"steps": 10, "batch_size_rampup": 3}, "batch_size_rampup=3: is not a power of 2"),
    ],
)
def test_resolve_rejects_invalid_durations(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw).resolve(examples_per_epoch=100)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30 minutes", 1800), ("1 hour", 3600), ("0.5 hours", 1800), (5, None)]
)
def test_resolve_keeps_times_of_checkpoints_and_evaluations(
    every: int | str, seconds: float | None
) -> None:
    config = parse(checkpoint_every=every, eval_every=every).resolve()
    assert config.checkpoint_every == config.eval_every == every
    assert (
        config.interval_seconds("checkpoint_every")
        == config.interval_seconds("eval_every")
        == seconds
    )
    assert config.resolve() == config


def test_resolve_converts_durations_to_fractions_of_a_time_budget() -> None:
    optimizer = {"warmup": "10%", "schedule": "wsd", "cooldown": "30 minutes"}
    config = parse(steps="2h", eval_every="5%", checkpoint_every="10 minutes", optimizer=optimizer)
    config = config.resolve()
    assert (config.budget_seconds, config.total_steps) == (7200, None)
    assert (config.interval_seconds("eval_every"), config.interval_seconds("checkpoint_every")) == (
        360,
        600,
    )
    optimizer_config = config.optimizer_config()
    assert (optimizer_config.warmup_steps, optimizer_config.cooldown_steps) == (0.1, 0.25)
    assert optimizer_config.total_steps == 1
    assert config.resolve() == config


@pytest.mark.parametrize(
    "optimizer",
    [{"warmup": "100%"}, {"warmup": "50%", "schedule": "wsd", "cooldown": "90 minutes"}],
)
def test_resolve_rejects_a_schedule_longer_than_the_time_budget(optimizer) -> None:
    with pytest.raises(
        InputError, match=r"optimizer\.warmup='.*', optimizer\.cooldown=.*: do not fit steps='2h'"
    ):
        parse(steps="2h", optimizer=optimizer).resolve()


@given(st.integers(0, 10_000), st.integers(1, 10**6))
def test_percentages_are_rounded_up_exactly(hundredths: int, total: int) -> None:
    share = f"{hundredths // 100}.{hundredths % 100:02d}%"
    expected = -(-hundredths * total // 10_000)
    assert durations.to_steps("warmup", share, Fraction(8), None, total) == expected


@given(st.integers(0, 4), st.integers(1, 40), st.integers(1, 10**6))
def test_resolve_counts_examples_by_the_mean_batch_size_of_a_rampup(
    power: int, smallest: int, examples: int
) -> None:
    sizes = [smallest << i for i in range(power + 1)]
    config = parse(
        batch_size=sizes[-1],
        batch_size_rampup=1 << power,
        steps=f"{examples} examples",
        optimizer={"warmup": 0},
    ).resolve()
    assert config.steps == -(-examples * len(sizes) // sum(sizes))


def test_resolve_rejects_epochs_without_data() -> None:
    with pytest.raises(ValueError, match="the length of an epoch is unknown"):
        parse(steps="2 epochs").resolve()


def test_resolve_ends_the_schedule_with_the_run_by_default() -> None:
    assert parse(steps=100).resolve().optimizer_config().total_steps == 100
    later = parse(steps=100, optimizer={"decay_steps": 250}).resolve()
    assert later.optimizer_config().total_steps == 250


@pytest.mark.parametrize(
    ("recipe", "phase"),
    [("modern", 1), *itertools.product(["paper", "slides", "lamb"], [1, 2])],
)
@pytest.mark.parametrize("smoke", ["", ",smoke"])
@pytest.mark.parametrize("model", ["tiny", "mini", "small", "medium", "base", "large", "6-256"])
def test_every_recipe_is_valid(recipe: str, phase: int, smoke: str, model: str) -> None:
    config = load(f"model={model},phase={phase},recipe={recipe},data=x{smoke}").resolve()
    assert config.max_seq_length == (512 if phase == 2 else 128) // (4 if smoke else 1)
    tokens = config.batch_size * config.max_seq_length
    if recipe == "slides" and not smoke:
        assert tokens == 131_072


def test_phase_two_starts_at_the_learning_rate_that_phase_one_ends_with() -> None:
    first, second = (load(f"phase={phase},data=x").resolve() for phase in (1, 2))
    end = learning_rate_schedule(first.optimizer_config())(first.steps)
    assert float(end) == pytest.approx(second.optimizer.learning_rate, rel=1e-5)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("modle=base", r"modle=base: is not an option of .*pretraining\.py\. Did you mean model"),
        ("smok", "Did you mean smoke"),
        ("model=huge", "model='huge': unknown"),
        ("model=6-100", "model='6-100': unknown"),
        ("phase=3", "phase=3: unknown"),
        ("phase=one", "phase=one: the value has the wrong type. Use int"),
        ("smoke=perhaps", "smoke=perhaps: the value has the wrong type. Use true or false"),
        ("recipe=cake", "recipe='cake': unknown"),
        ("recipe=modern,phase=2", "recipe=modern: has no phase=2"),
        ("data", "data: has no value. Write data=VALUE"),
        ("phase", "phase: has no value"),
        ("model=base,model=tiny", "model=tiny: model is set twice"),
    ],
)
def test_run_config_file_rejects_invalid_options(arg: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(arg)


def write(path: pathlib.Path, signature: str, returned: str = "{}") -> pathlib.Path:
    """Write a configuration file into a directory and return its path."""
    file = path / "configuration.py"
    file.write_text(f"def get_config({signature}):\n    return {returned}\n")
    return file


KINDS = 'whole=1, part=0.5, name="none", flag=False'


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("", {}),
        (":", {}),
        (":flag", {"flag": True}),
        (":flag=true", {"flag": True}),
        (":flag=False", {"flag": False}),
        (":whole=-3,part=2", {"whole": -3, "part": 2.0}),
        (":part=1e-3,", {"part": 1e-3}),
        (":name=7", {"name": "7"}),
        (":name=", {"name": ""}),
        (":name=a=b,flag", {"name": "a=b", "flag": True}),
        (":name=gs://bucket/a:b", {"name": "gs://bucket/a:b"}),
    ],
)
def test_run_config_file_converts_options_to_the_types_of_defaults(
    options: str, values: dict, tmp_path
) -> None:
    path = write(tmp_path, KINDS, '{"data": {"options": repr([whole, part, name, flag])}}')
    config = load_config(f"{path}{options}", {}, {"pretraining": {"dir": "", "options": ""}})
    expected = {"whole": 1, "part": 0.5, "name": "none", "flag": False} | values
    assert config.data["options"] == repr(list(expected.values()))


@pytest.mark.parametrize("signature", ["arg", 'arg=""', 'arg: str = ""', "model", "*a", "**o"])
@pytest.mark.parametrize("options", ["", ":smoke"])
def test_run_config_file_rejects_parameters_without_typed_defaults(
    signature: str, options: str, tmp_path
) -> None:
    path = write(tmp_path, signature)
    fix = 'Give each option one, as in get_config(model="base", phase=1, smoke'
    with pytest.raises(InputError, match=re.escape(fix)):
        load_config(f"{path}{options}", {}, FIELDS)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x = 1\n", "", "has no get_config. Add"),
        ("def get_config(:\n", "", r"configuration\.py:1: is not Python \("),
        ("def get_config():\n    raise ValueError('no, thanks')\n", "", "^no, thanks$"),
        ("def get_config():\n    return {}\n", ":smoke", "smoke: is not an option .* Remove it"),
    ],
)
def test_run_config_file_rejects_files_without_get_config(
    text: str, options: str, message: str, tmp_path
) -> None:
    (tmp_path / "configuration.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(f"{tmp_path}/configuration.py{options}", {}, FIELDS)


def test_run_config_file_keeps_the_traceback_of_other_errors(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_config(str(write(tmp_path, "", "1 / 0")), {}, FIELDS)


INIT_MODEL = BertConfig(
    vocab_size=99,
    num_hidden_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=256,
    type_vocab_size=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.25,
    hidden_act="relu",
    layer_norm_eps=1e-6,
    initializer_range=0.5,
    attention_init="local",
    dtype="bfloat16",
    scan_layers=True,
    remat=True,
    causal=True,
    feature_layers="-2",
    feature_mix="sum",
    bilstm=32,
    num_labels=7,
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(BertConfig)])
def test_load_config_inherits_only_model_fields_from_init(field: str, tmp_path) -> None:
    inherited, default = getattr(INIT_MODEL, field), getattr(BertConfig(), field)
    assert inherited != default
    path = write(tmp_path, "", '{"init": "runs/x"}')
    config = load_config(str(path), {}, FIELDS, lambda init: INIT_MODEL)
    assert getattr(config.model, field) == (inherited if field in MODEL_FIELDS else default)


def test_load_config_prefers_its_own_model_fields_to_those_of_init(tmp_path) -> None:
    path = write(
        tmp_path, "", '{"init": "x", "model": {"num_hidden_layers": 2, "hidden_dropout_prob": 0.5}}'
    )
    config = load_config(str(path), {"model.remat": "True"}, FIELDS, lambda init: INIT_MODEL)
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (2, 32)
    assert (config.model.hidden_dropout_prob, config.model.remat) == (0.5, True)


@pytest.mark.parametrize(
    ("written", "message"),
    [("{", "is not JSON"), ("[]", "is not a configuration"), (None, "no such file")],
)
def test_read_config_rejects_other_files(written: str | None, message: str, tmp_path) -> None:
    path = tmp_path / "config.json"
    if written is not None:
        path.write_text(written)
    with pytest.raises(InputError, match=message):
        read_config(path, FIELDS)


def test_load_config_rejects_a_missing_file(tmp_path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.py: no such file\. Name one"):
        load_config("nowhere.py:x", {}, FIELDS)
    with pytest.raises(InputError, match=r": a directory\. Name a file"):
        load_config(str(tmp_path), {}, FIELDS)


def test_run_config_file_finds_builtin_configurations_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretraining").mkdir()
    (tmp_path / "squad.py").write_text("def get_config(): return {}")
    assert {"pretraining", "squad", "glue"} <= builtin_configs().keys()
    for name, file in builtin_configs().items():
        assert run_config_file(name) == run_config_file(str(file))
    assert run_config_file("pretraining:model=tiny,smoke") == run_config_file(
        f"{PRETRAIN}:model=tiny,smoke"
    )
    assert run_config_file("squad.py") == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pretrainign:smoke", "--config=pretrainign: there is no such configuration. Did you mean "
         "pretraining?"),
        ("pretraining:smok", "smok: is not an option of pretraining. Did you mean smoke?"),
        ("experiments/squad.py:smoke", "experiments/squad.py: there is no such file. Name one "
         "that exists, or write squad for the built-in configuration"),
        ("text.txt", "text.txt: is not a Python file"),
        ("text", "text: is not a Python file"),
    ],
)  # fmt: skip
def test_run_config_file_rejects_an_unknown_name(
    spec: str, message: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "text.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=re.escape(message)):
        run_config_file(spec)


def test_load_config_parses_overrides_as_literals_or_text() -> None:
    config = load("data=x", seed="5", packing="false", data__masking="whole_word", steps="3 epochs")
    assert (config.seed, config.packing, config.steps) == (5, False, "3 epochs")
    assert config.data["masking"] == "whole_word"


@pytest.mark.parametrize(("steps", "warmup", "decay"), [(0, 10_000, 10**6), (9000, 100, 10**4)])
def test_paper_schedule_scales_with_the_steps(steps, warmup, decay) -> None:
    overrides = {"steps": str(steps)} if steps else {}
    path = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
    config = load_config(f"{path}:model=base", overrides, registry.data_fields()).resolve()
    assert (config.optimizer.warmup, config.optimizer.decay_steps) == (warmup, decay)
