"""Models with random parameters."""

from typing import Any

import jax
import numpy as np

from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from data_pipelines.vocabulary.tokenization import Tokenizer


def shapes_of(config: BertConfig) -> dict[str, Any]:
    """Return the shapes of the parameters of pre-training and of question answering."""
    names = ["input_ids", "token_type_ids", "example_ids", "position_ids"]
    names += ["masked_lm_positions", "cls_positions"]
    batch = dict.fromkeys(names, np.zeros((1, 8), np.int32))
    init = BertWithHeads(config, ("mlm", "nsp")).init
    variables = jax.eval_shape(lambda key: init(key, batch, deterministic=True), jax.random.key(0))
    return variables["params"] | {"question_answering": _linear(config, 2)}


def _linear(config: BertConfig, size: int) -> dict[str, Any]:
    shapes = {"kernel": (config.hidden_size, size), "bias": (size,)}
    return {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}


def draw_model(config: BertConfig, tokenizer: Tokenizer | None, *heads: str) -> NumpyModel:
    """Return a model with random parameters for the encoder and some heads."""
    random, shapes = np.random.default_rng(0), shapes_of(config)
    classes = _linear(config, max(config.num_labels, 1))
    shapes |= {"sequence_classification": classes, "token_classification": classes}
    shapes |= {"multiple_choice": _linear(config, 1)}

    def draw(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        mean = float(path[-1].key == "scale")
        return random.normal(mean, 0.05, leaf.shape).astype(np.float32)

    parts = {part: shapes[part] for part in ("encoder", *heads)}
    params = jax.tree.map_with_path(draw, parts)
    return NumpyModel(config, params, tokenizer)


def assert_same_params(params: dict[str, Any], other_params: dict[str, Any]) -> None:
    """Check that two trees have the same names and the same bits."""
    for (name, array), (other_name, other) in zip(
        named_leaves(params), named_leaves(other_params), strict=True
    ):
        assert name == other_name
        assert np.asarray(array).tobytes() == np.asarray(other).tobytes(), name
