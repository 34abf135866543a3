"""How many bytes a compiled program moves between a device and its memory, by its own text.

Each instruction reads what it is given and writes what it gives, once: what is fused stays inside.
Of an array from which a slice is taken, or into which one is put, only the slice is counted.
"""

import collections
import re
from collections.abc import Mapping

from bertjax.preflight.hlo import opcode_of, size_of, split, walk

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("while", "call", "conditional"),
}
_TAKES = ("dynamic-slice", "slice", "gather")
_PUTS = ("dynamic-update-slice", "scatter")
_LINE = re.compile(r"(ROOT )?%?([\w.\-]+) = (.*)")


def bytes_moved(text: str) -> int:
    """Of one run of a program, by its scheduled text."""
    computations, entry = split(text)
    types = {
        found[2]: result
        for lines in computations.values()
        for found, result in ((_LINE.match(line), _result(line)) for line in lines)
        if found
    }
    moved = 0
    for line, runs, fused in walk(computations, entry, 1, False):
        opcode = opcode_of(line)
        if fused or not opcode or opcode in _FREE or opcode.endswith("-done"):
            continue
        moved += runs * _moved(line, opcode, types, computations)
    return moved


def _moved(
    line: str, opcode: str, types: Mapping[str, str], computations: Mapping[str, list[str]]
) -> int:
    given, result = [types.get(name, "") for name in _operands(line)], _result(line)
    if opcode in _TAKES:
        return 2 * size_of(result)
    if opcode in _PUTS:
        return 2 * size_of(given[-1])
    called = re.search(r"calls=%?([\w.\-]+)", line)
    if opcode != "fusion" or not called:
        return size_of(result) + sum(map(size_of, given))
    return _of_fusion(computations[called[1]], types)


def _of_fusion(lines: list[str], types: Mapping[str, str]) -> int:
    users: dict[str, list[str]] = collections.defaultdict(list)
    defined, root = {}, ""
    for line in lines:
        found = _LINE.match(line)
        if found:
            defined[found[2]] = line
            root = found[2] if found[1] else root
            for name in _operands(line):
                users[name].append(line)

    def read(name: str) -> int:
        total = 0
        for line in users[name]:
            opcode, first = opcode_of(line), _operands(line)[0] == name
            if opcode == "bitcast":
                total += read(_LINE.match(line)[2])  # type: ignore[index]
            elif first and opcode in _TAKES:
                total += size_of(_result(line))
            elif not (first and opcode in _PUTS):
                return size_of(types[name])
        return min(total, size_of(types[name]))

    def written(name: str) -> int:
        line = defined.get(name, "")
        opcode = opcode_of(line)
        if opcode == "bitcast":
            return written(_operands(line)[0])
        if opcode == "tuple":
            return sum(map(written, _operands(line)))
        put = _operands(line)[1 if opcode == "dynamic-update-slice" else -1 :][:1]
        return size_of(types[put[0] if opcode in _PUTS else name])

    parameters = [name for name, line in defined.items() if opcode_of(line) == "parameter"]
    return sum(map(read, parameters)) + written(root)


def _result(line: str) -> str:
    return line.partition(" = ")[2].partition(f" {opcode_of(line)}(")[0]


def _operands(line: str) -> list[str]:
    opcode = opcode_of(line)
    return re.findall(r"%([\w.\-]+)", line.partition(f" {opcode}(")[2].partition(")")[0])
