"""Stored logits of a teacher: digests of inputs, the file, and files that do not fit."""

import io
import pathlib
from typing import Any

import numpy as np
import pytest
import toy_tasks
from toy_teachers import configure, with_distill, write_data

from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.formats import stored_logits
from bertjax.formats.example_digests import BatchExamples, ExampleInputs
from bertjax.formats.stored_logits import LogitsWriter, StoredClasses, StoredLogits
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import (
    PackedShape,
    build_batch,
    pack_examples,
)

LABELS = ("glad", "odd, or so", "sad")
ROWS = [[2, 7, 3], [2, 9, 11, 3, 8, 3], [2, 5, 3], [2, 7, 3]]
PREFIXES = [3, 4, 3, 3]


# Digests.


def batch_of(indices: list[int], tokens: int, num_sequences: int) -> dict[str, np.ndarray]:
    examples = Examples.from_rows(ROWS, PREFIXES, {})
    shape = PackedShape(tokens, 4)
    layout = pack_examples(examples, np.array(indices), shape)
    batch = build_batch(examples, layout, num_sequences, shape)
    return batch | {"cls_positions": np.zeros((num_sequences, 4), np.int32)}


def digests(batch: dict[str, np.ndarray], *heads: str) -> list[bytes]:
    return sorted(map(bytes, BatchExamples(batch, heads).inputs.digests))


def test_digests_depend_neither_on_packing_nor_on_order() -> None:
    expected = ExampleInputs.of_examples(Examples.from_rows(ROWS, PREFIXES, {})).digests
    assert bytes(expected[0]) == bytes(expected[3]) and len({*map(bytes, expected)}) == 3
    for batch in (batch_of([0, 1, 2, 3], 16, 1), batch_of([3, 1, 0, 2], 6, 4)):
        assert digests(batch) == sorted(map(bytes, expected))


def test_digests_cover_every_input_of_the_model() -> None:
    batch = batch_of([1], 16, 1) | {
        "masked_lm_positions": np.array([[2, 0]], np.int32),
        "masked_lm_weights": np.array([[1, 0]], np.float32),
    }
    changes: dict[str, np.ndarray] = {
        name: batch[name] + (batch["example_ids"] > 0)
        for name in ("input_ids", "token_type_ids", "position_ids")
    }
    changes["masked_lm_positions"] = np.array([[4, 0]], np.int32)
    changes["masked_lm_weights"] = np.array([[1, 1]], np.float32)
    all_digests = [
        digests(batch, "mlm"),
        *(digests(batch | {n: a}, "mlm") for n, a in changes.items()),
    ]
    assert len({*map(tuple, all_digests)}) == len(changes) + 1


# The file.


def write_file(path: pathlib.Path, **arrays: np.ndarray) -> StoredLogits:
    """Write logits [C] of a classifier and [tokens, 2] of spans for the rows, their sums."""
    examples = Examples.from_rows(ROWS[:3], PREFIXES[:3], {})
    sums = np.array([sum(row) for row in ROWS[:3]], np.float32)
    part = {
        "digests": ExampleInputs.of_examples(examples).digests,
        "sequence_classification.counts": np.ones(3, np.int32),
        "sequence_classification.logits": sums[:, None] + np.arange(3, dtype=np.float32),
        "question_answering.counts": examples.lengths.astype(np.int32),
        "question_answering.logits": np.repeat(examples.ids[:, None], 2, 1).astype(np.float32),
    } | arrays
    classes = {name: StoredClasses(size, 0) for name, size in
               (("sequence_classification", 3), ("question_answering", 2))}  # fmt: skip
    halves = [
        {n: a[:2] if "question_answering.l" not in n else a[:9] for n, a in part.items()},
        {n: a[2:] if "question_answering.l" not in n else a[9:] for n, a in part.items()},
    ]
    content = io.BytesIO()
    LogitsWriter("teacher", "digest", LABELS, "words", classes).write(content, lambda: iter(halves))
    path.write_bytes(content.getvalue())
    return StoredLogits(path)


