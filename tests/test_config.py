"""Configurations: every field is known, typed and checked before anything else happens."""

import dataclasses
import itertools
import json
import math
import pathlib
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.config import durations
from bertjax.config.config import (
    MIN_INTERVAL_STEPS,
    MODEL_FIELDS,
    Config,
    load_config,
    parse_config,
    read_config,
)
from bertjax.config.config_file import builtin_configs, run_config_file
from bertjax.model.bert_config import BertConfig
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.tasks import registry
from data_pipelines.errors import InputError

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
FIELDS = {"pretraining": {"dir": "", "workers": None, "mlm_probability": 0.15, "masking": "token"}}


def load(arg: str = "", **overrides: str) -> Config:
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return load_config(f"{PRETRAIN}:{arg}", named, registry.data_fields())


def parse(**raw: object) -> Config:
    return parse_config(raw, FIELDS)


def test_an_empty_configuration_is_the_defaults() -> None:
    assert parse() == parse_config(Config().to_dict(), FIELDS)


def test_what_is_written_is_read_again_as_it_was() -> None:
    config = load("model=mini,recipe=lamb,data=somewhere")
    assert parse_config(config.to_dict(), registry.data_fields()) == config


@pytest.mark.parametrize(
    ("field", "nearest"),
    [
        ("sede", "seed"),
        ("batchsize", "batch_size"),
        ("model.num_layer", "model.num_hidden_layers"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("mesh.dat", "mesh.data"),
        ("data.maskin", "data.masking"),
    ],
)
def test_a_misspelt_field_is_refused_and_the_nearest_named(field: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"{field} is no field .*: did you mean {nearest}\?"):
        load_config(f"{PRETRAIN}:data=x", {field: "1"}, registry.data_fields())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"seed": "one"}, "seed='one' is a str: it must be int"),
        ({"seed": True}, "seed=True is a bool: it must be int"),
        ({"batch_size": 2.5}, "batch_size=2.5 is a float: it must be int"),
        ({"packing": 1}, "packing=1 is a int: it must be bool"),
        ({"model": 3}, "model=3 must be a section"),
        ({"data": 3}, "data=3 must be a section"),
        ({"task": ["pretraining"]}, r"task=\['pretraining'\] is a list: it must be str"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        (
            {"batch_size": 10, "gradient_accumulation_steps": 4},
            "batch_size=10 is not a multiple of accumulation",
        ),
        (
            {"max_seq_length": 513},
            "max_seq_length=513 is more than model.max_position_embeddings=512",
        ),
        ({"model": {"num_attention_heads": 7}}, "num_attention_heads"),
        ({"profile": "5"}, "profile='5' must read START:STOP"),
        ({"profile": "9:5"}, "profile='9:5' must read START:STOP"),
        ({"tensorboard": "examples+text"}, r"'text' is unknown, use examples\+parameters"),
    ],
)
def test_a_value_that_cannot_be_is_refused(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(
        InputError, match="task='translate' is unknown: there are multiple_choice, pretraining"
    ):
        load("data=x", task="translate")


def test_whole_numbers_serve_where_floats_are_wanted_and_the_reverse() -> None:
    config = parse(seed=3.0, optimizer={"learning_rate": 1})
    assert (config.seed, type(config.seed)) == (3, int)
    assert type(config.optimizer.learning_rate) is float


@given(steps=st.integers(1, 10**9))
def test_steps_are_steps(steps: int) -> None:
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
def test_durations_come_in_five_units(duration: int | str, steps: int) -> None:
    config = parse(steps=200, batch_size=10, log_every=duration, optimizer={"warmup": 0})
    assert config.resolve(sequences_per_epoch=500).log_every == steps


CADENCES = ["log_every", "checkpoint_every", "eval_every", "keep_period"]


@given(steps=st.integers(1, 10**6), percent=st.integers(1, 100), name=st.sampled_from(CADENCES))
def test_what_is_due_every_so_many_percent_is_due_at_most_every_ten_steps(
    steps: int, percent: int, name: str
) -> None:
    config = parse(steps=steps, optimizer={"warmup": 0}, **{name: f"{percent}%"}).resolve()
    assert getattr(config, name) == max(MIN_INTERVAL_STEPS, math.ceil(percent / 100 * steps)) >= 10


@pytest.mark.parametrize("name", CADENCES)
@pytest.mark.parametrize("duration", [1, "3 steps", "20 examples"])
def test_steps_of_a_cadence_stay_what_they_are(name: str, duration: int | str) -> None:
    config = parse(steps=20, batch_size=10, optimizer={"warmup": 0}, **{name: duration}).resolve()
    assert getattr(config, name) in (1, 2, 3)


def test_no_percent_of_checkpoints_that_are_kept_for_ever_are_none() -> None:
    assert parse(steps=20, keep_period="0%").resolve().keep_period == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": "soon"}, "steps='soon': not a duration"),
        (
            {"steps": "10%"},
            "steps='10%': the number of steps of the run is unknown. Use steps or epochs",
        ),
        ({"steps": 0}, "steps=0 comes to 0 steps; the least is 1"),
        ({"steps": 10, "log_every": 0}, "log_every=0 comes to 0 steps"),
        ({"log_every": "5 minutes"}, "log_every='5 minutes': only steps, eval_every"),
        ({"checkpoint_every": "0 hours"}, "checkpoint_every='0 hours' is no time at all"),
        ({"steps": 10, "log_every": "0%"}, "log_every='0%' comes to 0 steps"),
        ({"steps": 10, "optimizer": {"warmup": 11}}, "optimizer.warmup of 11"),
        ({"steps": 10, "optimizer": {"decay_steps": 9}}, "decay_steps=9"),
        ({"steps": "0 hours"}, "steps='0 hours' is no time at all"),
        ({"steps": "0 hours", "optimizer": {"warmup": 9}}, "steps='0 hours' is no time at all"),
        (
            {"steps": "2h", "optimizer": {"warmup": 100}},
            "warmup=100: not a part of a run with a time budget",
        ),
        ({"steps": "2h", "optimizer": {"decay_steps": "50%"}}, "decay_steps='50%' ends before the"),
        (
            {"steps": "2h", "log_every": "1%"},
            "log_every='1%': the number of steps of the run is unknown",
        ),
        (
            {"steps": "2h", "batch_size_rampup": 4},
            "batch_size_rampup=4 counts steps and steps='2h' is",
        ),
        ({"steps": 10, "batch_size_rampup": 3}, "batch_size_rampup=3 must be a power of 2"),
    ],
)
def test_a_duration_that_cannot_be_is_refused(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw).resolve(sequences_per_epoch=100)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30 minutes", 1800), ("1 hour", 3600), ("0.5 hours", 1800), (5, None)]
)
def test_checkpoints_may_have_a_time(every: int | str, seconds: float | None) -> None:
    config = parse(checkpoint_every=every, eval_every=every).resolve()
    assert config.checkpoint_every == config.eval_every == every
    assert (
        config.interval_seconds("checkpoint_every")
        == config.interval_seconds("eval_every")
        == seconds
    )
    assert config.resolve() == config


