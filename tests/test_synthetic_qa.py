"""Synthetic question answering: text to samples, candidates to fates, questions to negatives."""

import dataclasses
import functools
import json
import pathlib
import re

import pytest
from text_samples import make_documents
from toy_synthetic_qa import CONTEXTS, make_options, make_rows, tag_capitals, write_squad

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    QuestionAnsweringDataset,
    read_squad,
)
from experiments.synthetic_qa import negatives, questions, readers, stages, text
from experiments.synthetic_qa.__main__ import STAGES
from experiments.synthetic_qa.options import Options, read_rows, write_rows

WORDS = [f"word{i}" for i in range(40)]


@pytest.mark.parametrize(("start", "max_words"), [(0, 10), (20, 10), (39, 10), (20, 100), (5, 0)])
def test_mark_answer_keeps_the_words_around_it(start: int, max_words: int) -> None:
    context = " ".join(WORDS)
    begin = context.index(f"word{start}")
    marked = questions.mark_answer(context, begin, begin + len(f"word{start}"), max_words)
    kept = marked.split()
    assert f"| word{start} |" in marked
    words = [word for word in kept if word != "|"]
    assert len(words) == min(max_words, len(WORDS) - 1) + 1
    first = WORDS.index(words[0])
    assert words == WORDS[first : first + len(words)]


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ("what is it ?", "what is it?"),
        ("who is beyonce ' s sister ?", "who is beyonce's sister?"),
        ("how many ( of 10 , 000 ) ?", "how many (of 10, 000)?"),
        ("when was the mid - 1990s album ?", "when was the mid-1990s album?"),
        ("", ""),
    ],
)
def test_clean_question_removes_spaces_of_tokens(generated: str, expected: str) -> None:
    assert questions.clean_question(generated) == expected


def test_candidates_are_the_best_answers_of_each_paragraph() -> None:
    paragraphs = [{"id": f"{i}", "document": i, "context": f"a b {i}"} for i in range(3)]
    span = {"text": "a", "start": 0, "end": 1, "score": -1.0}
    other = {"text": "b", "start": 2, "end": 3, "score": -2.0}
    answers = [{"answers": [span, other]}, {"error": "e"}, {"answers": [other]}]
    rows = questions.make_candidates(paragraphs, answers, 1)
    assert [(row["id"], row["answer"], row["start"]) for row in rows] == [
        ("0-0", "a", 0),
        ("2-0", "b", 2),
    ]


def test_filter_gives_each_candidate_one_fate() -> None:
    candidate = {"context": "Oslo lies in Norway.", "answer": "Oslo", "start": 0}
    generated = [
        *("what lies in norway ?", "what lies in norway ?", "what ?", None),
        *("where lies it ?", "why is it there ?", "how is it there ?"),
    ]
    rows = questions.add_questions(
        [{**candidate, "id": i} for i in range(len(generated))],
        [{"generated_text": t} if t else {"error": "e"} for t in generated],
    )
    best = {"answer": "Oslo", "start": 0}
    answers = [
        {"candidates": [best], "null_odds": -1.0},
        {"candidates": [{"answer": "Norway", "start": 13}], "null_odds": -1.0},
        {"candidates": [best], "null_odds": 1.0},
        {"candidates": [], "null_odds": 0.0},
    ]
    fates = [row["fate"] for row in questions.filter_candidates(rows, answers, 0.0)]
    assert fates == [
        *(questions.KEPT, questions.REPEATED, questions.TOO_SHORT, questions.INVALID),
        *(questions.OTHER_SPAN, questions.NO_ANSWER, questions.OTHER_SPAN),
    ]
    fates = [row["fate"] for row in questions.filter_candidates(rows, answers, 1.0)]
    assert fates[5] == questions.KEPT


