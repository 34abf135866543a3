"""Formats of tagged words: changes of a file that keep its meaning give the same sentences."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from data_pipelines.finetuning.tag_schemes import entities, entities_to_tags
from data_pipelines.finetuning.token_classification.dataset import read_tagged_file
from data_pipelines.finetuning.token_classification.running_text import word_offsets

MUTATIONS = 25  # of each format
NAMES = ["Paul", "Anna", "Bonn", "Jena", "Åse", "東", "Kiel"]
WORDS = [
    "lives",
    "in",
    "the",
    '"',
    "''",
    ",",
    "a,b",
    "#",
    "and",
    "works",
    "10.5",
    "7",
    "|",
    "far",
    "é",
]
POS = {**dict.fromkeys(NAMES, "NNP"), ",": ",", "#": "#", '"': "''", "in": "IN", "10.5": "CD"}
COMPRESSIONS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


class Word(NamedTuple):
    text: str
    pos: str
    tag: str


Sentences = list[list[Word]]


def draw_sentences(draw: random.Random) -> Sentences:
    sentences = []
    for _ in range(12):
        words: list[Word] = []
        for _ in range(draw.randint(4, 8)):
            if draw.random() < 0.3:
                kind = draw.choice(["PER", "LOC"])
                length = draw.randint(1, 3)
                names = [draw.choice(NAMES) for _ in range(length)]
                words += [
                    Word(n, "NNP", f"{'I' if i else 'B'}-{kind}") for i, n in enumerate(names)
                ]
            words.append(Word(text := draw.choice(WORDS), POS.get(text, "NN"), "O"))
        sentences.append(words)
    first = [Word(text, POS.get(text, "NN"), "O") for text in WORDS]
    return [[*first, Word("Paul", "NNP", "B-PER"), Word("lives", "NN", "O")], *sentences]


def in_scheme(sentence: Sequence[Word], scheme: str) -> list[str]:
    return entities_to_tags(entities([word.tag for word in sentence]), len(sentence), scheme)


def table(draw: random.Random, sentences: Sentences, kind: str) -> list[list[list[str]]]:
    """Return the columns of each word, in a drawn order: number, word, POS, chunk and tag."""
    scheme = draw.choice(["BIO", "IOBES", "BILOU", "BMES"])
    columns = ["word", *draw.sample(["number", "pos", "chunk", "other"], draw.randint(0, 4)), "tag"]
    if kind == "permuted":
        draw.shuffle(columns)
    result = []
    for sentence in sentences:
        tags = in_scheme(sentence, scheme)
        rows = []
        for number, (word, tag) in enumerate(zip(sentence, tags, strict=True), 1):
            values = {"number": str(number), "word": word.text, "pos": word.pos, "tag": tag}
            values |= {"chunk": "B-VP" if word.pos == "IN" else "B-NP", "other": "_"}
            rows.append([values[name] for name in columns])
        result.append(rows)
    return result


def join_lines(draw: random.Random, sentences: Sequence[Sequence[str]]) -> str:
    """Return sentences with lines between them that mean nothing."""
    ends = ["", "\ufeff", " ", "\u200b", "-DOCSTART- -X- O O\n", "\n"]
    if draw.random() < 0.5:
        ends = [""]
    return "".join(
        "".join(f"{x}\n" for x in lines) + draw.choice(ends) + "\n" for lines in sentences
    )


def conll(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    tabs = draw.random() < 0.5
    separator = "\t" if tabs else draw.choice([" ", "  ", " \t"[:1]])
    rows = table(draw, sentences, "permuted" if tabs else "in order")
    lines = [[separator.join(values) for values in sentence] for sentence in rows]
    if draw.random() < 0.5:  # as in GermEval
        lines = [["# a comment of more words, as in other sets", *sentence] for sentence in lines]
    suffix = draw.choice([".conll", ".bio", ".txt", ".tsv", ".iob2"])
    return join_lines(draw, lines), suffix


def quoted_tsv(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONE])
    header = ["Word", "POS", "Tag"]
    order = draw.sample(range(3), 3)
    lines = [csv_line([header[i] for i in order], "\t", quoting)]
    for sentence in sentences:
        lines += [csv_line([word[i] for i in order], "\t", quoting) for word in sentence]
        lines.append("\n")
    return "".join(lines), ".tsv"


def csv_line(values: Sequence[str], delimiter: str, quoting: Any) -> str:
    if quoting == csv.QUOTE_NONE:
        return delimiter.join(values) + "\n"
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerow(values)
    return file.getvalue()


def kaggle(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    """Return a CSV of Kaggle's names, the number in the first row or in all rows of a sentence."""
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    delimiter, is_filled = draw.choice(",;"), draw.random() < 0.5
    names = ["Sentence #", "Word", "POS", "Tag", *draw.choice([[], [""]])]
    order = draw.sample(range(len(names)), len(names))
    rows = [names]
    for number, sentence in enumerate(sentences, 1):
        for index, word in enumerate(sentence):
            label = f"Sentence: {number}" if is_filled or not index else ""
            rows.append([label, *word, str(len(rows))][: len(names)])
    lines = [csv_line([row[i] for i in order], delimiter, quoting) for row in rows]
    return "".join(lines), ".csv"


