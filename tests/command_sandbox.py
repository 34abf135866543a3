"""A small world in which the commands that README and docs/ print run."""

import functools
import itertools
import json
import lzma
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import toy_tasks
from conftest import process_environment, sample_text
from documented_commands import ROOT, printed, run_by, smaller
from processes import run
from random_models import draw_model
from test_glue import PUBLISHED
from test_xnli import write_archives

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from data_pipelines.finetuning.glue import GLUE


def commands(who: str = "") -> list[str]:
    """Those that `who` runs, in the order of a first day; what several pages print comes once."""
    return list(dict.fromkeys(smaller(each.command) for each in printed() if run_by(each) == who))


def with_what_they_read(every: Sequence[str]) -> list[str]:
    """Some commands, and before them those of the first days that make what they read."""
    found = list(every)
    for command in reversed(commands()):
        path = product(shlex.split(command))
        if path and any(reads(other, path) for other in found):
            found.insert(0, command)
    return found


def product(words: Sequence[str]) -> str:
    """What a command writes, which later ones may read; "" for nothing."""
    if words[1] == "convert":
        return words[-1]
    return next((b for a, b in itertools.pairwise(words) if a in ("--output", "--workdir")), "")


def reads(command: str, path: str) -> bool:
    """Whether a command names a path, or what lies in it."""
    words = re.split(r"[\s=,:']+", command)
    return any(word == path or word.startswith(f"{path}/") for word in words)


def _do(world: pathlib.Path, command: str) -> None:
    """Runs a command, which must end well and leave its product."""
    words = shlex.split(command)
    if words[0] == "bertjax":
        ended = run(*words[1:], begin=functools.partial(os.chdir, world))
    else:
        assert words[0] == "python", f"nobody runs {words[0]}"
        ended = subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=world,
            env=process_environment() | {"PYTHONPATH": str(ROOT)},
        )
    assert ended.returncode == 0, f"{command}\n{ended.stderr[-3000:]}"
    assert (world / product(words)).exists(), command


def failures(world: pathlib.Path, every: Sequence[str]) -> list[str]:
    """Runs commands two at once; each waits for what makes what it reads."""
    made: dict[str, Future] = {}

    def do_after(command: str, before: list[Future]) -> None:
        for each in before:
            each.result()
        _do(world, command)

    with ThreadPoolExecutor(2) as pool:
        futures = []
        for command in every:
            before = [future for path, future in made.items() if reads(command, path)]
            futures.append(pool.submit(do_after, command, before))
            if own := product(shlex.split(command)):
                made[own] = futures[-1]
        return [str(each.exception()) for each in futures if each.exception()]


def build(world: pathlib.Path) -> None:
    """Writes what the commands begin with: text, tables, a published model."""
    (world / "text").mkdir()
    (world / "text" / "some.txt").write_text(sample_text(seed=1, documents=60))
    (world / "lines.txt").write_text("ba do ki\nlu me .\n" * 20)
    (world / "texts.txt").write_text("ba [MASK] do\nlu me [MASK] .\n")
    for seed, name in enumerate(["wiki_en", "novels_en"], start=2):
        with lzma.open(world / f"{name}.txt.xz", "wt") as file:
            file.write(sample_text(seed=seed, documents=60))
    (world / "bert-base-uncased-vocab.txt").write_text("\n".join(toy_tasks.TOKENIZER.tokens) + "\n")
    made = world / "toys"
    made.mkdir()
    toy_tasks.write_data(made)
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
        config = BertConfig(
            len(toy_tasks.TOKENIZER.tokens), layers, 64, 2, max_position_embeddings=512
        )
        huggingface.write(
            draw_model(config, toy_tasks.TOKENIZER, "pooler", "mlm", "nsp"), world / place
        )


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
