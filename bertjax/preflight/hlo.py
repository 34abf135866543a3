"""What a compiled program says of itself: which instructions run how often, and at what cost.

Reads the scheduled text that XLA gives back (`jax.stages.Compiled.as_text`). The TPU compiler notes
at most instructions how many cycles it expects of a run; for other devices there are no cycles.
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
    """One that the program itself runs, which a fusion is and what is fused in it is not.

    Attributes:
      opcode: as in HLO, `fusion` for most.
      op_name: path of the traced operation, with Flax's and JAX's scopes; "" where unknown.
      runs: how often it runs in one call of the program.
      cycles: that the compiler expects of one run; 0 where it says nothing.
      flops, bytes: computed and moved in one run by a kernel of our own, into which the compiler
        does not see, as the kernel says; 0 for all else.
    """

    opcode: str
    op_name: str
    runs: int
    cycles: int
    flops: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Collective:
    """Devices exchanging arrays.

    Attributes:
      kind: one of `COLLECTIVE_KINDS`.
      bytes: of the whole array, on each device after an all-gather and before a reduce-scatter.
      devices: that take part with each other.
      runs: how often it runs in one call of the program.
    """

    kind: str
    bytes: int
    devices: int
    runs: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends in one run, by the best known algorithms."""
        others = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * others, "collective-permute": 1.0}.get(
            self.kind, others
        )


def read_program(text: str) -> tuple[list[Instruction], list[Collective]]:
    """The instructions and the collectives of a compiled program."""
    computations, entry = split(text)
    # TPUs' compiler writes a sum of which each device keeps a piece as a fusion of a sum and a cut.
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
            # One that is spread over several fusions, to run beside them, is a chain of parts;
            # those of several layers may share a channel.
            chain = re.search(r'chain_id="(\d+)"', line)
            key = chain[1] if chain else line
            size = _collective_bytes(line, kind, opcode)
            kind = "reduce-scatter" if line in scattered and kind == "all-reduce" else kind
            found = Collective(kind, size, _group_size(line), runs)
            if key not in collectives or collectives[key].runs < runs:
                collectives[key] = found
        if not fused and opcode:
            name = re.search(r'op_name="([^"]*)"', line)
            said = re.search(r'"cost_estimate":\{[^}]*\}', line)
            kernel = said[0] if said else ""
            numbers = _parse_int(kernel, "flops"), _parse_int(kernel, "bytes_accessed")
            cycles = _parse_int(line, "estimated_cycles")
            instructions.append(
                Instruction(opcode, name[1] if name else "", runs, cycles, *numbers)
            )
    return instructions, [c for c in collectives.values() if c.devices > 1]


def _parse_int(line: str, key: str) -> int:
    found = re.search(rf'"{key}":"(\d+)"', line)
    return int(found[1]) if found else 0


def split(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of each computation, and the name of the one that is called."""
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
    """Every line that runs, how often, and whether inside a fusion."""
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
    """How often the body of a while loop runs: as noted, or the bound its condition counts to."""
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
    if known:
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    lines = computations[condition[1]] if condition else []
    bounds = [
        int(n) for each in lines for n in re.findall(r"[su]32\[\][^=]* constant\((\d+)\)", each)
    ]
    return max(bounds, default=1)


def parse_opcode(line: str) -> str | None:
    _, equals, rest = line.partition(" = ")
    if not equals:
        return None
    found = _OPCODE.search(_LAYOUT.sub("", rest.split("metadata=")[0]))
    return found[1] if found else None


def _collective_bytes(line: str, kind: str, opcode: str | None) -> int:
    """Bytes of the whole array that is exchanged, or of all where some go together."""
    result, _, rest = line.partition(" = ")[2].partition(f" {opcode}(")
    if opcode != kind and kind != "all-reduce":  # a start's result is (operands, results, ...)
        return max((shape_bytes(part) for part in _tuple_elements(result)[:2]), default=0)
    return shape_bytes(result) * (_group_size(rest) if kind == "reduce-scatter" else 1)


def _tuple_elements(shape: str) -> list[str]:
    """The elements of a tuple, which may be tuples; of an array, itself."""
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
    """Bytes of the arrays in a shape as HLO writes it."""
    found = _ARRAY_TYPE.findall(_COMMENT.sub("", _LAYOUT.sub("", shape)))
    return sum(_array_bytes(bits, sizes) for bits, sizes in found)


def _array_bytes(bits: str, shape: str) -> int:
    return math.prod(int(n) for n in shape.split(",") if n) * max(int(bits or 8), 8) // 8


def _group_size(line: str) -> int:
    """Devices in each group of a collective."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if iota:
        return int(iota[1])
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", line)
    return listed[1].count(",") + 1 if listed else 1
