"""HLO text yields collectives with their bytes, and instruction costs with their counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.preflight.hlo import (
    Collective,
    InstructionCost,
    find_collectives,
    instruction_costs,
    parse_hlo,
)

MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))


def compile_collectives(function, in_spec, out_spec, dtype=jnp.float32) -> list[Collective]:
    """Return the collectives of a function that is mapped over the shards of an array."""
    mapped = jax.shard_map(
        function, mesh=MESH, in_specs=in_spec, out_specs=out_spec, check_vma=False
    )
    array = jax.ShapeDtypeStruct((16, 32), dtype, sharding=NamedSharding(MESH, in_spec))
    return parse_collectives(jax.jit(mapped).lower(array).compile().as_text())


def parse_collectives(text: str) -> list[Collective]:
    return find_collectives(parse_hlo(text))


@pytest.mark.parametrize(
    ("axis", "devices"), [("a", 4), ("b", 2), (("a", "b"), 8)], ids=["a", "b", "both"]
)
def test_find_collectives_counts_an_all_reduce_by_its_group(axis, devices) -> None:
    psum = functools.partial(jax.lax.psum, axis_name=axis)
    size = 16 * 32 * 4
    collectives = compile_collectives(psum, PartitionSpec(), PartitionSpec())
    assert collectives == [Collective("all-reduce", size, devices, 1)]
    assert collectives[0].bytes_sent == 2 * size * (devices - 1) / devices


def test_find_collectives_counts_the_whole_array_of_an_all_gather() -> None:
    gather = functools.partial(jax.lax.all_gather, axis_name="a", tiled=True)
    collectives = compile_collectives(gather, PartitionSpec("a"), PartitionSpec())
    assert collectives == [Collective("all-gather", 16 * 32 * 4, 4, 1)]
    assert collectives[0].bytes_sent == 16 * 32 * 4 * 3 / 4


def test_find_collectives_counts_the_operand_of_a_reduce_scatter() -> None:
    scatter = functools.partial(jax.lax.psum_scatter, axis_name="a", tiled=True)
    collectives = compile_collectives(scatter, PartitionSpec(), PartitionSpec("a"))
    assert collectives == [Collective("reduce-scatter", 16 * 32 * 4, 4, 1)]
    assert collectives[0].bytes_sent == 16 * 32 * 4 * 3 / 4


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


def test_find_collectives_reads_a_tpu_reduce_scatter_fusion_as_one() -> None:
    assert parse_collectives(TPU_SCATTER) == [Collective("reduce-scatter", 64 * 128 * 2, 4, 1)]


SPARSE_CORE_SCATTER = """\
HloModule jit_f, is_scheduled=true

%called.1 (p: bf16[64,128], t: token[]) -> bf16[8,128] {
  %t = token[] parameter(1)
  %p = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %scatter.1 = bf16[8,128]{1,0:T(8,128)(2,1)} reduce-scatter(%p), GROUPS, to_apply=%add
}, execution_thread="sparsecore"

