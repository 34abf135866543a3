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
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.distributed import broadcast_from_process_0
from bertjax.mesh.feed import Batch
from bertjax.model import flops
from bertjax.model.heads import BACKBONE_MODULES
from bertjax.steps import objective
from bertjax.tasks import task
from bertjax.tasks.fill_mask import fill_mask, generate
from bertjax.tasks.task import (
    NUM_EXAMPLES_SHOWN,
    EvalSet,
    Evaluation,
    HostBatch,
    Input,
    PredictorProtocol,
    check_vocabulary,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.pretraining.data import PretrainingData, open_corpora
from data_pipelines.pretraining.options import REPLACE_PROBS, PretrainingOptions
from data_pipelines.pretraining.sequences import render_sequence
from data_pipelines.rampup import BatchSizeRampup

_log = logging.getLogger("bertjax")

_CONFIG_FIELDS = ("batch_size", "max_seq_length", "packing")  # fields of the configuration itself
_MIN_SENTENCES_PER_DOCUMENT = (
    2  # sentences of a document, with fewer of which hardly any follows another
)


class Objective(objective.Objective):
    """The encoder with the head that tells pieces, and for pairs the next-sentence head."""

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        fields = {name: value for name, value in config.data.items() if name != "dir"}
        shared = {name: getattr(config, name) for name in _CONFIG_FIELDS}
        self.options = PretrainingOptions(seed=config.data_order_seed, **shared, **fields)
        self.heads = ("mlm", "nsp") if self.options.objective == "mlm_nsp" else ("mlm",)
        if "nsp" in self.heads:
            task.check_type_vocab_size(config, "the sentences of a pair")
        if config.model.causal != (self.options.objective == "clm"):
            raise InputError(
                f"model.causal={config.model.causal} does not go with data.objective="
                f"{self.options.objective}: a left-to-right model is causal, and no other is."
            )

        if "examples" in config.tensorboard_summaries:
            self.eval_outputs = ("masked_lm_predictions",)

    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        return _shapes(self.options, rows)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        outputs = super().apply(params, batch, key, constants)
        if self.eval_outputs:
            outputs["masked_lm_predictions"] = outputs["mlm_logits"].argmax(axis=-1)
        return outputs

    @property
    def eval_options(self) -> PretrainingOptions:
        """Of held-out data: masked as in the paper, however training is, so that losses compare."""
        chosen = self.options
        usual: dict[str, Any] = {
            name: getattr(PretrainingOptions, name) for name in ("mlm_probability", *REPLACE_PROBS)
        }
        most = (
            chosen.max_predictions_per_seq
            if chosen.mlm_probability == usual["mlm_probability"]
            else None
        )
        rows = self.eval_batch_size
        return dataclasses.replace(
            chosen, batch_size=rows, mixture_weights="", max_predictions_per_seq=most, **usual
        )

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return _shapes(self.eval_options, self.eval_batch_size)

    def forward_flops(self, rows: int) -> float:
        limits, model = self.options.sequence_limits, self.config.model
        pairs = limits.examples if "nsp" in self.heads else 0
        return flops.forward_flops(
            model, rows, limits.tokens, limits.predictions, pairs, self.num_last_block_positions
        )


class Task(task.Task):
    """Pre-training on a corpus that `bertjax prepare` wrote, or on several."""

    primary_metrics = ("mlm_perplexity",)
    description = "fills [MASK]s, or left to right continues texts"
    together = 64  # a mask has as many scores as there are pieces

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = {
        "dir": field("", 'what `bertjax prepare` wrote, or several such, joined by "+"')
    } | {
        each.name: each
        for each in dataclasses.fields(PretrainingOptions)
        if each.name not in ("seed", *_CONFIG_FIELDS)
    }

    objective: Objective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.objective = Objective(config, math.lcm(jax.device_count(), num_processes))
        self._directory, self._hosts, self._host = config.data["dir"], num_processes, process_id
        if not self._directory:
            raise InputError("data.dir is empty: name a directory that `bertjax prepare` wrote.")
        self._corpora = open_corpora(self._directory, "train")
        self.tokenizer = next(iter(self._corpora.values())).tokenizer
        check_vocabulary(self._directory, self.tokenizer, config.model.vocab_size)
        self._sets: list[PretrainingEvalSet] = []
        options = self.objective.eval_options
        for name, corpus in self._corpora.items():
            if corpus.manifest.eval_shards:
                data = PretrainingData(corpus.directory, options, "eval", num_processes, process_id)
                alone = len(self._corpora) == 1
                self._sets.append(
                    PretrainingEvalSet("eval" if alone else name, data, config.eval_batches)
                )
            else:
                _log.warning("%s holds out no text: it is not evaluated on.", corpus.directory)

    @classmethod
    def describe_model(cls, config: Config) -> str:
        return "continues texts" if config.model.causal else "fills [MASK]s"

    @functools.cached_property
    def data(self) -> PretrainingData:
        """The training data, which no evaluation opens."""
        for corpus in self._corpora.values() if "nsp" in self.objective.heads else ():
            totals = corpus.manifest.totals
            each = totals["sentences"] / max(totals["documents"], 1)
            if each < _MIN_SENTENCES_PER_DOCUMENT:
                _log.warning(
                    "%s has %.1f sentences a document: nearly all second sentences are random "
                    "ones, which tells nothing; prepare documents of several sentences, or train "
                    "with objective=mlm.", corpus.directory, each,
                )  # fmt: skip
        # The processes of one program share what one of them measures.
        share = broadcast_from_process_0 if jax.process_count() == self._hosts else None
        options = self.objective.options
        rampup = BatchSizeRampup(options.batch_size, self.config.batch_size_rampup)
        data = PretrainingData(
            self._directory, options, "train", self._hosts, self._host, share, rampup
        )
        if len(data.mixture_proportions) > 1:
            shares = ", ".join(
                f"{name} {part:.2%}" for name, part in data.mixture_proportions.items()
            )
            _log.info("Rows of the corpora: %s.", shares)
        return data

    @property
    def examples_per_epoch(self) -> int:
        return self.data.sequences_per_epoch

    def prepare(self, steps: int | None) -> None:
        self.data.rampup = BatchSizeRampup(
            self.config.batch_size, self.config.batch_size_rampup, steps or 1
        )

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
            f"{corpus.manifest.totals['tokens']:,} pieces)"
            for corpus in self._corpora.values()
        )

    @property
    def data_card(self) -> Mapping[str, str]:
        found = {}
        for name, corpus in self._corpora.items():
            totals, license = corpus.manifest.totals, corpus.manifest.options.get("license")
            found[name] = (
                f"{totals['documents']:,} documents, {totals['text_bytes'] / 1e6:,.0f} MB, "
                f"{totals['tokens']:,} pieces; license: {license or 'not told'}"
            )
        return found

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        batches: Iterable[HostBatch] = self.data.dataset(start, stop).as_numpy_iterator()
        return batches

    def eval_sets(self) -> Sequence[EvalSet]:
        return self._sets

    def format_sequence(self, batch: HostBatch, row: int) -> str:
        return render_sequence(batch, row, self.tokenizer)

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        if not {*model.params} <= {*BACKBONE_MODULES, "mlm", "nsp"}:
            return None
        max_seq_length = min(Config.max_seq_length, model.config.max_position_embeddings)
        alone = "clm" if model.config.causal else "mlm"
        objective = "mlm_nsp" if "nsp" in model.params else alone
        return {"max_seq_length": max_seq_length, "data": {"objective": objective}}

    @staticmethod
    def inputs(lines: Iterable[str]) -> Iterator[Input]:
        """Each line is a text, whatever it looks like."""
        return (Input(f"line {number}", line.strip()) for number, line in enumerate(lines, 1))

    @staticmethod
    def sample_arguments(config: Config) -> str:
        return f"--text 'The capital of France is{'' if config.model.causal else ' [MASK].'}'"

    @staticmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Fills the `[MASK]`s of each text: the text, then per mask its likeliest pieces. A
        left-to-right model goes on with each text, piece by likeliest piece.
        """
        answer = generate if predictor.config.model.causal else fill_mask
        return answer(predictor, list(map(_text, inputs)))


def _text(item: Input) -> tuple[str, str]:
    location, said = item
    if not isinstance(said, str):
        raise InputError(f"{location} is no text, and the model reads nothing else: write a text.")
    return location, said


class PretrainingEvalSet:
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
            seen = batch["input_ids"].copy()
            best = outputs[0]["masked_lm_predictions"][: len(seen)]
            np.put_along_axis(seen, batch["masked_lm_positions"], best, axis=1)
            said, rows = batch | {"input_ids": seen}, range(min(NUM_EXAMPLES_SHOWN, len(seen)))
            examples = [render_sequence(said, row, self._data.tokenizer) for row in rows]
        return Evaluation({"mlm_perplexity": float(np.exp(means["mlm_loss"]))}, examples=examples)


def _shapes(options: PretrainingOptions, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
        for name, array in options.empty_batch(1).items()
    }
