"""Configurations: fields, types, overrides, model fields of `init` and recipes."""

import dataclasses
import itertools
import json
import pathlib

import pytest
from config_loading import FIELDS, PRETRAIN, load, parse, write

from bertjax.config.config import Config
from bertjax.config.loading import MODEL_FIELDS, load_config, parse_config, read_config
from bertjax.model.bert_config import BertConfig
from bertjax.steps.schedules import learning_rate_schedule
from bertjax.tasks import registry
from data_pipelines.errors import InputError


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
        (
            {"optimizer": {"warmup": 0.1}},
            r"warmup=0\.1: is of type float\. Use a whole number, or a share such as '10%'",
        ),
        (
            {"num_train_epochs": 3},
            "num_train_epochs=3: an argument of Trainer. Use steps, such as '3 epochs'",
        ),
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
        ({"greater_is_better": False}, "greater_is_better=False: of no score. Set best_metric"),
        ({"tensorboard": "examples+text"}, r"'text' is unknown. Use examples\+parameters"),
    ],
)
def test_parse_config_rejects_invalid_values(raw: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**raw)


def test_profile_of_steps_after_the_run_is_rejected() -> None:
    assert parse(steps=20, profile="19:30").resolve().profile_steps() == range(19, 30)
    with pytest.raises(InputError, match="profile='20:30': the run has 20 steps"):
        parse(steps=20, profile="20:30").resolve()


def test_load_config_rejects_an_unknown_task() -> None:
    with pytest.raises(
        InputError, match=r"task='translate': unknown task. Use .*multiple_choice, pretraining"
    ):
        load("data=x", task="translate")


def test_parse_config_converts_whole_numbers() -> None:
    config = parse(seed=3.0, init=7, optimizer={"learning_rate": 1})
    assert (config.seed, type(config.seed), config.init) == (3, int, "7")
    assert type(config.optimizer.learning_rate) is float


@pytest.mark.parametrize(
    ("recipe", "phase"),
    [
        ("modern", 1),
        *itertools.product(["paper", "slides", "lamb"], [1, 2]),
        *[("paper", 3), ("slides", 3)],
    ],
)
@pytest.mark.parametrize("smoke", ["", ",smoke"])
@pytest.mark.parametrize("model", ["tiny", "mini", "small", "medium", "base", "large", "6-256"])
def test_every_recipe_is_valid(recipe: str, phase: int, smoke: str, model: str) -> None:
    config = load(f"model={model},phase={phase},recipe={recipe},data=x{smoke}").resolve()
    assert config.max_seq_length == {1: 128, 2: 512, 3: 1024}[phase] // (4 if smoke else 1)
    tokens = config.batch_size * config.max_seq_length
    if recipe == "slides" and not smoke:
        assert tokens == 131_072


def test_phase_two_starts_at_the_learning_rate_that_phase_one_ends_with() -> None:
    first, second = (load(f"phase={phase},data=x").resolve() for phase in (1, 2))
    end = learning_rate_schedule(first.optimizer_config())(first.steps)
    assert float(end) == pytest.approx(second.optimizer.learning_rate, rel=1e-5)


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
    direction="left_to_right",
    freeze_features=False,
    sampled_softmax=16,
    feature_layers="-2",
    feature_mix="sum",
    bilstm=32,
    num_labels=7,
    label_counts="intent=3,slot=4",
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(BertConfig)])
def test_load_config_inherits_only_model_fields_from_init(field: str, tmp_path) -> None:
    model = INIT_MODEL
    if field == "decoder":  # a left-to-right model has none
        model = dataclasses.replace(model, direction="bidirectional", decoder="prefix")
    if field == "encoder":
        transformer = {"attention_init": "normal", "scan_layers": False, "remat": False}
        model = dataclasses.replace(model, encoder="lstm", **transformer)
    inherited, default = getattr(model, field), getattr(BertConfig(), field)
    assert inherited != default
    path = write(tmp_path, "", '{"init": "runs/x"}')
    config = load_config(str(path), {}, FIELDS, lambda init: model)
    assert getattr(config.model, field) == (inherited if field in MODEL_FIELDS else default)


def test_load_config_prefers_its_own_model_fields_to_those_of_init(tmp_path) -> None:
    path = write(
        tmp_path, "", '{"init": "x", "model": {"num_hidden_layers": 2, "hidden_dropout_prob": 0.5}}'
    )
    config = load_config(str(path), {"model.remat": "True"}, FIELDS, lambda init: INIT_MODEL)
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (2, 32)
    assert (config.model.hidden_dropout_prob, config.model.remat) == (0.5, True)


def test_pretraining_takes_its_shape_from_a_file_or_from_init(tmp_path) -> None:
    file = tmp_path / "bert_config.json"
    shape = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"intermediate_size": 100, "max_position_embeddings": 200, "type_vocab_size": 4}
    file.write_text(json.dumps(shape | {"hidden_act": "relu", "hidden_dropout_prob": 0.25}))
    model = load(f"model={file},data=x").model
    assert dataclasses.asdict(model).items() >= {**shape, "hidden_act": "relu"}.items()
    assert (model.hidden_dropout_prob, model.dtype) == (0.25, "bfloat16")
    assert load(f"model={file},recipe=modern").model.hidden_dropout_prob == 0
    assert load(f"model={file},smoke").model.vocab_size == 99
    assert load().model == load("model=base").model
    with pytest.raises(InputError, match=r"gone.json: no such file"):
        load("model=gone.json")
    file.write_text("{}")
    with pytest.raises(InputError, match="lacks hidden_size or vocab_size"):
        load(f"model={file}")

    saved = BertConfig(50, 2, 64, 1)
    for options in ("init=x", "init=x,smoke", "init=x,objective=mlm"):
        config = load_config(
            f"{PRETRAIN}:{options}", {}, registry.data_fields(), lambda init: saved
        )
        inherited = (
            config.model.num_hidden_layers,
            config.model.hidden_size,
            config.model.vocab_size,
        )
        assert inherited == (2, 64, 50)
    named = load_config(
        f"{PRETRAIN}:init=x,model=mini", {}, registry.data_fields(), lambda init: saved
    )
    assert named.model.hidden_size == 256  # rejected where the parameters are loaded


@pytest.mark.parametrize(
    ("written", "message"),
    [("{", "not JSON"), ("[]", "not an object"), (None, "cannot be read")],
)
def test_read_config_rejects_other_files(written: str | None, message: str, tmp_path) -> None:
    path = tmp_path / "config.json"
    if written is not None:
        path.write_text(written)
    with pytest.raises(InputError, match=message):
        read_config(path, FIELDS)


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.num_hidden_layers", 10**9),
        ("model.hidden_size", 10**9),
        ("model.vocab_size", 2**40),
        ("model.num_labels", 10**9),
        ("batch_size", 10**15),
        ("eval_batch_size", 10**15),
        ("max_to_keep", 10**15),
        ("steps", 10**25),
        ("steps", f"{10**25} epochs"),
        ("steps", "1" * 400 + " steps"),
        ("seed", 2**70),
        ("seed", 2**32),
        ("data_seed", -1),
        ("optimizer.learning_rate", 10**400),
    ],
)
def test_huge_numbers_are_rejected(field: str, value: object) -> None:
    sections, _, name = field.rpartition(".")
    raw = {sections: {name: value}} if sections else {name: value}
    with pytest.raises(InputError, match=rf"{name}=.*: (is )?(too large|out of range|of type)"):
        parse_config(raw, FIELDS)
