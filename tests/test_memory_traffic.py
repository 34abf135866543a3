"""The memory traffic of fusions that slice and update arrays."""

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
