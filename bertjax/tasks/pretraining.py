"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.formats.tensors import Model
from bertjax.mesh.feed import Batch
from bertjax.mesh.hosts import from_first
from bertjax.model import flops
from bertjax.model.heads import BODY
from bertjax.steps import objective
from bertjax.tasks import task
from bertjax.tasks.fill_mask import fill, go_on
from bertjax.tasks.task import (
    EXAMPLES,
    Evaluation,
    EvaluationSet,
    HostBatch,
    Input,
    Opened,
    check_vocabulary,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.growth import Growth
from data_pipelines.pretraining.data import PretrainingData, open_corpora
from data_pipelines.pretraining.options import SHARES, PretrainingOptions
from data_pipelines.pretraining.sequences import render_row

_log = logging.getLogger("bertjax")

_SHARED = ("batch_size", "seq_len", "packing")  # fields of the configuration itself
_PAIRED = 2  # sentences of a document, with fewer of which hardly any follows another


class Objective(objective.Objective):
    """The encoder with the head that tells pieces, and for pairs the next-sentence head."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        super().__init__(config, multiple)
        fields = {name: value for name, value in config.data.items() if name != "dir"}
        shared = {name: getattr(config, name) for name in _SHARED}
        self.options = PretrainingOptions(seed=config.order_seed, **shared, **fields)
        self.heads = ("mlm", "nsp") if self.options.objective == "mlm_nsp" else ("mlm",)
        if "nsp" in self.heads:
            task.check_types(config, "the sentences of a pair")
        if config.model.causal != (self.options.objective == "left_to_right"):
            raise InputError(
                f"model.causal={config.model.causal} does not go with data.objective="
                f"{self.options.objective}: a left-to-right model is causal, and no other is."
            )

        if "examples" in config.pictures:
            self.outputs = ("mlm_best",)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return _shapes(self.options, rows)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        outputs = super().apply(params, batch, key, constants)
        if self.outputs:
            outputs["mlm_best"] = outputs["mlm_logits"].argmax(axis=-1)
        return outputs

    @property
    def eval_options(self) -> PretrainingOptions:
        """Of held-out data: masked as in the paper, however training is, so that losses compare."""
        chosen = self.options
        usual: dict[str, Any] = {
            name: getattr(PretrainingOptions, name) for name in ("mask_prob", *SHARES)
        }
        most = chosen.max_predictions if chosen.mask_prob == usual["mask_prob"] else None
        rows = self.eval_rows
        return dataclasses.replace(
            chosen, batch_size=rows, weights="", max_predictions=most, **usual
        )

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return _shapes(self.eval_options, self.eval_rows)

    def forward_flops(self, rows: int) -> float:
        row, model = self.options.row, self.config.model
        pairs = row.pairs if "nsp" in self.heads else 0
        return flops.forward_flops(model, rows, row.pieces, row.slots, pairs, self.read_slots)


class Task(task.Task):
    """Pre-training on a corpus that `bertjax prepare` wrote, or on several."""

    headline = ("mlm_perplexity",)
    ability = "fills [MASK]s, or left to right continues texts"
    together = 64  # a mask has as many scores as there are pieces

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = {
        "dir": field("", 'what `bertjax prepare` wrote, or several such, joined by "+"')
    } | {
        each.name: each
        for each in dataclasses.fields(PretrainingOptions)
        if each.name not in ("seed", *_SHARED)
    }

    objective: Objective

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        self.config = config
        self.objective = Objective(config, math.lcm(jax.device_count(), hosts))
        self._directory, self._hosts, self._host = config.data["dir"], hosts, host
        if not self._directory:
            raise InputError("data.dir is empty: name a directory that `bertjax prepare` wrote.")
        self._corpora = open_corpora(self._directory, "train")
        self.tokenizer = next(iter(self._corpora.values())).tokenizer
        check_vocabulary(self._directory, self.tokenizer, config.model.vocab_size)
        self._sets: list[HeldOut] = []
        options = self.objective.eval_options
        for name, corpus in self._corpora.items():
            if corpus.manifest.heldout:
                data = PretrainingData(corpus.directory, options, "heldout", hosts, host)
                alone = len(self._corpora) == 1
                self._sets.append(HeldOut("heldout" if alone else name, data, config.eval_batches))
            else:
                _log.warning("%s holds out no text: it is not evaluated on.", corpus.directory)

    @classmethod
    def ability_of(cls, config: Config) -> str:
        return "continues texts" if config.model.causal else "fills [MASK]s"

    @functools.cached_property
    def data(self) -> PretrainingData:
        """The training data, which no evaluation opens."""
        for corpus in self._corpora.values() if "nsp" in self.objective.heads else ():
            totals = corpus.manifest.totals
            each = totals["sentences"] / max(totals["documents"], 1)
            if each < _PAIRED:
                _log.warning(
                    "%s has %.1f sentences a document: nearly all second sentences are random "
                    "ones, which tells nothing; prepare documents of several sentences, or train "
                    "with objective=mlm.", corpus.directory, each,
                )  # fmt: skip
        # The processes of one program share what one of them measures.
        share = from_first if jax.process_count() == self._hosts else None
        options = self.objective.options
        growth = Growth(options.batch_size, self.config.batch_growth)
        data = PretrainingData(
            self._directory, options, "train", self._hosts, self._host, share, growth
        )
        if len(data.shares) > 1:
            shares = ", ".join(f"{name} {part:.2%}" for name, part in data.shares.items())
            _log.info("Rows of the corpora: %s.", shares)
        return data

    @property
    def examples_per_epoch(self) -> int:
        return self.data.rows_per_epoch

    def prepare(self, steps: int | None) -> None:
        self.data.growth = Growth(self.config.batch_size, self.config.batch_growth, steps or 1)

    @property
    def data_fingerprint(self) -> str:
        digests = {name: corpus.manifest.digest() for name, corpus in self._corpora.items()}
        if len(digests) == 1:
            return digests.popitem()[1]
        return hashlib.blake2b(json.dumps(digests).encode(), digest_size=16).hexdigest()

    @property
    def told(self) -> str:
        return " + ".join(
            f"{corpus.directory} ({corpus.manifest.totals['documents']:,} documents, "
            f"{corpus.manifest.totals['pieces']:,} pieces)"
            for corpus in self._corpora.values()
        )

    @property
    def about_data(self) -> Mapping[str, str]:
        found = {}
        for name, corpus in self._corpora.items():
            totals, license = corpus.manifest.totals, corpus.manifest.options.get("license")
            found[name] = (
                f"{totals['documents']:,} documents, {totals['bytes_of_text'] / 1e6:,.0f} MB, "
                f"{totals['pieces']:,} pieces; license: {license or 'not told'}"
            )
        return found

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        batches: Iterable[HostBatch] = self.data.dataset(start, stop).as_numpy_iterator()
        return batches

    def evaluation_sets(self) -> Sequence[EvaluationSet]:
        return self._sets

    def show(self, batch: HostBatch, row: int) -> str:
        return render_row(batch, row, self.tokenizer)

    @staticmethod
    def of_model(model: Model) -> Mapping[str, Any] | None:
        if not {*model.params} <= {*BODY, "mlm", "nsp"}:
            return None
        seq_len = min(Config.seq_len, model.config.max_positions)
        alone = "left_to_right" if model.config.causal else "mlm"
        objective = "mlm_nsp" if "nsp" in model.params else alone
        return {"seq_len": seq_len, "data": {"objective": objective}}

    @staticmethod
    def inputs(lines: Iterable[str]) -> Iterator[Input]:
        """Each line is a text, whatever it looks like."""
        return (Input(f"line {number}", line.strip()) for number, line in enumerate(lines, 1))

    @staticmethod
    def example(config: Config) -> str:
        return f"--text 'The capital of France is{'' if config.model.causal else ' [MASK].'}'"

    @staticmethod
    def predict(
        opened: Opened, inputs: Sequence[Input], everything: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Fills the `[MASK]`s of each text: the text, then per mask its likeliest pieces. A
        left-to-right model goes on with each text, piece by likeliest piece.
        """
        answer = go_on if opened.config.model.causal else fill
        return answer(opened, list(map(_text, inputs)))


def _text(asked: Input) -> tuple[str, str]:
    place, said = asked
    if not isinstance(said, str):
        raise InputError(f"{place} is no text, and the model reads nothing else: write a text.")
    return place, said


class HeldOut:
    """The text that a corpus holds out, or its first batches."""

    def __init__(self, name: str, data: PretrainingData, batches: int) -> None:
        self.name, self._data, self._batches = name, data, batches

    def batches(self) -> Iterable[HostBatch]:
        return itertools.islice(self._data.dataset().as_numpy_iterator(), self._batches or None)

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        examples: list[str] = []
        if outputs[0]:  # of rows of which this host's are the first
            batch = next(iter(self.batches()))
            seen = batch["token_ids"].copy()
            best = outputs[0]["mlm_best"][: len(seen)]
            np.put_along_axis(seen, batch["mlm_positions"], best, axis=1)
            said, rows = batch | {"token_ids": seen}, range(min(EXAMPLES, len(seen)))
            examples = [render_row(said, row, self._data.tokenizer) for row in rows]
        return Evaluation({"mlm_perplexity": float(np.exp(means["mlm_loss"]))}, examples=examples)


def _shapes(options: PretrainingOptions, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
        for name, array in options.empty_rows(1).items()
    }
