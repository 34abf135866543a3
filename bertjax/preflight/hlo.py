"""Instructions and collectives of a compiled program, with their costs and number of runs.

The source is XLA's scheduled text (`jax.stages.Compiled.as_text`). The TPU compiler annotates most
instructions with estimated cycles; other compilers do not.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

COLLECTIVE_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)

_ARRAY_TYPE = re.compile(r"(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")
_OPCODE = re.compile(r"(?:^|[\])}]) ([a-z][\w\-]*)\(")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction that the program runs, such as a fusion, but none inside a fusion.

    Attributes:
      opcode: HLO opcode, `fusion` for most.
      op_name: path of the traced operation, with Flax's and JAX's scopes; "" if unknown.
      runs: number of runs in one call of the program.
      cycles: the compiler's estimate for one run; 0 without an estimate.
      flops: operations of one run of a custom kernel, by its cost estimate; 0 for others.
      bytes: bytes that one run of a custom kernel moves; 0 for others.
    """

    opcode: str
    op_name: str
    runs: int
    cycles: int
    flops: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation.

    Attributes:
      kind: one of `COLLECTIVE_KINDS`.
      bytes: size of the whole array, after an all-gather and before a reduce-scatter.
      devices: size of a group of participating devices.
      runs: number of runs in one call of the program.
    """

    kind: str
    bytes: int
    devices: int
    runs: int

    @property
    def bytes_sent(self) -> float:
        """Bytes that each device sends in one run, by the best known algorithms."""
        others = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * others, "collective-permute": 1.0}.get(
            self.kind, others
        )


def read_program(text: str) -> tuple[list[Instruction], list[Collective]]:
    """Return the instructions and the collectives of a compiled program."""
    computations, entry = split_computations(text)
    # The TPU compiler writes a reduce-scatter as a fusion of an all-reduce and a slice.
    scattered = {
        line
        for name, lines in computations.items()
        if name.startswith("all-reduce-scatter")
        for line in lines
    }
    instructions: list[Instruction] = []
    collectives: dict[str, Collective] = {}
    for line, runs, fused in walk_lines(computations, entry, 1, False):
        opcode, kind = parse_opcode(line), None
        if opcode:
            kind = next((k for k in COLLECTIVE_KINDS if opcode in (k, f"{k}-start")), None)
        if kind is not None:
            # A collective may be spread over several fusions, to overlap with them, as a chain of
            # parts. Collectives of several layers may share a channel.
            chain = re.search(r'chain_id="(\d+)"', line)
            key = chain[1] if chain else line
            size = _collective_bytes(line, kind, opcode)
            kind = "reduce-scatter" if line in scattered and kind == "all-reduce" else kind
            collective = Collective(kind, size, _group_size(line), runs)
            if key not in collectives or collectives[key].runs < runs:
                collectives[key] = collective
        if not fused and opcode:
            name = re.search(r'op_name="([^"]*)"', line)
            match = re.search(r'"cost_estimate":\{[^}]*\}', line)
            estimate = match[0] if match else ""
            numbers = _parse_int(estimate, "flops"), _parse_int(estimate, "bytes_accessed")
            cycles = _parse_int(line, "estimated_cycles")
            instructions.append(
                Instruction(opcode, name[1] if name else "", runs, cycles, *numbers)
            )
    return instructions, [c for c in collectives.values() if c.devices > 1]


def _parse_int(line: str, key: str) -> int:
    match = re.search(rf'"{key}":"(\d+)"', line)
    return int(match[1]) if match else 0


def split_computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation, and the name of the entry computation."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        header = None if line.startswith(" ") else _HEADER.match(line)
        if header:
            lines = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line.startswith("  "):
            lines.append(line.strip())
    return computations, entry


def walk_lines(
    computations: dict[str, list[str]], name: str, runs: int, fused: bool
) -> Iterator[tuple[str, int, bool]]:
    """Yield each line that runs, its number of runs, and True inside a fusion."""
    for line in computations[name]:
        yield line, runs, fused
        opcode = parse_opcode(line)
        body = re.search(r"body=%?([\w.\-]+)", line)
        if opcode == "while" and body:
            yield from walk_lines(
                computations, body[1], runs * _trip_count(computations, line), fused
            )
        elif opcode in ("fusion", "call", "async-start", "conditional"):
            branches = re.search(r"branch_computations=\{([^}]*)\}", line)
            called = re.findall(r"(?:calls|to_apply|\w+_computation)=%?([\w.\-]+)", line)
            for other in [*called, *re.findall(r"[\w.\-]+", branches[1] if branches else "")]:
                if other in computations:
                    inside = fused or opcode == "fusion"
                    yield from walk_lines(computations, other, runs, inside)


def _trip_count(computations: dict[str, list[str]], line: str) -> int:
    """Return the trip count of a while loop: as annotated, or the bound in its condition."""
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
    if known:
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    lines = computations[condition[1]] if condition else []
    bounds = [
        int(n) for line in lines for n in re.findall(r"[su]32\[\][^=]* constant\((\d+)\)", line)
    ]
    return max(bounds, default=1)


def parse_opcode(line: str) -> str | None:
    """Return the opcode of an instruction, None for another line."""
    _, equals, definition = line.partition(" = ")
    if not equals:
        return None
    match = _OPCODE.search(_LAYOUT.sub("", definition.split("metadata=")[0]))
    return match[1] if match else None


def _collective_bytes(line: str, kind: str, opcode: str | None) -> int:
    """Return the bytes of all whole arrays that are exchanged."""
    result, _, operands = line.partition(" = ")[2].partition(f" {opcode}(")
    if opcode != kind and kind != "all-reduce":  # a start's result is (operands, results, ...)
        return max((shape_bytes(part) for part in _tuple_elements(result)[:2]), default=0)
    return shape_bytes(result) * (_group_size(operands) if kind == "reduce-scatter" else 1)


def _tuple_elements(shape: str) -> list[str]:
    """Return the elements of a tuple, which may be tuples, or the array itself."""
    parts, depth = [""], 0
    plain = _COMMENT.sub("", _LAYOUT.sub("", shape)).strip()
    for character in plain[1:-1] if plain.startswith("(") else plain:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def shape_bytes(shape: str) -> int:
    """Return the bytes of the arrays in a shape as HLO writes it."""
    arrays = _ARRAY_TYPE.findall(_COMMENT.sub("", _LAYOUT.sub("", shape)))
    return sum(_array_bytes(bits, sizes) for bits, sizes in arrays)


def _array_bytes(bits: str, shape: str) -> int:
    return math.prod(int(n) for n in shape.split(",") if n) * max(int(bits or 8), 8) // 8


def _group_size(line: str) -> int:
    """Return the number of devices in a group of a collective."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if iota:
        return int(iota[1])
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", line)
    return listed[1].count(",") + 1 if listed else 1