def test_file_gives_each_example_its_logits_in_any_packing(tmp_path) -> None:
    stored = write_file(tmp_path / "logits")
    for batch in (batch_of([0, 1, 2, 3], 16, 2), batch_of([3, 1, 0, 2], 6, 4)):
        added = stored.add_to(batch, toy_tasks.TOKENIZER)
        spans = added["teacher_question_answering_logits"]
        np.testing.assert_array_equal(spans, np.repeat(batch["input_ids"][..., None], 2, 2))
        logits = added["teacher_sequence_classification_logits"]
        slots = np.arange(1, 5)[:, None]
        sums = (batch["input_ids"][:, None] * (batch["example_ids"][:, None] == slots)).sum(-1)
        expected = np.where(sums[..., None] > 0, sums[..., None] + np.arange(3), 0)
        np.testing.assert_array_equal(logits, expected)


def test_file_is_safetensors(tmp_path) -> None:
    from safetensors.numpy import load

    write_file(tmp_path / "logits")
    arrays = load((tmp_path / "logits").read_bytes())
    assert arrays["digests"].shape == (3, 16)
    assert arrays["question_answering.logits"].shape == (12, 2)


def test_writer_states_the_omitted_mass() -> None:
    part = {"digests": np.zeros((2, 16), np.uint8), "mlm.counts": np.ones(2, np.int32),
            "mlm.logits": np.log(np.array([[0.7, 0.2, 0.1], [0.5, 0.2, 0.3]], np.float32)),
            "mlm.ids": np.zeros((2, 2), np.int32)}  # fmt: skip
    content = io.BytesIO()
    writer = LogitsWriter("teacher", "digest", (), "words", {"mlm": StoredClasses(9, 2)})
    assert writer.write(content, lambda: iter([part])) == {"mlm": pytest.approx(0.2)}
    assert b"omitted_mass" in content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not a file of stored logits"),
        (b"mood,text\nglad,ba do\n" * 9, r"not a file of stored logits \(a header of"),
        ((2).to_bytes(8, "little") + b"{}", "__metadata__: missing. Write it again"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "not an object. Write it again"),
    ],
)
def test_file_rejects_other_content(tmp_path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=message):
        StoredLogits(tmp_path / "file")


def test_file_rejects_damage(tmp_path) -> None:
    path = tmp_path / "logits"
    for name, array in {
        "question_answering.counts": np.ones(3, np.int32),
        "digests": np.zeros((3, 8), np.uint8),
        "sequence_classification.logits": np.zeros((3, 2), np.float32),
    }.items():
        stored = write_file(path, **{name: array})
        with pytest.raises(InputError, match=r"logits: damaged \(.*Write it again with"):
            stored.add_to(batch_of([0], 16, 1), toy_tasks.TOKENIZER)
    write_file(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="damaged"):
        StoredLogits(path).add_to(batch_of([0], 16, 1), toy_tasks.TOKENIZER)


def test_missing_example_is_named(tmp_path) -> None:
    stored = write_file(tmp_path / "logits")
    tokens = toy_tasks.TOKENIZER.tokens
    batch = batch_of([0, 2], 16, 1)
    batch["input_ids"][0, 4] += 1
    message = f"has no logits of example 2 of a batch, '.*{tokens[6]}.*', nor of 0 others of 2"
    with pytest.raises(InputError, match=message):
        stored.add_to(batch, toy_tasks.TOKENIZER)
    examples = Examples.from_rows([[2, 8, 3]], [3], {})
    with pytest.raises(InputError, match="example 1 of the training data"):
        stored.check_examples(examples, toy_tasks.TOKENIZER, False)


# Files that do not fit.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


def write_empty(path: pathlib.Path, heads: dict[str, StoredClasses], **fields: Any) -> str:
    """Write a file of a teacher of the toys, with the logits of no example of theirs."""
    part = {"digests": np.zeros((1, 16), np.uint8)}
    for name, classes in heads.items():
        part[f"{name}.counts"] = np.ones(1, np.int32)
        part[f"{name}.logits"] = np.zeros((1, classes.width), np.float32)
        if classes.top_k:
            part[f"{name}.ids"] = np.zeros((1, classes.top_k), np.int32)
    facts = {"labels": LABELS, "vocabulary": toy_tasks.TOKENIZER.fingerprint()} | fields
    with path.open("wb") as file:
        writer = LogitsWriter("runs/teacher", "digest", heads=heads, **facts)
        writer.write(file, lambda: iter([part]))
    return str(path)


