"""Examples share rows, and no row, step or host loses or changes one."""

import dataclasses
import functools
import hashlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.model import losses
from bertjax.model.encoder import BertConfig
from bertjax.model.heads import BertWithHeads
from data_pipelines.finetuning.packed_examples import (
    Examples,
    PackedShape,
    Target,
    TrainingBatches,
    build_batch,
    empty,
    pack_eval_batches,
    place,
    process_batch,
    split,
)

ROW = PackedShape(tokens=32, examples=4)
LONE = PackedShape(tokens=32, examples=1)
rows_of_all_sizes = st.builds(PackedShape, st.just(32), st.integers(1, 9))


def draw_examples(count: int, seed: int = 0) -> Examples:
    """Random examples with targets of all kinds; some have no class, some pieces no tag."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 33, count)
    tokens = int(lengths.sum())
    position = np.sort(random.integers(0, lengths[:, None], (count, 2)), 1)

    def some(size: int) -> np.ndarray:
        return random.integers(0, 2, size).astype(np.float32)

    targets = {
        "class": Target("example", random.integers(0, 3, count, np.int32), some(count)),
        "score": Target("example", random.random(count, np.float32)),
        "labels": Target("example", some(3 * count).reshape(count, 3)),
        "token_labels": Target("pieces", random.integers(0, 9, tokens, np.int32), some(tokens)),
        "answer_positions": Target("position", position.astype(np.int32)),
    }
    ids = random.integers(5, 100, tokens, np.int32)
    return Examples(ids, lengths, random.integers(1, 6, count), targets)


def listed(examples: Examples, numbers) -> list[tuple]:
    """What is to be found of examples: pieces, types, and of each target its values and weights."""
    found = []
    for number in numbers:
        length, prefix = examples.lengths[number], examples.prefix[number]
        tokens = slice(examples.starts[number], examples.starts[number] + length)
        parts = [examples.ids[tokens], np.arange(length) >= prefix]
        for target in examples.targets.values():
            at = tokens if target.level == "pieces" else number
            weights = np.ones(len(target.values)) if target.weights is None else target.weights
            parts += target.values[at], weights[at]
        found.append(tuple(tuple(np.ravel(part).tolist()) for part in parts))
    return sorted(found)


def found_in(examples: Examples, *batches: dict[str, np.ndarray]) -> list[tuple]:
    """What is found in batches, as `listed` has it; what is no example's is 0."""
    found = []
    for batch in batches:
        rest = {name: array.copy() for name, array in batch.items()}
        for row, slot in np.argwhere(batch["score_weights"] > 0):
            cells = row, np.flatnonzero(batch["example_ids"][row] == slot + 1)
            column = cells[1][0]
            assert batch["position_ids"][cells].tolist() == list(range(len(cells[1])))
            assert cells[1].tolist() == list(range(column, column + len(cells[1])))
            assert batch["cls_positions"][row, slot] == column
            parts = [batch["input_ids"][cells], batch["token_type_ids"][cells]]
            for name, target in examples.targets.items():
                at = cells if target.level == "pieces" else (row, slot)
                values = batch[name][at]
                parts += [
                    values - column if target.level == "position" else values,
                    batch[f"{name}_weights"][at],
                ]
            found.append(tuple(tuple(np.ravel(part).tolist()) for part in parts))
            for array in rest.values():
                of_row = array.shape[1] == batch["input_ids"].shape[1]
                array[cells if of_row else (row, slot)] = 0
        assert not any(array.any() for array in rest.values())
    return sorted(found)


@settings(deadline=None)
@given(count=st.integers(1, 60), seed=st.integers(0, 99), row=rows_of_all_sizes)
def test_rows_hold_every_example_once_with_its_targets(
    count: int, seed: int, row: PackedShape
) -> None:
    examples = draw_examples(count, seed)
    rows = place(examples, np.arange(count), row)
    batch = build_batch(examples, rows, rows.count + 2, row)
    assert found_in(examples, batch) == listed(examples, range(count))
    assert batch["example_ids"].max() <= row.examples
    assert not batch["example_ids"][rows.count :].any()
    assert rows.count >= max(examples.lengths.sum() / row.tokens, count / row.examples)
    assert rows.count == count or row.examples > 1


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    batch_size=st.integers(1, 12),
    row=rows_of_all_sizes,
    pad_to_multiple_of=st.integers(1, 4),
)
def test_each_epoch_has_every_example_once(
    count: int, seed: int, batch_size: int, row: PackedShape, pad_to_multiple_of: int
) -> None:
    """A step may end one epoch and begin the next: `batch_size` epochs are `count` steps."""
    examples = draw_examples(count, seed)
    batches = TrainingBatches(examples, seed, batch_size, row, count, pad_to_multiple_of)
    assert batches.rows % pad_to_multiple_of == 0
    found = found_in(examples, *(batches.batch(step) for step in range(count)))
    assert found == sorted(batch_size * listed(examples, range(count)))


def test_epochs_differ_in_their_order() -> None:
    examples = draw_examples(40)
    batches = TrainingBatches(examples, 0, 8, ROW, steps=10, pad_to_multiple_of=1)
    first, second = (found_in(examples, batches.batch(step)) for step in (0, 5))
    assert first != second