def test_negatives_are_questions_of_other_paragraphs_and_with_replaced_spans() -> None:
    rows = make_rows()
    result = negatives.make_negatives(rows, 2.0, tag_capitals, seed=0)
    asked = {(row["context"], row["question"]) for row in rows}
    answers = {row["question"]: row["answer"] for row in rows}
    assert {row["kind"] for row in result} == {
        negatives.OTHER_PARAGRAPH,
        negatives.REPLACED_SPAN,
    }
    for row in result:
        assert (row["context"], row["question"]) not in asked and "answer" not in row
        if row["kind"] == negatives.OTHER_PARAGRAPH:
            assert row["question"] == row["of"]
            assert answers[row["of"]] not in row["context"]
        else:
            new = {*row["question"].split()} - {*row["of"].split()}
            assert new and all(word in re.findall(r"\w+", row["context"]) for word in new)
            assert answers[row["of"]] not in row["question"]
    assert len({row["id"] for row in result}) == len(result)


@pytest.mark.parametrize("per_question", [0, 0.25, 0.5, 1])
def test_negatives_are_limited_per_question_and_do_not_depend_on_order(per_question) -> None:
    rows = make_rows()
    result = negatives.make_negatives(rows, per_question, tag_capitals, seed=0)
    assert len(result) <= per_question * len(rows)
    assert result == negatives.make_negatives(rows[::-1], per_question, tag_capitals, seed=0)


def test_spans_are_replaced_by_others_of_the_same_parts_of_speech() -> None:
    spans = negatives.content_spans("In 1905 New York and 7 towns.", tag_capitals)
    assert [kinds for _, _, kinds in spans] == [("NNP", "year", "NNP", "NNP"), ("CD",)]
    text_ = negatives.replace_span("what left 1905 ?", "1905 and 1914 .", "x", tag_capitals, 0)
    assert text_ == "what left 1914 ?"
    assert negatives.replace_span("what left ?", "1905 and 1914", "x", tag_capitals, 0) is None
    assert negatives.replace_span("what left 1905 ?", "1905 1914", "1914", tag_capitals, 0) is None


def test_names_and_numbers_are_replaced_in_questions_in_lower_case() -> None:
    """A model with an uncased vocabulary asks them, and names have other tags there."""
    context = "Ana met Bo near seven towns in 1905. Cy left York in 1914."
    replace = functools.partial(negatives.replace_span, tag=tag_capitals, answer="seven towns")
    texts = {replace("where did ana meet bo in 1905 ?", context, seed=seed) for seed in range(30)}
    assert "where did ana meet bo in 1914 ?" in texts and "where did cy meet bo in 1905 ?" in texts
    assert all(text == text.lower() for text in texts)
    assert replace("where is banana ?", context, seed=0) is None  # of Ana


@pytest.mark.seconds
def test_tagger_knows_names_and_keeps_words_whole() -> None:
    pytest.importorskip("textblob", reason="bertjax[synthetic] is not installed")
    tag = negatives.load_tagger()
    words = ["Which", "team", "beat", "Denver's", "24-10", "in", "2015", "?"]
    tags = tag(words)
    assert len(tags) == len(words) and tags[1].startswith("NN") and tags[6] == "CD"
    assert tags[3].startswith("NNP")


def test_written_questions_are_squad(tmp_path) -> None:
    rows = make_rows()
    rows += negatives.make_negatives(rows, 1.0, tag_capitals, seed=0)
    assert questions.write_squad(tmp_path / "a.json", rows) == len(rows)
    documents, data = questions.read_articles(tmp_path / "a.json")
    assert read_squad(tmp_path / "a.json").version == 2
    assert {q.id: bool(q.answers) for q in data} == {r["id"]: "answer" in r for r in rows}
    assert all(q.passage[a.start :].startswith(a.text) for q in data for a in q.answers)
    assert documents == dict.fromkeys(CONTEXTS, 0)


