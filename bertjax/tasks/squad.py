"""Span prediction: SQuAD 1.1 and 2.0, and what has their layout (paper, sections 4.2 and 4.3)."""

import functools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax import flops, losses
from bertjax.answers import Prediction, decode
from bertjax.checkpoint import load_params
from bertjax.config import Config
from bertjax.heads import SpanModel
from bertjax.scoring.squad import score
from bertjax.sharding import with_shardings
from bertjax.start import find_tokenizer
from bertjax.step import Batch, Sums
from bertjax.tasks import Evaluation
from data_pipelines import spans
from data_pipelines.squad import Question, Questions, read_squad
from data_pipelines.tokenization import Tokenizer, load_tokenizer
from data_pipelines.windows import Passages, WindowOptions, Windows, locate, make_windows

_log = logging.getLogger("bertjax")

THRESHOLD_FILE = "threshold.json"
DATA_FIELDS: dict[str, Any] = {
    "dir": "",  # holds both files; "" where they have paths of their own
    "train": "",
    "dev": "",
    "version": 1,
    "vocab": "",  # a vocabulary; "" for that of `init`
    "stride": 128,
    "max_query": 64,
}
_FILES = {
    1: {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
    2: {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
}
_COUNTS = ("missing", "surplus")  # of predictions that are all ours: 0
_SHOWN = 3  # of the answers that are not at their place


class Objective:
    """See `bertjax.tasks.Objective`."""

    def __init__(self, config: Config) -> None:
        self.version = int(config.data["version"])
        if self.version not in _FILES:
            raise ValueError(f"data.version={self.version} must be 1 (SQuAD 1.1) or 2 (SQuAD 2.0).")
        self.config = config
        self.model = SpanModel(config.model)

    @property
    def options(self) -> WindowOptions:
        """How passages are cut; raises InputError where that cannot be."""
        data = self.config.data
        return WindowOptions(self.config.seq_len, data["stride"], data["max_query"])

    @property
    def rows(self) -> int:
        """Of a batch, as if no two windows shared one; data tell better."""
        return self.config.batch_size

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
    """See `bertjax.tasks.Task`."""

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        super().__init__(config)
        self._hosts, self._host = hosts, host
        self.tokenizer = _find_tokenizer(config)
        self._passages = Passages(self.tokenizer)
        self._dev = _read(config, "dev")
        self._dev_windows = self._windows(self._dev, "dev")
        devices = jax.device_count()
        self.eval_rows = -(-config.batch_size // devices) * devices
        self._dev_rows = spans.evaluation_rows(self._dev_windows, config.seq_len, self.eval_rows)
        self._threshold: float | None = None

    @functools.cached_property
    def _train_windows(self) -> Windows:
        return self._windows(_read(self.config, "train"), "train")  # no evaluation reads them

    @functools.cached_property
    def _batches(self) -> spans.TrainingBatches:
        config = self.config
        return spans.TrainingBatches(
            self._train_windows,
            config.seed,
            config.batch_size,
            config.seq_len,
            int(config.resolve(self.rows_per_epoch).steps),
            multiple=jax.device_count() * config.accumulation,
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
        for rows in self._dev_rows:
            batch = spans.fill(self._dev_windows, rows, self.eval_rows, self.config.seq_len)
            yield self._own(batch)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        return {"span_logits": self.logits(params, batch, None)}

    def evaluation(
        self, means: dict[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """Official scores, in percent; for version 2 at the threshold that is best for F1."""
        found = [each["span_logits"] for each in outputs]
        logits = spans.split_logits(self._dev_windows, self._dev_rows, found)
        questions = self._dev.questions
        predictions = list(decode(questions, self._dev_windows, self._passages, logits))
        odds = {each.question.id: each.null_odds for each in predictions}
        best = {
            each.question.id: each.candidates[0].text if each.candidates else ""
            for each in predictions
        }
        scores = means
        if self.version == 2:
            swept = score(self._dev, best, odds)
            scores |= {name: value for name, value in swept.items() if name.startswith("best")}
            self._threshold = swept["best_f1_thresh"]
            best = {name: "" if odds[name] > self._threshold else best[name] for name in best}
        scores |= score(self._dev, best)
        files = {"predictions": best, "nbest_predictions": _nbest(predictions, self.version == 2)}
        if self.version == 2:
            files["null_odds"] = odds
        return Evaluation({n: v for n, v in scores.items() if n not in _COUNTS}, files)

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

    def save(self, directory: epath.Path) -> None:
        self.tokenizer.save(directory)
        if self._threshold is not None:
            (directory / THRESHOLD_FILE).write_text(json.dumps({"f1": self._threshold}))

    def check_tokenizer(self, tokenizer: Tokenizer | None, path: epath.Path) -> None:
        if tokenizer is None or tokenizer.fingerprint() != self.tokenizer.fingerprint():
            raise ValueError(
                f"{path} was trained with another vocabulary than data.vocab="
                f"{self.config.data['vocab']}: leave data.vocab out."
            )

    def _own(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return spans.own_rows(batch, self._hosts, self._host)

    def _windows(self, data: Questions, name: str) -> Windows:
        """The windows of a data set; says what is wrong with its answers."""
        located = [locate(question) for question in data.questions]
        wrong = [phrase for _, phrase in located if phrase]
        for phrase in wrong[:_SHOWN]:
            _log.warning("%s: %s.", name, phrase)
        if wrong:
            _log.warning(
                "%s: %d of %d answers are not at their place; those found elsewhere in the "
                "passage are taken there, the others count as no answer.",
                name,
                len(wrong),
                len(located),
            )
        answers = [answer for answer, _ in located]
        windows = make_windows(
            data.questions, self.tokenizer, self.options, self._passages, answers
        )
        if windows.cut:
            _log.warning(
                "%s: %d questions were cut to data.max_query=%d pieces.",
                name,
                windows.cut,
                self.options.max_query,
            )
        return windows

    @staticmethod
    def predict(config: Config, path: epath.Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Answers {"question", "context"}, a JSON object a line, with text, score and place."""
        tokenizer, objective = load_tokenizer(path), Objective(config)
        threshold = _threshold(path) if objective.version == 2 else None
        shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        params = load_params(path, with_shardings(shapes, device))
        logits_of = jax.jit(lambda params, batch: objective.logits(params, batch, None))
        for number, line in enumerate(lines, 1):
            question = _parse_line(line, number)
            passages = Passages(tokenizer)
            windows = make_windows([question], tokenizer, objective.options, passages)
            batches = spans.evaluation_rows(windows, config.seq_len, 1)
            found = [
                np.asarray(logits_of(params, spans.fill(windows, rows, 1, config.seq_len)))
                for rows in batches
            ]
            logits = spans.split_logits(windows, batches, found)
            (prediction,) = decode([question], windows, passages, logits)
            answer = prediction.answer(threshold)
            odds = {} if threshold is None else {"null_odds": round(prediction.null_odds, 4)}
            yield {
                "id": question.id,
                "text": answer.text,
                "start": answer.start,
                "end": answer.end,
                "score": round(answer.score, 4),
            } | odds


def _threshold(path: epath.Path) -> float:
    if not (path / THRESHOLD_FILE).exists():
        _log.warning("%s was not evaluated: no answer is given where it scores best.", path)
        return 0.0
    return float(json.loads((path / THRESHOLD_FILE).read_text())["f1"])


def _find_tokenizer(config: Config) -> Tokenizer:
    if config.data["vocab"]:
        return load_tokenizer(config.data["vocab"])
    if not config.init:
        raise ValueError(
            "there is no vocabulary: name a model with init=DIR, or data.vocab=FILE to begin with "
            "random parameters."
        )
    return find_tokenizer(config.init)


def _read(config: Config, name: str) -> Questions:
    data = config.data
    default = _FILES[int(data["version"])][name]
    path = epath.Path(data["dir"]) / (data[name] or default)
    if not data["dir"] and not data[name]:
        raise ValueError("data.dir is empty: name the directory that holds SQuAD's files.")
    found = read_squad(path)
    if found.version != data["version"]:
        has = "has" if found.version == 2 else "has no"
        raise ValueError(
            f"{path} {has} questions that cannot be answered and data.version={data['version']}: "
            f"set version={found.version}."
        )
    return found


def _parse_line(line: str, number: int) -> Question:
    try:
        said = json.loads(line)
        fields = [said["question"], said["context"]]
        if not all(isinstance(field, str) for field in fields):
            raise TypeError
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f'line {number} is not of the form {{"question": "...", "context": "..."}}: '
            "write a JSON object a line."
        ) from error
    return Question(str(said.get("id", number)), *fields)


def _nbest(predictions: Sequence[Prediction], with_null: bool) -> dict[str, list[dict[str, Any]]]:
    return {
        each.question.id: [
            {
                "text": candidate.text,
                "probability": probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate, probability in each.probabilities(with_null)
        ]
        for each in predictions
    }
