"""Sentences of words to examples of pieces, of which the first of each word is said something."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import Examples, Target
from data_pipelines.finetuning.token_classification import TaggedSentence
from data_pipelines.finetuning.windows import max_context_windows, window_starts
from data_pipelines.vocabulary.tokenization import Tokenizer

CONTEXTS = ("sentence", "document")


@dataclasses.dataclass(frozen=True)
class WordExamples(Examples):
    """Sentences, or windows of them, as examples.

    Attributes:
      pieces: int64 [N], for each word of all sentences the number, among the pieces of all
        examples, of the first one that it has: in the window that shows most around it.
      windowed: sentences that are in several windows.
    """

    tokens: np.ndarray
    num_windowed: int

    def with_tags(self, tags: np.ndarray) -> "WordExamples":
        """With a target, "token_labels", from the number of each word's, int32 [N]; below 0 for none."""
        return dataclasses.replace(
            self, targets=token_label_target(len(self.ids), self.tokens, tags)
        )


def token_label_target(count: int, tokens: np.ndarray, tags: np.ndarray) -> dict[str, Target]:
    """The target of `count` pieces, of which some have tags; see `WordExamples`."""
    values, weights = np.zeros(count, np.int32), np.zeros(count, np.float32)
    values[tokens], weights[tokens] = np.maximum(tags, 0), tags >= 0
    return {"token_labels": Target("pieces", values, weights)}


def encode_tagged_words(
    sentences: Sequence[TaggedSentence],
    tokenizer: Tokenizer,
    max_seq_length: int,
    context: str = "sentence",
) -> WordExamples:
    """The examples of sentences: [CLS] pieces [SEP], without targets.

    Each word is tokenised by itself; one without pieces is an unknown one. A sentence that is too
    long is read in windows, each half a window on.

    Args:
      max_seq_length: pieces of an example, at most.
      context: "document" fills an example up with what stands before and after the sentence in its
        document, as much on either side (paper, section 5.3); "sentence" leaves it alone.
    Raises:
      InputError: there is no room, or no such context.
    """
    if context not in CONTEXTS:
        raise InputError(f"data.context={context!r} must be one of {', '.join(CONTEXTS)}.")
    room = max_seq_length - 2
    if room < 1:
        raise InputError(f"max_seq_length={max_seq_length} leaves no room for words: raise it.")
    ids: list[int] = []
    lengths: list[int] = []
    first_pieces: list[np.ndarray] = []
    num_windowed = 0
    known: dict[str, list[int]] = {}
    whole = [_tokenize_words(sentence.words, tokenizer, known) for sentence in sentences]
    bounds = np.cumsum([0, *(len(each) for each, _ in whole)])
    flat = [token for each, _ in whole for token in each]
    ends = _document_bounds(sentences)
    for number, (tokens, starts) in enumerate(whole):
        begin, end = int(bounds[number]), int(bounds[number + 1])
        if len(tokens) > room:
            firsts = window_starts(len(tokens), room, max(1, room // 2))
            num_windowed += 1
            spans = [(begin + first, min(begin + first + room, end)) for first in firsts]
        elif context == "document":
            lower, upper = (int(bounds[at]) for at in ends[number])
            spans = [_widen_span(begin, end, room, lower, upper)]
        else:
            spans = [(begin, end)]
        sizes = [stop - start for start, stop in spans]
        offsets = [start - begin for start, _ in spans]
        if len(spans) > 1:
            window = max_context_windows(offsets, sizes, len(tokens))[starts]
        else:
            window = np.zeros(len(starts), np.int64)
        # Where each window's first piece of text lies among those of all examples.
        bases = len(ids) + 1 + np.cumsum([0, *(size + 2 for size in sizes)])[:-1]
        first_pieces.append(bases[window] + starts - np.array(offsets)[window])
        for (start, stop), size in zip(spans, sizes, strict=True):
            ids += [tokenizer.cls_id, *flat[start:stop], tokenizer.sep_id]
            lengths.append(size + 2)
    sizes_of = np.array(lengths, np.int64)
    pieces_of = np.concatenate(first_pieces) if first_pieces else np.zeros(0, np.int64)
    return WordExamples(np.array(ids, np.int32), sizes_of, sizes_of, {}, pieces_of, num_windowed)


def _tokenize_words(
    words: Sequence[str], tokenizer: Tokenizer, known: dict[str, list[int]]
) -> tuple[list[int], np.ndarray]:
    """The pieces of a sentence, and where each word begins among them, int64 [N]."""
    found: list[int] = []
    starts = []
    for word in words:
        if word not in known:
            known[word] = tokenizer.encode(word) or [tokenizer.unk_id]
        starts.append(len(found))
        found += known[word]
    return found, np.array(starts, np.int64)


def _document_bounds(sentences: Sequence[TaggedSentence]) -> list[tuple[int, int]]:
    """For each sentence the first of its document, and the one after its last."""
    numbers = np.array([sentence.document for sentence in sentences], np.int64)
    first = np.searchsorted(numbers, numbers, side="left")
    last = np.searchsorted(numbers, numbers, side="right")
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _widen_span(begin: int, end: int, room: int, lower: int, upper: int) -> tuple[int, int]:
    """A span made as long as there is room for, within bounds, as much on either side."""
    spare = room - (end - begin)
    before = min(begin - lower, max(spare // 2, spare - (upper - end)))
    return begin - before, min(upper, end + spare - before)
