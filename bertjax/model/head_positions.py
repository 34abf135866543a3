"""The last block of the encoder, computed only at the positions that heads read.

Most heads read few positions of a sequence: the masked tokens, or [CLS]. After its attention, the
last block computes each position independently, so it can skip the positions that no head reads.
`num_last_block_positions` decides. The model, its FLOPs and objectives follow that number.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder, attention_ids, block_class, block_stack
from bertjax.model.heads import HEADS

POOLED_KEY = "pooled"  # stands for `cls_positions` of heads that read pooled vectors


def head_positions(heads: Iterable[str], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the positions that heads read, int32 [B, N], by batch array or `POOLED_KEY`.

    Args:
      heads: names of heads; those that read all positions have no entry in the result.
      batch: arrays or their shapes.
    """
    positions = {}
    for head in (HEADS[name] for name in heads):
        if head.pooled:
            positions[POOLED_KEY] = batch["cls_positions"]
        elif head.positions_key:
            positions[head.positions_key] = batch[head.positions_key]
    return positions


def num_last_block_positions(
    config: BertConfig, heads: Iterable[str], batch: Mapping[str, Any]
) -> int:
    """Return at how many positions of each sequence the last block is computed completely.

    All T positions are computed if a head reads all, or if heads read more than half of them. They
    are also computed if a layer mix, a BiLSTM or a decoder reads all, or if the blocks form a loop.

    Args:
      config: shape of the encoder.
      heads: names of heads.
      batch: arrays or their shapes.
    """
    heads = tuple(heads)
    length: int = batch["example_ids"].shape[1]
    if not all(HEADS[name].pooled or HEADS[name].positions_key for name in heads):
        return length
    if config.scan_layers or config.feature_layers or config.bilstm or config.has_cross_attention:
        return length
    count: int = sum(array.shape[1] for array in head_positions(heads, batch).values())
    if is_symbolic_dim(count) or is_symbolic_dim(length):
        return length
    return count if 0 < 2 * count <= length else length


def encode_at_positions(
    encoder: Encoder,
    input_ids: Array,
    token_type_ids: Array,
    example_ids: Array,
    position_ids: Array,
    *,
    output_positions: Array,
    deterministic: bool,
) -> Array:
    """Return the last block's vectors at some positions, [B, N, H].

    The arguments are those of `Encoder.__call__` and `output_positions`, int32 [B, N]. The
    parameters of `encoder` must exist: use its `__call__` to initialize them.
    """
    config, num_lower = encoder.config, encoder.config.num_hidden_layers - 1
    x = encoder.embeddings(input_ids, token_type_ids, position_ids, deterministic=deterministic)
    leaves, tree = jax.tree.flatten(encoder.get_variable("params", "blocks"))
    # One split, whose derivative concatenates the gradients of all layers in one operation.
    parts = zip(*(jnp.split(leaf, [num_lower]) for leaf in leaves), strict=True)
    lower, last = (jax.tree.unflatten(tree, part) for part in parts)

    def run(blocks: Any, params: Any, *inputs: Array) -> Array:
        rngs = {} if deterministic else {"dropout": encoder.make_rng("dropout")}
        module = blocks(
            config, deterministic, output_hidden_state=False, parent=None, name="blocks"
        )
        outputs: tuple[Array, None] = module.apply({"params": params}, *inputs, rngs=rngs)
        return outputs[0]

    ids = attention_ids(config, token_type_ids, example_ids)
    if num_lower:
        x = run(block_stack(config, num_lower, deterministic), lower, x, ids)
    last = jax.tree.map(lambda leaf: leaf[0], last)
    return run(block_class(config), last, x, ids, output_positions)
