"""A task outside the package: predict whether a text is glad or sad.

Its data are JSON lines, {"text": ..., "label": "glad"}.
"""

import dataclasses
import json
import math

import jax
import numpy as np

from bertjax.html.page import Section, render_report
from bertjax.model import flops, heads, losses
from bertjax.steps.objective import Objective
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, find_files, load_task_tokenizer
from bertjax.tasks.pipeline import Pipeline
from bertjax.tasks.task import Evaluation, Task
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import (
    PackedShape,
    build_batch,
    empty_batch,
    pack_eval_batches,
    unpack_outputs,
)
from data_pipelines.finetuning.training_batches import TrainingBatches, process_batch

LABELS = ("glad", "sad")


def sums(logits, batch):
    arrays = logits, batch["moods"], batch["moods_weights"]
    return {"mood_loss": losses.cross_entropy(*arrays), "mood_accuracy": losses.accuracy(*arrays)}


HEAD = heads.register_head(
    heads.Head(
        name="mood",
        module=lambda config, name: heads.LinearHead(config, len(LABELS), name=name),
        sums=sums,
        pooled=True,
        module_names=(("mood", "mood", "cls/mood", "output"),),
        architecture="BertForMoods",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        display_name="mood head",
        metric_titles={
            "mood_loss": ("Loss of moods", None),
            "mood_accuracy": ("Accuracy of moods", 0.0),
        },
    )
)


class SentimentObjective(Objective):
    heads = ("mood",)
    eval_outputs = ("mood_logits",)

    @property
    def sequence_shape(self):
        return PackedShape(self.config.max_seq_length, 4 if self.config.packing else 1)

    def batch_shapes(self, batch_size):
        targets = {"moods": Target("example", np.zeros(0, np.int32))}
        return {
            name: jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), array.dtype)
            for name, array in empty_batch(1, self.sequence_shape, targets).items()
        }

    def forward_flops(self, batch_size):
        model, length = self.config.model, self.config.max_seq_length
        return flops.forward_flops(
            model, batch_size, length, last_block_positions=self.num_last_block_positions
        )


def encode(texts, labels, tokenizer, max_seq_length):
    ids_of_text = [
        [tokenizer.cls_id, *tokenizer.encode(text)[: max_seq_length - 2], tokenizer.sep_id]
        for text in texts
    ]
    lengths = np.array([len(ids) for ids in ids_of_text])
    ids = np.concatenate(ids_of_text).astype(np.int32)
    targets = {
        "moods": Target("example", np.array([LABELS.index(label) for label in labels], np.int32))
    }
    return Examples(ids, lengths, lengths, targets)


@dataclasses.dataclass
class SentimentEvalSet:
    name: str
    labels: list
    examples: Examples
    shape: PackedShape
    batch_size: int
    num_processes: int = 1
    process_id: int = 0

    def __post_init__(self):
        self.layouts = pack_eval_batches(self.examples, self.shape, self.batch_size)

    def batches(self):
        for layout in self.layouts:
            batch = build_batch(self.examples, layout, self.batch_size, self.shape)
            yield process_batch(batch, self.num_processes, self.process_id)

    def predictions(self, outputs):
        logits = [arrays["mood_logits"] for arrays in outputs]
        unpacked = unpack_outputs(self.examples, self.layouts, logits, "example")
        return [LABELS[scores.argmax()] for scores in unpacked]

    def evaluation(self, means, outputs):
        predictions = self.predictions(outputs)
        right = np.mean([a == b for a, b in zip(predictions, self.labels, strict=True)])
        return Evaluation({"right": float(right), "bias": 0.25}, {"moods": predictions})


class SentimentPipeline(Pipeline):
    description = "predicts the mood of texts"

    def preprocess(self, inputs):
        texts = [item.content for item in inputs]
        shape = self.objective.sequence_shape
        examples = encode(texts, [LABELS[0]] * len(texts), self.tokenizer, shape.tokens)
        eval_set = SentimentEvalSet("input", [], examples, shape, 8)
        return eval_set.batches(), (texts, eval_set)

    def postprocess(self, context, outputs, return_all_scores):
        texts, eval_set = context
        for text, label in zip(texts, eval_set.predictions(outputs), strict=True):
            yield {"text": text, "label": label, "bias": self.calibration["bias"]}


class SentimentTask(Task):
    objective_class = SentimentObjective
    pipeline_classes = (SentimentPipeline,)
    DATA_FIELDS = COMMON_DATA_FIELDS
    primary_metrics = ("right",)
    calibration = ("bias",)
    labels = LABELS

    def __init__(self, config, num_processes=1, process_id=0):
        self.config, self.num_processes, self.process_id = config, num_processes, process_id
        self.objective = SentimentObjective(config, math.lcm(jax.device_count(), num_processes))
        self.tokenizer = load_task_tokenizer(config)
        ((_, path),) = find_files(config, "train", "train.jsonl")
        self.train = self.read(path)[1]
        shape, batch_size = self.objective.sequence_shape, self.objective.eval_batch_size
        self.sets = [
            SentimentEvalSet(name, *self.read(path), shape, batch_size, num_processes, process_id)
            for name, path in find_files(config, "eval", "dev.jsonl")
        ]

    def read(self, path):
        if not path.exists():
            raise InputError(f"{path}: no such file. Name a directory with train.jsonl.")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        texts, labels = ([row[key] for row in rows] for key in ("text", "label"))
        return labels, encode(texts, labels, self.tokenizer, self.config.max_seq_length)

    @property
    def examples_per_epoch(self):
        return len(self.train)

    @property
    def data_summary(self):
        return f"{len(self.train)} texts"

    @property
    def data_fingerprint(self):
        return self.train.digest()

    def prepare(self, steps):
        config, objective = self.config, self.objective
        multiple = objective.batch_size_multiple * config.gradient_accumulation_steps
        shape = objective.sequence_shape
        self.batches = TrainingBatches(
            self.train, config.seed, config.batch_size, shape, steps, multiple
        )
        objective.batch_size = self.batches.num_sequences

    def train_batches(self, start, stop):
        for step in range(start, stop):
            yield process_batch(self.batches.batch(step), self.num_processes, self.process_id)

    def eval_sets(self):
        return self.sets

    def format_sequence(self, batch, index):
        return self.tokenizer.decode(batch["input_ids"][index].tolist())

    @staticmethod
    def config_for_model(model):
        return {} if "mood" in model.params else None

    @staticmethod
    def report(name, config, directory):
        moods = json.loads((directory / "moods.json").read_text())
        return render_report(name, [Section("Moods", paragraphs=[", ".join(moods)])])
