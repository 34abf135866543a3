"""Options of synthetic question answering, and the files of its working directory."""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_text
from experiments.synthetic_qa.questions import read_articles

TRAIN_FILE, DEV_FILE = "train-v2.0.json", "dev-v2.0.json"  # of --squad
MAX_QUESTION_TOKENS = 32
_TOKENS_PER_WORD = 1.5  # of English with a vocabulary of 30,522
_POLL_SECONDS, _STALL_MINUTES = 5, 60

# The models that are trained, with their configurations. All of them have the size of --encoder.
DEFAULTS: dict[str, dict[str, object]] = {
    "decoder": {"steps": "1 epochs", "batch_size": 32, "max_seq_length": 128},
    "questions": {"steps": "3 epochs", "batch_size": 32, "max_seq_length": 256},
    "answers": {"steps": "2 epochs"},
    "reader": {"steps": "2 epochs"},
    "first_pass": {"steps": "1 epochs"},
}
STAGE_NAMES = ("decoder", "questions", "answers", "extraction", "generation", "filter", "negatives",
               "readers")  # fmt: skip
# Readers that the last stage may train; see `readers`.
READERS = ("real", "negatives", "negatives_regression", "synthetic", "one_pass", "unfiltered",
           "without_negatives")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
      workdir: directory of all files of the stages.
      encoder: checkpoint or model directory from which all models are initialized.
      squad: directory of train-v2.0.json and dev-v2.0.json.
      text: inputs as of `bertjax prepare --input`, with documents of several paragraphs.
      sentence_pairs: pairs on which the decoder learns to continue a text.
      paragraphs: paragraphs to ask questions about.
      num_answers: answers for each paragraph.
      null_threshold: odds of no answer above which the filter rejects a question.
      negatives_per_question: unanswerable questions for each answerable one, at most.
      readers: names of the readers to train, of `READERS`.
      seeds: readers of each kind.
      seed: first seed, and that of all samples.
      overrides: model name -> fields of its configuration.
      block_size: paragraphs whose questions are generated together.
      num_processes, process_id, coordinator_address: as of `bertjax train`.
    """

    workdir: pathlib.Path
    encoder: str
    squad: pathlib.Path
    text: tuple[str, ...]
    sentence_pairs: int = 100_000
    paragraphs: int = 10_000
    num_answers: int = 3
    null_threshold: float = 0.0
    negatives_per_question: float = 0.5
    readers: tuple[str, ...] = ("real", "negatives", "synthetic")
    seeds: int = 1
    seed: int = 0
    overrides: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    block_size: int = 1000
    num_processes: int = 1
    process_id: int = 0
    coordinator_address: str = ""

    def __post_init__(self) -> None:
        for name in ("sentence_pairs", "paragraphs", "num_answers", "seeds", "block_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{_flag(name)}={getattr(self, name)}: Use at least 1.")
        if not 0 <= self.negatives_per_question < math.inf:
            raise InputError(
                f"--negatives-per-question={self.negatives_per_question}: not a number from 0. "
                "Use 0 for none."
            )
        if math.isnan(self.null_threshold):
            raise InputError("--null-threshold=nan: no number. Use 0, or inf to keep all.")
        if self.seed < 0:
            raise InputError(f"--seed={self.seed}: negative. Use 0 or more.")
        for name in self.readers:
            if name not in READERS:
                raise InputError(f"--readers={name}: unknown. Use some of {', '.join(READERS)}.")
        for name in self.overrides:
            if name not in DEFAULTS:
                raise InputError(f"--set {name}.FIELD: no such model. Use {', '.join(DEFAULTS)}.")
        if not 0 <= self.process_id < self.num_processes:
            raise InputError(
                f"--process-id={self.process_id}: not below --num-processes={self.num_processes}."
                " Number the processes from 0."
            )

    @property
    def leads(self) -> bool:
        """True in the process that writes what is not divided."""
        return self.process_id == 0

    @property
    def process_flags(self) -> list[str]:
        """Flags of `bertjax train` on several processes."""
        if self.num_processes == 1:
            return []
        flags = {name: getattr(self, name) for name in ("num_processes", "process_id")}
        if self.coordinator_address:
            flags["coordinator_address"] = self.coordinator_address
        return [f"{_flag(name)}={value}" for name, value in flags.items()]

    @property
    def num_blocks(self) -> int:
        """Blocks of paragraphs, if the text has as many as are asked for."""
        return -(-self.paragraphs // self.block_size)

    def fields(self, model: str) -> dict[str, object]:
        """Return the fields of a model's configuration."""
        return DEFAULTS[model] | dict(self.overrides.get(model, {}))

    @property
    def source_words(self) -> int:
        """Words of a passage around an answer, which fit in the source of a question."""
        fields = self.fields("questions")
        target = int(str(fields.get("data.max_target_length", MAX_QUESTION_TOKENS)))
        return int((int(str(fields["max_seq_length"])) - target) / _TOKENS_PER_WORD)

    def settings(self) -> dict[str, Any]:
        """Return what decides the data of the stages 1 to 7, as JSON."""
        names = ["encoder", "sentence_pairs", "paragraphs", "num_answers", "null_threshold"]
        names += ["negatives_per_question", "seed", "block_size"]
        return {
            "squad": str(self.squad),
            "text": list(self.text),
            "models": {
                name: {k: str(v) for k, v in self.fields(name).items()} for name in DEFAULTS
            },
            **{name: getattr(self, name) for name in names},
        }

    def check_settings(self) -> None:
        """Write the settings into the working directory, or compare them with those there.

        The first process writes them, and the others wait for them.

        Raises:
          InputError: the working directory was made with others, or is a file.
        """
        path = self.workdir / "settings.json"
        if self.workdir.exists() and not self.workdir.is_dir():
            raise InputError(f"--workdir={self.workdir}: a file. Name a directory.")
        if self.leads and not path.exists():
            if self.workdir.exists() and any(self.workdir.iterdir()):
                raise InputError(
                    f"--workdir={self.workdir}: has other files. Name a new directory."
                )
            self.workdir.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, json.dumps(self.settings(), indent=1) + "\n")
        wait_for([path])
        recorded, settings = read_json(path), self.settings()
        for name, value in settings.items():
            if not isinstance(recorded, dict) or recorded.get(name) != value:
                was = recorded.get(name) if isinstance(recorded, dict) else recorded
                raise InputError(
                    f"--workdir={self.workdir}: made with {name}={was!r}, not {value!r}. Name "
                    "another directory."
                )

    def check_inputs(self) -> None:
        """Check the encoder and the questions.

        Raises:
          InputError: one of them is missing, or no question is unanswerable, or answerable, also
            in one half of the articles of dev.
        """
        from bertjax.formats.detection import find_format

        find_format(self.encoder)
        for name in (TRAIN_FILE, DEV_FILE):
            documents, questions = read_articles(self.squad / name)
            if all(question.answers for question in questions):
                raise InputError(
                    f"{self.squad / name}: all questions have answers. The filter learns from "
                    "unanswerable ones: give files of SQuAD 2.0."
                )
            if not any(question.answers for question in questions):
                raise InputError(f"{self.squad / name}: no question has an answer. Give others.")
        for half in (0, 1):  # of the articles of dev, by which the readers are scored
            halved = [q for q in questions if documents[q.passage] % 2 == half]
            if len({bool(question.answers) for question in halved}) < 2:
                raise InputError(
                    f"{self.squad / DEV_FILE}: every other article is a half with scores of its "
                    "own, and one half has no answerable or no unanswerable question. Add articles."
                )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_json(path: pathlib.Path) -> Any:
    """Return the content of a JSON file of ours.

    Raises:
      InputError: it is damaged.
    """
    try:
        return parse_json(path.read_text())
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}). Delete it and run again.") from None


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; raises as `read_json`."""
    try:
        rows = [parse_json(line) for line in path.read_text().split("\n") if line]
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}). Delete it and run again.") from None
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: a line is no object. Delete it and run again.")
    return rows


def write_rows(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    atomic_write_text(path, "".join(lines))


def wait_for(paths: Sequence[pathlib.Path], stall_minutes: float = _STALL_MINUTES) -> None:
    """Wait for files that other processes write.

    Raises:
      InputError: none of them appeared for an hour.
    """
    missing = [path for path in paths if not path.exists()]
    since = time.monotonic()
    while missing:
        if time.monotonic() - since > 60 * stall_minutes:
            raise InputError(
                f"{missing[0]}: another process was to write it, and has not for "
                f"{stall_minutes:g} minutes. Start that process again, then this one."
            )
        time.sleep(_POLL_SECONDS)
        still_missing = [path for path in missing if not path.exists()]
        if len(still_missing) < len(missing):
            since = time.monotonic()
        missing = still_missing
