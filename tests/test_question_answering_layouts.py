"""Every layout of the same questions gives the same data set, however it is written."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from pyarrow import feather, parquet

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    QuestionAnsweringDataset,
    read_squad,
)

MUTATIONS = int(os.environ.get("BERTJAX_MUTATIONS", "20"))  # of each layout
PASSAGES = ["Où? À Köln, \"am Rhein\".\nUnd 'hier'.", "Seoul 서울 is a city."]
QUESTIONS = [
    (passage, name, text, [Answer(gold, PASSAGES[passage].index(gold)) for gold in golds])
    for passage, name, text, golds in (
        (0, "7", "Où, exactement?", ["Köln", "À Köln"]),
        (0, "8", "Où?", ["hier"]),
        (1, "9", '"서울", or what?', ["서울"]),
    )
]

Write = Callable[[pathlib.Path, random.Random], pathlib.Path]


def shuffled(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields in another order, perhaps with one that no reader knows."""
    items = [*fields.items(), *([("note", [1, None])] if draw.random() < 0.5 else [])]
    draw.shuffle(items)
    return dict(items)


def question_id(draw: random.Random, name: str) -> dict[str, Any]:
    return {draw.choice(["id", "guid", "qid"]): draw.choice([name, int(name)])}


def row(draw: random.Random, number: int) -> dict[str, Any]:
    passage, name, text, answers = QUESTIONS[number]
    starts = [draw.choice([int, float])(answer.start) for answer in answers]
    gold: Any = {"text": [answer.text for answer in answers], "answer_start": starts}
    if draw.random() < 0.3:
        gold = [{"answer_start": a.start, "text": a.text} for a in answers]
    content = {"context": PASSAGES[passage], "question": text, "answers": gold, "title": "t"}
    return shuffled(draw, content | question_id(draw, name))


def rows(draw: random.Random) -> list[dict[str, Any]]:
    return [row(draw, number) for number in range(len(QUESTIONS))]


def paragraphs(draw: random.Random) -> list[dict[str, Any]]:
    def qas(number: int) -> list[dict[str, Any]]:
        return [
            shuffled(
                draw,
                {
                    "question": text,
                    "answers": [{"text": a.text, "answer_start": a.start} for a in answers],
                    **question_id(draw, name),
                },
            )
            for passage, name, text, answers in QUESTIONS
            if passage == number
        ]

    return [
        shuffled(draw, {"context": passage, "qas": qas(number)})
        for number, passage in enumerate(PASSAGES)
    ]


def squad(draw: random.Random) -> Any:
    articles = [shuffled(draw, {"paragraphs": [part]}) for part in paragraphs(draw)]
    if draw.random() < 0.3:
        articles = [shuffled(draw, {"paragraphs": paragraphs(draw)})]
    return draw.choice([articles, shuffled(draw, {"data": articles, "version": "1.1"})])


def mrqa(draw: random.Random) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"header": {"dataset": "Toy", "split": "train"}}]
    for part in paragraphs(draw):
        for qa in part["qas"]:
            golds = qa.pop("answers")
            qa["answers"] = [gold["text"] for gold in golds]
            qa["detected_answers"] = [
                {
                    "text": gold["text"],
                    "char_spans": [
                        [gold["answer_start"], gold["answer_start"] + len(gold["text"]) - 1]
                    ],
                    "token_spans": [[0, 0]],
                }
                for gold in golds
            ]
        lines.append(part)
    return lines


def write_text(path: pathlib.Path, draw: random.Random, text: str) -> pathlib.Path:
    """Write a text with another line end, compression or byte order mark."""
    text = text.replace("\n", draw.choice(["\n", "\r\n", "\r"])) + draw.choice(["", "\n", "\n\n"])
    content = text.encode(draw.choice(["utf-8", "utf-8-sig"]))
    compress = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    suffix = draw.choice(list(compress))
    path = path.with_name(path.name + suffix)
    path.write_bytes(compress[suffix](content))
    return path