CLASSIFIER = {"sequence_classification": StoredClasses(3, 0)}


@pytest.mark.parametrize(
    ("kind", "heads", "fields", "message"),
    [
        ("single_label", CLASSIFIER, {"labels": ("a", "b", "c")}, "has the labels a, b, c, the da"),
        ("single_label", CLASSIFIER, {"labels": ()}, "has the labels none, the data glad"),
        ("single_label", CLASSIFIER, {"vocabulary": "x"}, "has another vocabulary than the data"),
        ("single_label", {"mlm": StoredClasses(128, 0)}, {}, "has logits of mlm, and task=seq"),
        ("single_label", CLASSIFIER, {}, r"has no logits of example 1 of .*'\[CLS\] .*bertjax pre"),
    ],
)
def test_stored_logits_that_do_not_fit_are_rejected(
    kind, heads, fields, message, folder, tmp_path
) -> None:
    path = write_empty(tmp_path / "logits", heads, **fields)
    config = configure(kind, folder, None, distill__logits=path)
    with pytest.raises(InputError, match=rf"distill\.logits=.*{message}"):
        make_trainer(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_stored_logits_of_other_classes_are_rejected(folder, tmp_path) -> None:
    path = write_empty(tmp_path / "logits", {"sequence_classification": StoredClasses(4, 0)})
    config = with_distill(configure("single_label", folder, None), logits=path)
    objective = registry.make_train_objective(
        config, registry.find_task(config.task)(config).objective
    )
    with pytest.raises(InputError, match="has 4 outputs, the student's 3"):
        StepFunctions(config.resolve(300), objective).state_shapes  # noqa: B018


@pytest.mark.parametrize("kind", ["multi_label", "regression", "squad"])
def test_largest_logits_are_rejected_where_the_loss_needs_all(kind, folder, tmp_path) -> None:
    config = configure(kind, folder, None)
    classes = {config.task: StoredClasses(3, 2)}
    path = write_empty(tmp_path / "logits", classes)
    objective = registry.find_task(config.task)(config).objective
    with pytest.raises(InputError, match=r"the 2 largest logits .* loss needs all\. Write them wi"):
        registry.make_train_objective(with_distill(config, logits=path), objective)


@pytest.mark.parametrize("name", ["hidden_weight", "relations_weight", "teacher_dtype"])
def test_stored_logits_have_no_losses_of_the_teacher_itself(name: str) -> None:
    value: Any = "bfloat16" if name == "teacher_dtype" else 1.0
    with pytest.raises(
        InputError, match=rf"distill\.{name}=.*: needs the teacher in the train step"
    ):
        DistillConfig(logits="logits", **{name: value})


def test_stored_logits_need_static_masking(folder, tmp_path) -> None:
    path = write_empty(tmp_path / "logits", {"mlm": StoredClasses(128, 0)})
    config = Config(data={**registry.data_fields()["pretraining"]},
                    distill=DistillConfig(logits=path))  # fmt: skip
    with pytest.raises(InputError, match=r"data\.dupe_factor=0: masking is dynamic"):
        registry.make_train_objective(config, registry.make_objective(config))


def test_file_in_a_bucket_is_read_from_a_copy(tmp_path, monkeypatch) -> None:
    write_file(tmp_path / "logits")
    monkeypatch.setattr(stored_logits, "is_remote", lambda path: True)
    stored = StoredLogits(tmp_path / "logits")
    batch = batch_of([0, 1, 2, 3], 16, 2)
    before = stored.add_to(batch, toy_tasks.TOKENIZER)
    (tmp_path / "logits").unlink()
    after = stored.add_to(batch, toy_tasks.TOKENIZER)
    assert all(np.array_equal(before[name], after[name]) for name in before)
