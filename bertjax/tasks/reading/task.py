"""Span prediction: SQuAD 1.1 and 2.0, and what has their layout (paper, sections 4.2 and 4.3)."""

import functools
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.formats.opening import find_tokenizer
from bertjax.model import flops, losses
from bertjax.model.heads import SpanModel
from bertjax.tasks.contract import Evaluation, check_vocabulary
from bertjax.tasks.reading import page as answer_report
from bertjax.tasks.reading.sets import Reading, asked, windows_of
from bertjax.training.checkpoint import load_on_device
from bertjax.training.config import Config
from bertjax.training.step import Batch, Sums
from data_pipelines.errors import InputError
from data_pipelines.finetuning import rows as spans
from data_pipelines.finetuning.squad import Questions, read_squad, read_tfds
from data_pipelines.finetuning.windows import Passages, WindowOptions, Windows
from data_pipelines.paths import is_remote
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

_log = logging.getLogger("bertjax")

THRESHOLD_FILE = "threshold.json"
DATA_FIELDS: dict[str, Any] = {
    "dir": "",  # of both files, or tfds:NAME/CONFIG; "" where they have paths of their own
    "train": "",  # a file, or a split
    "dev": "",  # likewise; with a * in it, several files
    "version": 1,
    "vocab": "",  # a vocabulary; "" for that of `init`
    "stride": 128,
    "max_query": 64,
}
FILES = {
    1: {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
    2: {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
}
TFDS_SPLITS = {"train": "train", "dev": "validation"}


class Objective:
    """See `bertjax.training.objective.Objective`."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        self.version = int(config.data["version"])
        if self.version not in FILES:
            raise InputError(f"data.version={self.version} must be 1 (SQuAD 1.1) or 2 (SQuAD 2.0).")
        self.config, self._multiple = config, multiple
        self.model = SpanModel(config.model)

    @property
    def options(self) -> WindowOptions:
        """How passages are cut; raises InputError where that cannot be."""
        data = self.config.data
        return WindowOptions(self.config.seq_len, data["stride"], data["max_query"])

    @property
    def rows(self) -> int:
        """Of a batch, as if no two windows shared one; data tell better."""
        return -(-self.config.batch_size // self._multiple) * self._multiple

    def init_params(self, key: jax.Array) -> Any:
        batch = spans.empty(1, self.config.seq_len)
        return self.model.init(key, batch, deterministic=True)["params"]

    def logits(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """See `SpanModel`; a key turns dropout on."""
        rngs = None if key is None else {"dropout": key}
        variables = {"params": params}
        out: Any = self.model.apply(variables, batch, deterministic=key is None, rngs=rngs)
        return out

    def loss(self, params: Any, batch: Batch, key: jax.Array | None) -> Sums:
        real = batch["pack_ids"] > 0
        fill = (jnp.sum(real, dtype=jnp.float32), jnp.float32(real.size))
        return losses.spans(self.logits(params, batch, key), batch) | {"fill": fill}

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct((self.rows, *array.shape[1:]), array.dtype)
            for name, array in spans.empty(1, self.config.seq_len).items()
        }

    def flops_per_step(self) -> float:
        return flops.train_step_flops(self.config.model, self.rows, self.config.seq_len, 0)


class Task(Objective):
    """See `bertjax.tasks.contract.Task`."""

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        # Rows are shared by devices, and where a run is only looked at, by hosts that it will have.
        super().__init__(config, math.lcm(jax.device_count(), hosts))
        self._hosts, self._host = hosts, host
        self.tokenizer = _find_tokenizer(config)
        check_vocabulary(config.data["vocab"] or config.init, self.tokenizer, config.model)
        self.eval_rows = super().rows
        self._held_out = [
            Reading(name, data, self.tokenizer, self.options, self.eval_rows)
            for name, data in read_sets(config, "dev")
        ]

    @functools.cached_property
    def _train_windows(self) -> Windows:  # no evaluation reads them
        ((name, data),) = read_sets(self.config, "train")
        passages = Passages(self.tokenizer)
        return windows_of(name, data, self.tokenizer, self.options, passages)

    @functools.cached_property
    def _batches(self) -> spans.TrainingBatches:
        config = self.config
        return spans.TrainingBatches(
            self._train_windows,
            config.seed,
            config.batch_size,
            config.seq_len,
            int(config.resolve(self.rows_per_epoch).steps),
            multiple=self._multiple * config.accumulation,
        )

    @property
    def rows_per_epoch(self) -> int:
        return len(self._train_windows)

    @property
    def data_fingerprint(self) -> str:
        return self._train_windows.digest()

    @property
    def rows(self) -> int:
        """Of a training batch: what the fullest step needs."""
        return self._batches.rows

    def train_batches(self, start: int, stop: int) -> Iterable[dict[str, np.ndarray]]:
        return (self._own(self._batches.batch(step)) for step in range(start, stop))

    def eval_batches(self) -> Iterable[dict[str, np.ndarray]]:
        for reading in self._held_out:
            yield from map(self._own, reading.arrays())

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        return {"span_logits": self.logits(params, batch, None)}

    def evaluation(
        self, means: dict[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """See `Reading.evaluation`; of several data sets the names stand before each score and
        file, and `exact` and `f1` are the means over the sets.
        """
        logits = iter([each["span_logits"] for each in outputs])
        found = {
            reading.name: reading.evaluation(list(itertools.islice(logits, len(reading.batches))))
            for reading in self._held_out
        }
        if len(found) == 1:
            ((_, only),) = found.items()
            return Evaluation(means | only.scores, only.files)
        scores = means | {
            name: float(np.mean([each.scores[name] for each in found.values()]))
            for name in ("exact", "f1")
        }
        files: dict[str, Any] = {}
        for name, each in found.items():
            scores |= {f"{name}/{metric}": value for metric, value in each.scores.items()}
            files |= {f"{name}.{file}": content for file, content in each.files.items()}
        return Evaluation(scores, files)

    def show(self, batch: dict[str, np.ndarray], row: int) -> str:
        """A window a line, its answer in brackets."""
        lines = []
        for slot in np.flatnonzero(batch["span_weights"][row]):
            ids = batch["token_ids"][row]
            own = np.flatnonzero(batch["pack_ids"][row] == slot + 1)
            start, end = batch["span_targets"][row, slot]
            parts = [ids[own[0] : start], ids[start : end + 1], ids[end + 1 : own[-1] + 1]]
            before, answer, after = (self.tokenizer.decode(part.tolist()) for part in parts)
            lines.append(f"{before} >>{answer}<< {after}".strip())
        return "\n".join(lines)

    def save(self, directory: epath.Path, found: Evaluation | None) -> None:
        self.tokenizer.save(directory)
        if found and "threshold" in found.scores:
            threshold = {"f1": found.scores["threshold"]}
            (directory / THRESHOLD_FILE).write_text(json.dumps(threshold))

    def check_tokenizer(self, tokenizer: Tokenizer | None, path: epath.Path) -> None:
        if tokenizer is None or tokenizer.fingerprint() != self.tokenizer.fingerprint():
            raise InputError(
                f"{path} was trained with another vocabulary than data.vocab="
                f"{self.config.data['vocab']}: leave data.vocab out."
            )

    def _own(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return spans.own_rows(batch, self._hosts, self._host)

    @staticmethod
    def predict(config: Config, path: epath.Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Answers {"question", "context"}, a JSON object a line, with text, score and place; or
        all questions of a file in SQuAD's layout.
        """
        tokenizer, objective = load_tokenizer(path), Objective(config)
        threshold = _threshold(path) if objective.version == 2 else None
        shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
        params = load_on_device(path, shapes)
        logits_of = jax.jit(lambda params, batch: objective.logits(params, batch, None))
        for data, rows in asked(lines):
            reading = Reading("input", data, tokenizer, objective.options, rows)
            logits = [np.asarray(logits_of(params, batch)) for batch in reading.arrays()]
            for prediction in reading.predictions(logits):
                answer = prediction.answer(threshold)
                odds = {} if threshold is None else {"null_odds": round(prediction.null_odds, 4)}
                yield {
                    "id": prediction.question.id,
                    "text": answer.text,
                    "start": answer.start,
                    "end": answer.end,
                    "score": round(answer.score, 4),
                } | odds

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        return answer_report.render(name, directory, read_sets(config, "dev"))


def _threshold(path: epath.Path) -> float:
    if not (path / THRESHOLD_FILE).exists():
        _log.warning(
            "%s keeps no threshold, as it was not evaluated on one data set when it was saved: "
            "where no answer scores best, none is given.",
            path,
        )
        return 0.0
    return float(json.loads((path / THRESHOLD_FILE).read_text())["f1"])


def _find_tokenizer(config: Config) -> Tokenizer:
    if config.data["vocab"]:
        return load_tokenizer(config.data["vocab"])
    if not config.init:
        raise InputError(
            "there is no vocabulary: name a model with init=DIR, or data.vocab=FILE to begin with "
            "random parameters."
        )
    return find_tokenizer(config.init)


def read_sets(config: Config, split: str) -> list[tuple[str, Questions]]:
    """Name and questions of each data set of a split; several are for evaluation alone."""
    data = config.data
    if not data["dir"] and not data[split]:
        raise InputError("data.dir is empty: name the directory that holds SQuAD's files.")
    if data["dir"].startswith(TFDS):
        found = read_tfds(data["dir"], data[split] or TFDS_SPLITS[split])
        return [(split, _checked(config, split, data["dir"], found))]
    name = data[split] or FILES[data["version"]][split]
    # A remote path is absolute, which joining does not know.
    path = epath.Path(name) if is_remote(name) else epath.Path(data["dir"]) / name
    if "*" not in path.name:
        return [(split, _checked(config, split, path, read_squad(path)))]
    paths = sorted(path.parent.glob(path.name))
    if split == "train" or not paths:
        raise InputError(f"data.{split}={path} names {len(paths)} files: name one.")
    return [(path.stem, _checked(config, split, path, read_squad(path))) for path in paths]


def _checked(config: Config, split: str, path: epath.PathLike, found: Questions) -> Questions:
    if found.version != config.data["version"]:
        has = "has" if found.version == 2 else "has no"
        raise InputError(
            f"{path} {has} questions that cannot be answered and "
            f"data.version={config.data['version']}: set version={found.version}."
        )
    bare = [question.id for question in found.questions if not question.answers]
    if split == "dev" and found.version == 1 and bare:
        raise InputError(
            f"{path} has {len(bare)} questions without a gold answer, {bare[0]!r} first, so it "
            "cannot be scored: leave them out; `bertjax predict` answers them."
        )
    return found
