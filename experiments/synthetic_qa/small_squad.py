"""Part of SQuAD 2.0 for comparisons on a CPU: the training files that are at hand, fewer articles.

    python -m experiments.synthetic_qa.small_squad --train FILE ... --dev FILE --output DIR \
      [--articles 15] [--dev-step 4]

Writes train-v2.0.json with the union by id of the questions in the training files, which are of
SQuAD 1.1 or 2.0: those of the first `--articles` articles of the first file, and all unanswerable
ones of the others. dev-v2.0.json has every `--dev-step`-th article.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path
from experiments.synthetic_qa.options import DEV_FILE, TRAIN_FILE
from experiments.synthetic_qa.questions import read_articles


def merge_training_files(files: Sequence[Sequence[Any]], articles: int) -> list[Any]:
    """Return the articles of the training file.

    Args:
      files: articles of each file, in the layout of SQuAD.
      articles: articles of the first file.
    """
    merged = [*files[0][:articles]]
    known = {question["id"] for _, question in _questions(merged)}
    for file in files[1:]:
        for article in file:
            chosen: list[Any] = []
            for paragraph, question in _questions([article]):
                if not question.get("is_impossible") or question["id"] in known:
                    continue
                known.add(question["id"])
                if not chosen or chosen[-1]["context"] != paragraph["context"]:
                    chosen.append({"context": paragraph["context"], "qas": []})
                chosen[-1]["qas"].append(question)
            if chosen:
                merged.append({"title": article.get("title", ""), "paragraphs": chosen})
    return merged


def read_file(path: pathlib.Path) -> list[Any]:
    """Return the articles of a file in the layout of SQuAD.

    Raises:
      InputError: the file is missing, or in another layout.
    """
    read_articles(path)
    articles: list[Any] = parse_json(path.read_text())["data"]
    return articles


def _questions(articles: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield paragraph, question


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.synthetic_qa.small_squad",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--train", nargs="+", required=True, type=local_path, metavar="FILE")
    parser.add_argument("--dev", required=True, type=local_path, metavar="FILE")
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--articles", type=int, default=15, metavar="N")
    parser.add_argument("--dev-step", type=int, default=4, metavar="N")
    args = parser.parse_args()
    files = [read_file(path) for path in args.train]
    dev = read_file(args.dev)[:: args.dev_step]
    args.output.mkdir(parents=True, exist_ok=True)
    for name, articles in (
        (TRAIN_FILE, merge_training_files(files, args.articles)),
        (DEV_FILE, dev),
    ):
        atomic_write_text(
            args.output / name, json.dumps({"version": "v2.0", "data": articles}) + "\n"
        )
        questions = [question for _, question in _questions(articles)]
        unanswerable = sum(question.get("is_impossible", False) for question in questions)
        print(f"{name}: {len(questions):,} questions, {unanswerable:,} unanswerable")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
