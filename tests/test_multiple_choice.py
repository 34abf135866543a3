"""Questions with answers to choose from: their layouts, and how they share rows."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from conftest import sample_pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import truncated_pair_lengths
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.multiple_choice import (
    MultipleChoiceDataset,
    MultipleChoiceQuestion,
    encode,
    from_rows,
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
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(sample_pieces(), cased=False)
WORDS = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve"]  # a piece each
ROW = PackedShape(tokens=64, examples=8)
SWAG = {"sent1": "One went.", "sent2": "She", "ending0": "sat.", "ending1": "ran.", "label": "1"}


def read(*rows: dict, labeled: bool = True) -> MultipleChoiceDataset:
    placed = [TableRow(f"t.csv line {i}", values) for i, values in enumerate(rows, 2)]
    return from_rows("t.csv", placed, labeled)


def test_the_columns_of_swag_are_read() -> None:
    odd = {
        "": "0",
        "video-id": "v",
        "fold-ind": "1",
        "startphrase": "One went. She",
        "gold-source": "",
    }
    (found,) = read(odd | SWAG).questions
    assert found == MultipleChoiceQuestion("t.csv line 2", "One went.", ("She sat.", "She ran."), 1)


def test_answers_may_have_no_start_and_the_last_ones_may_be_empty() -> None:
    for start in ("", None):
        short = SWAG | {"sent2": start, "ending2": "", "ending3": None}
        (found,) = read(short).questions
        assert found.answers == ("sat.", "ran.")
    many = {f"ending{i}": str(i) for i in range(12)}
    (found,) = read({"sent1": "Count.", **dict(sorted(many.items())), "label": 11}).questions
    assert found.answers == tuple(map(str, range(12))) and found.right == 11


def test_objects_with_a_list_of_choices_are_read() -> None:
    for name in ("context", "question"):
        (found,) = read({name: "Which?", "choices": [" a", "b", "c"], "label": 2.0}).questions
        assert (found.context, found.answers, found.right) == ("Which?", ("a", "b", "c"), 2)


def test_nothing_is_asked_of_a_label_where_none_is_read() -> None:
    found = read({"context": "Which?", "choices": ["a", "b"]}, labeled=False)
    assert found.questions[0].right is None and found.most == 2
    examples, _ = encode(found, TOKENIZER, 32, *ROW)
    assert examples.targets["choice_labels"].weights.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (SWAG | {"label": "2"}, "label '2' is the number of no answer: write 0 to 1"),
        (SWAG | {"label": "-1"}, "label '-1' is the number of no answer"),
        (SWAG | {"label": "B"}, "label 'B' is the number of no answer"),
        (SWAG | {"label": None}, "label '' is the number of no answer"),
        (SWAG | {"label": [1]}, r"label '\[1\]' is the number of no answer"),
        (SWAG | {"ending1": ""}, "1 answers leave nothing to choose: give columns ending0, ending"),
        (SWAG | {"ending0": ""}, "ending0 is '', which is no text: mend the row"),
        (SWAG | {"ending3": "x"}, "its endings are not ending0, ending1, ...: name them"),
        (SWAG | {"sent1": " "}, "column 'sent1' is empty"),
        ({"text": "a", "label": 0}, "there is no column 'sent1'"),
        ({"context": "a", "choices": ["x"], "label": 0}, "1 answers leave nothing to choose"),
        ({"context": "a", "choices": "x y", "label": 0}, "'choices' is 'x y': write a list of"),
        ({"context": "a", "choices": ["x", 1], "label": 0}, "choice 1 is 1, which is no text"),
        ({"context": "a", "choices": ["", "x"], "label": 0}, "choice 0 is '', which is no text"),
        ({"choices": ["x", "y"], "label": 0}, "there is no column 'question'"),
        ({"context": "a", "choices": ["x", "y"]}, "there is no column 'label'"),
    ],
)
def test_a_row_that_is_no_question_is_refused(row: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=f"^t.csv line 2: {complaint}"):
        read(row)


def words(count: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, count))


def draw(count: int, seed: int = 0, most: int = 6, longest: int = 9) -> MultipleChoiceDataset:
    """Questions of two and more answers, all told apart by their texts."""
    random = np.random.default_rng(seed)
    questions = []
    for number in range(count):
        sizes = random.integers(1, longest, random.integers(2, most + 1))
        answers = tuple(words(size, 1000 * number + i) for i, size in enumerate(sizes))
        right = int(random.integers(len(answers)))
        questions.append(MultipleChoiceQuestion(f"line {number}", words(3, number), answers, right))
    return MultipleChoiceDataset("it", questions)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(5, 40), st.integers(2, 8))
def test_each_answer_stands_after_its_question_and_the_longer_is_cut(
    context: int, answer: int, longest: int, count: int
) -> None:
    texts = [words(context, 0), *(words(answer, i + 1) for i in range(count))]
    data = MultipleChoiceDataset(
        "it", [MultipleChoiceQuestion("here", texts[0], tuple(texts[1:]), 1)]
    )
    examples, num_truncated = encode(data, TOKENIZER, longest, 64, 8)
    room = min(longest, 64 // count) - 3
    first, second = truncated_pair_lengths(context, answer, room)
    rows = np.split(examples.ids, examples.starts[1:])
    for row, text in zip(rows, texts[1:], strict=True):
        sep = [TOKENIZER.sep_id]
        said = [*TOKENIZER.encode(texts[0])[:first], *sep, *TOKENIZER.encode(text)[:second], *sep]
        assert row.tolist() == [TOKENIZER.cls_id, *said]
    assert examples.prefix_lengths.tolist() == [first + 2] * count
    assert examples.targets["choice_labels"].values.tolist() == [0, 1] + [0] * (count - 2)
    assert examples.targets["choice_labels"].weights.tolist() == [1] * count
    assert examples.group_sizes.tolist() == [count] and len(examples) == 1
    assert num_truncated == (count if context + answer > room else 0)
    assert examples.sizes.sum() <= 64


@pytest.mark.parametrize(("count", "row", "most"), [(9, 64, 8), (8, 32, 8), (13, 64, 64)])
def test_more_answers_than_a_row_has_room_for_are_refused(count: int, row: int, most: int) -> None:
    data = MultipleChoiceDataset(
        "it", [MultipleChoiceQuestion("t.csv line 7", "ba", ("do",) * count, 0)]
    )
    complaint = f"^t.csv line 7: {count} answers do not fit a row of {row} pieces, which has "
    with pytest.raises(InputError, match=complaint):
        encode(data, TOKENIZER, 128, row, most)


def questions_in(batch: dict[str, np.ndarray]) -> list[tuple]:
    """The questions of a batch, each as its answers' pieces with their targets, in order."""
    found = []
    for row, group_ids in enumerate(batch["group_ids"]):
        used = group_ids[group_ids > 0]
        assert used.tolist() == sorted(used.tolist()) and not group_ids[len(used) :].any()
        assert set(used) == set(range(1, len(set(used)) + 1))
        for group in np.unique(used):
            slots = np.flatnonzero(group_ids == group)
            found.append(
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
    return found


def listed(data: MultipleChoiceDataset, examples: Examples) -> list[tuple]:
    rows = [tuple(row.tolist()) for row in np.split(examples.ids, examples.starts[1:])]
    found, start = [], 0
    for question in data.questions:
        count = len(question.answers)
        found.append(tuple((rows[start + i], int(i == question.right), 1.0) for i in range(count)))
        start += count
    return found


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 25), st.integers(0, 99), st.integers(6, 12))
def test_all_answers_of_a_question_lie_in_one_row_once(count: int, seed: int, slots: int) -> None:
    data, row = draw(count, seed), PackedShape(96, slots)
    examples, _ = encode(data, TOKENIZER, 32, *row)
    rows = pack_examples(examples, np.arange(count), row)
    batch = build_batch(examples, rows, rows.num_sequences + 1, row)
    assert sorted(questions_in(batch)) == sorted(listed(data, examples))
    assert (batch["example_ids"] > 0).sum() == len(examples.ids)
    assert (batch["cls_positions"][batch["group_ids"] > 0] < 96).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 15), st.integers(0, 99), st.integers(1, 6), st.integers(1, 4))