ENTRY %main.1 (x: bf16[64,128]) -> bf16[8,128] {
  %x = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %ready = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  %start = ((bf16[64,128]{1,0}, token[]), bf16[8,128]{1,0}) call-start(%x, %ready), CALLED
  ROOT %done = bf16[8,128]{1,0:T(8,128)(2,1)} call-done(%start)
}
"""


def test_find_collectives_reads_calls_of_a_sparse_core() -> None:
    text = SPARSE_CORE_SCATTER.replace("GROUPS", "replica_groups=mesh['a'=8,'b'=1] {'a'}")
    called = 'async_execution_thread="sparsecore", to_apply=%called.1'
    collectives = parse_collectives(text.replace("CALLED", called))
    assert collectives == [Collective("reduce-scatter", 64 * 128 * 2, 8, 1)]


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


def test_find_collectives_counts_each_chain_once_even_in_a_shared_channel() -> None:
    text = CHAINS.replace("GROUPS", "replica_groups={{0,1,2,3}}")
    for number in "01":
        text = text.replace(f"CHAIN_{number}", f'chain_id="{number}"')
    assert parse_collectives(text) == [Collective("all-reduce", 64 * 4, 4, 1)] * 2


@pytest.mark.parametrize(("dtype", "size"), [(jnp.int8, 1), (jnp.float16, 2), (jnp.float32, 4)])
def test_find_collectives_counts_bytes_by_dtype(dtype, size) -> None:
    gather = functools.partial(jax.lax.all_gather, axis_name="b", tiled=True)
    (collective,) = compile_collectives(gather, PartitionSpec("b"), PartitionSpec(), dtype=dtype)
    assert collective.bytes == 16 * 32 * size


def test_find_collectives_counts_executions_in_a_loop() -> None:
    def loop(x):
        def body(_, x):
            return jax.lax.psum(x, "a") * 0.5

        return jax.lax.fori_loop(0, 7, body, x)

    collectives = compile_collectives(loop, PartitionSpec(), PartitionSpec())
    assert [collective.count for collective in collectives] == [7]


def test_find_collectives_multiplies_nested_trip_counts() -> None:
    def inner(_, x):
        return jax.lax.psum(x, "a") * 0.5

    def outer(_, x):
        return jax.lax.fori_loop(0, 5, inner, x + 1)

    def loops(x):
        return jax.lax.fori_loop(0, 3, outer, x)

    collectives = compile_collectives(loops, PartitionSpec(), PartitionSpec())
    assert [collective.count for collective in collectives] == [15]


def test_a_function_on_one_device_has_no_collectives() -> None:
    module = parse_hlo(jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile().as_text())
    assert not find_collectives(module)
    costs = instruction_costs(module)
    assert costs and all(cost.count == 1 for cost in costs)


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


def test_instruction_costs_counts_a_fusion_once_without_its_body() -> None:
    cost = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
    name = 'metadata={op_name="jit(f)/while/attention/mul"}, '
    text = SCHEDULED.replace("METADATA", name + cost % 100).replace("COST", cost % 9)
    costs = [cost for cost in instruction_costs(parse_hlo(text)) if cost.cycles]
    assert costs == [InstructionCost("jit(f)/while/attention/mul", 24, 100)]


def test_instruction_costs_reads_the_cost_estimate_of_a_kernel() -> None:
    estimate = 'backend_config={"cost_estimate":{"flops":"70","bytes_accessed":"30"}}'
    text = SCHEDULED.replace("METADATA", estimate).replace("COST", "")
    costs = [cost for cost in instruction_costs(parse_hlo(text)) if cost.flops]
    assert costs == [InstructionCost("", 24, 0, 70, 30)]


def test_instruction_costs_reads_the_largest_number_as_no_estimate() -> None:
    cost = f'backend_config={{"window_config":{{"estimated_cycles":"{2**63 - 1}"}}}}'
    text = SCHEDULED.replace("METADATA", cost).replace("COST", "")
    assert not any(cost.cycles for cost in instruction_costs(parse_hlo(text)))


def test_find_collectives_counts_all_arrays_of_a_combined_collective() -> None:
    groups = "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"
    text = f"""\
ENTRY %main (a: bf16[2,96], b: f32[16]) -> bf16[2,768] {{
  %a = bf16[2,96]{{1,0}} parameter(0)
  %b = f32[16]{{0}} parameter(1)
  %g = ((bf16[2,96]{{1,0}}, f32[16]{{0}}), (bf16[2,768]{{1,0}}, /*index=1*/f32[128]{{0}})) \
all-gather-start(%a, %b), channel_id=1, {groups}
  %s = ((f32[128]{{0}}, f32[64]{{0}}), (f32[16]{{0}}, f32[8]{{0}})) \
reduce-scatter-start(%a, %b), channel_id=2, {groups}
  %r = (f32[5]{{0}}, f32[7]{{0}}) all-reduce-start(%a, %b), channel_id=3, {groups}
  ROOT %d = bf16[2,768]{{1,0}} bitcast(%a)
}}
"""
    assert parse_collectives(text) == [
        Collective("all-gather", 2 * 768 * 2 + 128 * 4, 8, 1),
        Collective("reduce-scatter", (128 + 64) * 4, 8, 1),
        Collective("all-reduce", (5 + 7) * 4, 8, 1),
    ]
