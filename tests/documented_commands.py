"""Commands of README and docs/: their pages, the tests that run them, and smaller versions.

A command is a line of a block fenced as `bash`, or an indented line that begins with a program.
"""

import pathlib
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

from conftest import PEERS, free_port

ROOT = pathlib.Path(__file__).parent.parent
# The pages in the order of reading: a page may use files that an earlier one makes.
FIRST = ["README.md", "first-hour.md", "own-text.md", "fine-tuning.md"]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md")],
    key=lambda page: (FIRST.index(page.name) if page.name in FIRST else len(FIRST), page.name),
)
PROGRAMS = ("bertjax", "python", "pip", "make")
FENCES = {"bash", "text", "python", "ini", "yaml"}

# What runs a command other than `test_commands_run_as_printed`.
LAUNCHED = "tests/test_launch.py, with stubs of the cloud tools"
INSTALLED = ".ci/installed"
MADE = "tests/test_demo.py and .ci/run"
SERVED = "test_server_answers_as_printed"
STORED = "test_report_reads_a_bucket_as_printed"
MINUTES = "tests/test_long_commands.py"
STAGES = "tests/test_synthetic_qa_command.py"
# Runner, largest number of its commands, pattern of its commands.
RUNNERS = [
    (LAUNCHED, 39, r"(gcloud|ssh-keygen|ssh-add|cp experiments/launch/|experiments/launch/) ?.*"),
    (INSTALLED, 11, r"pip install .*|python3 -m venv .*|\. \.venv/.*"),
    (MADE, 2, r"make .*"),
    (SERVED, 8, r"bertjax serve .*|curl .*"),
    (STORED, 1, r"bertjax report gs://.*"),
    (STAGES, 1, r"python -m experiments\.synthetic_qa .*"),
    (
        MINUTES,
        31,
        r"python -m experiments\.bench\.([\w.]+ --peer-python|preflight_table|sweep_speed) .*"
        r"|python -m experiments\.bench\.tpu_schedule.*"
        r"|python -m experiments\.ablations\b.*|bertjax submit .*"
        r"|bertjax preflight .*--(search|topology (?!cpu)).*",
    ),
]

# Paths and sizes of the sandbox: pattern, replacement.
REPLACEMENTS: list[tuple[str, str | Callable[[re.Match], str]]] = [
    (r"experiments/(\w+)\.py", r"\1"),
    (r"(train|sweep|preflight|inspect|predict) (.*--config [\w.]+):", r"\1 \2:smoke,"),
    (r"(bench\.(?:\w+_peer|sweep_speed) .*--config \w+):", r"\1:smoke,"),
    (r"model=(mini|small|base|large)", "model=tiny"),
    (r"--input builtin", "--input 'text/*.txt'"),
    (r"--size 2-128", "--size tiny"),
    (r"--vocab-size \d+", "--vocab-size 200"),
    (r"--add \d+", "--add 20"),
    (r"--topology v(\d\w*):\S+", r"--topology v\1:2x2"),
    (r"--topology (h200|h100|a100)\S*:\S+", r"--topology \1:1"),
    (r"steps='\d+ hours'", "steps='0.02 minutes'"),
    (r"\b(?<!_)steps=(\d+|'\d+ epochs')", "steps=4"),
    (r"batch_size=\d+", "batch_size=8"),
    (r"accumulation_steps=\d+", "accumulation_steps=2"),
    (r"warmup=\d+\b(?!%)", "warmup=1"),
    (
        r"--search batch",
        "--search batch --config.batch_size=8192 --config.model.num_hidden_layers=1",
    ),
    (r"--seeds \d+", "--seeds 1"),
    (r"--rounds \d+", "--rounds 1"),
    (r"(bench\.accelerator .*)--budget \d+", r"\1--budget 0"),  # prints its table alone
    (r"(bench\.batches) .*", r"\1 --batch-size 4 --seconds 0.1 --corpus corpora/mine"),
    (r"--batch \d+", "--batch 2"),
    (r"(ablations\.recipes) (.*) --steps \d+", r"\1 --only paper modern --seeds 1 \2 --steps 40"),
    (r"(ablations\.adaptation) (.*) --steps \d+", r"\1 --seeds 1 \2 --steps 10"),
    (
        r"--init BASE --domain CORPUS --general CORPUS",
        "--init runs/base-1 --domain corpora/mine --general corpora/wiki",
    ),
    (
        r"(ablations (?:objectives|architectures) .*) --steps \d+",
        r"\1 --finetune all.steps=4 --steps 10",
    ),
    (r"(experiments\.(?:bench|ablations)[. ](\w+) .*--output) DIR", r"\1 \2"),
    (r"mrpc=MRPC( --task qnli=QNLI)?", "mrpc=GLUE"),
    (r"ner=BTC", "ner=conll"),
    (r"data=STS-B", "data=GLUE/STS-B"),
    (r"data=squad-retrieval", "data=squad-retrieval --config.data.top_k=10"),
    (r"wnut17train\.conll", "train.conll"),
    (r"emerging\.test\.annotated", "dev.conll"),
    (r"wnut17", "conll"),
    (r"--lines \d+", "--lines 20"),
    (r"--text FILE --vocab FILE", "--text text/some.txt --vocab bert-base-uncased-vocab.txt"),
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
    (r"init([_-])layers([= ])0,2,4", r"init\1layers\g<2>0"),
    (r"vocab_size=8192", "vocab_size=256"),
]

