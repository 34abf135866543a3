"""Bytes that a compiled program moves between a device and its memory, by its text.

Each instruction reads its operands and writes its result once; values inside a fusion stay there.
For a slice of an array, or an update of one, only the slice counts.
"""

import collections
import re
from collections.abc import Mapping

from bertjax.preflight.hlo import parse_opcode, shape_bytes, split_computations, walk_lines

_NO_TRAFFIC_OPS = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("while", "call", "conditional"),
}
_SLICE_OPS = ("dynamic-slice", "slice", "gather")
_UPDATE_OPS = ("dynamic-update-slice", "scatter")
_LINE = re.compile(r"(ROOT )?%?([\w.\-]+) = (.*)")


def bytes_accessed(text: str) -> int:
    """Return the bytes of one run of a program, from its scheduled text."""
    computations, entry = split_computations(text)
    types = {
        match[2]: result
        for lines in computations.values()
        for match, result in ((_LINE.match(line), _result_type(line)) for line in lines)
        if match
    }
    total = 0
    for line, runs, fused in walk_lines(computations, entry, 1, False):
        opcode = parse_opcode(line)
        if fused or not opcode or opcode in _NO_TRAFFIC_OPS or opcode.endswith("-done"):
            continue
        total += runs * _instruction_bytes(line, opcode, types, computations)
    return total


def _instruction_bytes(
    line: str, opcode: str, types: Mapping[str, str], computations: Mapping[str, list[str]]
) -> int:
    operands, result = [types.get(name, "") for name in _operands(line)], _result_type(line)
    if opcode in _SLICE_OPS:
        return 2 * shape_bytes(result)
    if opcode in _UPDATE_OPS:
        return 2 * shape_bytes(operands[-1])
    called = re.search(r"calls=%?([\w.\-]+)", line)
    if opcode != "fusion" or not called:
        return shape_bytes(result) + sum(map(shape_bytes, operands))
    return _fusion_bytes(computations[called[1]], types)


def _fusion_bytes(lines: list[str], types: Mapping[str, str]) -> int:
    users: dict[str, list[str]] = collections.defaultdict(list)
    defined, root = {}, ""
    for line in lines:
        match = _LINE.match(line)
        if match:
            defined[match[2]] = line
            root = match[2] if match[1] else root
            for name in _operands(line):
                users[name].append(line)

    def read(name: str) -> int:
        total = 0
        for line in users[name]:
            opcode, first = parse_opcode(line), _operands(line)[0] == name
            if opcode == "bitcast":
                total += read(_LINE.match(line)[2])  # type: ignore[index]
            elif first and opcode in _SLICE_OPS:
                total += shape_bytes(_result_type(line))
            elif not (first and opcode in _UPDATE_OPS):
                return shape_bytes(types[name])
        return min(total, shape_bytes(types[name]))

    def written(name: str) -> int:
        line = defined.get(name, "")
        opcode = parse_opcode(line)
        if opcode == "bitcast":
            return written(_operands(line)[0])
        if opcode == "tuple":
            return sum(map(written, _operands(line)))
        update = _operands(line)[1 if opcode == "dynamic-update-slice" else -1 :][:1]
        return shape_bytes(types[update[0] if opcode in _UPDATE_OPS else name])

    parameters = [name for name, line in defined.items() if parse_opcode(line) == "parameter"]
    return sum(map(read, parameters)) + written(root)


def _result_type(line: str) -> str:
    return line.partition(" = ")[2].partition(f" {parse_opcode(line)}(")[0]


def _operands(line: str) -> list[str]:
    opcode = parse_opcode(line)
    return re.findall(r"%([\w.\-]+)", line.partition(f" {opcode}(")[2].partition(")")[0])
