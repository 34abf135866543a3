"""The last block of the encoder, computed only at the positions that heads read.

Most heads read few positions of a sequence: the masked tokens, or [CLS]. After its attention, the
last block computes each position independently, so it can skip the positions that no head reads.
`num_last_block_positions` decides. The model, its FLOPs and objectives follow that number.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.model.bert_config import BertConfig, hidden_state_indices
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
    are also computed if a layer mix, a BiLSTM or a decoder reads all, if the blocks form a loop, in
    an LSTM, and in a pair, whose encoders are read at different positions.

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
    if config.encoder == "lstm" or config.direction == "pair":
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
    layers: Sequence[int] = (),
) -> tuple[Array, Array | None]:
    """Return the last block's vectors at some positions, and hidden states below this block.

    The parameters of `encoder` must exist: use its `__call__` to initialize them.

    Args:
      encoder: the encoder.
      input_ids: see `Encoder.__call__`, as for the other arrays of tokens.
      token_type_ids: int32 [B, T].
      example_ids: int32 [B, T].
      position_ids: int32 [B, T].
      output_positions: positions of the vectors [B, N, H], int32 [B, N].
      deterministic: turns dropout off.
      layers: layers below the last whose hidden states [len(layers), B, T, H] are returned too,
        numbered as in `hidden_state_indices`; None is returned without any.
    """
    config, num_lower = encoder.config, encoder.config.num_hidden_layers - 1
    depths = hidden_state_indices(layers, config.num_hidden_layers)
    embedded = x = encoder.embeddings(
        input_ids, token_type_ids, position_ids, deterministic=deterministic
    )
    leaves, tree = jax.tree.flatten(encoder.get_variable("params", "blocks"))
    # One split, whose derivative concatenates the gradients of all layers in one operation.
    parts = zip(*(jnp.split(leaf, [num_lower]) for leaf in leaves), strict=True)
    lower, last = (jax.tree.unflatten(tree, part) for part in parts)

    def run(blocks: Any, params: Any, *inputs: Array, output: bool) -> tuple[Array, Array | None]:
        rngs = {} if deterministic else {"dropout": encoder.make_rng("dropout")}
        module = blocks(
            config, deterministic, output_hidden_state=output, parent=None, name="blocks"
        )
        outputs: tuple[Array, Array | None] = module.apply({"params": params}, *inputs, rngs=rngs)
        return outputs

    ids, states = attention_ids(config, token_type_ids, example_ids), None
    if num_lower:
        output = any(0 < depth < num_lower for depth in depths)
        blocks = block_stack(config, num_lower, deterministic)
        x, states = run(blocks, lower, x, ids, output=output)
    hidden_states = [embedded, *(() if states is None else states)]
    last = jax.tree.map(lambda leaf: leaf[0], last)
    vectors, _ = run(block_class(config), last, x, ids, output_positions, output=False)
    if not depths:
        return vectors, None
    return vectors, jnp.stack(
        [x if depth == num_lower else hidden_states[depth] for depth in depths]
    )