def write_json(content: Callable[[random.Random], Any]) -> Write:
    def write(directory: pathlib.Path, draw: random.Random) -> pathlib.Path:
        indent, ascii_only = draw.choice([None, 0, 2, "\t"]), draw.random() < 0.5
        text = json.dumps(content(draw), indent=indent, ensure_ascii=ascii_only)
        return write_text(directory / draw.choice(["f.json", "f.txt", "f"]), draw, text)

    return write


def write_lines(content: Callable[[random.Random], list[Any]]) -> Write:
    def write(directory: pathlib.Path, draw: random.Random) -> pathlib.Path:
        ascii_only = draw.random() < 0.5
        lines = [json.dumps(item, ensure_ascii=ascii_only) for item in content(draw)]
        text = draw.choice(["\n", "\n\n"]).join(lines)
        return write_text(directory / draw.choice(["f.json", "f.jsonl"]), draw, text)

    return write


def write_csv(directory: pathlib.Path, draw: random.Random) -> pathlib.Path:
    """Rows as pandas writes them, or with one answer in columns of its own."""
    table = rows(draw)
    for number, fields in enumerate(table):
        fields.pop("note", None)
        name = next(name for name in ("id", "guid", "qid") if name in fields)
        fields["id"] = fields.pop(name)
        answers = fields.pop("answers")
        if len(QUESTIONS[number][3]) > 1 or draw.random() < 0.5:
            fields |= {"answers": draw.choice([repr, json.dumps])(answers)}
            continue
        fields["answer"] = QUESTIONS[number][3][0].text
        fields["answer_start"] = QUESTIONS[number][3][0].start
    columns = ["id", "context", "question", "answers", "answer", "answer_start"]
    draw.shuffle(columns)
    buffer = io.StringIO()
    quoting = draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", quoting=quoting)
    writer.writeheader()
    writer.writerows(table)
    return write_text(directory / "f.csv", draw, buffer.getvalue().replace("\r\n", "\n").rstrip())


def write_table(directory: pathlib.Path, draw: random.Random) -> pathlib.Path:
    table = []
    as_number = draw.random() < 0.5
    for fields in rows(draw):
        name = next(name for name in ("id", "guid", "qid") if name in fields)
        value = int(fields.pop(name))
        answers = fields["answers"]
        if isinstance(answers, list):
            fields["answers"] = {key: [a[key] for a in answers] for key in answers[0]}
        fields["answers"]["answer_start"] = [int(n) for n in fields["answers"]["answer_start"]]
        fields.pop("note", None)
        table.append(fields | {"id": value if as_number else str(value)})
    path = directory / draw.choice(["f.parquet", "f.arrow"])
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(table), path)
    else:
        feather.write_feather(
            pyarrow.Table.from_pylist(table), str(path), compression="uncompressed"
        )
    return path


LAYOUTS: dict[str, Write] = {
    "squad": write_json(squad),
    "paragraphs": write_json(paragraphs),
    "rows": write_json(lambda draw: draw.choice([rows(draw), {"data": rows(draw)}])),
    "row lines": write_lines(rows),
    "mrqa": write_lines(mrqa),
    "csv": write_csv,
    "table": write_table,
}


