"""Models with random parameters."""

from typing import Any

import numpy as np

from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.sharding import map_named, named_leaves
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from data_pipelines.vocabulary.tokenization import Tokenizer


def draw_model(config: BertConfig, tokenizer: Tokenizer | None, *heads: str) -> NumpyModel:
    """Return a model with random parameters for the encoder and some heads."""
    registry.register_heads()  # those of tasks
    random, shapes = np.random.default_rng(0), param_shapes(config)

    def draw(name: str, leaf: Any) -> np.ndarray:
        mean = float(name.endswith("/scale"))
        return random.normal(mean, 0.05, leaf.shape).astype(np.float32)

    params = map_named(draw, {part: shapes[part] for part in ("encoder", *heads)})
    return NumpyModel(config, params, tokenizer)


def assert_same_params(params: dict[str, Any], other_params: dict[str, Any]) -> None:
    """Check that two trees have the same names and the same bits."""
    for (name, array), (other_name, other) in zip(
        named_leaves(params), named_leaves(other_params), strict=True
    ):
        assert name == other_name
        assert np.asarray(array).tobytes() == np.asarray(other).tobytes(), name
