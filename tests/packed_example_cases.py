"""Random examples with targets of all levels, and readers of them from batches."""

import numpy as np
from hypothesis import strategies as st

from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import PackedShape

SHAPE = PackedShape(tokens=32, examples=4)
UNPACKED = PackedShape(tokens=32, examples=1)
packed_shapes = st.builds(PackedShape, st.just(32), st.integers(1, 9), st.just(0))


def draw_examples(count: int, seed: int = 0) -> Examples:
    """Return random examples with targets of all levels, some values without weight."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 33, count)
    tokens = int(lengths.sum())
    positions = np.sort(random.integers(0, lengths[:, None], (count, 2)), 1)

    def zeros_and_ones(size: int) -> np.ndarray:
        return random.integers(0, 2, size).astype(np.float32)

    targets = {
        "class": Target("example", random.integers(0, 3, count, np.int32), zeros_and_ones(count)),
        "score": Target("example", random.random(count, np.float32)),
        "labels": Target("example", zeros_and_ones(3 * count).reshape(count, 3)),
        "token_labels": Target(
            "token", random.integers(0, 9, tokens, np.int32), zeros_and_ones(tokens)
        ),
        "answer_positions": Target("position", positions.astype(np.int32)),
    }
    ids = random.integers(5, 100, tokens, np.int32)
    return Examples(ids, lengths, random.integers(1, 6, count), targets)


def list_examples(examples: Examples, indices) -> list[tuple]:
    """Return token ids, token types, and values and weights of all targets of each example."""
    listed = []
    for index in indices:
        length, prefix_length = examples.lengths[index], examples.prefix_lengths[index]
        tokens = slice(examples.starts[index], examples.starts[index] + length)
        parts = [examples.ids[tokens], np.arange(length) >= prefix_length]
        for target in examples.targets.values():
            at = tokens if target.level == "token" else index
            weights = np.ones(len(target.values)) if target.weights is None else target.weights
            parts += target.values[at], weights[at]
        listed.append(tuple(tuple(np.ravel(part).tolist()) for part in parts))
    return sorted(listed)


def examples_in(examples: Examples, *batches: dict[str, np.ndarray]) -> list[tuple]:
    """Return what `list_examples` does, read from batches; everything else in them must be 0."""
    listed = []
    for batch in batches:
        unread = {name: array.copy() for name, array in batch.items()}
        for sequence, slot in np.argwhere(batch["score_weights"] > 0):
            cells = sequence, np.flatnonzero(batch["example_ids"][sequence] == slot + 1)
            offset = cells[1][0]
            assert batch["position_ids"][cells].tolist() == list(range(len(cells[1])))
            assert cells[1].tolist() == list(range(offset, offset + len(cells[1])))
            assert batch["cls_positions"][sequence, slot] == offset
            parts = [batch["input_ids"][cells], batch["token_type_ids"][cells]]
            for name, target in examples.targets.items():
                at = cells if target.level == "token" else (sequence, slot)
                values = batch[name][at]
                parts += [
                    values - offset if target.level == "position" else values,
                    batch[f"{name}_weights"][at],
                ]
            listed.append(tuple(tuple(np.ravel(part).tolist()) for part in parts))
            for array in unread.values():
                has_tokens = array.shape[1] == batch["input_ids"].shape[1]
                array[cells if has_tokens else (sequence, slot)] = 0
        assert not any(array.any() for array in unread.values())
    return sorted(listed)
