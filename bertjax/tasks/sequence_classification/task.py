"""Classification and regression of sentences and pairs (paper, section 4.1)."""

import dataclasses
import functools
import itertools
import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.opening import find_labels
from bertjax.formats.tensors import Model
from bertjax.tasks import finetuning
from bertjax.tasks.data import has_training_table, tokenizer_of
from bertjax.tasks.finetuning import show_examples
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.sequence_classification.data import FIELDS, columns_of, holds_out, read_sets
from bertjax.tasks.sequence_classification.evaluation import Labelled, answer
from bertjax.tasks.task import EvaluationSet, HostBatch, Input, Opened, check_types
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.finetuning.encoding import Encoded, check_long_text, encode
from data_pipelines.finetuning.glue import find_glue
from data_pipelines.finetuning.packed_examples import Examples, Shape, Target
from data_pipelines.finetuning.sequence_classification import (
    Columns,
    Sentences,
    class_weights,
    from_rows,
    label_names,
    make_target,
)
from data_pipelines.finetuning.table import Row
from data_pipelines.vocabulary.coverage import warn_of_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_SIDE_BY_SIDE = "{} ‖ {}"  # a pair, for a person
_PAIR = "pair"  # the key of a second text, where no other name is known
_PIECES = 8  # of an example, at least, by which a row has places for examples


