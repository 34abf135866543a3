"""Multiple-choice questions: layouts, encoding, and packing of their choices."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from conftest import SYLLABLES, TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import truncated_pair_lengths
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.multiple_choice import (
    MultipleChoiceDataset,
    MultipleChoiceQuestion,
    dataset_from_rows,
    encode_questions,
    group_by_question,
)
from data_pipelines.finetuning.packed_examples import (
    PackedLayout,
    PackedShape,
    build_batch,
    pack_eval_batches,
    pack_examples,
    unpack_outputs,
)
from data_pipelines.finetuning.table import TableRow, read_table
from data_pipelines.finetuning.training_batches import TrainingBatches, process_batch

SHAPE = PackedShape(tokens=64, examples=8)
SWAG = {"sent1": "One went.", "sent2": "She", "ending0": "sat.", "ending1": "ran.", "label": "1"}


def read(*rows: dict, labeled: bool = True) -> MultipleChoiceDataset:
    table = [TableRow(f"t.csv:{i}", values) for i, values in enumerate(rows, 2)]
    return dataset_from_rows("t.csv", table, labeled)


def test_from_rows_reads_swag() -> None:
    unread = {
        "": "0",
        "video-id": "v",
        "fold-ind": "1",
        "startphrase": "One went. She",
        "gold-source": "",
    }
    (question,) = read(unread | SWAG).questions
    assert question == MultipleChoiceQuestion("t.csv:2", "One went.", ("She sat.", "She ran."), 1)


def test_from_rows_accepts_empty_starts_and_last_endings() -> None:
    for start in ("", None):
        short = SWAG | {"sent2": start, "ending2": "", "ending3": None}
        (question,) = read(short).questions
        assert question.choices == ("sat.", "ran.")
    many = {f"ending{i}": str(i) for i in range(12)}
    (question,) = read({"sent1": "Count.", **dict(sorted(many.items())), "label": 11}).questions
    assert question.choices == tuple(map(str, range(12))) and question.label == 11


def test_from_rows_reads_lists_of_choices() -> None:
    for name in ("context", "question"):
        (question,) = read({name: "Which?", "choices": [" a", "b", "c"], "label": 2.0}).questions
        assert (question.context, question.choices, question.label) == (
            "Which?",
            ("a", "b", "c"),
            2,
        )


def test_from_rows_ignores_labels_of_unlabeled_data() -> None:
    data = read({"context": "Which?", "choices": ["a", "b"]}, labeled=False)
    assert data.questions[0].label is None and len(data.questions[0].choices) == 2
    examples, _ = encode_questions(data, TOKENIZER, 32, *SHAPE[:2])
    assert examples.targets["choice_labels"].weights.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (SWAG | {"label": "2"}, "label '2' is not the index of a choice. Write 0 to 1"),
        (SWAG | {"label": "-1"}, "label '-1' is not the index of a choice"),
        (SWAG | {"label": "B"}, "label 'B' is not the index of a choice"),
        (SWAG | {"label": None}, "label '' is not the index of a choice"),
        (SWAG | {"label": [1]}, r"label '\[1\]' is not the index of a choice"),
        (
            SWAG | {"ending1": ""},
            "a question needs two choices and has 1. Give columns ending0, ending",
        ),
        (SWAG | {"ending0": ""}, "ending0 is '', not text. Fix the row"),
        (SWAG | {"ending3": "x"}, "endings are not numbered from 0. Name the columns"),
        (SWAG | {"sent1": " "}, "column 'sent1' is empty"),
        ({"text": "a", "label": 0}, "no column 'sent1'"),
        ({"context": "a", "choices": ["x"], "label": 0}, "a question needs two choices and has 1"),
        (
            {"context": "a", "choices": "x y", "label": 0},
            "column 'choices' is 'x y'. Write a list of",
        ),
        ({"context": "a", "choices": ["x", 1], "label": 0}, "choice 1 is 1, not text"),
        ({"context": "a", "choices": ["", "x"], "label": 0}, "choice 0 is '', not text"),
        ({"choices": ["x", "y"], "label": 0}, "no column 'question'"),
        ({"context": "a", "choices": ["x", "y"]}, "no column 'label'"),
    ],
)
def test_from_rows_rejects_rows_of_another_layout(row: dict, message: str) -> None:
    with pytest.raises(InputError, match=f"^t.csv:2: {message}"):
        read(row)


def words(count: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(SYLLABLES, count))


def draw(
    count: int, seed: int = 0, max_choices: int = 6, max_words: int = 9
) -> MultipleChoiceDataset:
    """Return questions with two choices or more, all with different texts."""
    random = np.random.default_rng(seed)
    questions = []
    for number in range(count):
        sizes = random.integers(1, max_words, random.integers(2, max_choices + 1))
        choices = tuple(words(size, 1000 * number + i) for i, size in enumerate(sizes))
        label = int(random.integers(len(choices)))
        questions.append(MultipleChoiceQuestion(f"line {number}", words(3, number), choices, label))
    return MultipleChoiceDataset("it", questions)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(5, 40), st.integers(2, 8))
def test_encode_questions_truncates_the_longer_text(
    context: int, choice: int, max_choice_length: int, count: int
) -> None:
    texts = [words(context, 0), *(words(choice, i + 1) for i in range(count))]
    data = MultipleChoiceDataset(
        "it", [MultipleChoiceQuestion("here", texts[0], tuple(texts[1:]), 1)]
    )
    examples, truncated = encode_questions(data, TOKENIZER, max_choice_length, 64, 8)
    room = min(max_choice_length, 64 // count) - 3
    first, second = truncated_pair_lengths(context, choice, room)
    rows = np.split(examples.ids, examples.starts[1:])
    for row, text in zip(rows, texts[1:], strict=True):
        sep = [TOKENIZER.sep_id]
        tokens = [*TOKENIZER.encode(texts[0])[:first], *sep, *TOKENIZER.encode(text)[:second], *sep]
        assert row.tolist() == [TOKENIZER.cls_id, *tokens]
    assert examples.prefix_lengths.tolist() == [first + 2] * count
    assert examples.targets["choice_labels"].values.tolist() == [0, 1] + [0] * (count - 2)
    assert examples.targets["choice_labels"].weights.tolist() == [1] * count
    assert examples.group_sizes.tolist() == [count] and len(examples) == 1
    assert truncated == [0] * (count if context + choice > room else 0)
    assert examples.sizes.sum() <= 64


@pytest.mark.parametrize(
    ("count", "max_seq_length", "max_choices"), [(9, 64, 8), (8, 32, 8), (13, 64, 64)]
)
def test_encode_questions_rejects_too_many_choices(
    count: int, max_seq_length: int, max_choices: int
) -> None:
    data = MultipleChoiceDataset(
        "it", [MultipleChoiceQuestion("t.csv:7", "ba", ("do",) * count, 0)]
    )
    message = f"^t.csv:7: {count} choices do not fit .*max_seq_length={max_seq_length}, which"
    with pytest.raises(InputError, match=message):
        encode_questions(data, TOKENIZER, 128, max_seq_length, max_choices)


def questions_in(batch: dict[str, np.ndarray]) -> list[tuple]:
    """Return the questions of a batch: token ids, label and weight of each choice."""
    questions = []
    for row, group_ids in enumerate(batch["group_ids"]):
        used = group_ids[group_ids > 0]
        assert used.tolist() == sorted(used.tolist()) and not group_ids[len(used) :].any()
        assert set(used) == set(range(1, len(set(used)) + 1))
        for group in np.unique(used):
            slots = np.flatnonzero(group_ids == group)
            questions.append(
                tuple(
                    (
                        tuple(
                            batch["input_ids"][row][batch["example_ids"][row] == slot + 1].tolist()
                        ),
                        int(batch["choice_labels"][row, slot]),
                        float(batch["choice_labels_weights"][row, slot]),
                    )
                    for slot in slots
                )
            )
        free = group_ids == 0
        assert not batch["choice_labels_weights"][row][free].any()
    return questions


def list_questions(data: MultipleChoiceDataset, examples: Examples) -> list[tuple]:
    rows = [tuple(row.tolist()) for row in np.split(examples.ids, examples.starts[1:])]
    questions, start = [], 0
    for question in data.questions:
        count = len(question.choices)
        questions.append(
            tuple((rows[start + i], int(i == question.label), 1.0) for i in range(count))
        )
        start += count
    return questions


@pytest.mark.seconds
@settings(max_examples=50)
@given(st.integers(1, 25), st.integers(0, 99), st.integers(6, 12))
def test_build_batch_keeps_the_choices_of_a_question_together(
    count: int, seed: int, slots: int
) -> None:
    data, shape = draw(count, seed), PackedShape(96, slots)
    examples, _ = encode_questions(data, TOKENIZER, 32, *shape[:2])
    layout = pack_examples(examples, np.arange(count), shape)
    batch = build_batch(examples, layout, layout.num_sequences + 1, shape)
    assert sorted(questions_in(batch)) == sorted(list_questions(data, examples))
    assert (batch["example_ids"] > 0).sum() == len(examples.ids)
    assert (batch["cls_positions"][batch["group_ids"] > 0] < 96).all()


@settings(max_examples=20)
@given(st.integers(1, 15), st.integers(0, 99), st.integers(1, 6), st.integers(1, 4))
def test_training_batches_have_every_question_once_an_epoch(
    count: int, seed: int, batch_size: int, num_processes: int
) -> None:
    data = draw(count, seed)
    examples, _ = encode_questions(data, TOKENIZER, 32, *SHAPE[:2])
    batches = TrainingBatches(examples, seed, batch_size, SHAPE, count, num_processes)
    questions = []
    for step in range(count):
        whole = batches.batch(step)
        questions += questions_in(whole)
        parts = [process_batch(whole, num_processes, process) for process in range(num_processes)]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), array)
    assert sorted(questions) == sorted(batch_size * list_questions(data, examples))


@settings(max_examples=30)
@given(st.integers(1, 25), st.integers(0, 99), st.sampled_from([1, 3, 100]))
def test_unpack_outputs_returns_the_outputs_of_each_choice(count, seed, num_sequences) -> None:
    data = draw(count, seed)
    examples, _ = encode_questions(data, TOKENIZER, 32, *SHAPE[:2])
    layouts: list[PackedLayout] = pack_eval_batches(examples, SHAPE, num_sequences)
    batches = [build_batch(examples, layout, num_sequences, SHAPE) for layout in layouts]
    assert sorted(q for batch in batches for q in questions_in(batch)) == sorted(
        list_questions(data, examples)
    )
    outputs = [batch["choice_labels"] for batch in batches]
    values = np.array(unpack_outputs(examples, layouts, outputs, "example"))
    for question, labels in zip(data.questions, group_by_question(data, values), strict=True):
        assert labels.tolist() == [int(i == question.label) for i in range(len(question.choices))]


def test_digest_depends_on_the_groups() -> None:
    examples, _ = encode_questions(draw(5), TOKENIZER, 32, *SHAPE[:2])
    sizes = examples.group_sizes.copy()
    others = [dataclasses.replace(examples, group_sizes=None)]
    others.append(dataclasses.replace(examples, group_sizes=sizes[::-1].copy()))
    target = examples.targets["choice_labels"]
    other = dataclasses.replace(target, values=1 - target.values)
    others.append(dataclasses.replace(examples, targets={"choice_labels": other}))
    assert sizes.tolist() != sizes[::-1].tolist()
    assert len({variant.digest() for variant in (examples, *others)}) == 4
    again, _ = encode_questions(draw(5), TOKENIZER, 32, *SHAPE[:2])
    assert again.digest() == examples.digest()


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("arc_challenge/train.csv", 1095),
        ("arc_challenge/val.csv", 291),
        ("arc_easy/train.csv", 2142),
        ("arc_easy/val.csv", 548),
        ("swag_sample/sample.jsonl", 10),
    ],
)
def test_from_rows_reads_all_questions_of_published_files(file: str, count: int, data_dir) -> None:
    path = data_dir / "multiple_choice" / file
    data = dataset_from_rows(str(path), read_table(path), True)
    assert len(data.questions) == count
    assert {len(question.choices) for question in data.questions} == {4}
    assert {question.label for question in data.questions} <= {0, 1, 2, 3}


def test_from_rows_reads_swag_as_json_lines(data_dir: pathlib.Path) -> None:
    path = data_dir / "multiple_choice" / "swag_sample" / "sample.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    question = dataset_from_rows("it", read_table(path), True).questions[0]
    assert question.context == first["sent1"]
    assert question.choices[0] == f"{first['sent2']} {first['ending0']}"


@pytest.mark.parametrize(
    "row",
    [
        {"ctx": "He", "endings": ["ran", "sat"], "label": "1"},  # HellaSwag
        {"question_stem": "He", "choices": {"label": ["A", "B"], "text": ["ran", "sat"]},
         "answerKey": "B"},  # OpenBookQA, ARC and CommonsenseQA at Hugging Face
        {"question": "He", "choices": {"label": ["1", "2"], "text": ["ran", "sat"]},
         "answerKey": "2"},  # ARC
        {"question": {"stem": "He", "choices": [{"label": "A", "text": "ran"},
                                                {"label": "B", "text": "sat"}]},
         "answerKey": "B"},  # CommonsenseQA
        {"question": "He", "choices": "['ran', 'sat']", "label": "1"},  # a cell of a CSV
    ],
)  # fmt: skip
def test_from_rows_reads_layouts_of_other_data_sets(row: dict) -> None:
    (question,) = read(row).questions
    assert (question.context, question.choices, question.label) == ("He", ("ran", "sat"), 1)


def test_from_rows_reads_context_and_question() -> None:
    """RACE has the columns article, question, options and answer."""
    row = {"article": "It rained.", "question": "Why?", "options": ["x", "y"], "answer": "A"}
    data = read(row)
    (question,) = data.questions
    assert question == MultipleChoiceQuestion("t.csv:2", "It rained.", ("x", "y"), 0, "Why?")
    assert data.all_texts == ["It rained.", "Why?", "x", "y"]
    for name, other in (("article", "Why?"), ("question", "It rained.")):
        (question,) = read(row | {name: " "}).questions
        assert (question.context, question.question) == (other, "")
    with pytest.raises(InputError, match=r"^t.csv:2: columns 'context', 'question' are empty"):
        read(row | {"article": "", "question": None})


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 30), st.integers(5, 40))
def test_encode_questions_truncates_the_context_before_its_question(
    context: int, question: int, choice: int, max_choice_length: int
) -> None:
    texts = words(context, 0), words(question, 1), words(choice, 2)
    row = {"context": texts[0], "question": texts[1], "choices": [texts[2], "ba"], "label": 0}
    examples, truncated = encode_questions(read(row), TOKENIZER, max_choice_length, 128, 8)
    room = max_choice_length - 3
    start, end = truncated_pair_lengths(question, choice, room)
    lengths = min(context, room - start - end), start, end
    first, question_ids, choice_ids = (
        TOKENIZER.encode(text)[:length] for text, length in zip(texts, lengths, strict=True)
    )
    prefix = [TOKENIZER.cls_id, *first, TOKENIZER.sep_id]
    ids = [*prefix, *question_ids, *choice_ids, TOKENIZER.sep_id]
    assert examples.ids[: examples.lengths[0]].tolist() == ids
    assert examples.prefix_lengths[0] == len(prefix)
    assert truncated.count(0) == sum(context + question + n > room for n in (choice, 1))


def test_encode_questions_keeps_the_question_of_a_long_article() -> None:
    row = {"article": words(300, 0), "question": words(9, 1), "options": ["ba", "do"]}
    row |= {"answer": "B"}
    examples, _ = encode_questions(read(row), TOKENIZER, 128, 512, 8)
    question = TOKENIZER.encode(row["question"])
    assert examples.lengths.tolist() == [128, 128]
    for ids, choice in zip(np.split(examples.ids, examples.starts[1:]), ("ba", "do"), strict=True):
        assert ids[-11:].tolist() == [*question, *TOKENIZER.encode(choice), TOKENIZER.sep_id]


def test_from_rows_leaves_out_questions_without_a_label(caplog) -> None:
    data = read(SWAG | {"label": "-1"}, SWAG | {"label": 1}, SWAG | {"label": None})
    assert [question.label for question in data.questions] == [1]
    assert "left out 2 of 3 examples without a label: -1 (1), no value (1)" in caplog.text
