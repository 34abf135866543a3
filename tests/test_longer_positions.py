"""Models that are initialized from one of fewer positions, and sequences of 1,024 tokens."""

import csv
import dataclasses
import json
import logging
import pathlib
import random

import numpy as np
import pytest
import toy_tasks
from config_loading import load
from goldens import make_longer_positions as recipe
from random_models import draw_model
from run_outputs import metrics
from safetensors.numpy import load_file, save_file

from bertjax.formats import huggingface
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.initialization import POSITION_INITS, extend_positions
from bertjax.training.initialization import PretrainedModel
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer

LONG = 1024
SHAPE = BertConfig(128, 2, 64, 2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize("num_positions", [5, 8, 10, 13])
def test_extend_positions_by_copying_repeats_the_table(num_positions: int) -> None:
    table = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    longer = extend_positions(table, num_positions, "copy")
    expected = np.concatenate([table, table, table])[:num_positions]
    np.testing.assert_array_equal(longer, expected)
    assert longer.dtype == np.float32


@pytest.mark.parametrize(("old", "new"), [(1, 4), (2, 9), (5, 5), (5, 8), (512, 1024)])
def test_extend_positions_by_interpolation_keeps_lines_and_ends(old: int, new: int) -> None:
    line = np.outer(np.linspace(-1, 2, old), [1, -3, 0.5]).astype(np.float32)
    longer = extend_positions(line, new, "interpolate")
    assert (longer.shape, longer.dtype) == ((new, 3), np.float32)
    expected = np.outer(np.linspace(-1, 2 if old > 1 else -1, new), [1, -3, 0.5])
    np.testing.assert_allclose(longer, expected, atol=1e-6)
    np.testing.assert_array_equal(longer[[0, -1]], line[[0, -1]])


def golden_model(path: pathlib.Path) -> pathlib.Path:
    """Write the model of the golden, with its 512 positions."""
    config = BertConfig(**recipe.FIELDS)
    path.mkdir()
    huggingface.write(draw_model(config, None), path)
    file = path / "model.safetensors"
    arrays = load_file(file)
    drawn = {
        name: recipe.weight(name.removeprefix("bert."), array.shape)
        for name, array in arrays.items()
    }
    save_file(drawn, file)
    return path


@pytest.mark.seconds
@pytest.mark.parametrize("method", POSITION_INITS)
def test_extended_model_equals_transformers_at_700_tokens(method: str, tmp_path) -> None:
    pretrained = PretrainedModel(golden_model(tmp_path / "model"))
    longer = dataclasses.replace(pretrained.bert_config, max_position_embeddings=LONG)
    pretrained.extend_positions(method, longer)
    model = read_model(tmp_path / "model")
    model = dataclasses.replace(model, config=longer, params=pretrained.host_params())
    (tmp_path / "longer").mkdir()
    huggingface.write(model, tmp_path / "longer")
    config = json.loads((tmp_path / "longer" / "config.json").read_text())
    assert config["max_position_embeddings"] == LONG
    opened = read_model(tmp_path / "longer")
    ids = recipe.text().astype(np.int32)
    hidden = Encoder(opened.config).apply(
        {"params": opened.params["encoder"]},
        ids, 0 * ids, 0 * ids + 1, np.arange(recipe.TOKENS)[None], deterministic=True,
    )  # fmt: skip
    with np.load(recipe.PATH) as golden:
        np.testing.assert_allclose(hidden[0] @ recipe.vectors(), golden[method], atol=2e-4)
        other = golden[next(name for name in POSITION_INITS if name != method)]
        assert np.abs(golden[method] - other).max() > 0.1


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("method", "positions", "message"),
    [
        ("", 1024, r"=1024: .*model has 512\. Set init_positions=copy or interpolate, or remove"),
        ("copy", 256, r"=256: .*model has 512\. Use at least 512\."),
    ],
)
def test_extend_positions_rejects(method: str, positions: int, message: str, tmp_path) -> None:
    pretrained = PretrainedModel(golden_model(tmp_path / "model"))
    model = dataclasses.replace(pretrained.bert_config, max_position_embeddings=positions)
    with pytest.raises(InputError, match=f"^model.max_position_embeddings{message}"):
        pretrained.extend_positions(method, model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init_positions": "copy"}, "init_positions='copy': of no model. Set init."),
        ({"init_positions": "zeros", "init": "x"}, "'zeros': unknown. Use copy or interpolate."),
    ],
)
def test_init_positions_is_validated(fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("smoke,data=x", **fields)


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory) -> pathlib.Path:
    """A published model of 512 positions."""
    path = tmp_path_factory.mktemp("model")
    huggingface.write(draw_model(SHAPE, load_tokenizer(corpus), "pooler", "mlm", "nsp"), path)
    return path


@pytest.mark.slow
def test_phase_three_trains_on_1024_tokens(corpus, model, tmp_path, caplog) -> None:
    config = load(
        f"smoke,model=tiny,phase=3,data={corpus},init={model}",
        max_seq_length=LONG, mesh__data=8, steps=2, model__vocab_size=128, data__workers=1,
        eval_batches=1, checkpoint_every=1,
    )  # fmt: skip
    assert config.init_positions == "copy"
    with caplog.at_level(logging.INFO, "bertjax"):
        make_trainer(config, tmp_path).train()
    message = f"{model}: 512 positions become 1024, init_positions=copy."
    assert message in caplog.messages
    assert np.isfinite([line["loss"] for line in metrics(tmp_path)]).all()
    table = dict(named_leaves(read_model(tmp_path).params))["encoder/embeddings/position"]
    assert table.shape == (LONG, 64) and not np.array_equal(table[:512], table[512:])


def write_long_texts(folder: pathlib.Path) -> None:
    """Write texts of 600 tokens, of which only the last 60 show the label."""
    toy_tasks.TOKENIZER.save(folder)
    for split, count in (("train", 160), ("dev", 24)):
        draw = random.Random(split)
        with open(folder / f"{split}.csv", "w") as file:
            writer = csv.writer(file)
            writer.writerow(("mood", "text"))
            for _ in range(count):
                mood = draw.choice([*toy_tasks.NAMES])
                words = [*draw.choices(toy_tasks.OTHER, k=540), *[mood] * 60]
                writer.writerow((toy_tasks.NAMES[mood], " ".join(words)))


@pytest.mark.slow
def test_fine_tuning_reads_texts_beyond_512_tokens(model, tmp_path) -> None:
    write_long_texts(tmp_path)
    config = toy_tasks.configuration(
        "single_label", tmp_path, model, max_seq_length=LONG, steps=40, batch_size=8,
        model__max_position_embeddings=LONG, init_positions="copy", mesh__data=8,
        optimizer__learning_rate=2e-3, optimizer__warmup=4, log_every=20, eval_every=40,
        checkpoint_every=40,
    )  # fmt: skip
    make_trainer(config, tmp_path / "run").train()
    assert metrics(tmp_path / "run")[-1]["accuracy"] == 1
    convert(tmp_path / "run", tmp_path / "exported", "bertjax", "hf")
    exported = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert exported["max_position_embeddings"] == LONG
