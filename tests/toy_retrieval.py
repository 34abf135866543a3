"""A small retrieval data set in the layout of BEIR, and a model of embeddings for it."""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import toy_tasks

DOCUMENTS = [f"{first} {second}" for first in toy_tasks.WORDS[:5] for second in toy_tasks.OTHER]


def write_beir(
    path: pathlib.Path,
    corpus: Iterable[dict[str, Any]] | None = None,
    queries: Iterable[dict[str, Any]] | None = None,
    qrels: Sequence[str] | None = None,
    split: str = "test",
) -> pathlib.Path:
    """Write a data set, by default 25 documents of two words, 12 queries of which 10 are judged."""
    if corpus is None:
        corpus = [
            {"_id": f"d{i}", "title": text.split()[0], "text": text.split()[1]}
            for i, text in enumerate(DOCUMENTS)
        ]
    if queries is None:
        queries = [{"_id": f"q{i}", "text": DOCUMENTS[2 * i]} for i in range(12)]
    if qrels is None:
        qrels = [f"q{i}\td{2 * i}\t1" for i in range(10)] + ["q0\td3\t2", "q1\td4\t0"]
    (path / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *qrels]
    (path / "qrels" / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines))
    return path
