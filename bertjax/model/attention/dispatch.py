"""Scaled dot-product attention inside packed rows, by what suits the devices."""

import dataclasses
from collections.abc import Callable

import jax
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.mesh.device_mesh import gpu_kind, is_traced_for_cpu, tpu_kind
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.attention import plain as plain_attention


@dataclasses.dataclass(frozen=True)
class AttentionImplementation:
    """A way to compute attention.

    Attributes:
      name: for a person.
      attend: takes what `attention` takes.
      unsupported_reason: what the devices have for themselves and this is not; "" where it is.
    """

    name: str
    attend: Callable[..., Array]
    unsupported_reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.unsupported_reason})" if self.unsupported_reason else self.name


def choose(query: Array | jax.ShapeDtypeStruct) -> AttentionImplementation:
    """The way for queries [B, T, N, D] on the devices of the context's mesh (`jax.set_mesh`).

    TPUs and GPUs have kernels, and CPUs take a row at a time, where nothing stands against it.
    """
    if any(map(is_symbolic_dim, query.shape)):  # as in a program that is to be exported
        return AttentionImplementation(
            "plain", plain_attention.attention, "rows or lengths are free"
        )
    # What kernels are written with takes a while to import, and is of use with their devices alone.
    if tpu_kind():
        from bertjax.model.attention import tpu as fused_attention

        way, unsupported_reason = (
            AttentionImplementation("tpu kernel", fused_attention.attention),
            fused_attention.unsupported_reason(query),
        )
    elif gpu_kind():
        from bertjax.model.attention import gpu as gpu_attention

        way, unsupported_reason = (
            AttentionImplementation("gpu kernels", gpu_attention.attention),
            gpu_attention.unsupported_reason(query),
        )
    elif is_traced_for_cpu():
        way = AttentionImplementation("cpu, a row at a time", cpu_attention.attention)
        unsupported_reason = cpu_attention.unsupported_reason(query)
    else:
        return AttentionImplementation("plain", plain_attention.attention)
    return (
        AttentionImplementation("plain", plain_attention.attention, unsupported_reason)
        if unsupported_reason
        else way
    )


def attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """softmax(query key^T / sqrt(D)) value within each pair (Vaswani et al. 2017, section 3.2.1).

    `query`, `key` and `value` are [B, T, N, D] (N heads of size D), `example_ids` int32 [B, T]; the
    result is [B, T, N, D] in the dtype of `value`. The softmax is taken in float32 whatever the
    inputs, and dropout falls on the probabilities.
    """
    return choose(query).attend(
        query,
        key,
        value,
        example_ids,
        causal=causal,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
    )
