"""Checkpoints of google-research/bert (TF1): reading, and what cannot be written."""

import dataclasses
import importlib.util
import json
import pathlib

import numpy as np
import pytest
from model_files import (
    CONFIG,
    HIDDEN,
    LAYERS,
    TOKENIZER,
    VOCAB_SIZE,
    assert_same,
    draw,
    write_hf,
)
from random_models import draw_model
from tf1_files import read_checkpoint, write_checkpoint

from bertjax.formats import tf1
from bertjax.formats.detection import find_format
from bertjax.formats.loading import find_bert_config, find_labels, find_tokenizer, read_model
from bertjax.inference.convert import convert
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"
)


@pytest.mark.seconds
@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("length", [0, 1, 47, 200, -9, -1])
def test_read_rejects_a_truncated_file(tmp_path: pathlib.Path, suffix: str, length: int) -> None:
    tf1.write(draw("mlm"), tmp_path)
    file = tmp_path / f"bert_model.ckpt.{suffix}"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(InputError, match=r"bert_model\.ckpt"):
        read_model(tmp_path, "tf1")


def original_variables() -> dict[str, tuple[int, ...]]:
    """Return the variables of the original code's BertModel with both heads, and their shapes."""
    names: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (VOCAB_SIZE, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        "bert/embeddings/position_embeddings": (32, HIDDEN),
        "bert/pooler/dense/kernel": (HIDDEN, HIDDEN),
        "bert/pooler/dense/bias": (HIDDEN,),
        "cls/predictions/output_bias": (VOCAB_SIZE,),
        "cls/predictions/transform/dense/kernel": (HIDDEN, HIDDEN),
        "cls/predictions/transform/dense/bias": (HIDDEN,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    norms = ["bert/embeddings", "cls/predictions/transform"]
    for layer in range(LAYERS):
        block = f"bert/encoder/layer_{layer}"
        linear = {f"attention/self/{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")}
        linear |= {"attention/output/dense": (HIDDEN, HIDDEN)}
        linear |= {"intermediate/dense": (HIDDEN, 4 * HIDDEN), "output/dense": (4 * HIDDEN, HIDDEN)}
        for name, shape in linear.items():
            names |= {f"{block}/{name}/kernel": shape, f"{block}/{name}/bias": shape[1:]}
        norms += [f"{block}/attention/output", f"{block}/output"]
    for norm in norms:
        names |= {f"{norm}/LayerNorm/gamma": (HIDDEN,), f"{norm}/LayerNorm/beta": (HIDDEN,)}
    return names


def write_tf1(path: pathlib.Path, variables: dict[str, np.ndarray], name: str) -> pathlib.Path:
    path.mkdir(exist_ok=True)
    write_checkpoint(path / name, variables)
    config = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    config |= {"num_attention_heads": 1, "intermediate_size": 4 * HIDDEN, "hidden_act": "gelu"}
    config |= {"max_position_embeddings": 32, "type_vocab_size": 2}
    (path / "bert_config.json").write_text(json.dumps(config))
    (path / "vocab.txt").write_text("\n".join(TOKENIZER.tokens) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_model.ckpt", "model.ckpt-1000"])
def test_tf1_checkpoint_with_optimizer_is_read(name: str, tmp_path) -> None:
    random = np.random.default_rng(1)
    variables = {
        each: random.standard_normal(shape).astype(np.float32)
        for each, shape in original_variables().items()
    }
    slots = {f"{n}/{slot}": a + 1 for n, a in variables.items() for slot in ("adam_m", "adam_v")}
    path = write_tf1(
        tmp_path / "tf1", variables | slots | {"global_step": np.array(1000, np.int64)}, name
    )
    model = read_model(path)
    assert model.unexpected_keys == () and model.config.hidden_act == "gelu"
    assert model.tokenizer is not None and not model.tokenizer.cased
    written = model.named_arrays("tf1")
    assert written.keys() == variables.keys()
    for each, array in variables.items():
        np.testing.assert_array_equal(written[each], array)


@pytest.mark.seconds
def test_tf1_classifier_has_default_labels(tmp_path) -> None:
    variables = {each: np.ones(shape, np.float32) for each, shape in original_variables().items()}
    weights = np.arange(3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN)
    classifier = {"output_weights": weights, "output_bias": np.ones(3, np.float32)}
    path = write_tf1(tmp_path / "tf1", variables | classifier, "model.ckpt-7")
    model = read_model(path)
    assert model.unexpected_keys == () and model.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    np.testing.assert_array_equal(model.params["sequence_classification"]["kernel"], weights.T)


@pytest.mark.seconds
def test_read_takes_the_named_step_or_the_newest(tmp_path) -> None:
    path = tmp_path / "out"
    for step in (0, 900, 1000):
        variables = {
            name: np.full(shape, step, "f") for name, shape in original_variables().items()
        }
        write_tf1(path, variables, f"model.ckpt-{step}")

    def bias(source: pathlib.Path) -> float:
        return float(read_model(source).params["nsp"]["bias"][0])

    assert bias(path) == 1000 and bias(path / "model.ckpt-900") == 900
    assert find_bert_config(path / "model.ckpt-0").num_hidden_layers == LAYERS
    assert find_tokenizer(path / "model.ckpt-0").tokens == TOKENIZER.tokens
    pretrained = PretrainedModel(path / "model.ckpt-900")
    assert pretrained.digest == PretrainedModel(path / "model.ckpt-900").digest
    assert pretrained.digest != PretrainedModel(path).digest
    with pytest.raises(
        InputError, match=r"Give one of model.ckpt-0, model.ckpt-900, model.ckpt-1000"
    ):
        find_format(path / "model.ckpt-500")
    with pytest.raises(
        InputError, match=r"ckpt-0.index: is not the prefix .* Leave out the suffix"
    ):
        find_format(path / "model.ckpt-0.index")
    (path / "bert_config.json").unlink()
    for source in (path, path / "model.ckpt-0"):
        with pytest.raises(InputError, match=r"no bert_config.json\. Copy --bert_config_file and"):
            find_format(source)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05: the TF1 format supports 1e-12 only"),
        ({"is_decoder": True}, "direction"),
    ],
    ids=str,
)
def test_tf1_write_rejects_what_it_would_compute_differently(
    changed: dict, complaint: str, tmp_path
) -> None:
    path = write_hf(draw(), tmp_path / "hf", **changed)
    with pytest.raises(ValueError, match=complaint):
        convert(path, tmp_path / "tf1", "hf", "tf1")
    assert not list(tmp_path.glob("tf1*"))