class Objective(finetuning.Objective):
    """The encoder with a classifier on the pooled vector."""

    heads = ("classifier",)
    outputs = ("classifier_logits",)

    def __init__(self, config: Config, multiple: int = 1) -> None:
        columns, glue = columns_of(config), config.data["glue"]
        count = config.model.num_labels
        if not count and (glue or columns.target == "number"):
            count = len(find_glue(glue).labels) if glue else 0
            model = dataclasses.replace(config.model, num_labels=count or 1)
            config = dataclasses.replace(config, model=model)
        super().__init__(config, multiple)
        check_long_text(config.data["long_text"], bool(columns.pair))
        if columns.pair:
            check_types(config, "the texts of a pair")
        self.target = columns.target
        finetuning.check_labels(config)

    @property
    def row(self) -> Shape:
        length = self.config.seq_len
        return Shape(length, max(1, length // _PIECES) if self.config.packing else 1)

    def targets(self) -> Mapping[str, Target]:
        none = Sentences("", [], [])
        return {"label": make_target(none, [""] * self.config.model.num_labels, self.target)}


class Task(finetuning.Task):
    """Sentences or pairs, each of a class, of several labels or with a number."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    headline: tuple[str, ...] = (
        "accuracy",
        "f1",
        "macro_f1",
        "matthews",
        "pearson",
        "spearman",
        "micro_f1",
        "exact",
        "majority",  # which `failed` asks for
    )
    ability = "tells the class, the labels or a number of texts"
    objective: Objective

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        self.config = config
        self.labels = self._find_labels()
        model = dataclasses.replace(config.model, num_labels=len(self.labels) or 1)
        super().__init__(dataclasses.replace(config, model=model), hosts, host, Objective)
        self.tokenizer = tokenizer_of(config)
        if config.data["glue"]:
            first = find_glue(config.data["glue"]).metrics
            self.headline = tuple(dict.fromkeys((*first, *self.headline)))
        row, rows = self.objective.row, self.objective.eval_rows
        found = read_sets(config, "dev")
        warn_of_loss(self.tokenizer, {name: data.all_texts for name, data in found})
        self._sets = [
            Labelled(
                name,
                data,
                _encoded(name, data, self.tokenizer, config),
                self.labels,
                self.objective.target,
                row,
                rows,
                hosts,
                host,
            )
            for name, data in found
        ]

    @classmethod
    def ability_of(cls, config: Config) -> str:
        said = {"class": "the class", "labels": "the labels", "number": "a number"}
        return f"tells {said[columns_of(config).target]} of texts"

    def _find_labels(self) -> tuple[str, ...]:
        """Those that training gives, in the order of the model that the run begins with, if that
        has the same; that model's where there is nothing to train on.
        """
        data, init = self.config.data, self.config.init
        if columns_of(self.config).target == "number":
            return ()
        known = find_labels(init) if init else ()
        if data["glue"]:
            own = find_glue(data["glue"]).labels
        elif known and not has_training_table(self.config):
            own = known
        else:
            # Chance may hold out all examples of a rare label.
            held_out = read_sets(self.config, "dev") if holds_out(self.config) else []
            own = label_names(self._train, *(each for _, each in held_out))
        return known if set(known) == set(own) else own

    @functools.cached_property
    def _train(self) -> Sentences:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> Examples:
        data, target = self._train, self.objective.target
        warn_of_loss(self.tokenizer, {"train": data.all_texts})
        encoded = _encoded("train", data, self.tokenizer, self.config)
        found = make_target(data, self.labels, target)
        spec = self.config.data["class_weights"]
        if spec and target != "class":
            raise InputError(f"data.class_weights={spec!r} is for target=class: leave it out.")
        if spec:
            weights = class_weights(spec, self.labels, found.values)
            found = dataclasses.replace(found, weights=weights[found.values])
        return encoded.with_target("label", found)

    def evaluation_sets(self) -> Sequence[EvaluationSet]:
        return self._sets

    def show(self, batch: HostBatch, row: int) -> str:
        """An example a line, its label or number before it."""
        said = [self._said(value) for value in batch["label_targets"][row]]
        return show_examples(batch, row, self.tokenizer, said)

    def _said(self, value: np.ndarray) -> str:
        if self.objective.target == "number":
            return f"{value:g}"
        if self.objective.target == "labels":
            return ", ".join(itertools.compress(self.labels, value)) or "-"
        return self.labels[int(value)]

    @staticmethod
    def failed(scores: Mapping[str, float]) -> bool:
        """At or below what the majority class would give (Mosbach et al. 2021); of numbers, where
        they go with the gold ones in no way.
        """
        if "pearson" in scores:
            return not scores["pearson"] > 0
        return not scores["exact" if "exact" in scores else "accuracy"] > scores["majority"]

    @staticmethod
    def of_model(model: Model) -> Mapping[str, Any] | None:
        if "classifier" not in model.params:
            return None
        return {"seq_len": model.config.max_positions, "data": {"target": model.target}}

    @staticmethod
    def example(config: Config) -> str:
        columns = columns_of(config)
        names = (*columns.text, *columns.pair)
        if len(names) == 1:
            return "--text 'Where is my card?'"
        return f"--text {shlex.quote(json.dumps(dict.fromkeys(names, '...')))}"

    @staticmethod
    def predict(
        opened: Opened, inputs: Sequence[Input], everything: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What is said of each text, or object with the columns that were trained."""
        # What is asked needs no name of its own.
        columns = dataclasses.replace(columns_of(opened.config), id="")
        labels, rows = labels_of(opened), [_row(each, columns) for each in inputs]
        published = not any(opened.config.data[name] for name in ("dir", "train"))
        if published and any(_PAIR in row.values for row in rows):
            # It says not what its texts are.
            columns = dataclasses.replace(columns, pair=(_PAIR,))
        found = said_of(opened, from_rows("input", rows, columns, False))
        for row, each in zip(rows, found, strict=True):
            kept = {name: row.values[name] for name in (*columns.text, *columns.pair)}
            yield kept | answer(each, labels, columns.target, everything)

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        sets = [
            (
                each,
                data.texts
                if data.pairs is None
                else list(map(_SIDE_BY_SIDE.format, data.texts, data.pairs)),
            )
            for each, data in read_sets(config, "dev")
        ]
        return report.render(name, directory, sets, columns_of(config).target)


def labels_of(opened: Opened) -> tuple[str, ...]:
    """The names of a model's labels, or their numbers where it has no names."""
    return opened.labels or tuple(f"LABEL_{i}" for i in range(opened.config.model.num_labels))


def said_of(opened: Opened, data: Sentences) -> np.ndarray:
    """What a model says of sentences without labels; see `Labelled.said`."""
    objective = Objective(opened.config)
    encoded = _encoded(data.name, data, opened.tokenizer, opened.config)
    labels, row = labels_of(opened), objective.row
    asked = Labelled(data.name, data, encoded, labels, objective.target, row)
    return asked.said([found["classifier_logits"] for found in opened.run(asked.batches())])


def _row(asked: Input, columns: Columns) -> Row:
    """What is asked as a row of a table."""
    place, said = asked
    if not isinstance(said, str):
        return Row(place, dict(said))
    if columns.pair or len(columns.text) > 1:
        names = (*columns.text, *columns.pair)
        keys = ", ".join(f'"{name}": "..."' for name in names)
        raise InputError(f"{place} is text, and there are {len(names)} to give: write {{{keys}}}.")
    return Row(place, {columns.text[0]: said})


def _encoded(name: str, data: Sentences, tokenizer: Tokenizer, config: Config) -> Encoded:
    found = encode(data, tokenizer, config.seq_len, config.data["long_text"])
    if found.cut:
        _log.warning(
            "%s: %d of %d texts are longer than seq_len=%d and were cut (long_text=%s).",
            name,
            found.cut,
            len(data),
            config.seq_len,
            config.data["long_text"],
        )
    return found
