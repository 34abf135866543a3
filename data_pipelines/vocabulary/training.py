"""Vocabulary training: WordPiece by merging frequent pairs, or a SentencePiece model.

The WordPiece trainer of BERT was not released. This one starts from single characters and merges
the most frequent pair of adjacent tokens (byte-pair encoding, Sennrich et al. 2016) until the
vocabulary has its size. Ties go to the older tokens, so the same text always gives the same
vocabulary; the trainers of common libraries do not guarantee this.
"""

import heapq
import io
import itertools
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sentencepiece
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes
from data_pipelines.vocabulary.counting import (
    count_words,
    reweight_counts,
    sentencepiece_splitters,
    wordpiece_splitters,
)
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX, MAX_INPUT_CHARS_PER_WORD

log = logging.getLogger(__name__)

MIN_SIZE_WITH_UNUSED = 2_000  # from this size on, ids 1-99 are [unusedN], as in BERT
MIN_CHARACTER_FREQUENCY = 1e-6  # minimum fraction of the text of a character in the vocabulary
MIN_FREQUENCY = 2  # minimum number of occurrences of a token


def train_vocabulary(
    corpora: Sequence[Iterable[str]],
    *,
    size: int,
    cased: bool,
    kind: str,
    output: epath.PathLike,
    sampling_alpha: float = 1.0,
    workers: int | None = 1,
) -> epath.Path:
    """Train a vocabulary and write it atomically.

    Args:
      corpora: texts, each in parts of any length; read once.
      size: exact number of tokens, including special tokens.
      cased: False lower-cases text.
      kind: "wordpiece", or "bpe" or "unigram" for a SentencePiece model.
      output: the file; the name of a SentencePiece model ends in `.model`.
      sampling_alpha: exponent of the mixture of the corpora; see `counting.reweight_counts`.
      workers: processes that count words; None for one per core.

    Returns:
      The path of the file.

    Raises:
      InputError: the kind is unknown or does not match the file name. The text has no words. The
        size is too small, or too large for the text.
    """
    if kind not in ("wordpiece", "bpe", "unigram"):
        raise InputError(f"kind={kind!r}: unknown value. Choose wordpiece, bpe or unigram.")
    output = epath.Path(output)
    if (output.suffix == ".model") != (kind != "wordpiece"):
        rule = "must not end" if kind == "wordpiece" else "must end"
        raise InputError(f"{output}: the name of a {kind} vocabulary {rule} in .model. Rename it.")
    if size <= len(SPECIAL_TOKENS):
        raise InputError(
            f"vocab_size={size}: only room for special tokens. Use thousands of tokens."
        )
    if output.is_dir():
        raise InputError(f"{output}: is a directory. Name the file to write.")
    splitters = wordpiece_splitters(cased) if kind == "wordpiece" else sentencepiece_splitters()
    corpus_counts = [count_words(lines, *splitters, workers=workers) for lines in corpora]
    counts = reweight_counts(corpus_counts, sampling_alpha)
    if kind == "wordpiece":
        content = ("\n".join(wordpiece_from_counts(counts, size)) + "\n").encode()
    else:
        content = sentencepiece_from_counts(counts, size, kind=kind, cased=cased)
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(output, content)
    return output


# ---------------------------------------------------------------- WordPiece