@pytest.mark.seconds
def test_find_labels_reads_the_labels_of_a_tf1_classifier(tmp_path) -> None:
    config, labels = dataclasses.replace(CONFIG, num_labels=3), ("pos", "neg", "odd")
    drawn = draw_model(config, TOKENIZER, "pooler", "sequence_classification")
    (tmp_path / "named").mkdir()
    tf1.write(dataclasses.replace(drawn, labels=labels), tmp_path / "named")
    assert find_labels(tmp_path / "named") == labels
    assert find_labels(tmp_path / "named" / "bert_model.ckpt") == labels
    (tmp_path / "plain").mkdir()
    tf1.write(draw("pooler"), tmp_path / "plain")
    assert find_labels(tmp_path / "plain") == ()


@pytest.mark.slow
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_tf1_write_names_the_activation_as_transformers(hidden_act: str, tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf", hidden_act=hidden_act)
    convert(path, tmp_path / "tf1", "hf", "tf1")
    config = json.loads((tmp_path / "tf1" / "bert_config.json").read_text())
    assert config["hidden_act"] == hidden_act


@pytest.mark.seconds
def test_read_names_tf2_and_removes_a_scope(tmp_path) -> None:
    path = tmp_path / "tf1"
    path.mkdir()
    model = draw("pooler")
    tf1.write(model, path)
    prefix = path / "bert_model.ckpt"
    arrays = read_checkpoint(prefix)
    write_checkpoint(prefix, {f"module/{name}": array for name, array in arrays.items()})
    (path / "bert_config.json").rename(path / "config.json")
    assert_same(read_model(path), model)
    write_checkpoint(prefix, arrays | {"_CHECKPOINTABLE_OBJECT_GRAPH": np.array(b"")})
    with pytest.raises(InputError, match=r"a TF2 \(Keras\) checkpoint: .* Give the TF1 checkpoint"):
        read_model(path)
