"""The memory traffic of slices and updates, of collectives, and of calls of libraries."""

from bertjax.preflight.hlo import parse_hlo
from bertjax.preflight.memory_traffic import bytes_accessed

FUSIONS = """\
HloModule jit_f, is_scheduled=true

%slice_fusion (p: f32[24,100], i: s32[]) -> f32[1,100] {
  %p = f32[24,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %flat = f32[24,1,100]{2,1,0} bitcast(%p)
  ROOT %slice = f32[1,100]{1,0} dynamic-slice(%flat, %i, %i, %i), dynamic_slice_sizes={1,1,100}
}

%update_fusion (q: f32[24,100], x: f32[1,100], j: s32[]) -> (f32[24,100], f32[1,100]) {
  %q = f32[24,100]{1,0} parameter(0)
  %x = f32[1,100]{1,0} parameter(1)
  %j = s32[] parameter(2)
  %update = f32[24,100]{1,0} dynamic-update-slice(%q, %x, %j, %j)
  %sum = f32[1,100]{1,0} add(%x, %x)
  ROOT %results = (f32[24,100]{1,0}, f32[1,100]{1,0}) tuple(%update, %sum)
}

ENTRY %main (a: f32[24,100], n: s32[]) -> f32[1,100] {
  %a = f32[24,100]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %row = f32[1,100]{1,0} fusion(%a, %n), kind=kLoop, calls=%slice_fusion
  %pair = (f32[24,100]{1,0}, f32[1,100]{1,0}) fusion(%a, %row, %n), kind=kLoop, calls=%update_fusion
  %out = f32[1,100]{1,0} get-tuple-element(%pair), index=1
  ROOT %copy = f32[1,100]{1,0} copy(%out)
}
"""


def test_bytes_accessed_counts_slices_and_not_whole_arrays() -> None:
    row_bytes, index_bytes = 400, 4
    sliced = row_bytes + index_bytes + row_bytes  # slice, index, result
    updated = row_bytes + index_bytes + 2 * row_bytes  # update, index, both results
    assert bytes_accessed(parse_hlo(FUSIONS)) == sliced + updated + 2 * row_bytes


def traffic(line: str) -> int:
    """Return the bytes accessed by an instruction with the operand %a, f32[100], or %b, s8[50]."""
    return bytes_accessed(
        parse_hlo(f"""\
HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[100], b: s8[50]) -> f32[100] {{
  %a = f32[100]{{0}} parameter(0)
  %b = s8[50]{{0}} parameter(1)
  %x = {line}
  ROOT %out = f32[100]{{0}} bitcast(%a)
}}
""")
    )


def test_bytes_accessed_leaves_out_the_workspace_of_libraries() -> None:
    shapes = "(f32[200]{0}, s8[4194304]{0})"
    target = 'custom_call_target="__cublas$lt$matmul"'
    assert traffic(f"{shapes} custom-call(%a, %a), {target}") == 4 * (100 + 100 + 200)
    assert traffic(f"s8[50]{{0}} custom-call(%b), {target}") == 50 + 50
    # A kernel of the model may return integers.
    kernel = 'custom_call_target="__gpu$xla.gpu.triton"'
    assert traffic(f"{shapes} custom-call(%a), {kernel}") == 4 * (100 + 200) + 4194304


def test_bytes_accessed_counts_operands_of_asynchronous_operations_once() -> None:
    groups = "replica_groups={{0,1}}"
    gathered = "((f32[100]{0}, s8[50]{0}), (f32[200]{0}, /*index=1*/s8[100]{0}))"
    assert traffic(f"{gathered} all-gather-start(%a, %b), {groups}") == 4 * 300 + 150
    scattered = "((f32[100]{0}), (f32[50]{0}))"
    assert traffic(f"{scattered} reduce-scatter-start(%a), {groups}") == 4 * 150
    assert traffic(f"f32[100]{{0}} all-reduce-start(%a), {groups}") == 4 * 200


ASYNCHRONOUS_CALL = """\
HloModule jit_f, is_scheduled=true

%called (p: f32[100]) -> f32[100] {
  %p = f32[100]{0} parameter(0)
  ROOT %doubled = f32[100]{0} add(%p, %p)
}

ENTRY %main (a: f32[100]) -> f32[100] {
  %a = f32[100]{0} parameter(0)
  %start = ((f32[100]{0}), f32[100]{0}, u32[]) async-start(%a), calls=%called
  ROOT %done = f32[100]{0} async-done(%start)
}
"""


def test_bytes_accessed_counts_what_an_asynchronous_call_computes_once() -> None:
    assert bytes_accessed(parse_hlo(ASYNCHRONOUS_CALL)) == 4 * (100 + 100 + 100)
