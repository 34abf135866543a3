"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.distributed import broadcast_from_process_0
from bertjax.mesh.feed import Batch
from bertjax.model import flops
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import BACKBONE_MODULES, SAMPLED_IDS
from bertjax.model.losses import Sums
from bertjax.steps.objective import Objective
from bertjax.tasks.fill_mask import FillMaskPipeline
from bertjax.tasks.generation.continuation import TextGenerationPipeline
from bertjax.tasks.pipeline import HostBatch, Outputs, Pipeline
from bertjax.tasks.task import (
    NUM_EXAMPLES_SHOWN,
    EvalSet,
    Evaluation,
    Task,
    check_type_vocab_size,
    check_vocabulary,
    shapes_of_batch,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.pretraining.data import PretrainingData, open_corpora
from data_pipelines.pretraining.options import REPLACE_PROBS, PretrainingOptions
from data_pipelines.pretraining.sequences import render_sequence
from data_pipelines.rampup import BatchSizeRampup

_log = logging.getLogger("bertjax")

DIRECTIONS = {"clm": "left_to_right", "clm_reverse": "right_to_left"}  # of the attention
_CONFIG_FIELDS = ("batch_size", "max_seq_length", "packing")  # fields of `Config`
_MIN_SENTENCES_PER_DOCUMENT = 2  # with fewer, hardly any sentence follows another


class PretrainingObjective(Objective):
    """Encoder with the masked LM head, and for pairs the next sentence head."""

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        # The superclass checks their names.
        self.heads = ("mlm", "nsp") if config.data["objective"] == "mlm_nsp" else ("mlm",)
        super().__init__(config, batch_size_multiple)
        fields = {name: value for name, value in config.data.items() if name != "dir"}
        shared = {name: getattr(config, name) for name in _CONFIG_FIELDS}
        self.options = PretrainingOptions(seed=config.data_order_seed, **shared, **fields)
        if "nsp" in self.heads:
            self.segments = "the sentences of a pair"
            check_type_vocab_size(config.model, self.segments)
        direction = DIRECTIONS.get(self.options.objective, "bidirectional")
        if config.model.direction != direction:
            raise InputError(
                f"data.objective={self.options.objective}: model.direction="
                f"{config.model.direction} does not fit it. Set model.direction={direction}."
            )
        if direction != "bidirectional" and config.model.bilstm:
            raise InputError(
                f"model.bilstm={config.model.bilstm}: it reads the tokens that a CLM predicts. "
                "Set 0."
            )
        if (count := config.model.sampled_softmax) and "clm" not in self.options.objective:
            raise InputError(
                f"model.sampled_softmax={count}: only a CLM predicts so many tokens that it pays. "
                "Set 0."
            )
        if count and (config.distill.teacher or config.distill.logits):
            raise InputError(
                f"model.sampled_softmax={count}: a teacher's logits are those of the whole "
                "vocabulary. Set 0."
            )
        first, last = self.options.mlm_probabilities
        if first != last and config.budget_seconds is not None:
            raise InputError(
                f"data.mlm_probability={self.options.mlm_probability}: changes over a number of "
                f"steps, and steps={config.steps!r} is a time. Change one of them."
            )
        if config.distill.unlabeled:
            raise InputError(
                f"distill.unlabeled={config.distill.unlabeled!r}: all text of task=pretraining is "
                "without labels. Add it to the corpus of data.dir."
            )
        if "examples" in config.tensorboard_summaries:
            self.eval_outputs = ("masked_lm_predictions",)

    @property
    def generates(self) -> bool:
        """True for left-to-right transformers."""
        return self.config.model.continues_text

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the sums of a training batch; a sampled softmax has no accuracy."""
        count, vocab_size = self.config.model.sampled_softmax, self.config.model.vocab_size
        if not count:
            return super().train_sums(params, batch, key, constants, progress)
        draw_key = jax.random.key(0) if key is None else jax.random.fold_in(key, count)
        drawn = jax.random.randint(draw_key, (count,), 0, vocab_size)
        outputs = self.apply(params, {**batch, SAMPLED_IDS: drawn}, key, constants)
        sums = self.sums(outputs, {**batch, "masked_lm_ids": 0 * batch["masked_lm_ids"]})
        del sums["mlm_accuracy"]
        return self.weigh_losses(sums)

    def check_inputs_repeat(self) -> None:
        """Raise InputError if masking is dynamic, as with every `mlm_probability` that changes."""
        if not self.options.dupe_factor:
            raise InputError(
                "data.dupe_factor=0: masking is dynamic, so that no two epochs have the same "
                "inputs, which stored logits belong to. Set it to a number of epochs."
            )

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return name -> shape of the arrays of a packed batch."""
        return shapes_of_batch(self.options.empty_batch(1), batch_size)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return logits, and the best tokens if TensorBoard shows examples."""
        outputs = super().apply(params, batch, key, constants)
        if self.eval_outputs:
            outputs["masked_lm_predictions"] = outputs["mlm_logits"].argmax(axis=-1)
        return outputs

    @property
    def eval_options(self) -> PretrainingOptions:
        """Options of eval sets, with the paper's masking, so that losses of runs compare."""
        names = ("mlm_probability", *REPLACE_PROBS)
        defaults: dict[str, Any] = {name: getattr(PretrainingOptions, name) for name in names}
        options = self.options
        is_default_rate = options.mlm_probability == defaults["mlm_probability"]
        return dataclasses.replace(
            options,
            batch_size=self.eval_batch_size,
            mixture_weights="",
            max_predictions_per_seq=options.max_predictions_per_seq if is_default_rate else None,
            **defaults,
        )

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the same for an eval batch."""
        return shapes_of_batch(self.eval_options.empty_batch(1), self.eval_batch_size)

    def step_flops(self) -> float:
        """Return the model FLOPs of a train step, with the drawn tokens of a sampled softmax."""
        model = self.config.model
        if model.sampled_softmax:  # and the target of each position
            model = dataclasses.replace(
                model, vocab_size=1 + model.sampled_softmax, sampled_softmax=0
            )
        return 3 * self._forward_flops(model, self.batch_size)

    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of a forward pass."""
        return self._forward_flops(self.config.model, batch_size)

    def _forward_flops(self, model: BertConfig, batch_size: int) -> float:
        limits = self.options.sequence_limits
        pairs = limits.examples if "nsp" in self.heads else 0
        return flops.forward_flops(
            model,
            batch_size,
            limits.tokens,
            limits.predictions,
            pairs,
            self.num_last_block_positions,
        )


class PretrainingTask(Task):
    """Pre-training on one corpus that `bertjax prepare` wrote, or on several."""

    objective_class = PretrainingObjective
    pipeline_classes = (FillMaskPipeline, TextGenerationPipeline)
    primary_metrics = ("mlm_perplexity",)
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = {
        "dir": field("", 'directory that `bertjax prepare` wrote, or several, joined by "+"')
    } | {
        option.name: option
        for option in dataclasses.fields(PretrainingOptions)
        if option.name not in ("seed", *_CONFIG_FIELDS)
    }
    objective: PretrainingObjective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.objective = PretrainingObjective(config, math.lcm(jax.device_count(), num_processes))
        self._directory = config.data["dir"]
        self._num_processes, self._process_id = num_processes, process_id
        if not self._directory:
            raise InputError(
                "data.dir='': no corpus. Name a directory that `bertjax prepare` wrote."
            )
        self._corpora = open_corpora(self._directory, "train")
        self.tokenizer = next(iter(self._corpora.values())).tokenizer
        check_vocabulary(self._directory, self.tokenizer, config.model.vocab_size)
        self._eval_sets: list[PretrainingEvalSet] = []
        options, is_single = self.objective.eval_options, len(self._corpora) == 1
        for name, corpus in self._corpora.items():
            if not corpus.manifest.eval_shards:
                _log.warning("%s has no eval split: it is not evaluated on.", corpus.directory)
                continue
            data = PretrainingData(corpus.directory, options, "eval", num_processes, process_id)
            self._eval_sets.append(
                PretrainingEvalSet("eval" if is_single else name, data, config.eval_batches)
            )

    @classmethod
    def pipeline_class(cls, config: Config) -> type[Pipeline[Any]]:
        """Return the pipeline that fits the direction of attention."""
        return TextGenerationPipeline if config.model.continues_text else FillMaskPipeline

    @functools.cached_property
    def data(self) -> PretrainingData:
        """Training data; an evaluation does not open them."""
        for corpus in self._corpora.values() if "nsp" in self.objective.heads else ():
            totals = corpus.manifest.totals
            sentences_per_document = totals["sentences"] / max(totals["documents"], 1)
            if sentences_per_document < _MIN_SENTENCES_PER_DOCUMENT:
                _log.warning(
                    "%s has %.1f sentences a document: nearly all second sentences are random, so "
                    "NSP learns nothing. Prepare documents of several sentences, or train with "
                    "data.objective=mlm.",
                    corpus.directory,
                    sentences_per_document,
                )
        # Processes of one JAX program share what one of them measures.
        share = broadcast_from_process_0 if jax.process_count() == self._num_processes else None
        options = self.objective.options
        rampup = BatchSizeRampup(options.batch_size, self.config.batch_size_rampup)
        data = PretrainingData(
            self._directory, options, "train", self._num_processes, self._process_id, share, rampup
        )
        if len(data.mixture_proportions) > 1:
            shares = ", ".join(
                f"{name} {portion:.2%}" for name, portion in data.mixture_proportions.items()
            )
            _log.info("Shares of the corpora: %s.", shares)
        return data

    @property
    def examples_per_epoch(self) -> int:
        """Number of packed sequences."""
        return self.data.sequences_per_epoch

    def prepare(self, steps: int | None) -> None:
        """Set the steps of schedules of the data; check the logits of the first and last step."""
        self.data.total_steps = steps or 1
        self.data.rampup = BatchSizeRampup(
            self.config.batch_size, self.config.batch_size_rampup, steps or 1
        )
        super().prepare(steps)
        for step in {0, (steps or 1) - 1} if self.stored_logits else ():
            for _ in self.train_batches(step, step + 1):
                pass

    @property
    def data_fingerprint(self) -> str:
        """Hex digest of the corpora."""
        digests = {name: corpus.manifest.digest() for name, corpus in self._corpora.items()}
        if len(digests) == 1:
            return digests.popitem()[1]
        return hashlib.blake2b(json.dumps(digests).encode(), digest_size=16).hexdigest()

    @property
    def data_summary(self) -> str:
        """Directory and size of each corpus."""
        return " + ".join(
            f"{corpus.directory} ({corpus.manifest.totals['documents']:,} documents, "
            f"{corpus.manifest.totals['tokens']:,} tokens)"
            for corpus in self._corpora.values()
        )

    @property
    def corpus_descriptions(self) -> Mapping[str, str]:
        """Size and license of each corpus."""
        descriptions = {}
        for name, corpus in self._corpora.items():
            totals, license = corpus.manifest.totals, corpus.manifest.options.get("license")
            descriptions[name] = (
                f"{totals['documents']:,} documents, {totals['text_bytes'] / 1e6:,.0f} MB, "
                f"{totals['tokens']:,} tokens; license: {license or 'unknown'}"
            )
        return descriptions

    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        """Return the masked batches of the corpora."""
        return self.with_logits(self.data.batches(start, stop))

    def eval_sets(self) -> Sequence[EvalSet]:
        """Return one eval set for each corpus with an eval split."""
        return self._eval_sets

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return the pairs of a sequence, with masks and labels."""
        return render_sequence(batch, index, self.tokenizer)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> Mapping[str, Any] | None:
        """Return the objective that the heads of a model imply."""
        if model.config.decoder or not {*model.params} <= {*BACKBONE_MODULES, "mlm", "nsp"}:
            return None
        by_direction = {direction: objective for objective, direction in DIRECTIONS.items()}
        without_nsp = by_direction.get(model.config.direction, "mlm")
        objective = "mlm_nsp" if "nsp" in model.params else without_nsp
        return {"max_seq_length": model.max_text_length, "data": {"objective": objective}}


class PretrainingEvalSet:
    """Eval split of a corpus.

    Args:
      name: name of the eval set.
      data: its batches.
      num_batches: batches to evaluate on; 0 for all.
    """

    score_names = ("mlm_loss", "mlm_perplexity")

    def __init__(self, name: str, data: PretrainingData, num_batches: int) -> None:
        self.name, self._data, self._num_batches = name, data, num_batches

    def batches(self) -> Iterable[HostBatch]:
        """Return this process's sequences of each batch."""
        return itertools.islice(self._data.batches(), self._num_batches or None)

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return loss and perplexity, and sequences with their predictions if outputs have them."""
        examples: list[str] = []
        if outputs[0]:  # of all processes' sequences; this process's come first
            batch = next(iter(self.batches()))
            input_ids = batch["input_ids"].copy()
            predictions = outputs[0]["masked_lm_predictions"][: len(input_ids)]
            np.put_along_axis(input_ids, batch["masked_lm_positions"], predictions, axis=1)
            filled = batch | {"input_ids": input_ids}
            examples = [
                render_sequence(filled, index, self._data.tokenizer)
                for index in range(min(NUM_EXAMPLES_SHOWN, len(input_ids)))
            ]
        loss = float(means["mlm_loss"])
        scores = {"mlm_loss": loss, "mlm_perplexity": float(np.exp(loss))}
        return Evaluation(scores, examples=examples)
