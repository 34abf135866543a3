"""Evaluation of token classification: logits to tags and entity scores."""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bertjax.config.config import Config
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import Outputs, round_scores
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from bertjax.tasks.token_classification.metrics import count_entities, sum_counts
from bertjax.tasks.token_classification.objective import TokenClassificationObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import (
    WORD_TAGS,
    entities,
    entities_to_tags,
    is_tag,
    label_scheme,
    labels_to_tags,
)
from data_pipelines.finetuning.token_classification.dataset import TokenClassificationDataset
from data_pipelines.finetuning.token_classification.sentences import TaggedSentence
from data_pipelines.finetuning.word_alignment import WordExamples, encode_tagged_words
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

CONLL_FILE = "predictions.conll"


def encode_sentences(
    name: str,
    sentences: Sequence[TaggedSentence],
    tokenizer: Tokenizer,
    config: Config,
    labels: Sequence[str],
) -> WordExamples:
    """Return the examples of sentences with their tags; log the sentences split into windows.

    Raises:
      InputError: a tag is not in `labels`.
    """
    data = config.data
    examples = encode_tagged_words(sentences, tokenizer, config.max_seq_length, data["context"])
    if examples.num_windowed:
        _log.info(
            "%s: %d of %d sentences are longer than max_seq_length=%d and are split into windows.",
            name,
            examples.num_windowed,
            len(sentences),
            config.max_seq_length,
        )
    return examples.with_tags(encode_tags(sentences, labels))


def encode_tags(sentences: Sequence[TaggedSentence], labels: Sequence[str]) -> np.ndarray:
    """Return the index of each word's tag in `labels`, int32 [N]; -1 without a tag.

    Raises:
      InputError: a tag is not in `labels`, or the labels follow no tagging scheme.
    """
    label_indices = {label: index for index, label in enumerate(labels)}
    scheme, indices = "", list[int]()
    for sentence in sentences:
        if sentence.tags is None:
            indices += [-1] * len(sentence.words)
            continue
        scheme = scheme or _scheme_of(labels)
        tags = _to_scheme(sentence.tags, scheme)
        for tag, location in zip(tags, sentence.locations, strict=True):
            if tag not in label_indices:
                raise InputError(
                    f"{location}: tag {tag!r} is not a label of the model. Use one of "
                    f"{', '.join(labels[:9])}{' ...' if len(labels) > 9 else ''}."
                )
            indices.append(label_indices[tag])
    return np.array(indices, np.int32)


class TokenClassificationEvalSet(PackedEvalSet):
    """A data set of sentences, with the evaluation of the logits of their tokens.

    Args:
      name: name of the data set, for messages and files.
      data: sentences with their tags, if known.
      tokenizer: the model's tokenizer.
      objective: objective of the model.
      labels: names of the tags, in any scheme.
      packing: the last arguments of `PackedEvalSet`.

    Raises:
      InputError: a tag is not in `labels`.
    """

    def __init__(
        self,
        name: str,
        data: TokenClassificationDataset,
        tokenizer: Tokenizer,
        objective: TokenClassificationObjective,
        labels: Sequence[str],
        *packing: Any,
    ) -> None:
        config = objective.config
        self.name, self.sentences, self.labels = name, data.sentences, labels
        self._strict = bool(config.data["strict"])
        self._words = encode_sentences(name, data.sentences, tokenizer, config, labels)
        super().__init__(self._words, objective.sequence_shape, *packing)

    def predictions(self, outputs: Iterable[Outputs]) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yield the tags of each sentence's words and their probabilities, float64 [N, C]."""
        token_logits = self.unpack_outputs(outputs, "token_classification_logits", "token")
        word_logits = np.concatenate(token_logits)[self._words.first_tokens].astype(np.float64)
        probabilities = softmax(word_logits, axis=-1)
        ends = np.cumsum([len(sentence.words) for sentence in self.sentences])
        for sentence in np.split(probabilities, ends[:-1]):
            yield [self.labels[best] for best in sentence.argmax(axis=-1)], sentence

    @property
    def score_names(self) -> Collection[str]:
        """Names of the scores."""
        entity_scores = {} if has_word_tags(self.labels) else sum_counts([]).scores()
        return {"accuracy", *entity_scores}

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return `f1`, `precision` and `recall` of entities and `accuracy` of words, in [0, 1].

        Tags of single words are scored by `accuracy` alone.

        The files are `predictions`, `types` with the scores of each entity type, and for conlleval
        the columns word, gold tag, predicted tag.
        """
        tagged = list(self.predictions(outputs))
        scheme = _scheme_of(self.labels)
        gold = [_to_scheme(sentence.tags or (), scheme) for sentence in self.sentences]
        predictions = [tags for tags, _ in tagged]
        to_tag = labels_to_tags(self.labels)
        gold_tags, predicted_tags = (
            [[to_tag[label] for label in labels] for labels in sets] for sets in (gold, predictions)
        )
        counts = count_entities(gold_tags, predicted_tags, scheme if self._strict else "")
        pairs = [*zip(itertools.chain(*gold), itertools.chain(*predictions), strict=True)]
        accuracy = sum(a == b for a, b in pairs) / len(pairs)
        types = {kind: count._asdict() | count.scores() for kind, count in counts.items()}
        entries = [
            {
                "words": list(sentence.words),
                "gold": tags,
                "tags": predicted,
                "scores": round_scores(probabilities.max(axis=-1)),
            }
            for sentence, tags, (predicted, probabilities) in zip(
                self.sentences, gold, tagged, strict=True
            )
        ]
        files = {PREDICTIONS: entries, "types": types, CONLL_FILE: _to_conll(entries)}
        scores = {} if scheme == WORD_TAGS else sum_counts(counts.values()).scores()
        scores["accuracy"] = accuracy
        examples = list(map(_format_example, entries[:NUM_EXAMPLES_SHOWN]))
        return Evaluation(scores, files, examples=examples)


def has_word_tags(labels: Sequence[str]) -> bool:
    """Return whether labels are tags of single words, such as parts of speech."""
    return _scheme_of(labels) == WORD_TAGS


def _to_scheme(tags: Sequence[str], scheme: str) -> Sequence[str]:
    """Return tags in the scheme of a model's labels; tags of single words stay as they are."""
    if scheme == WORD_TAGS or not all(map(is_tag, tags)):
        return tags
    return entities_to_tags(entities(tags), len(tags), scheme)


def _scheme_of(labels: Sequence[str]) -> str:
    try:
        return label_scheme(labels)
    except ValueError as error:
        raise InputError(
            f"the model's {error}. Entities need labels such as B-person, I-person and O: take "
            "another model."
        ) from None


def _format_example(entry: Mapping[str, Any]) -> str:
    """Return a sentence with its predicted tags and, in parentheses, its gold tags."""
    words = zip(entry["words"], entry["tags"], entry["gold"], strict=True)
    return "  ".join(
        word if predicted == gold == "O" else f"{word} → {predicted} ({gold})"
        for word, predicted, gold in words
    )


def _to_conll(entries: Sequence[Mapping[str, Any]]) -> str:
    sentences = []
    for entry in entries:
        words = zip(entry["words"], entry["gold"], entry["tags"], strict=True)
        sentences.append("".join(f"{word or '_'}\t{gold}\t{tag}\n" for word, gold, tag in words))
    return "\n".join(sentences)
