"""The commands that README and docs/ print: where they stand, who runs each, and how small.

A command stands in a block that is fenced as `bash`, or is indented and begins with a program.
Other fenced blocks say what they are.
"""

import pathlib
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

from conftest import PEERS, free_port

ROOT = pathlib.Path(__file__).parent.parent
# In the order of a first day: what one page makes, a later one may use.
FIRST = ["README.md", "first-hour.md", "own-text.md", "fine-tuning.md"]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md")],
    key=lambda page: (FIRST.index(page.name) if page.name in FIRST else len(FIRST), page.name),
)
PROGRAMS = ("bertjax", "python", "pip", "make")
FENCES = {"bash", "text", "python", "ini"}

# Who runs a command, where it is not `test_commands_run_as_printed`.
LAUNCHED = "tests/test_launch.py, with stand-ins for the tools of clouds"
INSTALLED = ".ci/installed"
MADE = "tests/test_demo.py, and .ci/run"
SERVED = "test_what_is_served_answers_as_printed"
STORED = "test_a_run_in_a_bucket_is_named_as_printed"
MINUTES = "tests/test_long_commands.py"
# The commands of each, and how many there are at most.
RUN_BY = [
    (LAUNCHED, 39, r"(gcloud|ssh-keygen|ssh-add|cp experiments/launch/|experiments/launch/) ?.*"),
    (INSTALLED, 8, r"pip install .*|python3 -m venv .*|\. \.venv/.*"),
    (MADE, 2, r"make .*"),
    (SERVED, 4, r"bertjax serve .*|curl .*"),
    (STORED, 1, r"bertjax report gs://.*"),
    (
        MINUTES,
        23,
        r"python -m experiments\.bench\.(\w+ --peer-python|preflight_table|sweep_speed) .*"
        r"|python -m experiments\.ablations\b.*|bertjax submit .*"
        r"|bertjax preflight .*--(search|topology (?!cpu)).*",
    ),
]

# Paths and sizes, as the small world has them.
SMALLER: list[tuple[str, str | Callable[[re.Match], str]]] = [
    (r"experiments/(\w+)\.py", r"\1"),
    (r"(train|sweep|preflight|inspect) (.*--config [\w.]+):", r"\1 \2:smoke,"),
    (r"(bench\.(?:squad_peer|finetuning_peer|sweep_speed) .*--config \w+):", r"\1:smoke,"),
    (r"model=(mini|small|base|large)", "model=tiny"),
    (r"--input builtin", "--input 'text/*.txt'"),
    (r"--size 2-128", "--size tiny"),
    (r"--size \d+", "--size 200"),
    (r"--topology v(\d\w+):\S+", r"--topology v\1:2x2"),
    (r"--topology (h200|h100|a100)\S*:\S+", r"--topology \1:1"),
    (r"steps='\d+ hours'", "steps='0.02 minutes'"),
    (r"\b(?<!_)steps=(\d+|'\d+ epochs')", "steps=4"),
    (r"batch_size=\d+", "batch_size=8"),
    (r"accumulation=\d+", "accumulation=2"),
    (
        r"--search batch",
        "--search batch --config.batch_size=8192 --config.model.num_hidden_layers=1",
    ),
    (r"--seeds \d+", "--seeds 1"),
    (r"--rounds \d+", "--rounds 1"),
    (r"(bench\.batches) .*", r"\1 --batch-size 4 --seconds 0.1 --corpus corpora/mine"),
    (r"--rows \d+", "--rows 2"),
    (r"(ablations\.recipes) (.*) --steps \d+", r"\1 --only paper modern --seeds 1 \2 --steps 40"),
    (r"(ablations objectives .*) --steps \d+", r"\1 --finetune all.steps=4 --steps 10"),
    (r"(experiments\.(?:bench|ablations)[. ](\w+) .*--output) DIR", r"\1 \2"),
    (r"mrpc=MRPC --task qnli=QNLI", "mrpc=GLUE"),
    (r"wnut17train\.conll", "train.conll"),
    (r"emerging\.test\.annotated", "dev.conll"),
    (r"wnut17", "conll"),
    (r"--lines \d+", "--lines 20"),
    (r"PYTHON", PEERS[0] if PEERS else "PYTHON"),
    (r"MINILM", "models/minilm"),
    (r"\bBASE\b", "models/base"),
    (r"models/multilingual", "models/base"),
    (r"SQUAD_1", "runs/squad"),
    (r"--data dev-v", "--data squad/dev-v"),
    (r"train-v(\d\.\d)\.first\d+", r"train-v\1"),
    (r"downloads/bert-base-uncased models/base", "downloads/bert-base-uncased models/own"),
    (r"runs/bert-large-1", "runs/base-1"),
    (
        r"--coordinator-address \S+ --num-processes \d+",
        lambda _: f"--coordinator-address 127.0.0.1:{free_port()} --num-processes 1",
    ),
    (r"vocab_size=30522", "vocab_size=128"),
    (r"vocab_size=8192", "vocab_size=256"),
]


# What makes a program of `experiments` small that is printed without.
ADDED = {
    "bench.prepare": "--rounds 1 --workers 2",
    "bench.python_speed": "--model tiny",
    "bench.serve_speed": "--rounds 1 --requests 12 --clients 4",
    "bench.tpu_compile": "--topology v5e:2x2 --layers 1 --rows 2",
    "bench.preflight_table": "--models tiny --topologies h100:1 --workers 1",
    "bench.cpu_step": "--steps 1",
    "bench.sweep_speed": "--seeds 1",
    "bench.squad_speed": "--rounds 1 --questions 4",
    "bench.sequence_classification_speed": "--rounds 1 --runs-per-device 1 16",
}


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


def run_by(each: Printed) -> str:
    """Who runs a command, if not `test_commands_run_as_printed`; else ""."""
    return next((who for who, _, what in RUN_BY if re.fullmatch(what, each.command)), "")


def smaller(command: str) -> str:
    """A command as the small world has it."""
    for what, instead in SMALLER:
        command = re.sub(what, instead, command)
    for program, options in ADDED.items():
        command = command.replace(f" experiments.{program} ", f" experiments.{program} {options} ")
    return command