# Options that make a program of `experiments` small.
EXTRA_OPTIONS = {
    "bench.prepare": "--rounds 1",
    "bench.growth": "--parts position --rounds 1",
    "bench.inference.python": "--model tiny",
    "bench.inference.serve": "--rounds 1 --requests 12 --clients 4",
    "bench.tpu_compile": "--topology v5e:2x2 --layers 1 --batch 2",
    "bench.preflight_table": "--models tiny --topologies h100:1 --workers 1",
    "bench.tpu_schedule": "--layers 0",
    "bench.train_step": "--steps 1",
    "bench.distillation_step": "--tasks sequence_classification --losses logits --teacher-layers 1 "
    "--student-layers 1 --hidden-size 32 --max-seq-length 16 --batch-size 2",
    "bench.sweep_speed": "--seeds 1",
    "bench.inference.squad": "--rounds 1 --questions 4",
    "students": "--set steps=4 --set batch_size=8 --set max_seq_length=32",
    "bench.inference.predict": "--rounds 1 --batch-sizes 1 16",
}


class DocumentedCommand(NamedTuple):
    page: str
    command: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command, comments=True)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Return language and content of each code block; the language of an indented block is ""."""
    fenced = re.findall(r"^```(.*)\n([\s\S]*?)^```$", text, re.MULTILINE)
    prose = re.sub(r"^```[\s\S]*?^```$", "", text, flags=re.MULTILINE)
    indented = re.findall(r"(?:^ {4}\S.*\n(?: {4}.*\n)*)", prose, re.MULTILINE)
    return [(language or "?", block) for language, block in fenced] + [
        ("", re.sub("^    ", "", block, flags=re.MULTILINE)) for block in indented
    ]


def documented_commands() -> list[DocumentedCommand]:
    """Return every command of every page."""
    commands = []
    for page in PAGES:
        for language, block in code_blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                command = " ".join(line.split("  # ")[0].split())
                if language == "bash" or (not language and command.startswith(PROGRAMS)):
                    commands.append(DocumentedCommand(page.name, command))
    return [documented for documented in commands if documented.command]


def find_runner(command: str) -> str:
    """Return what runs a command; "" for `test_commands_run_as_printed`."""
    return next((name for name, _, pattern in RUNNERS if re.fullmatch(pattern, command)), "")


def shrink(command: str) -> str:
    """Return a command with the paths and sizes of the sandbox."""
    for pattern, replacement in REPLACEMENTS:
        command = re.sub(pattern, replacement, command)
    for program, options in EXTRA_OPTIONS.items():
        pattern = rf" experiments\.{re.escape(program)}(?= |$)"
        command = re.sub(pattern, rf"\g<0> {options}", command)
    return command
