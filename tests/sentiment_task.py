"""A task of one's own, as somebody outside the package would write it: is a text glad or sad?

Its data are JSON lines, {"text": ..., "label": "glad"}.
"""

import dataclasses
import json
import math
from html import escape

import jax
import numpy as np

from bertjax.html.page import page, section
from bertjax.model import flops, heads, losses
from bertjax.steps import objective
from bertjax.tasks import task
from bertjax.tasks.data import FIELDS, find_files, tokenizer_of
from bertjax.tasks.task import Evaluation
from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import (
    Examples,
    Shape,
    Target,
    TrainingBatches,
    empty,
    evaluation_rows,
    fill,
    own_rows,
    split,
)

LABELS = ("glad", "sad")


def sums(logits, batch):
    slots = logits, batch["mood_targets"], batch["mood_weights"]
    return {"mood_loss": losses.cross_entropy(*slots), "mood_accuracy": losses.accuracy(*slots)}


HEAD = heads.register(
    heads.Head(
        name="mood",
        module=lambda config, name: heads.Linear(config, len(LABELS), name=name),
        sums=sums,
        pooled=True,
        names=(("mood", "mood", "cls/mood", "output"),),
        architecture="BertForMoods",
        pipeline="text-classification",
        auto_class="AutoModelForSequenceClassification",
        part="mood head",
        titles={"mood_loss": ("Loss of moods", None), "mood_accuracy": ("Accuracy of moods", 0.0)},
    )
)


class Objective(objective.Objective):
    heads = ("mood",)
    outputs = ("mood_logits",)

    @property
    def row(self):
        return Shape(self.config.seq_len, 4 if self.config.packing else 1)

    def batch_shapes(self, rows):
        like = empty(1, self.row, {"mood": Target("example", np.zeros(0, np.int32))})
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in like.items()
        }

    def forward_flops(self, rows):
        model, length = self.config.model, self.config.seq_len
        return flops.forward_flops(model, rows, length, read=self.read_slots)


def examples_of(texts, labels, tokenizer, seq_len):
    rows = [
        [tokenizer.cls_id, *tokenizer.encode(t)[: seq_len - 2], tokenizer.sep_id] for t in texts
    ]
    lengths = np.array([len(row) for row in rows])
    ids = np.concatenate(rows).astype(np.int32)
    numbers = np.array([LABELS.index(label) for label in labels], np.int32)
    return Examples(ids, lengths, lengths, {"mood": Target("example", numbers)})


@dataclasses.dataclass
class Texts:
    """Held-out texts."""

    name: str
    labels: list
    examples: Examples
    shape: Shape
    rows: int
    hosts: int
    host: int

    def __post_init__(self):
        self.placed = evaluation_rows(self.examples, self.shape, self.rows)

    def batches(self):
        for placed in self.placed:
            batch = fill(self.examples, placed, self.rows, self.shape)
            yield own_rows(batch, self.hosts, self.host)

    def said(self, outputs):
        logits = [each["mood_logits"] for each in outputs]
        return [
            LABELS[each.argmax()] for each in split(self.examples, self.placed, logits, "example")
        ]

    def evaluation(self, means, outputs):
        said = self.said(outputs)
        right = np.mean([a == b for a, b in zip(said, self.labels, strict=True)])
        return Evaluation({"right": float(right)}, {"said": said}, {"bias": 0.25})


class Task(task.Task):
    DATA_FIELDS = FIELDS
    headline = ("right",)
    labels = LABELS

    def __init__(self, config, hosts=1, host=0):
        self.config, self.hosts, self.host = config, hosts, host
        self.objective = Objective(config, math.lcm(jax.device_count(), hosts))
        self.tokenizer = tokenizer_of(config)
        ((_, path),) = find_files(config, "train", "train.jsonl")
        self.train = self.read(path)[1]
        self.sets = []
        for name, path in find_files(config, "dev", "dev.jsonl"):
            labels, examples = self.read(path)
            row, rows = self.objective.row, self.objective.eval_rows
            self.sets.append(Texts(name, labels, examples, row, rows, hosts, host))

    def read(self, path):
        if not path.exists():
            raise InputError(f"there is no {path}: name a directory with train.jsonl.")
        said = [json.loads(line) for line in path.read_text().splitlines()]
        texts, labels = ([each[key] for each in said] for key in ("text", "label"))
        return labels, examples_of(texts, labels, self.tokenizer, self.config.seq_len)

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
        size, multiple = config.batch_size, one.multiple * config.accumulation
        self.batches = TrainingBatches(self.train, config.seed, size, one.row, steps, multiple)
        one.rows = self.batches.rows

    def train_batches(self, start, stop):
        for step in range(start, stop):
            yield own_rows(self.batches.batch(step), self.hosts, self.host)

    def evaluation_sets(self):
        return self.sets

    def show(self, batch, row):
        return self.tokenizer.decode(batch["token_ids"][row].tolist())

    @staticmethod
    def of_model(model):
        return {} if "mood" in model.params else None

    @staticmethod
    def predict(opened, inputs, everything=False):
        texts = [each.said for each in inputs]
        row = Objective(opened.config).row
        examples = examples_of(texts, [LABELS[0]] * len(texts), opened.tokenizer, row.pieces)
        found = Texts("input", [], examples, row, 8, 1, 0)
        for text, label in zip(texts, found.said(list(opened.run(found.batches()))), strict=True):
            yield {"text": text, "label": label, "bias": opened.calibration["bias"]}

    @staticmethod
    def report(name, config, directory):
        said = json.loads((directory / "said.json").read_text())
        return page(name, [section("Moods", f"<p>{escape(', '.join(said))}</p>")])
