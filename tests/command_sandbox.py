"""A directory of small files in which the commands of README and docs/ run."""

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
from documented_commands import ROOT, code_blocks, documented_commands, find_runner, shrink
from processes import run
from random_models import draw_model
from test_glue import PUBLISHED
from test_xnli import write_archives
from tf1_files import write_output
from toy_retrieval import write_beir
from wikipedia_dumps import make_pages, to_multistream

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from data_pipelines.finetuning.glue import GLUE

OUTPUTS = ("--output", "--workdir", "--save-logits")


def commands_for(runner: str = "") -> list[str]:
    """Return the shrunk commands of a runner in the order of the pages, each once."""
    commands = [command for _, command in documented_commands() if find_runner(command) == runner]
    return list(dict.fromkeys(map(shrink, commands)))


def with_prerequisites(commands: Sequence[str]) -> list[str]:
    """Return commands after those that make the files that they read."""
    needed = list(commands)
    for command in reversed(commands_for()):
        path = output_path(shlex.split(command))
        if path and any(reads(later, path) for later in needed):
            needed.insert(0, command)
    return needed


def output_path(words: Sequence[str]) -> str:
    """Return the path that a command writes; "" for none."""
    if words[1] == "convert":
        return words[-1]
    return next((b for a, b in itertools.pairwise(words) if a in OUTPUTS), "")


def reads(command: str, path: str) -> bool:
    """Return whether a command names a path or a file below it."""
    words = re.split(r"[\s=,:']+", command)
    return any(word == path or word.startswith(f"{path}/") for word in words)


