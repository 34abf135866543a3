"""A small world for the commands that README and docs/ print: text, tables, published models."""

import json
import lzma
import pathlib
import shutil

import toys
from conftest import sample_text
from models import draw_model
from test_glue import PUBLISHED
from test_xnli import write_archives

from bertjax.formats import huggingface
from bertjax.model.encoder import BertConfig
from data_pipelines.finetuning.glue import GLUE


def build(world: pathlib.Path) -> None:
    """Writes what the commands begin with: text, tables, a published model."""
    (world / "text").mkdir()
    (world / "text" / "some.txt").write_text(sample_text(seed=1, documents=60))
    (world / "lines.txt").write_text("ba do ki\nlu me .\n" * 20)
    for seed, name in enumerate(["wiki_en", "novels_en"], start=2):
        with lzma.open(world / f"{name}.txt.xz", "wt") as file:
            file.write(sample_text(seed=seed, documents=60))
    (world / "bert-base-uncased-vocab.txt").write_text("\n".join(toys.TOKENIZER.pieces) + "\n")
    made = world / "toys"
    made.mkdir()
    toys.write_data(made)
    places = {
        "reviews/train.csv": "train.csv", "reviews/dev.csv": "dev.csv",
        "SWAG/train.jsonl": "questions.jsonl", "SWAG/dev.jsonl": "questions-dev.jsonl",
        "conll/train.conll": "words.conll", "conll/dev.conll": "words-dev.conll",
    }  # fmt: skip
    for place, file in places.items():
        (world / place).parent.mkdir(exist_ok=True)
        shutil.copy(made / file, world / place)
    for split, file in (("train", "train.csv"), ("test", "dev.csv")):
        (world / "banking77").mkdir(exist_ok=True)
        text = (made / file).read_text().replace("mood,", "category,", 1)
        (world / "banking77" / f"{split}.csv").write_text(text)
    (world / "squad").mkdir()
    for split in ("train", "dev"):
        for version in ("1.1", "2.0"):
            data = {"data": [{"title": "t", "paragraphs": _paragraphs(version)}]}
            (world / "squad" / f"{split}-v{version}.json").write_text(json.dumps(data))
    _write_glue(world / "GLUE")
    write_archives(world / "XNLI")
    for place, layers in (
        ("models/base", 2),
        ("downloads/bert-base-uncased", 2),
        ("models/minilm", 4),
    ):
        (world / place).mkdir(parents=True)
        config = BertConfig(len(toys.TOKENIZER.pieces), layers, 64, 2, max_positions=512)
        huggingface.write(draw_model(config, toys.TOKENIZER, "pooler", "mlm", "nsp"), world / place)


def _write_glue(folder: pathlib.Path) -> None:
    """Every file of every task, of a few lines that are as they are published."""
    for name, task in GLUE.items():
        known = PUBLISHED[name]
        head, rows = known["train"][: task.header], known["train"][task.header :]
        files = {stem: [*head, *rows * 12] for stem in ("train", *task.dev)}
        files |= {
            stem: known.get(stem, known.get("test_mismatched")) for stem, _ in task.test.values()
        }
        for stem, lines in files.items():
            path = folder / task.folder / f"{stem}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([*lines, ""]))


def _paragraphs(version: str) -> list[dict]:
    found = []
    for number, place in enumerate(["ki", "do", "lu", "me"] * 4):
        answers = [{"text": place, "answer_start": 12}]
        asked: dict = {"id": str(number), "question": "where lives ba?", "answers": answers}
        if version == "2.0":
            asked["is_impossible"] = number % 4 == 3
            if asked["is_impossible"]:
                asked |= {"question": "where lives lu?", "answers": []}
        found.append({"context": f"ba lives in {place}.", "qas": [asked]})
    return found
