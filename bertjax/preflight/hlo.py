"""Reader of scheduled HLO text: instructions, their costs and collectives.

The text is that of `jax.stages.Compiled.as_text`. The TPU compiler adds its estimate of cycles to
most instructions; other compilers add none.
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

_ARRAY_SHAPE = re.compile(r"(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"(ROOT )?%?([\w.\-]+) = (.*)")
_LAYOUT = re.compile(r"\{[^{}]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")
_OPCODE = re.compile(r"(?:^|[\])}]) ([a-z][\w\-]*)\(")
_NAME = r"%?([\w.\-]+)"
_NO_ESTIMATE = 2**63 - 1  # cycles that the TPU compiler notes for copies on a SparseCore


@dataclasses.dataclass(frozen=True)
class HloInstruction:
    """A line of a computation.

    Attributes:
      text: the whole line.
      name: name without "%".
      is_root: whether the result is that of the computation.
      opcode: opcode; "" if the line has none.
      shape: shape of the result in HLO's notation.
      arguments: text after the opcode, with operands and attributes.
    """

    text: str
    name: str
    is_root: bool
    opcode: str
    shape: str
    arguments: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.\-]+)", self.arguments.partition(")")[0])


@dataclasses.dataclass(frozen=True)
class HloModule:
    """Computations of a compiled function.

    Attributes:
      computations: instructions of each computation, by its name.
      entry: name of the computation that a call executes.
    """

    computations: dict[str, list[HloInstruction]]
    entry: str

    def executed_instructions(self) -> Iterator[tuple[HloInstruction, int, bool]]:
        """Yield each instruction, its executions in a call, and whether it is inside a fusion."""
        return self._walk(self.entry, 1, False)

    def _walk(
        self, name: str, count: int, is_fused: bool
    ) -> Iterator[tuple[HloInstruction, int, bool]]:
        for instruction in self.computations[name]:
            yield instruction, count, is_fused
            opcode, text = instruction.opcode, instruction.text
            body = find_group(rf"body={_NAME}", text)
            if opcode == "while" and body:
                yield from self._walk(body, count * self._trip_count(text), is_fused)
            elif opcode in ("fusion", "call", "call-start", "async-start", "conditional"):
                called = re.findall(rf"(?:calls|to_apply|\w+_computation)={_NAME}", text)
                branches = find_group(r"branch_computations=\{([^}]*)\}", text)
                for callee in [*called, *re.findall(r"[\w.\-]+", branches)]:
                    if callee in self.computations:
                        yield from self._walk(callee, count, is_fused or opcode == "fusion")

    def _trip_count(self, loop: str) -> int:
        """Return the noted trip count of a while loop, or the bound in its condition."""
        if known := find_group(r'known_trip_count":\{"n":"(\d+)"', loop):
            return int(known)
        condition = self.computations.get(find_group(rf"condition={_NAME}", loop), [])
        bounds = [
            int(bound)
            for instruction in condition
            for bound in re.findall(r"[su]32\[\][^=]* constant\((\d+)\)", instruction.text)
        ]
        return max(bounds, default=1)


@dataclasses.dataclass(frozen=True)
class InstructionCost:
    """Cost of an instruction outside fusions; a fusion counts as one instruction.

    Attributes:
      op_name: path of the traced operation, with the scopes of Flax and JAX; "" if unknown.
      count: executions in one call of the function.
      cycles: compiler's estimate for one execution; 0 if there is none.
      flops, bytes: operations and memory traffic of one execution of a custom kernel, from the
        kernel's `cost_estimate`; 0 for other instructions.
    """

    op_name: str
    count: int
    cycles: int
    flops: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Collective:
    """Exchange of arrays between devices.

    Attributes:
      kind: one of `COLLECTIVE_KINDS`.
      bytes: size of the whole array, after an all-gather and before a reduce-scatter.
      devices: size of a group of devices.
      count: executions in one call of the function.
    """

    kind: str
    bytes: int
    devices: int
    count: int

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends in one execution, by the best known algorithm."""
        peers = (self.devices - 1) / self.devices
        return self.bytes * {"all-reduce": 2 * peers, "collective-permute": 1.0}.get(
            self.kind, peers
        )


