"""Tagged sentences as examples of tokens; the first token of each word has the word's tag."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.question_answering.windows import max_context_windows, window_starts
from data_pipelines.finetuning.token_classification.sentences import TaggedSentence
from data_pipelines.vocabulary.tokenization import Tokenizer

_CONTEXTS = ("sentence", "document")


@dataclasses.dataclass(frozen=True)
class WordExamples(Examples):
    """Sentences, or windows of long sentences, as examples. N is the number of all words.

    Attributes:
      first_tokens: int64 [N], index of each word's first token among the tokens of all examples. A
        word in several windows counts in the window with maximal context.
      num_windowed: sentences that were split into windows.
    """

    first_tokens: np.ndarray
    num_windowed: int

    def with_tags(self, tags: np.ndarray) -> "WordExamples":
        """Return the examples with target "token_labels" from tag ids, int32 [N]; < 0: unknown."""
        targets = token_label_target(len(self.ids), self.first_tokens, tags)
        return dataclasses.replace(self, targets=targets)


def token_label_target(
    num_tokens: int, first_tokens: np.ndarray, tags: np.ndarray
) -> dict[str, Target]:
    """Return the target "token_labels" of `num_tokens` tokens; see `WordExamples`.

    The first token of a word with an unknown tag has the value -1 and the weight 0.
    """
    values, weights = np.zeros(num_tokens, np.int32), np.zeros(num_tokens, np.float32)
    values[first_tokens], weights[first_tokens] = np.maximum(tags, -1), tags >= 0
    return {"token_labels": Target("token", values, weights)}


def encode_tagged_words(
    sentences: Sequence[TaggedSentence],
    tokenizer: Tokenizer,
    max_seq_length: int,
    context: str = "sentence",
) -> WordExamples:
    """Return sentences as examples [CLS] tokens [SEP], without targets.

    Each word is tokenized by itself; a word without tokens becomes [UNK]. A sentence that is too
    long is split into windows, each half a window after the previous one.

    Args:
      sentences: the words.
      tokenizer: the tokenizer.
      max_seq_length: maximal tokens of an example.
      context: "document" fills an example with the text before and after the sentence in its
        document, equally on both sides (Devlin et al. 2019, section 5.3). "sentence" does not.

    Raises:
      InputError: `max_seq_length` is too small or `context` is unknown.
    """
    if context not in _CONTEXTS:
        raise InputError(
            f"data.context={context!r}: unknown context. Choose {' or '.join(_CONTEXTS)}."
        )
    room = max_seq_length - 2
    if room < 1:
        raise InputError(f"max_seq_length={max_seq_length}: no space for words. Raise it.")
    ids: list[int] = []
    lengths: list[int] = []
    first_tokens: list[np.ndarray] = []
    num_windowed = 0
    cache: dict[str, list[int]] = {}
    tokenized = [_tokenize_words(sentence.words, tokenizer, cache) for sentence in sentences]
    bounds = np.cumsum([0, *(len(tokens) for tokens, _ in tokenized)])
    all_ids = [token for tokens, _ in tokenized for token in tokens]
    document_bounds = _document_bounds(sentences)
    for number, (tokens, word_starts) in enumerate(tokenized):
        begin, end = int(bounds[number]), int(bounds[number + 1])
        if len(tokens) > room:
            starts = window_starts(len(tokens), room, max(1, room // 2))
            num_windowed += 1
            spans = [(begin + start, min(begin + start + room, end)) for start in starts]
        elif context == "document":
            lower, upper = (int(bounds[sentence]) for sentence in document_bounds[number])
            spans = [_widen_span(begin, end, room, lower, upper)]
        else:
            spans = [(begin, end)]
        sizes = [stop - start for start, stop in spans]
        offsets = [start - begin for start, _ in spans]
        if len(spans) > 1:
            window = max_context_windows(offsets, sizes, len(tokens))[word_starts]
        else:
            window = np.zeros(len(word_starts), np.int64)
        # Index of each window's first text token among the tokens of all examples.
        bases = len(ids) + 1 + np.cumsum([0, *(size + 2 for size in sizes)])[:-1]
        first_tokens.append(bases[window] + word_starts - np.array(offsets)[window])
        for (start, stop), size in zip(spans, sizes, strict=True):
            ids += [tokenizer.cls_id, *all_ids[start:stop], tokenizer.sep_id]
            lengths.append(size + 2)
    all_lengths = np.array(lengths, np.int64)
    all_first_tokens = np.concatenate(first_tokens) if first_tokens else np.zeros(0, np.int64)
    return WordExamples(
        np.array(ids, np.int32), all_lengths, all_lengths, {}, all_first_tokens, num_windowed
    )


def _tokenize_words(
    words: Sequence[str], tokenizer: Tokenizer, cache: dict[str, list[int]]
) -> tuple[list[int], np.ndarray]:
    """Return the token ids of a sentence, and the index of each word's first token, int64 [N]."""
    ids: list[int] = []
    starts = []
    for word in words:
        if word not in cache:
            cache[word] = tokenizer.encode(word) or [tokenizer.unk_id]
        starts.append(len(ids))
        ids += cache[word]
    return ids, np.array(starts, np.int64)


def _document_bounds(sentences: Sequence[TaggedSentence]) -> list[tuple[int, int]]:
    """Return for each sentence the range [first, stop) of the sentences of its document."""
    documents = np.array([sentence.document for sentence in sentences], np.int64)
    first = np.searchsorted(documents, documents, side="left")
    stop = np.searchsorted(documents, documents, side="right")
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def _widen_span(begin: int, end: int, room: int, lower: int, upper: int) -> tuple[int, int]:
    """Return the span widened to `room` within [lower, upper), equally on both sides."""
    spare = room - (end - begin)
    before = min(begin - lower, max(spare // 2, spare - (upper - end)))
    return begin - before, min(upper, end + spare - before)
