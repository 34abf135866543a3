"""A task outside the package with two heads and two label sets: the intent of a text and its slots.

Its data are JSON lines, {"words": ["wake", "me"], "slots": ["O", "B-who"], "intent": "alarm"}.
"""

import dataclasses
import itertools
import json

import numpy as np

from bertjax.html.page import Section, render_report
from bertjax.model import heads, losses
from bertjax.tasks.finetuning import (
    FinetuningObjective,
    FinetuningTask,
    PackedEvalSet,
    check_num_labels,
    format_examples,
)
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    find_tables,
    has_training_table,
    resolve_label_sets,
)
from bertjax.tasks.pipeline import Pipeline, require_text, truncation_mark
from bertjax.tasks.task import Evaluation
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.table import read_table
from data_pipelines.finetuning.token_classification.sentences import TaggedSentence
from data_pipelines.finetuning.word_alignment import encode_tagged_words, token_label_target


def intent_sums(logits, batch):  # float32 [B, K, intents]
    arrays = logits, batch["intent"], batch["intent_weights"]
    return {"intent_loss": losses.cross_entropy(*arrays), "accuracy": losses.accuracy(*arrays)}


def slot_sums(logits, batch):  # float32 [B, T, slots]
    arrays = logits, batch["token_labels"], batch["token_labels_weights"]
    return {
        "slot_loss": losses.cross_entropy(*arrays),
        "slot_accuracy": losses.accuracy(*arrays),
    }


for name, sums, pooled in (("intent", intent_sums, True), ("slot", slot_sums, False)):
    heads.register_head(
        heads.Head(
            name=name,
            module=heads.classification_head,
            sums=sums,
            pooled=pooled,
            module_names=((name, f"{name}_classifier", f"cls/{name}", "output"),),
            architecture="JointBERT",
            pipeline_tag="token-classification",
            auto_class="AutoModelForTokenClassification",
            display_name=f"{name} head",
            metric_titles={f"{name}_loss": (f"Loss of {name}s", None)},
            input_dropout=True,
            has_label_names=True,
        )
    )


class JointObjective(FinetuningObjective):
    heads = ("intent", "slot")
    eval_outputs = ("intent_logits", "slot_logits")

    def __init__(self, config, batch_size_multiple=1):
        super().__init__(config, batch_size_multiple)
        check_num_labels(config)

    def targets(self):
        no_words = token_label_target(0, np.zeros(0, np.int64), np.zeros(0, np.int32))
        return {"intent": Target("example", np.zeros(0, np.int32)), **no_words}


class JointPipeline(Pipeline):
    method = "understand"
    description = "finds the intent and the slots of texts"

    def known_keys(self, content):
        return {"text"}

    def preprocess(self, inputs):
        utterances = [
            self.cut(Utterance(item.location, require_text(item).split(), None, None))
            for item in inputs
        ]
        examples = encode(utterances, self.tokenizer, self.config)
        shape = self.objective.sequence_shape
        eval_set = JointEvalSet("input", utterances, examples, self.label_sets, shape)
        return eval_set.batches(), eval_set

    def postprocess(self, context, outputs, return_all_scores):
        answers = context.predictions(list(outputs))
        for utterance, answer in zip(context.utterances, answers, strict=True):
            yield answer | truncation_mark(utterance.is_cut)

    def cut(self, utterance):
        """Return an utterance with the first words alone that fit into a sequence."""
        counts = [len(self.tokenizer.encode(word)) or 1 for word in utterance.words]
        limit = self.config.max_seq_length - 2
        words = utterance.words[: np.searchsorted(np.cumsum(counts), limit, side="right")]
        is_cut = len(words) < len(utterance.words)
        return dataclasses.replace(utterance, words=words, is_cut=is_cut)


