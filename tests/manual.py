"""The commands that README and docs/ print: where they stand, which of them can run on any machine,
and a small world for those to run in.

A command stands in a block that is fenced as `bash`, or is indented and begins with a program.
Other fenced blocks say what they are.
"""

import json
import lzma
import pathlib
import re
import shlex
import shutil
from typing import NamedTuple

import toys
from conftest import sample_text
from models import draw_model

from bertjax.formats import huggingface
from bertjax.model.encoder import BertConfig

ROOT = pathlib.Path(__file__).parent.parent
# In the order of a first day: what one page makes, a later one may use.
FIRST = ["README.md", "first-hour.md", "own-text.md", "fine-tuning.md"]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md")],
    key=lambda page: (FIRST.index(page.name) if page.name in FIRST else len(FIRST), page.name),
)
PROGRAMS = ("bertjax", "python", "pip", "make")
FENCES = {"bash", "text", "python", "ini"}

# Commands that no test here runs: which, with the page or without, how many at most, and why.
ELSEWHERE = [
    (r"(gcloud|ssh-keygen|ssh-add|cp experiments/launch/|experiments/launch/) ?.*", 40,
     "pods: tests/test_launch.py runs them with stand-ins for the tools"),
    (r"bertjax serve .*|curl .*", 4, "a server: tests/test_serve.py"),
    (r"pip install .*|python3 -m venv .*|\. \.venv/.*|make .*", 10,
     "installing, and what CI itself is made of"),
    (r"python -m experiments\.bench\.\w+ --peer-python .*", 8,
     "measurements beside programs of others, which are not installed"),
    (r"python -m experiments\.bench\.(preflight_table|sweep_speed) .*", 2,
     "compiles or trains for minutes: tests/test_preflight.py, tests/test_sweep.py"),
    (r"python -m experiments\.ablations\b.*", 3, "many runs: tests/test_ablations.py"),
    (r".*gs://.*", 1, "a bucket: tests/test_storage.py"),
    (r".*--coordinator.*", 1, "several hosts: tests/test_hosts.py"),
    (r"bertjax preflight .*--search.*", 2, "compiles for minutes: tests/test_preflight.py"),
    (r"bertjax (train|evaluate) .*xnli:.*", 2, "its many files: tests/test_xnli.py makes them"),
    (r"bertjax submit .*", 1, "a run of each task: tests/test_submission.py"),
]  # fmt: skip

# Paths and sizes of the rest, as the small world has them.
SMALLER = [
    (r"experiments/(\w+)\.py", r"\1"),
    (r"(train|sweep|preflight|inspect) (.*--config [\w.]+):", r"\1 \2:smoke,"),
    (r"model=(mini|small|base|large)", "model=tiny"),
    (r"--input builtin", "--input 'text/*.txt'"),
    (r"--size \d+", "--size 200"),
    (r"--topology \S+", "--topology cpu:1"),
    (r"steps='\d+ hours'", "steps='0.02 minutes'"),
    (r"steps=(\d+|'\d+ epochs')", "steps=4"),
    (r"batch_size=\d+", "batch_size=8"),
    (r"accumulation=\d+", "accumulation=2"),
    (r"--seeds \d+", "--seeds 1"),
    (r"(bench\.prepare) ", r"\1 --rounds 1 --workers 2 "),
    (r"(bench\.batches) .*", r"\1 --batch-size 4 --seconds 0.1 --corpus corpora/mine"),
    (r"(bench\.python_speed) ", r"\1 --model tiny "),
    (r"--lines \d+", "--lines 20"),
    (r"MINILM", "models/base"),
    (r"SQUAD_1", "runs/squad"),
    (r"--data dev-v2", "--data squad/dev-v2"),
    (r"train-v2\.0\.first11", "train-v2.0"),
    (r"downloads/bert-base-uncased models/base", "downloads/bert-base-uncased models/own"),
    (r"runs/bert-large-1", "runs/base-1"),
    (r"vocab_size=30522", "vocab_size=128"),
    (r"vocab_size=8192", "vocab_size=256"),
]


class Printed(NamedTuple):
    page: str
    command: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command, comments=True)


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of code of a page, each with its kind; that of an indented one is ""."""
    fenced = re.findall(r"^```(.*)\n([\s\S]*?)^```$", text, re.MULTILINE)
    rest = re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)
    indented = re.findall(r"(?:^ {4}\S.*\n(?: {4}.*\n)*)", rest, re.MULTILINE)
    return [(kind or "?", block) for kind, block in fenced] + [
        ("", re.sub("^    ", "", block, flags=re.MULTILINE)) for block in indented
    ]


def printed() -> list[Printed]:
    """Every command of every page."""
    found = []
    for page in PAGES:
        for kind, block in blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                command = " ".join(line.split("  # ")[0].split())
                if kind == "bash" or (not kind and command.startswith(PROGRAMS)):
                    found.append(Printed(page.name, command))
    return [each for each in found if each.command]


def reason(each: Printed) -> str:
    """Why a command is not run; "" where it is."""
    said = (each.command, f"{each.page} {each.command}")
    reasons = [why for what, _, why in ELSEWHERE if any(re.fullmatch(what, text) for text in said)]
    return next(iter(reasons), "")


def smaller(command: str) -> str:
    """A command as the small world has it."""
    for what, instead in SMALLER:
        command = re.sub(what, instead, command)
    return command


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
    rows = [f"{i % 2}\t{i}\t{i}\tba {'ki' if i % 2 else 'do'}\tki ba" for i in range(24)]
    for split in ("train", "dev"):
        path = world / "GLUE" / "MRPC" / f"{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]) + "\n")
        (world / "squad").mkdir(exist_ok=True)
        for version in ("1.1", "2.0"):
            data = {"data": [{"title": "t", "paragraphs": _paragraphs(version)}]}
            (world / "squad" / f"{split}-v{version}.json").write_text(json.dumps(data))
    config = BertConfig(len(toys.TOKENIZER.pieces), 2, 64, 2, max_positions=512)
    for place in ("models/base", "downloads/bert-base-uncased"):
        (world / place).mkdir(parents=True)
        model = draw_model(config, toys.TOKENIZER, "pooler", "mlm", "nsp")
        huggingface.write(model, world / place)


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
