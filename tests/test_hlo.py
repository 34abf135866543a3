"""A compiled program is read as what it does: collectives with their bytes, loops as they run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.preflight.hlo import Collective, read_program

MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))


def collectives_of(function, spec, out, shape=(16, 32), dtype=jnp.float32) -> list[Collective]:
    """Of a function that runs on each device's piece of an array."""
    mapped = jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=out, check_vma=False)
    array = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))
    return read_program(jax.jit(mapped).lower(array).compile().as_text())[1]


@pytest.mark.parametrize(
    ("axis", "devices"), [("a", 4), ("b", 2), (("a", "b"), 8)], ids=["a", "b", "both"]
)
def test_a_sum_over_devices(axis, devices) -> None:
    sums = functools.partial(jax.lax.psum, axis_name=axis)
    whole = 16 * 32 * 4
    found = collectives_of(sums, PartitionSpec(), PartitionSpec())
    assert found == [Collective("all-reduce", whole, devices, 1)]
    assert found[0].bytes_sent == 2 * whole * (devices - 1) / devices


def test_a_gathered_array_counts_whole() -> None:
    gather = functools.partial(jax.lax.all_gather, axis_name="a", tiled=True)
    found = collectives_of(gather, PartitionSpec("a"), PartitionSpec())
    assert found == [Collective("all-gather", 16 * 32 * 4, 4, 1)]
    assert found[0].bytes_sent == 16 * 32 * 4 * 3 / 4


def test_a_scattered_sum_counts_what_each_device_brings() -> None:
    scatter = functools.partial(jax.lax.psum_scatter, axis_name="a", tiled=True)
    found = collectives_of(scatter, PartitionSpec(), PartitionSpec("a"))
    assert found == [Collective("reduce-scatter", 16 * 32 * 4, 4, 1)]
    assert found[0].bytes_sent == 16 * 32 * 4 * 3 / 4


TPU_SCATTER = """\
HloModule jit_f, is_scheduled=true

%all-reduce-scatter.3 (input: bf16[64,128]) -> bf16[16,128] {
  %input = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.1 = bf16[64,128]{1,0:T(8,128)(2,1)} all-reduce(%input), replica_groups={{0,1,2,3}}
  %first = u32[] parameter(1)
  ROOT %cut = bf16[16,128]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.1, %first)
}

ENTRY %main.1 (x: bf16[64,128], i: u32[]) -> bf16[16,128] {
  %x = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %i = u32[] parameter(1)
  ROOT %sum = bf16[16,128]{1,0} fusion(%x, %i), kind=kCustom, calls=%all-reduce-scatter.3
}
"""


def test_a_sum_that_a_tpu_scatters_is_no_sum_that_each_device_has_whole() -> None:
    assert read_program(TPU_SCATTER)[1] == [Collective("reduce-scatter", 64 * 128 * 2, 4, 1)]


CHAINS = """\
HloModule jit_f, is_scheduled=true

%part.1 (p: f32[64]) -> f32[64] {
  %p = f32[64]{0:T(128)} parameter(0)
  ROOT %sum.1 = f32[64]{0:T(128)} all-reduce(%p), channel_id=2, GROUPS, attributes={CHAIN_0}
}

%part.2 (q: f32[64]) -> f32[64] {
  %q = f32[64]{0:T(128)} parameter(0)
  ROOT %sum.2 = f32[64]{0:T(128)} all-reduce(%q), channel_id=2, GROUPS, attributes={CHAIN_0}
}

%part.3 (r: f32[64]) -> f32[64] {
  %r = f32[64]{0:T(128)} parameter(0)
  ROOT %sum.3 = f32[64]{0:T(128)} all-reduce(%r), channel_id=2, GROUPS, attributes={CHAIN_1}
}

ENTRY %main.1 (x: f32[64]) -> f32[64] {
  %x = f32[64]{0:T(128)} parameter(0)
  %start = f32[64]{0:T(128)} fusion(%x), kind=kCustom, calls=%part.1
  %done = f32[64]{0:T(128)} fusion(%start), kind=kCustom, calls=%part.2
  ROOT %next = f32[64]{0:T(128)} fusion(%done), kind=kCustom, calls=%part.3
}
"""