class JointTask(FinetuningTask):
    """The intent of a text and the slots of its words."""

    objective_class = JointObjective
    pipeline_classes = (JointPipeline,)
    DATA_FIELDS = COMMON_DATA_FIELDS
    primary_metrics = ("accuracy", "exact")

    @staticmethod
    def read_sets(config, split):
        return [
            (name, [read_row(row) for row in read_table(path)])
            for name, path in find_tables(config, split)
        ]

    @staticmethod
    def texts_of(utterances):
        return [word for utterance in utterances for word in utterance.words]

    def find_labels(self):
        def read():
            data = self.train_data
            intents = sorted({utterance.intent for utterance in data})
            slots = sorted({*itertools.chain(*(utterance.slots for utterance in data))})
            return {"intent": intents, "slot": slots}

        return resolve_label_sets(self.config, has_training_table(self.config), read)

    def encode(self, name, utterances):
        return encode(utterances, self.tokenizer, self.config, self.label_sets)

    def make_eval_set(self, name, utterances, *packing):
        examples, shape = self.encode(name, utterances), self.objective.sequence_shape
        return JointEvalSet(name, utterances, examples, self.label_sets, shape, *packing)

    def format_sequence(self, batch, index):
        intents = [self.label_sets["intent"][label] for label in batch["intent"][index]]
        return format_examples(batch, index, self.tokenizer, intents)

    @classmethod
    def report(cls, name, config, directory):
        records = json.loads((directory / "predictions.json").read_text())
        lines = [f"{record['intent']}: {' '.join(record['words'])}" for record in records]
        return render_report(name, [Section("Intents", paragraphs=lines)])


class JointEvalSet(PackedEvalSet):
    def __init__(self, name, utterances, examples, label_sets, *packing):
        super().__init__(examples, *packing)
        self.name, self.utterances, self.label_sets = name, utterances, label_sets
        self.first_tokens = examples.first_tokens

    def predictions(self, outputs):
        intents, slots = self.label_sets["intent"], self.label_sets["slot"]
        of_texts = self.unpack_outputs(outputs, "intent_logits", "example")
        of_tokens = np.concatenate(self.unpack_outputs(outputs, "slot_logits", "token"))
        best = iter(of_tokens[self.first_tokens].argmax(axis=-1))
        for utterance, logits in zip(self.utterances, of_texts, strict=True):
            yield {
                "words": [*utterance.words],
                "slots": [slots[index] for _, index in zip(utterance.words, best, strict=False)],
                "intent": intents[logits.argmax()],
            }

    def evaluation(self, means, outputs):
        records = [*self.predictions(outputs)]
        exact = [
            record["intent"] == gold.intent and record["slots"] == gold.slots
            for record, gold in zip(records, self.utterances, strict=True)
        ]
        scores = {"accuracy": means["accuracy"], "exact": float(np.mean(exact))}
        return Evaluation(scores, {"predictions": records})


@dataclasses.dataclass
class Utterance:
    location: str
    words: list
    slots: list | None
    intent: str | None
    is_cut: bool = False


def read_row(row):
    words, slots = row.value("words"), row.value("slots")
    if len(words) != len(slots):
        raise InputError(f"{row.location}: {len(words)} words, {len(slots)} slots. Fix the row.")
    return Utterance(row.location, words, slots, row.text(("intent",)))


def encode(utterances, tokenizer, config, label_sets=None):
    sentences = [
        TaggedSentence(item.words, item.slots, [item.location] * len(item.words), number)
        for number, item in enumerate(utterances)
    ]
    examples = encode_tagged_words(sentences, tokenizer, config.max_seq_length)
    if examples.num_windowed:
        raise InputError(
            f"max_seq_length={config.max_seq_length}: {examples.num_windowed} texts are longer. "
            "Raise it, or shorten them."
        )
    tags, intents = [0] * len(examples.first_tokens), [0] * len(utterances)
    if label_sets:
        tags = [
            find_label("slots", tag, label_sets["slot"], item)
            for item in utterances
            for tag in item.slots
        ]
        intents = [
            find_label("intent", item.intent, label_sets["intent"], item) for item in utterances
        ]
    examples = examples.with_tags(np.array(tags, np.int32))
    targets = {"intent": Target("example", np.array(intents, np.int32)), **examples.targets}
    return dataclasses.replace(examples, targets=targets)


def find_label(column, label, labels, utterance):
    if label not in labels:
        raise InputError(
            f"{utterance.location}: {column}={label!r}: not in the training data. Fix the row."
        )
    return labels.index(label)