def wordpiece_from_counts(counts: Mapping[str, int], size: int) -> list[str]:
    """Train a WordPiece vocabulary of exactly `size` tokens from word counts.

    Special tokens come first (with [unusedN] as in BERT, from 2,000 tokens on). Frequent characters
    follow, each alone and as a continuation, most frequent first; then longer tokens in the order
    of their merges. A character is frequent if it makes up a millionth of the text. Characters take
    at most half of the vocabulary as long as longer tokens can fill it.

    Args:
      counts: integer count of each word (as `basic_tokenize` returns it).
      size: number of tokens.

    Raises:
      InputError: the words do not give so many tokens; the error names the largest size.
    """
    reserved = _reserved_tokens(size)
    room = size - len(reserved)
    frequent = _frequent_characters(counts)
    tokens = _merge(counts, frequent[: room // 4], room)
    if len(tokens) < room:
        tokens = _merge(counts, frequent, room)
    if len(tokens) < room:
        raise InputError(
            f"vocab_size={size}: the text is too small. Use at most {_largest_size(len(tokens))}."
        )
    return reserved + tokens[:room]


def _reserved_tokens(size: int) -> list[str]:
    if size < MIN_SIZE_WITH_UNUSED:
        return list(SPECIAL_TOKENS)
    pad, *others = SPECIAL_TOKENS
    return [pad, *(f"[unused{i}]" for i in range(99)), *others]


def _largest_size(tokens: int) -> int:
    """Return the largest size that `tokens` tokens and the reserved ones of that size fill."""
    with_unused = tokens + len(_reserved_tokens(MIN_SIZE_WITH_UNUSED))
    if with_unused >= MIN_SIZE_WITH_UNUSED:
        return with_unused
    return min(tokens + len(SPECIAL_TOKENS), MIN_SIZE_WITH_UNUSED - 1)


def _frequent_characters(counts: Mapping[str, int]) -> list[str]:
    """Return the frequent characters, most frequent first; ties by code point."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    min_count = max(MIN_FREQUENCY, MIN_CHARACTER_FREQUENCY * characters.total())
    frequent = [
        char
        for char, count in characters.items()
        if count >= min_count and not "\ud800" <= char <= "\udfff"  # surrogates have no UTF-8
    ]
    return sorted(frequent, key=lambda char: (-characters[char], char))


def _merge(counts: Mapping[str, int], alphabet: list[str], room: int) -> list[str]:
    """Return up to `room` tokens: the alphabet, then merged tokens while a pair occurs twice.

    `pair_counts` has the number of occurrences of each pair of adjacent tokens, `pair_words` the
    words in which it may occur. The heap has an entry for every pair; its count may be outdated and
    is corrected when the entry is popped.
    """
    tokens = [token for char in alphabet for token in (char, CONTINUATION_PREFIX + char)]
    index = {token: i for i, token in enumerate(tokens)}
    words, word_counts = _split_into_characters(counts, index)
    pair_counts: Counter[tuple[int, int]] = Counter()
    pair_words: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (word, count) in enumerate(zip(words, word_counts, strict=True)):
        for pair in itertools.pairwise(word):
            pair_counts[pair] += count
            pair_words[pair].append(number)
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    while heap and len(tokens) < room:
        negative, pair = heapq.heappop(heap)
        count = pair_counts[pair]
        if count < MIN_FREQUENCY:
            continue
        if count != -negative:
            heapq.heappush(heap, (-count, pair))
            continue
        token = tokens[pair[0]] + tokens[pair[1]].removeprefix(CONTINUATION_PREFIX)
        merged = index.setdefault(token, len(tokens))  # two pairs may spell the same token
        if merged == len(tokens):
            tokens.append(token)
            if len(tokens) % 5_000 == 0:
                log.info("%d of %d tokens", len(tokens), room)
        new_pairs = set()
        for number in pair_words.pop(pair):
            word = words[number]
            shorter = _merge_pair(word, pair, merged)
            if len(shorter) == len(word):
                continue  # an earlier merge took one of the two tokens
            count = word_counts[number]
            for old_pair in itertools.pairwise(word):
                pair_counts[old_pair] -= count
            for new_pair in itertools.pairwise(shorter):
                pair_counts[new_pair] += count
                if merged in new_pair:
                    pair_words[new_pair].append(number)
                    new_pairs.add(new_pair)
            words[number] = shorter
        for new_pair in new_pairs:
            heapq.heappush(heap, (-pair_counts[new_pair], new_pair))
    return tokens


def _split_into_characters(
    counts: Mapping[str, int], index: Mapping[str, int]
) -> tuple[list[list[int]], list[int]]:
    """Return the words as character tokens, and their counts; words that stay [UNK] are omitted."""
    words, word_counts = [], []
    for word, count in counts.items():
        spelling = [word[0], *(CONTINUATION_PREFIX + char for char in word[1:])]
        if len(word) <= MAX_INPUT_CHARS_PER_WORD and all(token in index for token in spelling):
            words.append([index[token] for token in spelling])
            word_counts.append(count)
    return words, word_counts


def _merge_pair(word: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    """Replace every occurrence of the pair, from left to right, by one token."""
    shorter = []
    i = 0
    while i < len(word):
        if word[i] == pair[0] and i + 1 < len(word) and word[i + 1] == pair[1]:
            shorter.append(merged)
            i += 2
        else:
            shorter.append(word[i])
            i += 1
    return shorter


# ---------------------------------------------------------------- SentencePiece


def sentencepiece_from_counts(
    counts: Mapping[str, int], size: int, *, kind: str, cased: bool
) -> bytes:
    """Train a SentencePiece model of exactly `size` tokens from word counts.

    Special tokens are control symbols, so that no text contains them. Text is normalized to NFKC
    and, without `cased`, case-folded. Tokens do not cross spaces.

    Args:
      counts: integer count of each word.
      size: number of tokens.
      kind: "bpe" or "unigram".
      cased: False case-folds text.

    Returns:
      The content of a `.model` file.

    Raises:
      InputError: the words do not give this size; the error names the nearest possible one.
    """
    pad, unk, *others = SPECIAL_TOKENS
    model = io.BytesIO()
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(_tsv(word, count) for word, count in words),
            input_format="tsv",
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            normalization_rule_name="nmt_nfkc" if cased else "nmt_nfkc_cf",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=pad,
            unk_piece=unk,
            control_symbols=others,
            max_sentence_length=1 << 30,  # bytes; longer ones are dropped silently
            num_threads=16,  # fixed, since sums over threads depend on their number
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(_size_advice(size, str(error))) from error
    return model.getvalue()


def _tsv(word: str, count: int) -> str:
    # Lone surrogates have no UTF-8 encoding: they become question marks.
    return f"{word.encode('utf-8', 'replace').decode()}\t{count}"


def _size_advice(size: int, message: str) -> str:
    if largest := re.search(r"value <= (\d+)", message):
        return f"vocab_size={size}: the text is too small. Use at most {largest[1]}."
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"vocab_size={size}: too small for all characters. Use at least {needed[1]}."
    return f"vocab_size={size}: SentencePiece failed ({message}). Use another size."