def test_parts_of_a_chain_are_one_sum_and_chains_of_one_channel_are_several() -> None:
    text = CHAINS.replace("GROUPS", "replica_groups={{0,1,2,3}}")
    for number in "01":
        text = text.replace(f"CHAIN_{number}", f'chain_id="{number}"')
    assert read_program(text)[1] == [Collective("all-reduce", 64 * 4, 4, 1)] * 2


@pytest.mark.parametrize(("dtype", "size"), [(jnp.int8, 1), (jnp.float16, 2), (jnp.float32, 4)])
def test_bytes_follow_the_dtype(dtype, size) -> None:
    gather = functools.partial(jax.lax.all_gather, axis_name="b", tiled=True)
    (found,) = collectives_of(gather, PartitionSpec("b"), PartitionSpec(), dtype=dtype)
    assert found.bytes == 16 * 32 * size


def test_what_a_loop_holds_runs_as_often_as_the_loop() -> None:
    def loop(x):
        def body(_, x):
            return jax.lax.psum(x, "a") * 0.5

        return jax.lax.fori_loop(0, 7, body, x)

    assert [c.runs for c in collectives_of(loop, PartitionSpec(), PartitionSpec())] == [7]


def test_loops_multiply() -> None:
    def inner(_, x):
        return jax.lax.psum(x, "a") * 0.5

    def outer(_, x):
        return jax.lax.fori_loop(0, 5, inner, x + 1)

    def loops(x):
        return jax.lax.fori_loop(0, 3, outer, x)

    assert [c.runs for c in collectives_of(loops, PartitionSpec(), PartitionSpec())] == [15]


def test_a_program_of_one_device_exchanges_nothing() -> None:
    text = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile().as_text()
    instructions, collectives = read_program(text)
    assert not collectives
    assert instructions and all(each.runs == 1 for each in instructions)


SCHEDULED = """\
HloModule jit_f, is_scheduled=true

%body.1 (p.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %x = f32[8]{0:T(128)S(1)} get-tuple-element(%p.1), index=1
  %fusion.1 = f32[8]{0:T(128)S(1)} fusion(%x), kind=kLoop, calls=%fused.1, METADATA
  %i = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %tuple.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) tuple(%i, %fusion.1)
}

%fused.1 (q: f32[8]) -> f32[8] {
  %q = f32[8]{0:T(128)} parameter(0)
  ROOT %m = f32[8]{0:T(128)} multiply(%q, %q), COST
}

%condition.1 (p.2: (s32[], f32[8])) -> pred[] {
  %p.2 = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  %bound = s32[]{:T(128)} constant(24)
  ROOT %less = pred[]{:T(512)} compare(%j, %bound), direction=LT
}

ENTRY %main.1 (a: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  ROOT %while.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}) while(%a), condition=%condition.1, body=%body.1
}
"""


def test_cycles_are_those_of_what_runs_and_not_of_what_is_fused() -> None:
    cost = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
    name = 'metadata={op_name="jit(f)/while/attention/mul"}, '
    text = SCHEDULED.replace("METADATA", name + cost % 100).replace("COST", cost % 9)
    instructions, _ = read_program(text)
    counted = [(i.op_name, i.runs, i.cycles) for i in instructions if i.cycles]
    assert counted == [("jit(f)/while/attention/mul", 24, 100)]


def test_a_kernel_counts_what_it_says_of_itself() -> None:
    said = 'backend_config={"cost_estimate":{"flops":"70","bytes_accessed":"30"}}'
    text = SCHEDULED.replace("METADATA", said).replace("COST", "")
    instructions, _ = read_program(text)
    assert [(i.runs, i.cycles, i.flops, i.bytes) for i in instructions if i.flops] == [
        (24, 0, 70, 30)
    ]
