"""Formats of text: changes that keep the meaning keep the documents."""

import csv
import io
import json
import pathlib
import random
import textwrap
from collections.abc import Callable

import pytest
from document_files import COMPRESS, read

MUTATIONS = 40  # of each format; 1,000 were run once

Documents = list[list[str]]
PUNCTUATION = [",", ";", " |", '"', "'", "%", ":", ""]
WORDS = ["Tea", "bread", "(a)", "<b>", "c&d", "é", "語", "—", '"old"', "5%", "it's"]


def make_documents(rng: random.Random) -> Documents:
    def line() -> str:
        words = rng.choices(WORDS, k=rng.randint(1, 9))
        return " ".join(word + rng.choice(PUNCTUATION) for word in words) + "."

    return [[line() for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(6, 20))]


def plain(documents: Documents, rng: random.Random) -> str:
    pad = rng.choice(["", " ", "\t"])
    blocks = ["\n".join(f"{pad}{line}{pad}" for line in document) for document in documents]
    return "".join(f"{block}\n{pad}\n" + "\n" * rng.randint(0, 2) for block in blocks)


def delimited(delimiter: str) -> Callable[[Documents, random.Random], str]:
    def write(documents: Documents, rng: random.Random) -> str:
        columns = rng.sample(["text", "id", "label", "date of it"], k=rng.randint(2, 4))
        if "text" not in columns:
            columns[0] = "text"
        file = io.StringIO()
        quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator="\n")
        writer.writerow(columns)
        for number, document in enumerate(documents):
            text = rng.choice(["\n", "\n\n"]).join(document)
            values = {"text": text, "id": number, "label": "a", "date of it": "1, 2"}
            writer.writerow([values[column] for column in columns])
        return file.getvalue()

    return write


def records(documents: Documents, rng: random.Random) -> list[dict]:
    fields = [("text", None), ("id", 1), ("meta", {"text": "["})]
    made = []
    for document in documents:
        rng.shuffle(fields)
        made.append({name: value or "\n".join(document) for name, value in fields})
    return made


def json_lines(documents: Documents, rng: random.Random) -> str:
    options = {"ensure_ascii": rng.random() < 0.5, "separators": rng.choice([None, (",", ":")])}
    lines = [json.dumps(record, **options) for record in records(documents, rng)]
    return rng.choice(["\n", "\n\n", " \n"]).join(lines) + "\n"


def json_list(documents: Documents, rng: random.Random) -> str:
    indent = rng.choice([None, 0, 2, "\t"])
    made = records(documents, rng)
    if rng.random() < 0.3:  # an object a line
        return "[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n"
    return json.dumps(made, indent=indent, ensure_ascii=rng.random() < 0.5)


def extractor(documents: Documents, rng: random.Random) -> str:
    quote = rng.choice("\"'")
    blocks = []
    for number, document in enumerate(documents):
        attributes = [f"id={quote}{number}{quote}", f"url={quote}http://x/?a=1{quote}"]
        attributes += rng.choice([[], [f"revid={quote}1{quote}"]])
        start = f"<doc {' '.join(attributes)} title={quote}Title {number}{quote}>"
        text = rng.choice(["\n", "\n\n"]).join(document).replace("&", "&amp;").replace("<", "&lt;")
        text = text.replace("&lt;b>", "[b]")  # tags are removed
        gap = rng.choice(["", "\n"])
        blocks.append(f"{start}\nTitle {number}\n{gap}{text}\n</doc>\n")
    return rng.choice(["", "\n", "\n\n"]).join(blocks)


def separated(documents: Documents, rng: random.Random) -> str:
    mark = rng.choice(["\n<|endoftext|>\n", "<|endoftext|>", "\n\n<|endoftext|>\n\n"])
    return mark.join(rng.choice(["\n", "\n\n"]).join(document) for document in documents) + "\n"


def wrapped(documents: Documents, rng: random.Random) -> str:
    """Wrap paragraphs, each a line of a document, which is a chapter."""
    first, width = rng.choice(["", "   "]), rng.randint(40, 90)
    chapters = []
    for document in documents:
        paragraphs = [textwrap.fill(line, width, initial_indent=first) for line in document]
        chapters.append(rng.choice(["\n", "\n\n"] if first else ["\n\n"]).join(paragraphs))
    return ("\n" * rng.randint(3, 6)).join(chapters)


FORMATS = {
    "plain": (plain, [".txt", "", ".csv", ".md"]),
    "csv": (delimited(","), [".csv", ".txt", ""]),
    "tsv": (delimited("\t"), [".tsv", ".txt", ".csv"]),
    "semicolons": (delimited(";"), [".csv", ".txt"]),
    "json_lines": (json_lines, [".jsonl", ".json", ".ndjson", ".txt", ""]),
    "json_list": (json_list, [".json", ".txt", ""]),
    "extractor": (extractor, ["", ".txt"]),
    "separated": (separated, [".txt", ""]),
    "wrapped": (wrapped, [".txt", ""]),
}


@pytest.mark.seconds
@pytest.mark.parametrize("name", FORMATS)
def test_mutations_keep_the_documents(tmp_path: pathlib.Path, name: str) -> None:
    write, suffixes = FORMATS[name]
    for seed in range(MUTATIONS):
        rng = random.Random(seed)
        documents = make_documents(rng)
        if name == "wrapped":  # a chapter has 1,000 characters or more
            documents = [[" ".join(lines[:1] * (1 + 1000 // len(lines[0])))] for lines in documents]
            documents = [paragraphs * rng.randint(1, 3) for paragraphs in documents]
        text = write(documents, rng)
        text = text.rstrip("\n") + "\n" * rng.randint(0, 3)  # blank lines at the end, or none
        text = rng.choice(["", "\ufeff"]) + text.replace("\n", rng.choice(["\n", "\r\n", "\r"]))
        suffix = rng.choice(list(COMPRESS))
        path = tmp_path / f"{seed}{rng.choice(suffixes)}{suffix}"
        path.write_bytes(COMPRESS[suffix](text.encode()))
        expected = documents
        if name == "extractor":
            expected = [[line.replace("<b>", "[b]") for line in lines] for lines in documents]
        unit = "wrapped" if name == "wrapped" else "blocks"
        assert read(str(path), documents=unit) == expected, (seed, path.name)