def test_threshold_is_that_of_the_first_half() -> None:
    def half(prefix: str) -> QuestionAnsweringDataset:
        gold = (Answer("b", 2),)
        return QuestionAnsweringDataset(
            [Question(f"{prefix}0", "q", "a b", gold), Question(f"{prefix}1", "q", "a b")], 2
        )

    answers = dict.fromkeys(["x0", "x1", "y0", "y1"], "b")
    odds = {"x0": -2.0, "x1": 3.0, "y0": -3.0, "y1": -2.5}
    scores = readers.score_halves([half("x"), half("y")], answers, odds)
    assert scores == {
        "exact": 50.0,
        "f1": 50.0,
        "HasAns_f1": 100.0,
        "NoAns_f1": 0.0,
        "f1_both": 50.0,
        "f1_answered": 100.0,
        "threshold": -2.0,
    }


def test_threshold_is_below_all_odds_where_no_answer_is_best() -> None:
    def half(prefix: str) -> QuestionAnsweringDataset:
        gold = (Answer("b", 2),)
        return QuestionAnsweringDataset(
            [Question(f"{prefix}0", "q", "a b", gold), Question(f"{prefix}1", "q", "a b")], 2
        )

    answers = dict.fromkeys(["x0", "x1", "y0", "y1"], "a")  # wrong
    odds = {"x0": -2.0, "x1": -3.0, "y0": -1.0, "y1": -1.5}
    scores = readers.score_halves([half("x"), half("y")], answers, odds)
    assert -3.0001 < scores.pop("threshold") < -3.0
    assert scores.pop("f1_both") == 50.0 and scores.pop("f1_answered") == 0.0
    assert scores == {"exact": 50.0, "f1": 50.0, "HasAns_f1": 0.0, "NoAns_f1": 100.0}


def test_processes_divide_the_blocks_without_a_remainder(tmp_path) -> None:
    options = make_options(tmp_path, block_size=4)
    path = stages.stage_directory(options, "extraction") / "paragraphs.jsonl"
    write_rows(path, [{"id": i} for i in range(21)])
    whole = dict(stages.own_blocks(options))
    assert sum(map(len, whole.values())) == 21
    parts = [
        dict(stages.own_blocks(dataclasses.replace(options, num_processes=3, process_id=i)))
        for i in range(3)
    ]
    assert sum(map(len, parts)) == len(whole) and parts[0] | parts[1] | parts[2] == whole


def test_readers_with_a_regression_have_a_control_that_differs_in_the_first_pass(
    tmp_path, monkeypatch
) -> None:
    trained: dict[str, list[dict]] = {}

    def train(options, model, workdir, spec, **fields) -> None:
        trained.setdefault(workdir.parent.name, []).append(fields)

    monkeypatch.setattr(readers, "train", train)
    monkeypatch.setattr(readers, "_merge", lambda options, sources, path: write_rows(path, []))
    write_squad(tmp_path / "squad")
    options = make_options(tmp_path, seed=1)
    for name in ("negatives", "negatives_regression", "synthetic"):
        readers._train_reader(options, tmp_path, name, 1)
    assert trained["negatives_regression"] == trained["synthetic"][1:]
    assert trained["negatives_regression"][0].pop("data__null_score") == "regression"
    assert trained["negatives_regression"] == trained["negatives"]


def test_processes_agree_that_a_training_has_ended(tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(stages, "run_bertjax", lambda *words: commands.append(words))
    for process_id in range(2):  # the second was killed after the training, and has no record
        options = make_options(tmp_path, num_processes=2, process_id=process_id)
        stages.train(options, "reader", tmp_path / "run", "squad:data=d")
    assert len(commands) == 1 and "--process-id=0" in commands[0]


def test_text_is_read_by_all_cores(tmp_path, monkeypatch) -> None:
    chosen = []

    def read_documents(inputs, workers=1) -> list[list[str]]:
        chosen.append(workers)
        return make_documents(7)

    monkeypatch.setattr(stages, "read_documents", read_documents)
    monkeypatch.setattr(stages, "train", lambda *args, **fields: None)
    options = make_options(tmp_path)
    stages.train_decoder(options, tmp_path / "decoder")
    assert chosen == [None]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}\n[]', '{"a": 1}\nx'])
