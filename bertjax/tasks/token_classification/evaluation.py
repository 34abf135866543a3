"""TokenClassificationEvalSet of words, and what becomes of the logits of their pieces."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.config import Config
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from bertjax.tasks.token_classification.metrics import count_entities, sum_counts
from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.tag_schemes import entities, entities_to_tags, label_scheme
from data_pipelines.finetuning.token_classification import TaggedSentence
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
    """The examples of sentences, with the tags that they have; says what is in windows.

    Raises:
      InputError: a tag is none of the labels.
    """
    data = config.data
    found = encode_tagged_words(sentences, tokenizer, config.max_seq_length, data["context"])
    if found.num_windowed:
        _log.info(
            "%s: %d of %d sentences are longer than max_seq_length=%d and are read in windows.",
            name,
            found.num_windowed,
            len(sentences),
            config.max_seq_length,
        )
    return found.with_tags(encode_tags(sentences, labels))


def encode_tags(sentences: Sequence[TaggedSentence], labels: Sequence[str]) -> np.ndarray:
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
        tags = entities_to_tags(entities(sentence.tags), len(sentence.tags), scheme)
        for tag, place in zip(tags, sentence.locations, strict=True):
            if tag not in numbers:
                raise InputError(
                    f"{place}: tag {tag!r} is none that was trained: there are "
                    f"{', '.join(labels[:9])}{' ...' if len(labels) > 9 else ''}."
                )
            found.append(numbers[tag])
    return np.array(found, np.int32)


class TokenClassificationEvalSet(PackedEvalSet):
    """Sentences to be tagged; see `PackedEvalSet` for the last arguments.

    Args:
      labels: names of the tags, of any scheme.
    Raises:
      InputError: a tag is none of them.
    """

    def __init__(
        self,
        name: str,
        sentences: Sequence[TaggedSentence],
        tokenizer: Tokenizer,
        config: Config,
        labels: Sequence[str],
        row: PackedShape,
        rows: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
    ) -> None:
        self.name, self.sentences, self.labels = name, sentences, labels
        self._strict = bool(config.data["strict"])
        self._words = encode_sentences(name, sentences, tokenizer, config, labels)
        super().__init__(self._words, row, rows, num_processes, process_id)

    def predictions(self, logits: Sequence[np.ndarray]) -> Iterator[tuple[list[str], np.ndarray]]:
        """The tags of each sentence's words and the probability of each, float64 [N, C], from the
        logits [R, T, C] of each batch.
        """
        tokens = np.concatenate(self.unpack_outputs(logits, "token"))
        each = tokens[self._words.first_tokens].astype(np.float64)
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
        found = list(self.predictions([each["token_classification_logits"] for each in outputs]))
        scheme = _scheme_of(self.labels)
        gold = [
            entities_to_tags(entities(tags), len(tags), scheme)
            for tags in (sentence.tags or () for sentence in self.sentences)
        ]
        predictions = [tags for tags, _ in found]
        counts = count_entities(gold, predictions, scheme if self._strict else "")
        pairs = [*zip(itertools.chain(*gold), itertools.chain(*predictions), strict=True)]
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
        files = {PREDICTIONS: entries, "types": types, CONLL_FILE: _to_conll(entries)}
        scores = sum_counts(counts.values()).scores() | {"accuracy": accuracy}
        return Evaluation(
            scores, files, examples=[_format_example(each) for each in entries[:NUM_EXAMPLES_SHOWN]]
        )


def _scheme_of(labels: Sequence[str]) -> str:
    try:
        return label_scheme(labels)
    except ValueError as error:
        raise InputError(
            f"the model's {error}: entities can be counted of one whose labels are as B-person, "
            "I-person and O."
        ) from None


def _format_example(entry: Mapping[str, Any]) -> str:
    """A sentence with the tags that are said, and in parentheses those that are right."""

    def word(word: str, predictions: str, gold: str) -> str:
        return word if predictions == gold == "O" else f"{word} → {predictions} ({gold})"

    return "  ".join(map(word, entry["words"], entry["tags"], entry["gold"]))


def _to_conll(entries: Sequence[Mapping[str, Any]]) -> str:
    sentences = (
        "".join(
            f"{word or '_'}\t{gold}\t{predictions}\n"
            for word, gold, predictions in zip(
                each["words"], each["gold"], each["tags"], strict=True
            )
        )
        for each in entries
    )
    return "\n".join(sentences)
