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
from bertjax.formats.loading import find_labels
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import finetuning
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    TFDS_SPLITS,
    find_tables,
    has_training_table,
    load_task_tokenizer,
)
from bertjax.tasks.task import EvalSet, HostBatch, Input, PredictorProtocol
from bertjax.tasks.token_classification import report
from bertjax.tasks.token_classification.evaluation import (
    TokenClassificationEvalSet,
    encode_sentences,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.table import TableRow, read_tfds_table
from data_pipelines.finetuning.tag_schemes import entities, labels_to_tags
from data_pipelines.finetuning.token_classification import (
    TAGGED_SUFFIXES,
    TaggedSentence,
    TokenClassificationDataset,
    from_rows,
    label_names,
    make_tagged_dataset,
    read_tagged_file,
)
from data_pipelines.finetuning.word_alignment import WordExamples, token_label_target
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss

_MIN_TOKENS_PER_EXAMPLE = 8  # of a sentence, at least, by which a row has places for sentences
_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


class Objective(finetuning.Objective):
    """The encoder with a score of each tag for each piece."""

    heads = ("token_classification",)
    eval_outputs = ("token_classification_logits",)

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        finetuning.check_num_labels(config)

    @property
    def row(self) -> PackedShape:
        length = self.config.max_seq_length
        return PackedShape(
            length, max(1, length // _MIN_TOKENS_PER_EXAMPLE) if self.config.packing else 1
        )

    def targets(self) -> Mapping[str, Target]:
        return token_label_target(0, np.zeros(0, np.int64), np.zeros(0, np.int32))


class Task(finetuning.Task):
    """TokenClassificationEvalSet whose words have tags."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "fix_tags": field(
            False, "reads a tag that breaks its scheme as conlleval does; else it is refused"
        ),
        "context": field(
            "sentence", '"document" reads what stands around a sentence in its document with it'
        ),
        "strict": field(
            False, "counts entities as seqeval's strict mode does, else as conlleval does"
        ),
    }
    primary_metrics = ("f1", "precision", "recall", "accuracy")
    description = "tags words"
    objective: Objective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.labels = self._find_labels()
        model = dataclasses.replace(config.model, num_labels=len(self.labels))
        config = dataclasses.replace(config, model=model)
        super().__init__(config, num_processes, process_id, Objective)
        self.tokenizer = load_task_tokenizer(config)
        row, rows = self.objective.row, self.objective.eval_batch_size
        found = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.words for name, data in found})
        self._sets = [
            TokenClassificationEvalSet(
                name,
                data.sentences,
                self.tokenizer,
                config,
                self.labels,
                row,
                rows,
                num_processes,
                process_id,
            )
            for name, data in found
        ]

    def _find_labels(self) -> tuple[str, ...]:
        """Those of the training data, in the order of the model that the run begins with, if that
        has the same; that model's where there is nothing to train on.
        """
        known = find_labels(self.config.init) if self.config.init else ()
        if known and not has_training_table(self.config, TAGGED_SUFFIXES):
            return known
        own = label_names(self._train)
        return known if set(known) == set(own) else own

    @functools.cached_property
    def _train(self) -> TokenClassificationDataset:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> WordExamples:
        warn_of_coverage_loss(self.tokenizer, {"train": self._train.words})
        given = self.tokenizer, self.config, self.labels
        return encode_sentences("train", self._train.sentences, *given)

    def eval_sets(self) -> Sequence[EvalSet]:
        return self._sets

    def format_sequence(self, batch: HostBatch, row: int) -> str:
        """A sentence a line, the tag of a word before its first piece where it is not O."""
        tags, weights = batch["token_labels"][row], batch["token_labels_weights"][row]
        lines = []
        for slot in range(1, int(batch["example_ids"][row].max()) + 1):
            said = []
            for at in np.flatnonzero(batch["example_ids"][row] == slot):
                tag = self.labels[tags[at]] if weights[at] else "O"
                token = self.tokenizer.tokens[batch["input_ids"][row, at]]
                said.append(token if tag == "O" else f"[{tag}] {token}")
            lines.append(" ".join(said))
        return "\n".join(lines)

    @staticmethod
    def is_degenerate(scores: Mapping[str, float]) -> bool:
        """Where no entity was found."""
        return not scores["f1"] > 0

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        return (
            {"max_seq_length": model.config.max_position_embeddings}
            if "token_classification" in model.params
            else None
        )

    @staticmethod
    def sample_arguments(config: Config) -> str:
        return "--text 'Ada Lovelace wrote to Charles Babbage.'"

    @staticmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The entities of each text, with their characters; of an object with "words" the tag of
        each. An input is a document of its own, whatever is asked beside it. Of a published model
        whose labels are of no scheme, words side by side of one label are an entity where some
        are of none, O; else, as of parts of speech, each word is.
        """
        asked = [_parse_input(*each) for each in inputs]
        sentences = [
            dataclasses.replace(sentence, document=number)
            for number, (_, sentence, _) in enumerate(asked)
        ]
        data = (
            predictor.tokenizer,
            predictor.config,
            predictor.labels,
            Objective(predictor.config).row,
        )
        tagged = TokenClassificationEvalSet("input", sentences, *data)
        logits = [found["token_classification_logits"] for found in predictor.run(tagged.batches())]
        as_tags = labels_to_tags(predictor.labels)
        for (text, sentence, places), (tags, chances) in zip(
            asked, tagged.predictions(logits), strict=True
        ):
            found: dict[str, Any] = {"words": list(sentence.words), "tags": tags}
            if text is not None:
                own = [as_tags[tag] for tag in tags]
                found = {"text": text, "entities": _extract_entities(text, places, own, chances)}
            if return_all_scores:
                names = zip(*([label] * len(tags) for label in predictor.labels), strict=True)
                found["probabilities"] = [
                    {n: round(float(p), 6) for n, p in zip(own, each, strict=True)}
                    for own, each in zip(names, chances, strict=True)
                ]
            yield found

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        sets = {set_name: len(data.sentences) for set_name, data in read_sets(config, "eval")}
        return report.render(name, directory, sets)


def read_sets(config: Config, split: str) -> list[tuple[str, TokenClassificationDataset]]:
    """Name and sentences of each data set of a split, "train" or "eval".

    Raises:
      InputError: a file is missing, or not of a layout that is known.
    """
    source, fix_tags = config.data["dir"], config.data["fix_tags"]
    if source.startswith(TFDS):
        part = config.data[f"{split}_file"] or TFDS_SPLITS[split]
        rows = read_tfds_table(source, part)
        return [(split, make_tagged_dataset(f"{source} {part}", from_rows(rows), fix_tags))]
    return [
        (name, read_tagged_file(path, fix_tags))
        for name, path in find_tables(config, split, TAGGED_SUFFIXES)
    ]


def _parse_input(
    location: str, said: str | Mapping[str, Any]
) -> tuple[str | None, TaggedSentence, list[tuple[int, int]]]:
    """The text, None where there are words instead; the words, and their characters in the text."""
    if not isinstance(said, str) and "text" not in said:
        (sentence,) = from_rows([TableRow(location, dict(said))])
        return None, dataclasses.replace(sentence, tags=None), []
    text = said if isinstance(said, str) else said["text"]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'{location}: "text" is {text!r}: write some text, or a list "words".')
    places = list(_word_spans(text))
    words = [text[first:last] for first, last in places]
    return text, TaggedSentence(words, None, [location] * len(words)), places


def _word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of running text begin and end: what stands between spaces, without the
    punctuation on either side, each mark of which is a word, as is each ideograph.
    """
    for run in _UNSPACED.finditer(text):
        # An accent, a vowel's sign or a joiner is of the character before it.
        starts = [
            at for at in range(*run.span()) if at == run.start() or not _is_combining(text[at])
        ]
        ends = [*starts[1:], run.end()]
        letters = [n for n, at in enumerate(starts) if text[at].isalnum() or text[at] == "_"]
        if letters:
            first, last = letters[0], letters[-1]
            del starts[first + 1 : last + 1], ends[first:last]
        yield from zip(starts, ends, strict=True)


def _is_combining(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _extract_entities(
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
