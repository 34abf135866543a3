"""Memory traffic of a compiled function, computed from its HLO text.

Each instruction reads its operands and writes its result once; values inside a fusion cause no
traffic. Slices and updates of an array count only the slice.
"""

import collections
from collections.abc import Mapping

from bertjax.preflight.hlo import (
    HloInstruction,
    HloModule,
    find_group,
    shape_bytes,
    tuple_elements,
)

_NO_TRAFFIC_OPCODES = {
    *("", "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    # The instructions that these call are counted.
    *("while", "call", "conditional", "call-start", "async-start", "async-update"),
}
_SLICE_OPCODES = ("dynamic-slice", "slice", "gather")
_UPDATE_OPCODES = ("dynamic-update-slice", "scatter")
_LIBRARY_CALL = 'custom_call_target="__cu'  # of cuBLAS or cuDNN
_WORKSPACE_DTYPES = ("s8[", "u8[")


def bytes_accessed(module: HloModule) -> int:
    """Return the bytes that one call moves between a device and its memory."""
    shapes = {
        instruction.name: instruction.shape
        for instructions in module.computations.values()
        for instruction in instructions
    }
    return sum(
        count * _instruction_bytes(instruction, shapes, module)
        for instruction, count, is_fused in module.executed_instructions()
        if not is_fused
        and instruction.opcode not in _NO_TRAFFIC_OPCODES
        and not instruction.opcode.endswith("-done")
    )


def _instruction_bytes(
    instruction: HloInstruction, shapes: Mapping[str, str], module: HloModule
) -> int:
    operands = [shape_bytes(shapes.get(name, "")) for name in instruction.operands]
    if instruction.opcode in _SLICE_OPCODES:
        return 2 * shape_bytes(instruction.shape)
    if instruction.opcode in _UPDATE_OPCODES:
        return 2 * operands[-1]
    called = find_group(r"calls=%?([\w.\-]+)", instruction.text)
    if instruction.opcode == "fusion" and called:
        return _fusion_bytes(module.computations[called], shapes)
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        return shape_bytes(instruction.shape)  # of the tuple (operands, results, ...)
    return _result_bytes(instruction) + sum(operands)


def _result_bytes(instruction: HloInstruction) -> int:
    """Return the bytes of a result, without the workspace that a library's call returns too.

    XLA offers cuBLAS 4 MiB for each product on a T4. How much of it is used is unknown.
    """
    if _LIBRARY_CALL not in instruction.text:
        return shape_bytes(instruction.shape)
    first, *others = tuple_elements(instruction.shape)
    others = [element for element in others if not element.startswith(_WORKSPACE_DTYPES)]
    return sum(map(shape_bytes, [first, *others]))


def _fusion_bytes(computation: list[HloInstruction], shapes: Mapping[str, str]) -> int:
    users: dict[str, list[HloInstruction]] = collections.defaultdict(list)
    for instruction in computation:
        for operand in instruction.operands:
            users[operand].append(instruction)
    by_name = {instruction.name: instruction for instruction in computation}

    def read_bytes(name: str) -> int:
        total, whole = 0, shape_bytes(shapes[name])
        for user in users[name]:
            is_first = user.operands[0] == name
            if user.opcode == "bitcast":
                total += read_bytes(user.name)
            elif is_first and user.opcode in _SLICE_OPCODES:
                total += shape_bytes(user.shape)
            elif not (is_first and user.opcode in _UPDATE_OPCODES):
                return whole
        return min(total, whole)

    def written_bytes(name: str) -> int:
        opcode, operands = by_name[name].opcode, by_name[name].operands
        if opcode == "bitcast":
            return written_bytes(operands[0])
        if opcode == "tuple":
            return sum(map(written_bytes, operands))
        if opcode in _UPDATE_OPCODES:
            name = operands[1 if opcode == "dynamic-update-slice" else -1]
        return shape_bytes(shapes[name])

    parameters = [i.name for i in computation if i.opcode == "parameter"]
    (root,) = (i.name for i in computation if i.is_root)
    return sum(map(read_bytes, parameters)) + written_bytes(root)
