"""Tags of words, such as named entities (paper, section 5.3)."""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.opening import find_labels
from bertjax.formats.tensors import Model
from bertjax.tasks import finetuning
from bertjax.tasks.data import (
    FIELDS,
    TFDS_SPLITS,
    find_tables,
    has_training_table,
    tokenizer_of,
)
from bertjax.tasks.task import EvaluationSet, HostBatch, Input, Opened
from bertjax.tasks.token_classification import report
from bertjax.tasks.token_classification.evaluation import Sentences, words_of
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.packed_examples import Shape, Target
from data_pipelines.finetuning.table import Row, read_tfds_table
from data_pipelines.finetuning.tag_schemes import entities, tags_of
from data_pipelines.finetuning.token_classification import (
    NAMES,
    Sentence,
    Tagged,
    from_rows,
    label_names,
    make_tagged,
    read_tagged,
)
from data_pipelines.finetuning.word_alignment import Words, tag_target
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.coverage import warn_of_loss

_PIECES = 8  # of a sentence, at least, by which a row has places for sentences
_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


class Objective(finetuning.Objective):
    """The encoder with a score of each tag for each piece."""

    heads = ("tagger",)
    outputs = ("tagger_logits",)

    def __init__(self, config: Config, multiple: int = 1) -> None:
        super().__init__(config, multiple)
        finetuning.check_labels(config)

    @property
    def row(self) -> Shape:
        length = self.config.seq_len
        return Shape(length, max(1, length // _PIECES) if self.config.packing else 1)

    def targets(self) -> Mapping[str, Target]:
        return tag_target(0, np.zeros(0, np.int64), np.zeros(0, np.int32))


class Task(finetuning.Task):
    """Sentences whose words have tags."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS | {
        "mend_tags": field(
            False, "reads a tag that breaks its scheme as conlleval does; else it is refused"
        ),
        "context": field(
            "sentence", '"document" reads what stands around a sentence in its document with it'
        ),
        "strict": field(
            False, "counts entities as seqeval's strict mode does, else as conlleval does"
        ),
    }
    headline = ("f1", "precision", "recall", "accuracy")
    ability = "tags words"
    objective: Objective

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        self.config = config
        self.labels = self._find_labels()
        model = dataclasses.replace(config.model, num_labels=len(self.labels))
        config = dataclasses.replace(config, model=model)
        super().__init__(config, hosts, host, Objective)
        self.tokenizer = tokenizer_of(config)
        row, rows = self.objective.row, self.objective.eval_rows
        found = read_sets(config, "dev")
        warn_of_loss(self.tokenizer, {name: data.words for name, data in found})
        self._sets = [
            Sentences(
                name,
                data.sentences,
                self.tokenizer,
                config,
                self.labels,
                row,
                rows,
                hosts,
                host,
            )
            for name, data in found
        ]

    def _find_labels(self) -> tuple[str, ...]:
        """Those of the training data, in the order of the model that the run begins with, if that
        has the same; that model's where there is nothing to train on.
        """
        known = find_labels(self.config.init) if self.config.init else ()
        if known and not has_training_table(self.config, NAMES):
            return known
        own = label_names(self._train)
        return known if set(known) == set(own) else own

    @functools.cached_property
    def _train(self) -> Tagged:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> Words:
        warn_of_loss(self.tokenizer, {"train": self._train.words})
        given = self.tokenizer, self.config, self.labels
        return words_of("train", self._train.sentences, *given)

    def evaluation_sets(self) -> Sequence[EvaluationSet]:
        return self._sets

    def show(self, batch: HostBatch, row: int) -> str:
        """A sentence a line, the tag of a word before its first piece where it is not O."""
        tags, weights = batch["tag_targets"][row], batch["tag_weights"][row]
        lines = []
        for slot in range(1, int(batch["pack_ids"][row].max()) + 1):
            said = []
            for at in np.flatnonzero(batch["pack_ids"][row] == slot):
                tag = self.labels[tags[at]] if weights[at] else "O"
                piece = self.tokenizer.pieces[batch["token_ids"][row, at]]
                said.append(piece if tag == "O" else f"[{tag}] {piece}")
            lines.append(" ".join(said))
        return "\n".join(lines)

    @staticmethod
    def failed(scores: Mapping[str, float]) -> bool:
        """Where no entity was found."""
        return not scores["f1"] > 0

    @staticmethod
    def of_model(model: Model) -> Mapping[str, Any] | None:
        return {"seq_len": model.config.max_positions} if "tagger" in model.params else None

    @staticmethod
    def example(config: Config) -> str:
        return "--text 'Ada Lovelace wrote to Charles Babbage.'"

    @staticmethod
    def predict(
        opened: Opened, inputs: Sequence[Input], everything: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The entities of each text, with their characters; of an object with "words" the tag of
        each. An input is a document of its own, whatever is asked beside it. Of a published model
        whose labels are of no scheme, words side by side of one label are an entity where some
        are of none, O; else, as of parts of speech, each word is.
        """
        asked = [_asked(*each) for each in inputs]
        sentences = [
            dataclasses.replace(sentence, document=number)
            for number, (_, sentence, _) in enumerate(asked)
        ]
        data = opened.tokenizer, opened.config, opened.labels, Objective(opened.config).row
        tagged = Sentences("input", sentences, *data)
        logits = [found["tagger_logits"] for found in opened.run(tagged.batches())]
        as_tags = tags_of(opened.labels)
        for (text, sentence, places), (tags, chances) in zip(
            asked, tagged.said(logits), strict=True
        ):
            found: dict[str, Any] = {"words": list(sentence.words), "tags": tags}
            if text is not None:
                own = [as_tags[tag] for tag in tags]
                found = {"text": text, "entities": _entities(text, places, own, chances)}
            if everything:
                names = zip(*([label] * len(tags) for label in opened.labels), strict=True)
                found["probabilities"] = [
                    {n: round(float(p), 6) for n, p in zip(own, each, strict=True)}
                    for own, each in zip(names, chances, strict=True)
                ]
            yield found

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        sets = {set_name: len(data.sentences) for set_name, data in read_sets(config, "dev")}
        return report.render(name, directory, sets)


def read_sets(config: Config, split: str) -> list[tuple[str, Tagged]]:
    """Name and sentences of each data set of a split, "train" or "dev".

    Raises:
      InputError: a file is missing, or not of a layout that is known.
    """
    source, mend = config.data["dir"], config.data["mend_tags"]
    if source.startswith(TFDS):
        part = config.data[split] or TFDS_SPLITS[split]
        rows = read_tfds_table(source, part)
        return [(split, make_tagged(f"{source} {part}", from_rows(rows), mend))]
    return [(name, read_tagged(path, mend)) for name, path in find_tables(config, split, NAMES)]


def _asked(
    place: str, said: str | Mapping[str, Any]
) -> tuple[str | None, Sentence, list[tuple[int, int]]]:
    """The text, None where there are words instead; the words, and their characters in the text."""
    if not isinstance(said, str) and "text" not in said:
        (sentence,) = from_rows([Row(place, dict(said))])
        return None, dataclasses.replace(sentence, tags=None), []
    text = said if isinstance(said, str) else said["text"]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'{place}: "text" is {text!r}: write some text, or a list "words".')
    places = list(_words(text))
    words = [text[first:last] for first, last in places]
    return text, Sentence(words, None, [place] * len(words)), places


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of running text begin and end: what stands between spaces, without the
    punctuation on either side, each mark of which is a word, as is each ideograph.
    """
    for run in _UNSPACED.finditer(text):
        # An accent, a vowel's sign or a joiner is of the character before it.
        starts = [at for at in range(*run.span()) if at == run.start() or not _joins(text[at])]
        ends = [*starts[1:], run.end()]
        letters = [n for n, at in enumerate(starts) if text[at].isalnum() or text[at] == "_"]
        if letters:
            first, last = letters[0], letters[-1]
            del starts[first + 1 : last + 1], ends[first:last]
        yield from zip(starts, ends, strict=True)


def _joins(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _entities(
    text: str, places: Sequence[tuple[int, int]], tags: Sequence[str], chances: np.ndarray
) -> list[dict[str, Any]]:
    """Those of a text; the probability of one is that of its least sure word."""
    found = []
    for each in entities(tags):
        start, end = places[each.first][0], places[each.last][1]
        sure = chances[each.first : each.last + 1].max(axis=-1).min()
        said = {"text": text[start:end], "type": each.type, "start": start, "end": end}
        found.append(said | {"probability": round(float(sure), 6)})
    return found