def parse_hlo(text: str) -> HloModule:
    """Parse the text of a compiled function."""
    computations: dict[str, list[HloInstruction]] = {}
    entry, instructions = "", []
    for line in text.splitlines():
        header = None if line.startswith(" ") else _COMPUTATION.match(line)
        if header:
            instructions = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line.startswith("  ") and (match := _INSTRUCTION.match(line.strip())):
            root, name, definition = match.groups()
            opcode = find_group(_OPCODE, _LAYOUT.sub("", definition.split("metadata=")[0]))
            shape, _, arguments = definition.partition(f" {opcode}(")
            instructions.append(
                HloInstruction(match[0], name, bool(root), opcode, shape, arguments)
            )
    return HloModule(computations, entry)


def instruction_costs(module: HloModule) -> list[InstructionCost]:
    """Return the costs of all executed instructions outside fusions."""
    costs = []
    for instruction, count, is_fused in module.executed_instructions():
        if is_fused or not instruction.opcode:
            continue
        text = instruction.text
        kernel = find_group(r'("cost_estimate":\{[^}]*\})', text)
        cycles, flops, size = (
            int(find_group(rf'"{key}":"(\d+)"', source) or 0)
            for key, source in (
                ("estimated_cycles", text),
                ("flops", kernel),
                ("bytes_accessed", kernel),
            )
        )
        name = find_group(r'op_name="([^"]*)"', text)
        cycles = 0 if cycles == _NO_ESTIMATE else cycles
        costs.append(InstructionCost(name, count, cycles, flops, size))
    return costs


def find_collectives(module: HloModule) -> list[Collective]:
    """Return the collectives between two or more devices."""
    # The TPU compiler writes a reduce-scatter as a fusion of an all-reduce and a slice.
    scattered = {
        instruction.text
        for name, instructions in module.computations.items()
        if name.startswith("all-reduce-scatter")
        for instruction in instructions
    }
    collectives: dict[str, Collective] = {}
    for instruction, count, _ in module.executed_instructions():
        text = instruction.text
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVE_KINDS:
            continue
        # The compiler may spread a collective over a chain of fusions that overlap with other
        # work. Collectives of several layers may share a channel, but not a chain.
        key = find_group(r'chain_id="(\d+)"', text) or text
        size = _collective_bytes(instruction, kind)
        if kind == "all-reduce" and text in scattered:
            kind = "reduce-scatter"
        if key not in collectives or collectives[key].count < count:
            collectives[key] = Collective(kind, size, _group_size(text), count)
    return [collective for collective in collectives.values() if collective.devices > 1]


def find_group(pattern: str | re.Pattern[str], text: str) -> str:
    """Return the first group of a pattern's first match; "" without a match."""
    match = re.search(pattern, text)
    return match[1] if match else ""


def shape_bytes(shape: str) -> int:
    """Return the bytes of the arrays in a shape in HLO's notation."""
    arrays = _ARRAY_SHAPE.findall(_COMMENT.sub("", _LAYOUT.sub("", shape)))
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * max(int(bits or 8), 8) // 8
        for bits, sizes in arrays
    )


def tuple_elements(shape: str) -> list[str]:
    """Return the elements of a tuple's shape, which may be tuples, or an array's shape."""
    elements, depth = [""], 0
    plain = _COMMENT.sub("", _LAYOUT.sub("", shape)).strip()
    for character in plain[1:-1] if plain.startswith("(") else plain:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            elements.append("")
        else:
            elements[-1] += character
    return [element.strip() for element in elements]


def _collective_bytes(instruction: HloInstruction, kind: str) -> int:
    """Return the bytes of the whole array, or of all arrays of a combined collective."""
    if instruction.opcode != kind and kind != "all-reduce":
        # The result of a start is a tuple (operands, results, ...).
        return max(map(shape_bytes, tuple_elements(instruction.shape)[:2]), default=0)
    num_shards = _group_size(instruction.text) if kind == "reduce-scatter" else 1
    return shape_bytes(instruction.shape) * num_shards


def _group_size(text: str) -> int:
    """Return the number of devices in each group of a collective."""
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    if iota := find_group(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(iota)
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", text)
    return listed[1].count(",") + 1 if listed else 1
