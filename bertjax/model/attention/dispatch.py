"""Scaled dot-product attention within packed examples, by the best implementation for the devices.

An implementation is a module with `attention`, which has the signature of `attention` here. It
also has `unsupported_reason`, which returns why it cannot serve a query, or "". Plain attention
then replaces it. On GPUs its backward pass recomputes the weights [B, N, T, T]. BERT-Large with 16
sequences of 512 tokens on an H100 (compiled, dropout 0.1, scanned layers):

| | temporary buffers, MiB | memory traffic at its peak, ms |
|---|---:|---:|
| gpu kernels | 8,017 | 30.1 |
| plain, recomputed | 8,533 | 65.1 |
| plain | 19,008 | 69.4 |
| one sequence at a time, as on CPUs | 9,729 | 69.3 |
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from types import ModuleType

import jax
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.mesh.device_mesh import gpu_kind, is_traced_for_cpu, tpu_kind
from bertjax.mesh.distributed import is_process_0
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import plain as plain_attention
from bertjax.model.attention.mask import MaskKind

_log = logging.getLogger("bertjax")


@dataclasses.dataclass(frozen=True)
class AttentionImplementation:
    """An implementation of attention.

    Attributes:
      name: name in reports.
      attend: function with the signature of `attention`.
      unsupported_reason: reason why plain attention replaces the one of the devices; "" otherwise.
    """

    name: str
    attend: Callable[..., Array]
    unsupported_reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.unsupported_reason})" if self.unsupported_reason else self.name


def choose_implementation(query: Array | jax.ShapeDtypeStruct) -> AttentionImplementation:
    """Return the implementation for queries [B, T, N, D] on the mesh of `jax.set_mesh`.

    A reason why it is plain attention is logged once.
    """
    plain = functools.partial(AttentionImplementation, "plain", plain_attention.attention)
    if any(map(is_symbolic_dim, query.shape)):  # of a program for export
        return plain("batch size or length is symbolic")
    module: ModuleType
    # Pallas takes a while to import, and only TPUs and GPUs need it.
    if tpu_kind():
        from bertjax.model.attention import tpu as tpu_attention

        name, module = "tpu kernel", tpu_attention
    elif gpu_kind():
        from bertjax.model.attention import gpu as gpu_attention

        name, module = "gpu kernels", gpu_attention
        plain = functools.partial(
            AttentionImplementation, "plain, recomputed", plain_attention.recomputed_attention
        )
    elif is_traced_for_cpu():
        name, module = "cpu, one sequence at a time", cpu_attention
    else:
        return plain()
    if reason := module.unsupported_reason(query):
        implementation = plain(reason)
        _log_once(str(implementation))
        return implementation
    return AttentionImplementation(name, module.attention)


@functools.cache
def _log_once(implementation: str) -> None:
    if is_process_0():
        _log.info("attention: %s", implementation)


def attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    mask_kind: MaskKind = "bidirectional",
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """Return softmax(query key^T / sqrt(D)) value (Vaswani et al. 2017, section 3.2.1).

    The softmax is computed in float32 whatever the inputs.

    Args:
      query: [B, T, N, D], N heads of size D.
      key: [B, T, N, D].
      value: [B, T, N, D].
      example_ids: int32 [B, T]; a token attends to the tokens with the same id. With the mask
        "prefix" the id of a target token is negated.
      mask_kind: "bidirectional"; "left_to_right" for a token that attends only to itself and
        earlier tokens, "right_to_left" to itself and later ones; "prefix" for source tokens, which
        attend to the source, and target tokens, which attend to the source and to the target up to
        themselves (Dong et al. 2019).
      dropout_rate: dropout of the attention probabilities.
      dropout_key: key of the dropout; None for no dropout.

    Returns:
      [B, T, N, D] in the dtype of `value`.
    """
    return choose_implementation(query).attend(
        query,
        key,
        value,
        example_ids,
        mask_kind=mask_kind,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
    )
