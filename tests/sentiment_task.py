"""A task of one's own, as somebody outside the package would write it: is a text glad or sad?

Its data are JSON lines, {"text": ..., "label": "glad"}.
"""

import dataclasses
import json
import math

import jax
import numpy as np

from bertjax.html.page import Section, render_report
from bertjax.model import flops, heads, losses
from bertjax.steps import objective
from bertjax.tasks import task
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, find_files, load_task_tokenizer
from bertjax.tasks.task import Evaluation
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
    slots = logits, batch["moods"], batch["moods_weights"]
    return {"mood_loss": losses.cross_entropy(*slots), "mood_accuracy": losses.accuracy(*slots)}


HEAD = heads.register_head(
    heads.Head(
        name="mood",
        module=lambda config, name: heads.LinearHead(config, len(LABELS), name=name),
        sums=sums,
        pooled=True,
        names=(("mood", "mood", "cls/mood", "output"),),
        architecture="BertForMoods",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        part="mood head",
        titles={"mood_loss": ("Loss of moods", None), "mood_accuracy": ("Accuracy of moods", 0.0)},
    )
)


class Objective(objective.Objective):
    heads = ("mood",)
    eval_outputs = ("mood_logits",)

    @property
    def row(self):
        return PackedShape(self.config.max_seq_length, 4 if self.config.packing else 1)

    def batch_shapes(self, rows):
        like = empty_batch(1, self.row, {"moods": Target("example", np.zeros(0, np.int32))})
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in like.items()
        }

    def forward_flops(self, rows):
        model, length = self.config.model, self.config.max_seq_length
        return flops.forward_flops(
            model, rows, length, last_block_positions=self.num_last_block_positions
        )


def examples_of(texts, labels, tokenizer, max_seq_length):
    rows = [
        [tokenizer.cls_id, *tokenizer.encode(t)[: max_seq_length - 2], tokenizer.sep_id]
        for t in texts
    ]
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate(rows).astype(np.int32)
    numbers = np.array([LABELS.index(label) for label in labels], np.int32)
    return Examples(ids, lengths, lengths, {"moods": Target("example", numbers)})


@dataclasses.dataclass
class Texts:
    """Held-out texts."""

    name: str
    labels: list
    examples: Examples
    shape: PackedShape
    rows: int
    num_processes: int
    process_id: int

    def __post_init__(self):
        self.placed = pack_eval_batches(self.examples, self.shape, self.rows)

    def batches(self):
        for placed in self.placed:
            batch = build_batch(self.examples, placed, self.rows, self.shape)
            yield process_batch(batch, self.num_processes, self.process_id)

    def said(self, outputs):
        logits = [each["mood_logits"] for each in outputs]
        return [
            LABELS[each.argmax()]
            for each in unpack_outputs(self.examples, self.placed, logits, "example")
        ]

    def evaluation(self, means, outputs):
        said = self.said(outputs)
        right = np.mean([a == b for a, b in zip(said, self.labels, strict=True)])
        return Evaluation({"right": float(right)}, {"said": said}, {"bias": 0.25})


class Task(task.Task):
    DATA_FIELDS = COMMON_DATA_FIELDS
    primary_metrics = ("right",)
    labels = LABELS

    def __init__(self, config, num_processes=1, process_id=0):
        self.config, self.num_processes, self.process_id = config, num_processes, process_id
        self.objective = Objective(config, math.lcm(jax.device_count(), num_processes))
        self.tokenizer = load_task_tokenizer(config)
        ((_, path),) = find_files(config, "train", "train.jsonl")
        self.train = self.read(path)[1]
        self.sets = []
        for name, path in find_files(config, "eval", "dev.jsonl"):
            labels, examples = self.read(path)
            row, rows = self.objective.row, self.objective.eval_batch_size
            self.sets.append(Texts(name, labels, examples, row, rows, num_processes, process_id))

    def read(self, path):
        if not path.exists():
            raise InputError(f"there is no {path}: name a directory with train.jsonl.")
        said = [json.loads(line) for line in path.read_text().splitlines()]
        texts, labels = ([each[key] for each in said] for key in ("text", "label"))
        return labels, examples_of(texts, labels, self.tokenizer, self.config.max_seq_length)

    @property
    def examples_per_epoch(self):
        return len(self.train)

    @property
    def told(self):
        return f"{len(self.train)} texts"

    @property
    def data_fingerprint(self):
        return self.train.digest()

    def prepare(self, steps):
        config, one = self.config, self.objective
        size, multiple = (
            config.batch_size,
            one.batch_size_multiple * config.gradient_accumulation_steps,
        )
        self.batches = TrainingBatches(self.train, config.seed, size, one.row, steps, multiple)
        one.rows = self.batches.num_sequences

    def train_batches(self, start, stop):
        for step in range(start, stop):
            yield process_batch(self.batches.batch(step), self.num_processes, self.process_id)

    def eval_sets(self):
        return self.sets

    def format_sequence(self, batch, row):
        return self.tokenizer.decode(batch["input_ids"][row].tolist())

    @staticmethod
    def config_for_model(model):
        return {} if "mood" in model.params else None

    @staticmethod
    def predict(predictor, inputs, return_all_scores=False):
        texts = [each.said for each in inputs]
        row = Objective(predictor.config).row
        examples = examples_of(texts, [LABELS[0]] * len(texts), predictor.tokenizer, row.tokens)
        found = Texts("input", [], examples, row, 8, 1, 0)
        for text, label in zip(
            texts, found.said(list(predictor.run(found.batches()))), strict=True
        ):
            yield {"text": text, "label": label, "bias": predictor.calibration["bias"]}

    @staticmethod
    def report(name, config, directory):
        said = json.loads((directory / "said.json").read_text())
        return render_report(name, [Section("Moods", paragraphs=[", ".join(said)])])