def test_damaged_rows_are_named(tmp_path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    if not content:
        assert read_rows(tmp_path / "a.jsonl") == []
        return
    with pytest.raises(InputError, match=r"a\.jsonl: .*Delete it and run again"):
        read_rows(tmp_path / "a.jsonl")


@pytest.fixture
def squad(tmp_path) -> pathlib.Path:
    return write_squad(tmp_path / "squad")


@pytest.mark.parametrize("content", ['{"a": 1}', '{"data": {}}', "{}\n{}"])
def test_other_layouts_of_questions_are_rejected(squad, content: str) -> None:
    (squad / "dev-v2.0.json").write_text(content)
    with pytest.raises(InputError, match=r"dev-v2\.0\.json"):
        questions.read_articles(squad / "dev-v2.0.json")


def test_rows_of_questions_are_no_articles(squad) -> None:
    row = {"id": "a", "context": "b c", "question": "d", "answers": []}
    rows = "".join(json.dumps(row | {"id": name}) + "\n" for name in "ab")
    (squad / "dev-v2.0.json").write_text(rows)
    with pytest.raises(InputError, match="not in SQuAD's layout of articles"):
        questions.read_articles(squad / "dev-v2.0.json")


def fake_prediction(row: dict) -> dict:
    """Return what a model might predict for an input of stages 4 to 6."""
    if "source" in row:
        return {"generated_text": f"what is in {row['source'].split('|')[1].strip()} ?"}
    if "question" in row:
        word = row["context"].split()[1]
        best = {"answer": word, "start": row["context"].index(word)}
        return {"candidates": [best], "null_odds": text.digest(row["question"]) % 3 - 1.0}
    words = row["context"].split()[: row["num_answers"]]
    return {
        "answers": [
            {"text": word, "start": row["context"].index(word), "score": -1.0} for word in words
        ]
    }


@pytest.mark.seconds
def test_stages_write_the_same_files_on_several_processes(squad, tmp_path, monkeypatch) -> None:
    def run(*command: str, allowed_statuses=()) -> int:
        source, output = (command[command.index(name) + 1] for name in ("--input", "--output"))
        rows = read_rows(pathlib.Path(source))
        write_rows(pathlib.Path(output), map(fake_prediction, rows))
        return 0

    monkeypatch.setattr(stages, "run_bertjax", run)
    monkeypatch.setattr(stages, "train", lambda *args, **fields: None)
    monkeypatch.setattr(stages, "load_tagger", lambda: tag_capitals)
    documents = "\n\n".join("\n".join(document) for document in make_documents(7))
    (tmp_path / "text").write_text(documents)

    def run_stages(workdir: pathlib.Path, num_processes: int) -> dict[str, str]:
        options = Options(
            workdir, "encoder", squad, (str(tmp_path / "text"),), paragraphs=20, block_size=4,
            num_answers=2, num_processes=num_processes,
        )  # fmt: skip
        for name in ("extraction", "generation", "filter", "negatives"):
            for i in range(num_processes):
                process = dataclasses.replace(options, process_id=i)
                if name == "filter" and i == 0:
                    rows = read_rows(workdir / "5-generation" / "questions" / "00004.jsonl")
                    assert len(rows) == 8
                STAGES[name](process, stages.stage_directory(process, name))
        return {
            str(path.relative_to(workdir)): path.read_text() for path in workdir.rglob("*.json*")
        }

    files = run_stages(tmp_path / "one", 1)
    rows = stages.read_candidates(
        Options(tmp_path / "one", "encoder", squad, ("text",), block_size=4)
    )
    assert len(rows) == 40 and len({row["id"] for row in rows}) == 40
    assert {questions.KEPT, questions.OTHER_SPAN, questions.NO_ANSWER} == {r["fate"] for r in rows}
    assert run_stages(tmp_path / "three", 3) == files
