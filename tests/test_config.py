"""Configurations: every field is known, typed and checked before anything else happens."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks import registry
from bertjax.training.config import Config, load_config, parse_config, read_config

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretrain.py"
FIELDS = {"pretrain": {"dir": "", "workers": None, "mask_prob": 0.15, "masking": "piece"}}


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
        ("model.num_layer", "model.num_layers"),
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
        ({"task": "translate"}, "task='translate' is unknown: there are pretrain"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"batch_size": 10, "accumulation": 4}, "batch_size=10 is not a multiple of accumulation"),
        ({"seq_len": 513}, "seq_len=513 is more than model.max_positions=512"),
        ({"model": {"num_heads": 7}}, "num_heads"),
        ({"profile": "5"}, "profile='5' must read START:STOP"),
        ({"profile": "9:5"}, "profile='9:5' must read START:STOP"),
    ],
)
def test_a_value_that_cannot_be_is_refused(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw)


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
        ("0.25 percent", 1),
        ("100 examples", 10),
        ("101 examples", 11),
        ("1 epoch", 50),
        ("0.5 epochs", 25),
    ],
)
def test_durations_come_in_five_units(duration: int | str, steps: int) -> None:
    config = parse(steps=200, batch_size=10, log_every=duration, optimizer={"warmup": 0})
    assert config.resolve(rows_per_epoch=500).log_every == steps


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"steps": "soon"}, "steps='soon' is no duration"),
        ({"steps": "10%"}, "cannot be a share of itself"),
        ({"steps": 0}, "steps=0 comes to 0 steps; the least is 1"),
        ({"steps": 10, "log_every": 0}, "log_every=0 comes to 0 steps"),
        ({"log_every": "5 minutes"}, "log_every='5 minutes' is a time, as checkpoint_every alone"),
        ({"checkpoint_every": "0 hours"}, "checkpoint_every='0 hours' is no time at all"),
        ({"steps": 10, "optimizer": {"warmup": 11}}, "warm-up of 11"),
        ({"steps": 10, "optimizer": {"decay_steps": 9}}, "decay_steps=9"),
    ],
)
def test_a_duration_that_cannot_be_is_refused(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw).resolve(rows_per_epoch=100)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30 minutes", 1800), ("1 hour", 3600), ("0.5 hours", 1800), (5, None)]
)
def test_checkpoints_may_have_a_time(every: int | str, seconds: float | None) -> None:
    config = parse(checkpoint_every=every).resolve()
    assert config.checkpoint_every == every and config.checkpoint_seconds == seconds
    assert config.resolve() == config


def test_epochs_need_data() -> None:
    with pytest.raises(ValueError, match="counts epochs, which needs data"):
        parse(steps="2 epochs").resolve()


def test_decay_ends_with_the_run_unless_told() -> None:
    assert parse(steps=100).resolve().optimizer_config().total_steps == 100
    later = parse(steps=100, optimizer={"decay_steps": 250}).resolve()
    assert later.optimizer_config().total_steps == 250


@pytest.mark.parametrize("recipe", ["paper", "slides", "lamb"])
@pytest.mark.parametrize("phase", [1, 2])
@pytest.mark.parametrize("smoke", ["", ",smoke"])
@pytest.mark.parametrize("model", ["tiny", "mini", "small", "medium", "base", "large", "6-256"])
def test_every_recipe_is_a_configuration(recipe: str, phase: int, smoke: str, model: str) -> None:
    config = load(f"model={model},phase={phase},recipe={recipe},data=x{smoke}").resolve()
    assert config.seq_len == (512 if phase == 2 else 128) // (4 if smoke else 1)
    pieces = config.batch_size * config.seq_len
    if recipe == "slides" and not smoke:
        assert pieces == 131_072


def test_the_rate_of_phase_two_begins_where_that_of_phase_one_ends() -> None:
    from bertjax.training.optimizer import make_schedule

    first, second = (load(f"phase={phase},data=x").resolve() for phase in (1, 2))
    end = make_schedule(first.optimizer_config())(first.steps)
    assert float(end) == pytest.approx(second.optimizer.learning_rate, rel=1e-5)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("modle=base", "did you mean model"),
        ("model=huge", "model='huge' is unknown"),
        ("model=6-100", "model='6-100' is unknown"),
        ("phase=3", "phase='3' is unknown"),
        ("recipe=cake", "recipe='cake' is unknown"),
    ],
)
def test_a_wrong_argument_is_refused(arg: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(arg)


def test_a_field_that_was_retired_does_not_close_a_checkpoint(tmp_path) -> None:
    written = Config().to_dict()
    written["model"]["dropout_rng"] = "rbg"
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert read_config(tmp_path / "config.json", FIELDS) == parse()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.py: no such configuration file"):
        load_config("nowhere.py:x", {}, FIELDS)


def test_overrides_are_literals_or_text() -> None:
    config = load("data=x", seed="5", packing="false", data__masking="word", steps="3 epochs")
    assert (config.seed, config.packing, config.steps) == (5, False, "3 epochs")
    assert config.data["masking"] == "word"
