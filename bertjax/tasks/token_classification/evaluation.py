"""Sentences of words, and what becomes of the logits of their pieces."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.config import Config
from bertjax.tasks.evaluations import PREDICTIONS
from bertjax.tasks.finetuning import Laid
from bertjax.tasks.task import EXAMPLES, Evaluation
from bertjax.tasks.token_classification.metrics import count_entities, total
from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import Shape
from data_pipelines.finetuning.tag_schemes import entities, scheme_of, write_tags
from data_pipelines.finetuning.token_classification import Sentence
from data_pipelines.finetuning.word_alignment import Words, encode_words
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

COLUMNS = "predictions.conll"


def words_of(
    name: str,
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    config: Config,
    labels: Sequence[str],
) -> Words:
    """The examples of sentences, with the tags that they have; says what is in windows.

    Raises:
      InputError: a tag is none of the labels.
    """
    data = config.data
    found = encode_words(sentences, tokenizer, config.seq_len, data["context"])
    if found.windowed:
        _log.info(
            "%s: %d of %d sentences are longer than seq_len=%d and are read in windows.",
            name,
            found.windowed,
            len(sentences),
            config.seq_len,
        )
    return found.with_tags(numbers_of(sentences, labels))


def numbers_of(sentences: Sequence[Sentence], labels: Sequence[str]) -> np.ndarray:
    """The number of each word's tag among the labels, int32 [N]; -1 where it is not known.

    Raises:
      InputError: a tag is none of them, or they are of no scheme.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    scheme, found = "", list[int]()
    for sentence in sentences:
        if sentence.tags is None:
            found += [-1] * len(sentence.words)
            continue
        scheme = scheme or _scheme_of(labels)
        tags = write_tags(entities(sentence.tags), len(sentence.tags), scheme)
        for tag, place in zip(tags, sentence.places, strict=True):
            if tag not in numbers:
                raise InputError(
                    f"{place}: tag {tag!r} is none that was trained: there are "
                    f"{', '.join(labels[:9])}{' ...' if len(labels) > 9 else ''}."
                )
            found.append(numbers[tag])
    return np.array(found, np.int32)


class Sentences(Laid):
    """Sentences to be tagged; see `Laid` for the last arguments.

    Args:
      labels: names of the tags, of any scheme.
    Raises:
      InputError: a tag is none of them.
    """

    def __init__(
        self,
        name: str,
        sentences: Sequence[Sentence],
        tokenizer: Tokenizer,
        config: Config,
        labels: Sequence[str],
        row: Shape,
        rows: int = 0,
        hosts: int = 1,
        host: int = 0,
    ) -> None:
        self.name, self.sentences, self.labels = name, sentences, labels
        self._strict = bool(config.data["strict"])
        self._words = words_of(name, sentences, tokenizer, config, labels)
        super().__init__(self._words, row, rows, hosts, host)

    def said(self, logits: Sequence[np.ndarray]) -> Iterator[tuple[list[str], np.ndarray]]:
        """The tags of each sentence's words and the probability of each, float64 [N, C], from the
        logits [R, T, C] of each batch.
        """
        pieces = np.concatenate(self.split(logits, "pieces"))
        each = pieces[self._words.pieces].astype(np.float64)
        powers = np.exp(each - each.max(axis=-1, keepdims=True))
        chances = powers / powers.sum(axis=-1, keepdims=True)
        ends = itertools.accumulate(len(sentence.words) for sentence in self.sentences)
        first = 0
        for end in ends:
            own = chances[first:end]
            yield [self.labels[best] for best in own.argmax(axis=-1)], own
            first = end

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """`f1`, `precision` and `recall` of entities and `accuracy` of words, from 0 to 1.

        The files are `predictions`, `types` with the scores of each type of entity, and columns of
        word, gold and said tag, as conlleval reads them.
        """
        found = list(self.said([each["tagger_logits"] for each in outputs]))
        scheme = _scheme_of(self.labels)
        gold = [
            write_tags(entities(tags), len(tags), scheme)
            for tags in (sentence.tags or () for sentence in self.sentences)
        ]
        said = [tags for tags, _ in found]
        counts = count_entities(gold, said, scheme if self._strict else "")
        pairs = [*zip(itertools.chain(*gold), itertools.chain(*said), strict=True)]
        accuracy = sum(a == b for a, b in pairs) / len(pairs)
        types = {kind: count._asdict() | count.scores() for kind, count in counts.items()}
        entries = [
            {
                "words": list(sentence.words),
                "gold": tags,
                "tags": mine,
                "probabilities": [round(float(each), 6) for each in chances.max(axis=-1)],
            }
            for sentence, tags, (mine, chances) in zip(self.sentences, gold, found, strict=True)
        ]
        files = {PREDICTIONS: entries, "types": types, COLUMNS: _columns(entries)}
        scores = total(counts.values()).scores() | {"accuracy": accuracy}
        return Evaluation(scores, files, examples=[_line(each) for each in entries[:EXAMPLES]])


def _scheme_of(labels: Sequence[str]) -> str:
    try:
        return scheme_of(labels)
    except ValueError as error:
        raise InputError(
            f"the model's {error}: entities can be counted of one whose labels are as B-person, "
            "I-person and O."
        ) from None


def _line(entry: Mapping[str, Any]) -> str:
    """A sentence with the tags that are said, and in parentheses those that are right."""

    def word(word: str, said: str, gold: str) -> str:
        return word if said == gold == "O" else f"{word} → {said} ({gold})"

    return "  ".join(map(word, entry["words"], entry["tags"], entry["gold"]))


def _columns(entries: Sequence[Mapping[str, Any]]) -> str:
    sentences = (
        "".join(
            f"{word or '_'}\t{gold}\t{said}\n"
            for word, gold, said in zip(each["words"], each["gold"], each["tags"], strict=True)
        )
        for each in entries
    )
    return "\n".join(sentences)