def _run_command(sandbox: pathlib.Path, command: str) -> None:
    """Run a command and check its exit status and its output."""
    words = shlex.split(command)
    if words[0] == "bertjax":
        done = run(*words[1:], begin=functools.partial(os.chdir, sandbox))
    else:
        assert words[0] == "python", f"no test runs {words[0]}"
        done = subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            cwd=sandbox,
            env=process_environment() | {"PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
    assert (sandbox / output_path(words)).exists(), command


def run_commands(sandbox: pathlib.Path, commands: Sequence[str]) -> list[str]:
    """Run two commands at once, each after those whose output it reads; return the errors."""
    futures_by_path: dict[str, Future] = {}

    def run_after(command: str, prerequisites: list[Future]) -> None:
        for future in prerequisites:
            future.result()
        _run_command(sandbox, command)

    with ThreadPoolExecutor(2) as pool:
        futures = []
        for command in commands:
            before = [future for path, future in futures_by_path.items() if reads(command, path)]
            futures.append(pool.submit(run_after, command, before))
            if path := output_path(shlex.split(command)):
                futures_by_path[path] = futures[-1]
        return [str(error) for future in futures if (error := future.exception())]


def build_sandbox(sandbox: pathlib.Path) -> None:
    """Write the input of the commands: texts, data sets, models."""
    (sandbox / "text").mkdir()
    (sandbox / "text" / "some.txt").write_text(sample_text(seed=1, documents=60))
    (sandbox / "lines.txt").write_text("ba do ki\nlu me .\n" * 20)
    (sandbox / "texts.txt").write_text("ba [MASK] do\nlu me [MASK] .\n")
    for seed, name in enumerate(["wiki_en", "novels_en"], start=2):
        with lzma.open(sandbox / f"{name}.txt.xz", "wt") as file:
            file.write(sample_text(seed=seed, documents=60))
    dump = to_multistream(make_pages(seed=1, articles=20))
    (sandbox / "enwiki-pages-articles-multistream.xml.bz2").write_bytes(dump)
    (sandbox / "bert-base-uncased-vocab.txt").write_text(
        "\n".join(toy_tasks.TOKENIZER.tokens) + "\n"
    )
    toys = sandbox / "toys"
    toys.mkdir()
    toy_tasks.write_data(toys)
    copies = {
        "reviews/train.csv": "train.csv", "reviews/dev.csv": "dev.csv",
        "SWAG/train.jsonl": "questions.jsonl", "SWAG/dev.jsonl": "questions-dev.jsonl",
        "questions/train.jsonl": "pairs.jsonl", "questions/dev.jsonl": "pairs-dev.jsonl",
        "pairs/train.jsonl": "translations.jsonl", "pairs/dev.jsonl": "translations-dev.jsonl",
        "conll/train.conll": "words.conll", "conll/dev.conll": "words-dev.conll",
    }  # fmt: skip
    texts = [
        {"text": line} for line in sample_text(seed=4, documents=8).split("\n") if line.strip()
    ]
    toy_tasks.write_lines(sandbox / "texts.jsonl", texts)
    for target, file in copies.items():
        (sandbox / target).parent.mkdir(exist_ok=True)
        shutil.copy(toys / file, sandbox / target)
    (sandbox / "sts").mkdir()
    scores = (toys / "dev.tsv").read_text().splitlines()[1:]
    rows = ["sentence1\tsentence2\tscore", *(row.partition("\t")[2] for row in scores)]
    (sandbox / "sts" / "dev.csv").write_text("\n".join(rows).replace("\t", ","))
    texts = [f"{first} {second}" for first in toy_tasks.WORDS for second in toy_tasks.WORDS]
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": word} for i, word in enumerate(toy_tasks.WORDS)]
    write_beir(sandbox / "scifact", corpus, queries, [f"q{i}\td{i}\t1" for i in range(10)])
    pairs = [{"query": q, "document": d, "relevant": int(q in d)} for q in texts[:9] for d in texts]
    (sandbox / "relevance").mkdir()
    toy_tasks.write_lines(sandbox / "relevance" / "train.jsonl", pairs)
    for split, file in (("train", "train.csv"), ("test", "dev.csv")):
        (sandbox / "banking77").mkdir(exist_ok=True)
        text = (toys / file).read_text().replace("mood,", "category,", 1)
        (sandbox / "banking77" / f"{split}.csv").write_text(text)
    (sandbox / "squad").mkdir()
    for split in ("train", "dev"):
        for version in ("1.1", "2.0"):
            data = {"data": [{"title": "t", "paragraphs": _paragraphs(version)}]}
            (sandbox / "squad" / f"{split}-v{version}.json").write_text(json.dumps(data))
    blocks = [block for _, block in code_blocks((ROOT / "docs" / "python.md").read_text())]
    (functions,) = [block for block in blocks if "def weigh_rare_labels" in block]
    (sandbox / "rare_labels.py").write_text(functions)
    _write_glue(sandbox / "GLUE")
    write_archives(sandbox / "XNLI")
    tokenizer = toy_tasks.TOKENIZER
    write_output(sandbox / "bert_output", tokenizer, [0, 1000])
    models = {"models/base": 2, "downloads/bert-base-uncased": 2, "models/minilm": 4}
    for path, num_layers in models.items():
        (sandbox / path).mkdir(parents=True)
        config = BertConfig(len(tokenizer.tokens), num_layers, 64, 2, max_position_embeddings=512)
        huggingface.write(draw_model(config, tokenizer, "pooler", "mlm", "nsp"), sandbox / path)


def _write_glue(folder: pathlib.Path) -> None:
    """Write every file of every task, with a few published lines."""
    for name, task in GLUE.items():
        published = PUBLISHED[name]
        start = int(task.has_header)
        header, rows = published["train"][:start], published["train"][start:]
        files = {stem: [*header, *rows * 12] for stem in ("train", *task.dev)}
        for stem, _ in task.test.values():
            files[stem] = published.get(stem, published.get("test_mismatched"))
        for stem, lines in files.items():
            path = folder / task.folder / f"{stem}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([*lines, ""]))


def _paragraphs(version: str) -> list[dict]:
    paragraphs = []
    for number, place in enumerate(["ki", "do", "lu", "me"] * 4):
        answers = [{"text": place, "answer_start": 12}]
        question: dict = {"id": str(number), "answers": answers}
        question["question"] = f"where lives ba{' me' * number}?"
        if version == "2.0":
            question["is_impossible"] = number % 4 == 3
            if question["is_impossible"]:
                question |= {"question": "where lives lu?", "answers": []}
        context = f"ba lives in {place}.{' me' * number}"
        paragraphs.append({"context": context, "qas": [question]})
    return paragraphs