def test_each_epoch_has_every_question_once_for_any_number_of_hosts(
    count: int, seed: int, batch_size: int, num_processes: int
) -> None:
    data = draw(count, seed)
    examples, _ = encode(data, TOKENIZER, 32, *ROW)
    batches = TrainingBatches(examples, seed, batch_size, ROW, count, num_processes)
    found = []
    for step in range(count):
        whole = batches.batch(step)
        found += questions_in(whole)
        parts = [process_batch(whole, num_processes, host) for host in range(num_processes)]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), array)
    assert sorted(found) == sorted(batch_size * listed(data, examples))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 25), st.integers(0, 99), st.sampled_from([1, 3, 100]))
def test_evaluation_finds_the_outputs_of_each_answer_of_each_question(count, seed, rows) -> None:
    data = draw(count, seed)
    examples, _ = encode(data, TOKENIZER, 32, *ROW)
    placed: list[PackedLayout] = pack_eval_batches(examples, ROW, rows)
    batches = [build_batch(examples, each, rows, ROW) for each in placed]
    assert sorted(q for batch in batches for q in questions_in(batch)) == sorted(
        listed(data, examples)
    )
    outputs = [batch["choice_labels"] for batch in batches]
    values = np.array(unpack_outputs(examples, placed, outputs, "example"))
    for question, own in zip(data.questions, group_by_question(data, values), strict=True):
        assert own.tolist() == [int(i == question.right) for i in range(len(question.answers))]


def test_the_digest_knows_which_answers_belong_together() -> None:
    examples, _ = encode(draw(5), TOKENIZER, 32, *ROW)
    sizes = examples.group_sizes.copy()
    others = [dataclasses.replace(examples, group_sizes=None)]
    others.append(dataclasses.replace(examples, group_sizes=sizes[::-1].copy()))
    target = examples.targets["choice_labels"]
    other = dataclasses.replace(target, values=1 - target.values)
    others.append(dataclasses.replace(examples, targets={"choice_labels": other}))
    assert sizes.tolist() != sizes[::-1].tolist()
    assert len({each.digest() for each in (examples, *others)}) == 4
    again, _ = encode(draw(5), TOKENIZER, 32, *ROW)
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
def test_real_files_have_all_their_questions(file: str, count: int, data_dir) -> None:
    path = data_dir / "multiple_choice" / file
    found = from_rows(str(path), read_table(path), True)
    assert len(found.questions) == count
    assert {len(question.answers) for question in found.questions} == {4}
    assert {question.right for question in found.questions} <= {0, 1, 2, 3}


def test_swag_as_lines_of_json_is_as_in_a_table(data_dir: pathlib.Path) -> None:
    path = data_dir / "multiple_choice" / "swag_sample" / "sample.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    question = from_rows("it", read_table(path), True).questions[0]
    assert question.context == first["sent1"]
    assert question.answers[0] == f"{first['sent2']} {first['ending0']}"