def summary(data: QuestionAnsweringDataset) -> Any:
    assert data.version == 1
    for question in data.questions:  # whatever the line ends of a CSV, also within passages
        assert all(question.passage.startswith(a.text, a.start) for a in question.answers)
    return [
        (q.id, q.text, "\n".join(re.split("\r\n|\r|\n", q.passage)), q.answers)
        for q in data.questions
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_read_squad_reads_every_layout_however_it_is_written(layout, tmp_path) -> None:
    expected = [(name, text, PASSAGES[p], tuple(golds)) for p, name, text, golds in QUESTIONS]
    for seed in range(MUTATIONS):
        path = LAYOUTS[layout](tmp_path, random.Random(seed))
        assert summary(read_squad(path)) == expected, seed
        path.unlink()


def test_read_squad_takes_rows_with_an_empty_list_as_unanswerable(tmp_path) -> None:
    draw = random.Random(0)
    content = rows(draw)
    path = tmp_path / "f.json"
    path.write_text(json.dumps(content))
    assert (read_squad(path).version, read_squad(path).is_flat) == (1, True)
    content[0]["answers"] = {"text": [], "answer_start": []}
    path.write_text(json.dumps(content))
    data = read_squad(path)
    assert (data.version, data.is_flat, data.questions[0].answers) == (2, True, ())
    path.write_text(json.dumps([fields | {"is_impossible": "False"} for fields in content]))
    data = read_squad(path)
    assert (data.version, data.is_flat) == (2, False)
    assert [question.is_impossible for question in data.questions] == [False] * 3


def test_read_squad_reads_cells_of_pandas(tmp_path) -> None:
    path, header = tmp_path / "f.csv", "id,context,question,answers\n"
    path.write_text(
        f"{header}1,A b.,q,\"{{'text': array(['A', 'b'],\n dtype=object), "
        "'answer_start': array([0, 2], dtype=int32)}\"\n"
        "2,A b.,q,\"{'text': array([], dtype=object), 'answer_start': array([])}\"\n"
    )
    first, second = read_squad(path).questions
    assert (first.answers, second.answers) == ((Answer("A", 0), Answer("b", 2)), ())
    path.write_text("id,context,question,answer,answer_start\n1,A b.,q,b,2.0\n2,A b.,q,,\n")
    assert read_squad(path).questions[0].answers == (Answer("b", 2),)
    path.write_text(f"{header}1,A b.,q,\"{{'text': open('x')}}\"\n")
    with pytest.raises(InputError, match="is not JSON"):
        read_squad(path)


def test_read_squad_reads_an_answer_in_braces_as_text(tmp_path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('id,context,question,answer,answer_start\n1,"A {1, 2}.",q,"{1, 2}",2\n')
    assert read_squad(path).questions[0].answers == (Answer("{1, 2}", 2),)


def test_read_squad_takes_an_empty_answer_of_a_row_as_none(tmp_path) -> None:
    path, fields = tmp_path / "f.jsonl", {"context": "A b.", "question": "q", "_id": 1}
    path.write_text(json.dumps(fields | {"answers": {"text": [""], "answer_start": [-1]}}))
    data = read_squad(path)
    assert (data.version, data.questions[0].id, data.questions[0].answers) == (2, "1", ())


def test_read_squad_warns_of_questions_without_an_answer_in_version_2(tmp_path, caplog) -> None:
    path, columns = tmp_path / "f.csv", "id,context,question,answer_text,answer_start,is_impossible"
    path.write_text(f"{columns}\n1,A b.,q,A,0,0.0\n2,A b.,q,,,1.0\n")
    assert [question.is_impossible for question in read_squad(path).questions] == [False, True]
    assert not caplog.messages
    path.write_text(f"{columns}\n1,A b.,q,A,0,0.0\n2,A b.,q,,,0.0\n")
    assert read_squad(path).version == 2
    assert "1 of 2 questions have no answer and are not marked" in caplog.text
    assert f"The first is {path}:3." in caplog.text


def test_read_squad_reads_one_article(tmp_path) -> None:
    answer = {"text": "b", "answer_start": 2}
    qas = [{"id": "a", "question": "q", "answers": [answer]}]
    path, article = tmp_path / "f.json", {"paragraphs": [{"context": "A b.", "qas": qas}]}
    path.write_text(json.dumps({"title": "t"} | article))
    assert read_squad(path).questions[0].answers == (Answer("b", 2),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"f\.jsonl:3: list, not a JSON object"),
        ("{", r"f\.jsonl:3: not JSON"),
        ('{"question": "q"}', r"f\.jsonl: \[1\]: no field 'context', only 'question'"),
        (
            '{"context": "c", "question": "q", "id": 1, "answers": [{"text": "c"}]}',
            r"\[1\]\.answers\[0\]: no field 'answer_start', only 'text'",
        ),
    ],
)
def test_read_squad_rejects_a_line_with_its_location(line: str, message: str, tmp_path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(f"{json.dumps(row(random.Random(0), 0))}\n\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_squad(path)


@pytest.mark.parametrize("header", ["context,question,answers", "id,question,answers"])
def test_read_squad_rejects_tables_without_a_column_once_with_its_name(header, tmp_path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(f"{header}\na,b,c\n")
    with pytest.raises(InputError, match=r"^\S*f\.csv:2: no field '(id|context)', only"):
        read_squad(path)
