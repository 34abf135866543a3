"""SQuAD 1.1 as retrieval: questions of one file to its paragraphs, pairs of another to train on.

    python -m experiments.bench.squad_retrieval --train SQUAD_TRAIN --articles 15 --dev SQUAD_DEV \
      --output DIR

DIR gets BEIR's layout: corpus.jsonl with the paragraphs of SQUAD_DEV, each with the title of its
article, queries.jsonl with its questions, and qrels/test.tsv. train.jsonl has the questions of the
first articles of SQUAD_TRAIN with their paragraphs, `anchor` and `positive`, in the same form.
"""

import argparse
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.ablations.commands import local_path


def read_paragraphs(path: pathlib.Path, articles: int | None) -> Iterator[tuple[str, str, Any]]:
    """Yield title, text and questions of each paragraph of the first articles."""
    for article in json.loads(path.read_text("utf-8"))["data"][:articles]:
        title = article["title"].replace("_", " ")
        for paragraph in article["paragraphs"]:
            yield title, paragraph["context"].strip(), paragraph["qas"]


def write_lines(path: pathlib.Path, rows: Iterable[Mapping[str, str]]) -> int:
    """Write JSON lines; return their number."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), "utf-8")
    return len(lines)


def write_squad_retrieval(
    train: pathlib.Path, articles: int, dev: pathlib.Path, output: pathlib.Path
) -> dict[str, int]:
    """Write the data set; return the number of rows of each file."""
    (output / "qrels").mkdir(parents=True, exist_ok=True)
    documents: dict[tuple[str, str], str] = {}  # equal paragraphs are one document
    queries: list[dict[str, str]] = []
    qrels: list[str] = []
    for title, text, questions in read_paragraphs(dev, None):
        document = documents.setdefault((title, text), f"p{len(documents)}")
        for question in questions:
            queries.append({"_id": question["id"], "text": question["question"].strip()})
            qrels.append(f"{question['id']}\t{document}\t1\n")
    lines = ["query-id\tcorpus-id\tscore\n", *qrels]
    (output / "qrels" / "test.tsv").write_text("".join(lines), "utf-8")
    corpus = ({"_id": id_, "title": t, "text": text} for (t, text), id_ in documents.items())
    pairs = (
        {"anchor": question["question"].strip(), "positive": f"{title} {text}"}
        for title, text, questions in read_paragraphs(train, articles)
        for question in questions
    )
    return {
        "corpus": write_lines(output / "corpus.jsonl", corpus),
        "queries": write_lines(output / "queries.jsonl", queries),
        "train": write_lines(output / "train.jsonl", pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", type=local_path, required=True, metavar="FILE")
    parser.add_argument("--articles", type=int, default=15)
    parser.add_argument("--dev", type=local_path, required=True, metavar="FILE")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    args = parser.parse_args()
    counts = write_squad_retrieval(args.train, args.articles, args.dev, args.output)
    print(", ".join(f"{name} {count:,}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
