"""Packing of examples into sequences: no example is lost or changed, outputs find their example."""

import dataclasses
import functools
import hashlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_example_cases import (
    SHAPE,
    UNPACKED,
    draw_examples,
    examples_in,
    list_examples,
    packed_shapes,
)

from bertjax.model import losses
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import (
    PackedShape,
    build_batch,
    empty_batch,
    pack_eval_batches,
    pack_examples,
    unpack_outputs,
)


@pytest.mark.seconds
@settings(deadline=None)
@given(count=st.integers(1, 60), seed=st.integers(0, 99), shape=packed_shapes)
def test_build_batch_holds_every_example_once(count: int, seed: int, shape: PackedShape) -> None:
    examples = draw_examples(count, seed)
    layout = pack_examples(examples, np.arange(count), shape)
    batch = build_batch(examples, layout, layout.num_sequences + 2, shape)
    assert examples_in(examples, batch) == list_examples(examples, range(count))
    assert batch["example_ids"].max() <= shape.examples
    assert not batch["example_ids"][layout.num_sequences :].any()
    assert layout.num_sequences >= max(
        examples.lengths.sum() / shape.tokens, count / shape.examples
    )
    assert layout.num_sequences == count or shape.examples > 1


@pytest.mark.seconds
@settings(deadline=None)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    shape=packed_shapes,
    num_sequences=st.sampled_from([1, 3, 100]),
)
def test_unpack_outputs_returns_the_outputs_of_every_example(
    count: int, seed: int, shape: PackedShape, num_sequences: int
) -> None:
    examples = draw_examples(count, seed)
    layouts = pack_eval_batches(examples, shape, num_sequences)
    batches = [build_batch(examples, layout, num_sequences, shape) for layout in layouts]
    assert examples_in(examples, *batches) == list_examples(examples, range(count))
    token_outputs = [np.stack([batch["input_ids"], batch["position_ids"]], -1) for batch in batches]
    for index, output in enumerate(unpack_outputs(examples, layouts, token_outputs, "token")):
        length, start = examples.lengths[index], examples.starts[index]
        assert output[:, 0].tolist() == examples.ids[start : start + length].tolist()
        assert output[:, 1].tolist() == list(range(length))
    for name in ("score", "labels"):
        outputs = [batch[name] for batch in batches]
        unpacked = np.stack(unpack_outputs(examples, layouts, outputs, "example"))
        np.testing.assert_array_equal(unpacked, examples.targets[name].values)


def test_build_batch_rejects_an_example_longer_than_a_sequence() -> None:
    examples = draw_examples(20)
    short = PackedShape(int(examples.lengths.max()) - 1, 4)
    with pytest.raises(IndexError):
        build_batch(examples, pack_examples(examples, np.arange(20), short), 40, short)


@pytest.mark.parametrize(("level", "has_cls"), [("example", True), ("token", False)])
def test_empty_batch_has_cls_positions_for_targets_of_examples(level, has_cls: bool) -> None:
    batch = empty_batch(1, SHAPE, {"class": Target(level, np.zeros(0, np.int32))})
    assert ("cls_positions" in batch) == has_cls


def test_empty_batch_has_the_shapes_of_a_batch() -> None:
    examples = draw_examples(9)
    batch = build_batch(examples, pack_examples(examples, np.arange(9), SHAPE), 9, SHAPE)
    no_values = {
        name: Target(target.level, target.values[:0]) for name, target in examples.targets.items()
    }
    shapes = {
        name: (array.shape, array.dtype) for name, array in empty_batch(9, SHAPE, no_values).items()
    }
    assert shapes == {name: (array.shape, array.dtype) for name, array in batch.items()}


def test_digest_depends_on_every_array() -> None:
    examples = draw_examples(5)
    others = [
        dataclasses.replace(examples, **{name: getattr(examples, name) + 1})
        for name in ("ids", "lengths", "prefix_lengths")
    ]
    for name, target in examples.targets.items():
        changed = [dataclasses.replace(target, values=target.values + 1)]
        if target.weights is not None:
            changed.append(dataclasses.replace(target, weights=target.weights + 1))
        others += [
            dataclasses.replace(examples, targets={**examples.targets, name: other})
            for other in changed
        ]
    digests = {variant.digest() for variant in (examples, *others)}
    assert len(digests) == 1 + 3 + 5 + 2 and draw_examples(5).digest() in digests


def test_digest_is_sha256_of_the_arrays() -> None:
    position = np.array([[1, 2], [0, 0]], np.int32)
    arrays = [np.arange(7, dtype=np.int32), np.array([4, 3]), np.array([1, 2])]
    expected = hashlib.sha256(b"".join(array.tobytes() for array in (*arrays, position)))
    assert (
        Examples(*arrays, {"answer_positions": Target("position", position)}).digest()
        == expected.hexdigest()
    )


@pytest.mark.slow
def test_packing_changes_neither_logits_nor_loss() -> None:
    config = BertConfig(100, 2, 64, 2, max_position_embeddings=SHAPE.tokens)
    examples, model = draw_examples(12), BertWithHeads(config, ("question_answering",))

    init, apply = (
        jax.jit(functools.partial(function, deterministic=True))
        for function in (model.init, model.apply)
    )
    loss = jax.jit(losses.question_answering_sums)
    params = init(jax.random.key(0), empty_batch(1, SHAPE, {}))
    results = []
    for shape in (SHAPE, UNPACKED):
        layouts = pack_eval_batches(examples, shape, 6)
        sums, logits = [], []
        for layout in layouts:
            batch = build_batch(examples, layout, 6, shape)
            out = apply(params, {name: batch[name] for name in empty_batch(0, shape, {})})
            sums.append(loss(out["question_answering_logits"], batch))
            logits.append(np.asarray(out["question_answering_logits"]))
        total = jax.tree.map(lambda *leaves: float(sum(leaves)), *sums)
        results.append((total, unpack_outputs(examples, layouts, logits, "token")))
    (packed_sums, packed), (unpacked_sums, unpacked) = results
    assert packed_sums["question_answering_loss"] == pytest.approx(
        unpacked_sums["question_answering_loss"], rel=1e-5
    )
    assert packed_sums["start_accuracy"] == unpacked_sums["start_accuracy"]
    for a, b in zip(packed, unpacked, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
