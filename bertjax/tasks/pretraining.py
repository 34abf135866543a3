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

from bertjax.formats.tensors import Model
from bertjax.mesh.hosts import from_first
from bertjax.model import flops
from bertjax.model.heads import BODY
from bertjax.tasks import contract
from bertjax.tasks.contract import (
    Evaluation,
    EvaluationSet,
    HostBatch,
    Opened,
    bucket,
    check_vocabulary,
)
from bertjax.training import objective
from bertjax.training.config import Config
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData, open_corpora
from data_pipelines.pretraining.packing import RowShape, pack
from data_pipelines.pretraining.rows import PretrainingOptions, render_row
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_TOGETHER = 64  # lines, at most: a mask has as many scores as there are pieces
_BEST = 5  # pieces reported for each mask
_SHARED = ("batch_size", "seq_len", "packing")  # fields of the configuration itself


class Objective(objective.Objective):
    """The encoder with the masked-piece head and, but for objective=mlm, the next-sentence head."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        super().__init__(config, multiple)
        fields = {name: value for name, value in config.data.items() if name != "dir"}
        shared = {name: getattr(config, name) for name in _SHARED}
        self.options = PretrainingOptions(seed=config.order_seed, **shared, **fields)
        self.heads = ("mlm", "nsp") if self.options.objective == "mlm_nsp" else ("mlm",)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in self.options.empty_rows(1).items()
        }

    def forward_flops(self, rows: int) -> float:
        row = self.options.row
        pairs = row.pairs if "nsp" in self.heads else 0
        return flops.forward_flops(self.config.model, rows, row.pieces, row.slots, pairs)


class Task(contract.Task):
    """Pre-training on a corpus that `bertjax prepare` wrote, or on several (see `mixture`)."""

    headline = ("mlm_perplexity",)

    DATA_FIELDS: ClassVar[Mapping[str, Any]] = {"dir": ""} | {
        field.name: field.default
        for field in dataclasses.fields(PretrainingOptions)
        if field.name not in ("seed", *_SHARED)
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
        options = dataclasses.replace(
            self.objective.options, batch_size=self.objective.eval_rows, weights=""
        )
        for name, corpus in self._corpora.items():
            if corpus.manifest.heldout:
                data = PretrainingData(corpus.directory, options, "heldout", hosts, host)
                alone = len(self._corpora) == 1
                self._sets.append(HeldOut("heldout" if alone else name, data, config.eval_batches))
            else:
                _log.warning("%s holds out no text: it is not evaluated on.", corpus.directory)

    @functools.cached_property
    def data(self) -> PretrainingData:
        """The training data, which no evaluation opens."""
        # The processes of one program share what one of them measures.
        share = from_first if jax.process_count() == self._hosts else None
        options = self.objective.options
        data = PretrainingData(self._directory, options, "train", self._hosts, self._host, share)
        if len(data.shares) > 1:
            shares = ", ".join(f"{name} {part:.2%}" for name, part in data.shares.items())
            _log.info("Rows of the corpora: %s.", shares)
        return data

    @property
    def examples_per_epoch(self) -> int:
        return self.data.rows_per_epoch

    @property
    def data_fingerprint(self) -> str:
        digests = {name: corpus.manifest.digest() for name, corpus in self._corpora.items()}
        if len(digests) == 1:
            return digests.popitem()[1]
        return hashlib.blake2b(json.dumps(digests).encode(), digest_size=16).hexdigest()

    def train_batches(self, start: int, stop: int) -> Iterable[HostBatch]:
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
        objective = "mlm_nsp" if "nsp" in model.params else "mlm"
        return {"seq_len": seq_len, "data": {"objective": objective}}

    @staticmethod
    def predict(
        opened: Opened, lines: Iterable[str], together: int, everything: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Fills the `[MASK]`s of each line: text, then per mask its likeliest pieces."""
        numbered = enumerate((line.strip() for line in lines), 1)
        while some := list(itertools.islice(numbered, min(together, _TOGETHER))):
            yield from _fill(opened, some)