def test_a_run_that_the_clock_ends_has_shares_of_its_time() -> None:
    optimizer = {"warmup": "10%", "schedule": "wsd", "cooldown": "30 minutes"}
    config = parse(steps="2h", eval_every="5%", checkpoint_every="10 minutes", optimizer=optimizer)
    config = config.resolve()
    assert (config.budget_seconds, config.total_steps) == (7200, None)
    assert (config.interval_seconds("eval_every"), config.interval_seconds("checkpoint_every")) == (
        360,
        600,
    )
    found = config.optimizer_config()
    assert (found.warmup_steps, found.cooldown_steps) == (0.1, 0.25)
    assert found.total_steps == 1
    assert config.resolve() == config


@pytest.mark.parametrize(
    "optimizer",
    [{"warmup": "100%"}, {"warmup": "50%", "schedule": "wsd", "cooldown": "90 minutes"}],
)
def test_what_does_not_fit_the_time_is_refused(optimizer) -> None:
    with pytest.raises(InputError, match=r"optimizer\.warmup='.*' and .* do not fit steps='2h'"):
        parse(steps="2h", optimizer=optimizer).resolve()


@given(st.integers(0, 10_000), st.integers(1, 10**6))
def test_shares_are_rounded_up_from_what_is_written(hundredths: int, total: int) -> None:
    share = f"{hundredths // 100}.{hundredths % 100:02d}%"
    expected = -(-hundredths * total // 10_000)
    assert durations.steps("warmup", share, Fraction(8), None, total) == expected


@given(st.integers(0, 4), st.integers(1, 40), st.integers(1, 10**6))
def test_examples_fill_the_steps_of_a_batch_that_grows(
    power: int, least: int, examples: int
) -> None:
    sizes = [least << i for i in range(power + 1)]
    config = parse(
        batch_size=sizes[-1],
        batch_size_rampup=1 << power,
        steps=f"{examples} examples",
        optimizer={"warmup": 0},
    ).resolve()
    assert config.steps == -(-examples * len(sizes) // sum(sizes))


def test_epochs_need_data() -> None:
    with pytest.raises(ValueError, match="the length of an epoch is unknown"):
        parse(steps="2 epochs").resolve()


def test_decay_ends_with_the_run_unless_told() -> None:
    assert parse(steps=100).resolve().optimizer_config().total_steps == 100
    later = parse(steps=100, optimizer={"decay_steps": 250}).resolve()
    assert later.optimizer_config().total_steps == 250


@pytest.mark.parametrize(
    ("recipe", "phase"),
    [("modern", 1), *itertools.product(["paper", "slides", "lamb"], [1, 2])],
)
@pytest.mark.parametrize("smoke", ["", ",smoke"])
@pytest.mark.parametrize("model", ["tiny", "mini", "small", "medium", "base", "large", "6-256"])
def test_every_recipe_is_a_configuration(recipe: str, phase: int, smoke: str, model: str) -> None:
    config = load(f"model={model},phase={phase},recipe={recipe},data=x{smoke}").resolve()
    assert config.max_seq_length == (512 if phase == 2 else 128) // (4 if smoke else 1)
    tokens = config.batch_size * config.max_seq_length
    if recipe == "slides" and not smoke:
        assert tokens == 131_072


def test_the_rate_of_phase_two_begins_where_that_of_phase_one_ends() -> None:
    first, second = (load(f"phase={phase},data=x").resolve() for phase in (1, 2))
    end = learning_rate_schedule(first.optimizer_config())(first.steps)
    assert float(end) == pytest.approx(second.optimizer.learning_rate, rel=1e-5)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("modle=base", r"'modle=base' is no option of .*pretraining\.py: did you mean model"),
        ("smok", "did you mean smoke"),
        ("model=huge", "model='huge' is unknown"),
        ("model=6-100", "model='6-100' is unknown"),
        ("phase=3", "phase=3 is unknown"),
        ("phase=one", "'phase=one' is of the wrong type: its value must be int"),
        ("smoke=perhaps", "'smoke=perhaps' is of the wrong type: its value must be true or false"),
        ("recipe=cake", "recipe='cake' is unknown"),
        ("recipe=modern,phase=2", "recipe=modern: has no phase=2"),
        ("data", "data has no value: write data=VALUE"),
        ("phase", "phase has no value"),
        ("model=base,model=tiny", "model is given twice"),
    ],
)
def test_a_wrong_option_is_refused(arg: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(arg)


def write(path: pathlib.Path, signature: str, returned: str = "{}") -> pathlib.Path:
    """A configuration file in a folder."""
    file = path / "configuration.py"
    file.write_text(f"def get_config({signature}):\n    return {returned}\n")
    return file


KINDS = 'whole=1, part=0.5, name="none", flag=False'


@pytest.mark.parametrize(
    ("options", "given"),
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
def test_an_option_has_the_type_of_its_default(options: str, given: dict, tmp_path) -> None:
    path = write(tmp_path, KINDS, '{"data": {"found": repr([whole, part, name, flag])}}')
    config = load_config(f"{path}{options}", {}, {"pretraining": {"dir": "", "found": ""}})
    expected = {"whole": 1, "part": 0.5, "name": "none", "flag": False} | given
    assert config.data["found"] == repr(list(expected.values()))


@pytest.mark.parametrize("signature", ["arg", 'arg=""', 'arg: str = ""', "model", "*a", "**o"])
@pytest.mark.parametrize("options", ["", ":smoke"])
def test_a_file_whose_options_are_not_its_parameters_is_told_how(
    signature: str, options: str, tmp_path
) -> None:
    path = write(tmp_path, signature)
    fix = 'give each option one with a default, as in get_config(model="base", phase=1, smoke'
    with pytest.raises(InputError, match=re.escape(fix)):
        load_config(f"{path}{options}", {}, FIELDS)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x = 1\n", "", "has no get_config"),
        ("def get_config(:\n", "", r"is no Python \(line 1: "),
        ("def get_config():\n    raise ValueError('no, thanks')\n", "", "^no, thanks$"),
        ("def get_config():\n    return {}\n", ":smoke", "'smoke' is no option .*: it has none"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    text: str, options: str, message: str, tmp_path
) -> None:
    (tmp_path / "configuration.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(f"{tmp_path}/configuration.py{options}", {}, FIELDS)


def test_a_mistake_in_a_file_keeps_its_traceback(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_config(str(write(tmp_path, "", "1 / 0")), {}, FIELDS)


MADE = BertConfig(
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
    initialization="neighbours",
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
def test_what_defines_a_model_is_inherited_and_nothing_else(field: str, tmp_path) -> None:
    made, default = getattr(MADE, field), getattr(BertConfig(), field)
    assert made != default
    path = write(tmp_path, "", '{"init": "runs/x"}')
    config = load_config(str(path), {}, FIELDS, lambda init: MADE)
    assert getattr(config.model, field) == (made if field in MODEL_FIELDS else default)


def test_what_a_configuration_says_of_its_model_comes_before_what_it_begins_with(tmp_path) -> None:
    path = write(
        tmp_path, "", '{"init": "x", "model": {"num_hidden_layers": 2, "hidden_dropout_prob": 0.5}}'
    )
    config = load_config(str(path), {"model.remat": "True"}, FIELDS, lambda init: MADE)
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (2, 32)
    assert (config.model.hidden_dropout_prob, config.model.remat) == (0.5, True)


@pytest.mark.parametrize(
    ("written", "message"),
    [("{", "is not what a run wrote"), ("[]", "is not what a run wrote"), (None, "there is no")],
)
def test_what_no_run_wrote_is_refused(written: str | None, message: str, tmp_path) -> None:
    path = tmp_path / "config.json"
    if written is not None:
        path.write_text(written)
    with pytest.raises(InputError, match=message):
        read_config(path, FIELDS)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"there is no file nowhere\.py: name one"):
        load_config("nowhere.py:x", {}, FIELDS)
    with pytest.raises(InputError, match=": a directory. Name a file"):
        load_config(str(tmp_path), {}, FIELDS)


def test_a_configuration_of_ours_is_found_by_its_name_from_anywhere(tmp_path, monkeypatch) -> None:
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
        ("pretrainign:smoke", "there is no configuration pretrainign: did you mean pretraining?"),
        ("pretraining:smok", "'smok' is no option of pretraining: did you mean smoke?"),
        ("experiments/squad.py:smoke", "there is no file experiments/squad.py: name one that "
         "exists, or write squad for the one that comes with bertjax"),
        ("text.txt", "text.txt is no Python file"),
        ("text", "text is no Python file"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(spec: str, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "text.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=re.escape(message)):
        run_config_file(spec)


def test_overrides_are_literals_or_text() -> None:
    config = load("data=x", seed="5", packing="false", data__masking="whole_word", steps="3 epochs")
    assert (config.seed, config.packing, config.steps) == (5, False, "3 epochs")
    assert config.data["masking"] == "whole_word"


@pytest.mark.parametrize(("given", "warmup", "decay"), [(0, 10_000, 10**6), (9000, 100, 10**4)])
def test_the_schedule_of_the_paper_shrinks_with_a_run(given, warmup, decay) -> None:
    overrides = {"steps": str(given)} if given else {}
    path = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
    config = load_config(f"{path}:model=base", overrides, registry.data_fields()).resolve()
    assert (config.optimizer.warmup, config.optimizer.decay_steps) == (warmup, decay)
