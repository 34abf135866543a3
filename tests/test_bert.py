"""The encoder with heads: hidden states beside logits, and the blocks that they need."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_programs import matrix_flops

from bertjax.model.bert import BertWithHeads, init_params
from bertjax.model.bert_config import BertConfig

CONFIG = BertConfig(
    100, num_hidden_layers=3, hidden_size=32, num_attention_heads=2, num_labels=3, dtype="float32",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
HEADS = ("mlm", "sequence_classification")
LENGTH = 16


def draw_batch() -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    arrays = {
        "input_ids": random.integers(5, 100, (2, LENGTH)),
        "token_type_ids": np.zeros((2, LENGTH)),
        "example_ids": np.repeat([[1, 2]], [9, 7], axis=1).repeat(2, axis=0),
        "position_ids": np.tile(np.arange(LENGTH), (2, 1)),
        "masked_lm_positions": np.array([[3, 4, 12], [1, 9, 15]]),
        "cls_positions": np.array([[0, 9], [0, 9]]),
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


@functools.cache
def params(num_hidden_layers: int = 3) -> Any:
    config = dataclasses.replace(CONFIG, num_hidden_layers=num_hidden_layers)
    return jax.jit(functools.partial(init_params, config, HEADS))(jax.random.key(0, impl="rbg"))


def outputs_of(
    tree: Any, layers: Sequence[int], heads: tuple[str, ...] = HEADS, **fields: Any
) -> dict[str, jax.Array]:
    model = BertWithHeads(dataclasses.replace(CONFIG, **fields), heads)
    variables = {"params": tree}
    outputs: dict[str, jax.Array] = model.apply(
        variables, draw_batch(), deterministic=True, hidden_layers=layers
    )
    return outputs


def count_flops(layers: Sequence[int], heads: tuple[str, ...] = HEADS, **fields: Any) -> int:
    run = functools.partial(outputs_of, layers=layers, heads=heads, **fields)
    return matrix_flops(jax.make_jaxpr(run)(params()).jaxpr)


@pytest.mark.seconds
@pytest.mark.parametrize("layers", [(0,), (2, 0, 1), (-2, -2)])
@pytest.mark.parametrize("fields", [{}, {"scan_layers": True}, {"remat": True}], ids=str)
def test_hidden_states_and_gradients_equal_those_with_the_last_block(layers, fields) -> None:
    def total(tree: Any, with_last: bool) -> tuple[jax.Array, Any]:
        outputs = outputs_of(tree, [*layers, *([-1] if with_last else [])], **fields)
        states = outputs["hidden_states"][: len(layers)]
        values = {**outputs, "hidden_states": states}
        return sum(jnp.square(x).sum() for x in values.values()), values

    run = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
    pruned, complete = run(params(), False), run(params(), True)
    assert pruned[1]["hidden_states"].shape == (len(layers), 2, LENGTH, CONFIG.hidden_size)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
                 pruned, complete)  # fmt: skip


@pytest.mark.seconds
def test_hidden_state_of_a_single_block_is_that_of_the_embeddings() -> None:
    pruned, complete = (
        outputs_of(params(1), layers, num_hidden_layers=1) for layers in ((0,), (0, -1))
    )
    np.testing.assert_allclose(pruned["hidden_states"][0], complete["hidden_states"][0], atol=1e-6)
    np.testing.assert_allclose(pruned["mlm_logits"], complete["mlm_logits"], atol=1e-5)


@pytest.mark.seconds
def test_hidden_states_below_the_last_block_cost_nothing() -> None:
    assert count_flops((0, 2)) == count_flops(()) < count_flops((-1,))


@pytest.mark.seconds
@pytest.mark.parametrize("scan_layers", [False, True])
def test_model_without_heads_computes_no_block_above_the_topmost_hidden_state(scan_layers) -> None:
    none, one, all_blocks = (
        count_flops(layers, (), scan_layers=scan_layers) for layers in ((0,), (1,), (-1, 0))
    )
    assert none == 0 < one
    assert all_blocks == 3 * one
