"""Models with random numbers for the tests of formats."""

from typing import Any

import jax
import numpy as np

from bertjax.formats.tensors import Model
from bertjax.model.encoder import BertConfig
from bertjax.model.heads import Model as Network
from data_pipelines.vocabulary.tokenization import Tokenizer


def shapes_of(config: BertConfig) -> dict[str, Any]:
    """The parameters of pre-training, and of the heads that are fine-tuned, as shapes."""
    ids = np.zeros((1, 8), np.int32)
    names = ("token_ids", "type_ids", "pack_ids", "positions", "mlm_positions", "cls_positions")
    batch, init = dict.fromkeys(names, ids), Network(config, ("mlm", "nsp")).init
    variables = jax.eval_shape(lambda key: init(key, batch, deterministic=True), jax.random.key(0))
    sizes = {"span": 2, "classifier": max(config.num_labels, 1), "choice": 1}
    tuned = {
        head: {
            "kernel": jax.ShapeDtypeStruct((config.hidden_size, size), "float32"),
            "bias": jax.ShapeDtypeStruct((size,), "float32"),
        }
        for head, size in sizes.items()
    }
    return variables["params"] | tuned


def draw_model(config: BertConfig, tokenizer: Tokenizer | None, *heads: str) -> Model:
    """Random arrays for the encoder and some heads."""
    random, shapes = np.random.default_rng(0), shapes_of(config)

    def draw(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        mean = float(path[-1].key == "scale")
        return random.normal(mean, 0.05, leaf.shape).astype(np.float32)

    parts = {part: shapes[part] for part in ("encoder", *heads)}
    params = jax.tree.map_with_path(draw, parts)
    return Model(config, params, tokenizer)