class HeldOut:
    """The text that a corpus holds out, or its first batches."""

    def __init__(self, name: str, data: PretrainingData, batches: int) -> None:
        self.name, self._data, self._batches = name, data, batches

    def batches(self) -> Iterable[HostBatch]:
        return itertools.islice(self._data.dataset().as_numpy_iterator(), self._batches or None)

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        return Evaluation({"mlm_perplexity": float(np.exp(means["mlm_loss"]))})


def _fill(opened: Opened, numbered: Sequence[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """The answers to lines, each with its number; those that fit share a row."""
    tokenizer, most = opened.tokenizer, opened.config.model.max_positions
    lines = [_masked(text, number, tokenizer, most) for number, text in numbered]
    batch, places = _lay(lines, tokenizer.mask_id, most)
    (outputs,) = opened.run([batch])
    for (_, text), ids, (row, slots) in zip(numbered, lines, places, strict=True):
        logits = outputs["mlm_logits"][row, slots, : len(tokenizer.pieces)]
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        likely = powers / powers.sum(axis=-1, keepdims=True)
        best = np.argsort(-likely, axis=-1, kind="stable")[:, :_BEST]
        filled = ids.copy()
        filled[ids == tokenizer.mask_id] = best[:, 0]
        yield {
            "text": text,
            "filled": tokenizer.decode(filled[1:-1].tolist()),
            "masks": [
                [
                    {"piece": tokenizer.pieces[i], "probability": round(float(chances[i]), 6)}
                    for i in order
                ]
                for chances, order in zip(likely, best, strict=True)
            ],
        }


def _masked(text: str, number: int, tokenizer: Tokenizer, max_positions: int) -> np.ndarray:
    """The pieces of a line, int32, with the special ones."""
    parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
    if len(parts) == 1:
        raise InputError(f"line {number} has no [MASK]: write one where a piece is to be found.")
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    ids.append(tokenizer.sep_id)
    if len(ids) > max_positions:
        raise InputError(
            f"line {number} has {len(ids)} pieces and the model takes {max_positions}: shorten it."
        )
    return np.array(ids, np.int32)


def _lay(
    lines: Sequence[np.ndarray], mask: int, max_positions: int
) -> tuple[HostBatch, list[tuple[int, slice]]]:
    """A batch of lines packed into rows, and where each has its masks: row and slots.

    Lengths and slots are powers of two, so that few shapes are compiled.
    """
    lengths = np.array([len(ids) for ids in lines])
    counts = np.array([np.count_nonzero(ids == mask) for ids in lines])
    length = min(max(16, bucket(lengths.max())), max_positions)
    row_of = pack(lengths, counts, RowShape(length, length, length))
    rows = int(row_of.max()) + 1
    slots = bucket(int(np.bincount(row_of, counts).max()))
    pieces = ("token_ids", "type_ids", "pack_ids", "positions")
    batch = {name: np.zeros((rows, length), np.int32) for name in pieces}
    batch["mlm_positions"] = np.zeros((rows, slots), np.int32)
    batch["cls_positions"] = np.zeros((rows, 1), np.int32)
    pairs, column, slot = (np.zeros(rows, np.int64) for _ in range(3))
    places = []
    for row, ids in zip(row_of.tolist(), lines, strict=True):
        cells = slice(column[row], column[row] + len(ids))
        pairs[row] += 1
        batch["token_ids"][row, cells] = ids
        batch["pack_ids"][row, cells] = pairs[row]
        batch["positions"][row, cells] = np.arange(len(ids))
        masks = np.flatnonzero(ids == mask)
        own = slice(slot[row], slot[row] + len(masks))
        batch["mlm_positions"][row, own] = column[row] + masks
        places.append((row, own))
        column[row], slot[row] = cells.stop, own.stop
    return batch, places