def conllu(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    lines = []
    for number, sentence in enumerate(sentences):
        rows = [f"# sent_id = {number}", f"# text = {' '.join(word.text for word in sentence)}"]
        for index, word in enumerate(sentence, 1):
            empty = [f"{index}-{index + 1}", "xx", *"________"]
            node = [f"{index}.1", "yy", "yy", "X", *"______"]
            rows += ["\t".join(empty)] * (draw.random() < 0.1)
            misc = draw.choice(["_", "SpaceAfter=No"])
            values = [
                str(index),
                word.text,
                word.text.lower(),
                word.pos,
                *"__",
                "0",
                "root",
                "_",
                misc,
            ]
            rows += ["\t".join(values), *["\t".join(node)] * (draw.random() < 0.1)]
        lines.append(rows if draw.random() < 0.5 else [r for r in rows if r[:2] != "# "])
    return join_lines(draw, lines).replace("-DOCSTART- -X- O O\n", ""), draw.choice(
        [".conllu", ".conll"]
    )


def inline(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    mark = draw.choice("/_|")
    parts = [0, 1, 2] if mark == "|" and draw.random() < 0.5 else [0, 2]
    lines = [" ".join(mark.join(word[i] for i in parts) for word in s) for s in sentences]
    return join_inline(draw, lines), draw.choice([".txt", ".conll"])


def join_inline(draw: random.Random, lines: Sequence[str]) -> str:
    ends = draw.choice([[""], ["", "\n", "-DOCSTART-\n", "# two words\n"]])
    return "".join(f"{line}\n{draw.choice(ends)}" for line in lines)


def json_lists(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    words, tags = draw.choice(["words", "tokens"]), draw.choice(["tags", "labels", "ner_tags"])
    scheme = draw.choice(["BIO", "IOBES"])
    rows = [{words: [w.text for w in s], tags: in_scheme(s, scheme), "id": 3} for s in sentences]
    return json_text(draw, rows)


def json_text(draw: random.Random, rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return rows as JSON: an object a line, or a list, with keys in any order."""
    names = [*rows[0]]
    draw.shuffle(names)
    rows = [{name: row[name] for name in names} for row in rows]
    ascii_only, suffix = draw.random() < 0.5, draw.choice([".json", ".jsonl", ".txt"])
    if draw.random() < 0.5:
        return "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows), suffix
    whole = draw.choice([rows, {"data": rows}])
    return json.dumps(whole, ensure_ascii=ascii_only, indent=draw.choice([None, 1])), suffix


def arrow(draw: random.Random, sentences: Sentences) -> tuple[bytes, str]:
    """Return lists in Parquet or Arrow, with tags as names or as numbers with names."""
    names = sorted({word.tag for sentence in sentences for word in sentence})
    tags: list[list[Any]] = [[word.tag for word in sentence] for sentence in sentences]
    metadata = None
    if draw.random() < 0.5:
        tags = [[names.index(tag) for tag in sentence] for sentence in tags]
        feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
        info = {"info": {"features": {"ner_tags": draw.choice([feature, [feature["feature"]]])}}}
        metadata = {"huggingface": json.dumps(info)}
    columns = {"tokens": [[w.text for w in s] for s in sentences], "ner_tags": tags}
    columns["id"] = [[str(number)] for number in range(len(tags))]
    order = draw.sample(sorted(columns), len(columns))
    table = pa.table({name: columns[name] for name in order}).replace_schema_metadata(metadata)
    file, suffix = io.BytesIO(), draw.choice([".parquet", ".arrow", ".feather"])
    rows = draw.choice([3, 100])
    if suffix == ".parquet":
        compression = draw.choice(["none", "snappy", "gzip"])
        parquet.write_table(table, file, compression=compression, row_group_size=rows)
    else:
        new_writer = draw.choice([ipc.new_file, ipc.new_stream])
        with new_writer(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return file.getvalue(), suffix


def spans(draw: random.Random, sentences: Sentences) -> tuple[str, str]:
    texts = [" ".join(word.text for word in sentence) for sentence in sentences]
    rows = []
    tool = draw.choice(["doccano", "objects", "offsets", "label_studio", "prodigy", "inclusive"])
    for text, sentence in zip(texts, sentences, strict=True):
        offsets = [0]
        for word in sentence:
            offsets.append(offsets[-1] + len(word.text) + 1)
        places = [
            (offsets[entity.first], offsets[entity.last + 1] - 1, entity.type)
            for entity in entities([word.tag for word in sentence])
        ]
        draw.shuffle(places)
        rows.append(span_row(tool, text, places))
    return json_text(draw, rows)


def span_row(tool: str, text: str, places: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
    if tool == "doccano":
        return {"id": 1, "text": text, "label": places}
    keys = {"offsets": ("start_offset", "end_offset", "label_type")}.get(
        tool, ("start", "end", "label")
    )
    objects = [dict(zip(keys, place, strict=True)) for place in places]
    if tool == "label_studio":
        results = [{"type": "labels", "value": {**o, "labels": [o.pop("label")]}} for o in objects]
        return {"data": {"text": text}, "annotations": [{"result": results}], "predictions": []}
    if tool == "inclusive":
        points = [
            (o.pop("label"), {**o, "end": o["end"] - 1, "text": text[o["start"] : o["end"]]})
            for o in objects
        ]
        return {"content": text, "annotation": [{"label": [c], "points": [p]} for c, p in points]}
    if tool == "prodigy":
        return {"text": text, "tokens": [{"text": "x"}], "spans": objects, "answer": "accept"}
    return {"text": text, "entities": objects}


def mutate_bytes(draw: random.Random, text: str | bytes) -> tuple[bytes, str]:
    """Return a file of a text, and the suffix of its compression."""
    if isinstance(text, bytes):
        return text, ""
    content = draw.choice(["", "\n"]) + text.rstrip("\n") + draw.choice(["", "\n", "\n\n"])
    content = content.replace("\n", draw.choice(["\n", "\r\n", "\r"]))
    data = (draw.choice(["", "\ufeff"]) + content).encode()
    suffix = draw.choice(["", *COMPRESSIONS])
    return COMPRESSIONS[suffix](data) if suffix else data, suffix


FORMATS: dict[str, Callable[[random.Random, Sentences], tuple[str | bytes, str]]] = {
    function.__name__: function
    for function in (conll, quoted_tsv, kaggle, conllu, inline, json_lists, spans, arrow)
}


@pytest.mark.parametrize("name", FORMATS)
def test_read_tagged_file_keeps_the_meaning_of_mutated_files(name: str, tmp_path) -> None:
    for seed in range(MUTATIONS):
        draw = random.Random(f"{name} {seed}")
        sentences = draw_sentences(draw)
        if name == "spans":  # words that `word_offsets` does not split
            sentences = [[w for w in s if len([*word_offsets(w.text)]) == 1] for s in sentences]
        if name == "inline":  # each part of a word may have any mark but its separator
            sentences = [[w for w in s if w.text != "|"] for s in sentences]
        text, suffix = FORMATS[name](draw, sentences)
        content, compression = mutate_bytes(draw, text)
        path = tmp_path / f"{seed}{suffix}{compression}"
        path.write_bytes(content)
        data = read_tagged_file(path)
        expected = [
            ([w.text for w in s], [w.pos if name == "conllu" else w.tag for w in s])
            for s in sentences
        ]
        assert [(s.words, s.tags) for s in data.sentences] == expected, (path, text[:300])