def test_steps_are_about_as_full_as_each_other() -> None:
    examples = draw_examples(1000)
    batches = TrainingBatches(examples, 0, 16, ROW, steps=120, pad_to_multiple_of=1)
    mean = examples.lengths.mean() * 16 / ROW.tokens
    tokens = [np.count_nonzero(batches.batch(step)["example_ids"]) for step in range(120)]
    assert np.ptp(tokens) < 0.2 * mean * ROW.tokens
    assert batches.rows < 1.2 * mean + 1


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    """However many devices share its rows; some are then padding."""
    examples = draw_examples(50)
    first, again, other = (
        TrainingBatches(examples, seed, 8, ROW, steps=20, pad_to_multiple_of=pad_to_multiple_of)
        for seed, pad_to_multiple_of in ((0, 1), (0, 16), (1, 1))
    )
    late = first.batch(19)
    first.batch(0)
    for name, array in again.batch(19).items():
        np.testing.assert_array_equal(array[: first.rows], late[name])
        assert not array[first.rows :].any()
    assert found_in(examples, other.batch(19)) != found_in(examples, late)


@settings(deadline=None)
@given(count=st.integers(1, 40), row=rows_of_all_sizes, num_processes=st.integers(1, 8))
def test_hosts_share_the_rows_of_a_batch(count: int, row: PackedShape, num_processes: int) -> None:
    whole = TrainingBatches(
        draw_examples(count), 0, 16, row, steps=3, pad_to_multiple_of=num_processes
    ).batch(1)
    parts = [process_batch(whole, num_processes, host) for host in range(num_processes)]
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


@settings(deadline=None)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    row=rows_of_all_sizes,
    rows=st.sampled_from([1, 3, 100]),
)
def test_evaluation_reads_every_example_once_and_finds_its_outputs(
    count: int, seed: int, row: PackedShape, rows: int
) -> None:
    examples = draw_examples(count, seed)
    placed = pack_eval_batches(examples, row, rows)
    batches = [build_batch(examples, each, rows, row) for each in placed]
    assert found_in(examples, *batches) == listed(examples, range(count))
    of_pieces = [np.stack([batch["input_ids"], batch["position_ids"]], -1) for batch in batches]
    for number, found in enumerate(split(examples, placed, of_pieces, "pieces")):
        length, start = examples.lengths[number], examples.starts[number]
        assert found[:, 0].tolist() == examples.ids[start : start + length].tolist()
        assert found[:, 1].tolist() == list(range(length))
    for name in ("score", "labels"):
        outputs = [batch[name] for batch in batches]
        found_again = np.stack(split(examples, placed, outputs, "example"))
        np.testing.assert_array_equal(found_again, examples.targets[name].values)


def test_an_example_longer_than_a_row_does_not_run_into_the_next() -> None:
    examples = draw_examples(20)
    short = PackedShape(int(examples.lengths.max()) - 1, 4)
    with pytest.raises(IndexError):
        build_batch(examples, place(examples, np.arange(20), short), 40, short)


@pytest.mark.parametrize(("kind", "with_cls"), [("example", True), ("pieces", False)])
def test_rows_say_where_examples_begin_if_that_is_what_a_target_needs(kind, with_cls: bool) -> None:
    batch = empty(1, ROW, {"it": Target(kind, np.zeros(0, np.int32))})
    assert ("cls_positions" in batch) == with_cls


def test_targets_of_nothing_give_the_arrays_of_a_batch() -> None:
    examples = draw_examples(9)
    batch = build_batch(examples, place(examples, np.arange(9), ROW), 9, ROW)
    none = {name: Target(each.level, each.values[:0]) for name, each in examples.targets.items()}
    shapes = {name: (array.shape, array.dtype) for name, array in empty(9, ROW, none).items()}
    assert shapes == {name: (array.shape, array.dtype) for name, array in batch.items()}


def test_the_digest_is_of_all_that_training_reads() -> None:
    examples = draw_examples(5)
    others = [
        dataclasses.replace(examples, **{name: getattr(examples, name) + 1})
        for name in ("ids", "lengths", "prefix")
    ]
    for name, target in examples.targets.items():
        changed = [dataclasses.replace(target, values=target.values + 1)]
        if target.weights is not None:
            changed.append(dataclasses.replace(target, weights=target.weights + 1))
        others += [
            dataclasses.replace(examples, targets={**examples.targets, name: each})
            for each in changed
        ]
    digests = {each.digest() for each in (examples, *others)}
    assert len(digests) == 1 + 3 + 5 + 2 and draw_examples(5).digest() in digests


def test_the_digest_is_the_one_that_runs_have_kept() -> None:
    position = np.array([[1, 2], [0, 0]], np.int32)
    arrays = [np.arange(7, dtype=np.int32), np.array([4, 3]), np.array([1, 2])]
    kept = hashlib.sha256(b"".join(array.tobytes() for array in (*arrays, position)))
    assert (
        Examples(*arrays, {"answer_positions": Target("position", position)}).digest()
        == kept.hexdigest()
    )


@pytest.mark.slow
def test_sharing_a_row_changes_neither_logits_nor_loss() -> None:
    config = BertConfig(100, 2, 64, 2, max_position_embeddings=ROW.tokens)
    examples, model = draw_examples(12), BertWithHeads(config, ("question_answering",))

    init, apply = (
        jax.jit(functools.partial(function, deterministic=True))
        for function in (model.init, model.apply)
    )
    loss = jax.jit(losses.question_answering_sums)
    params = init(jax.random.key(0), empty(1, ROW, {}))
    results = []
    for row in (ROW, LONE):
        placed = pack_eval_batches(examples, row, 6)
        sums, logits = [], []
        for each in placed:
            batch = build_batch(examples, each, 6, row)
            out = apply(params, {name: batch[name] for name in empty(0, row, {})})
            sums.append(loss(out["question_answering_logits"], batch))
            logits.append(np.asarray(out["question_answering_logits"]))
        total = jax.tree.map(lambda *leaves: float(sum(leaves)), *sums)
        results.append((total, split(examples, placed, logits, "pieces")))
    (first, ours), (second, theirs) = results
    assert first["question_answering_loss"] == pytest.approx(
        second["question_answering_loss"], rel=1e-5
    )
    assert first["start_accuracy"] == second["start_accuracy"]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
