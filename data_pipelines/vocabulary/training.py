"""Trains a vocabulary from text: WordPiece by merging frequent pairs, or a SentencePiece model.

BERT's authors never released their trainer. This one starts from the single characters and joins,
again and again, the two neighbouring pieces that occur together most often (as byte-pair encoding
does, Sennrich et al. 2016), until the vocabulary has its size. Ties go to the pieces that are
older, so the same text always gives the same vocabulary, which the trainers of common libraries
do not promise.
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
from data_pipelines.paths import atomic_write
from data_pipelines.vocabulary.counting import (
    count_words,
    reweight_counts,
    sentencepiece_splitters,
    wordpiece_splitters,
)
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX, MAX_INPUT_CHARS_PER_WORD

log = logging.getLogger(__name__)

MIN_SIZE_WITH_UNUSED = 2_000  # from this size on, ids 1-99 are left to [unusedN], as in BERT
MIN_CHARACTER_FREQUENCY = 1e-6  # share of the text from which on a character is in the vocabulary
MIN_FREQUENCY = 2  # a piece that occurs less often than this cannot be learned


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
    """Trains a vocabulary and writes it, whole or not at all; what was there stays until then.

    Args:
      corpora: texts, each in parts of any length. Read once.
      size: the number of pieces, special ones included; exactly so many are written.
      cased: whether case is kept.
      kind: "wordpiece", or "bpe" or "unigram" for a SentencePiece model.
      output: the file; a SentencePiece model's name ends in `.model`.
      smoothing: weights the corpora; see `counting.smoothed`.
      workers: processes that count words; None for one a core.

    Returns:
      The path of the file.

    Raises:
      InputError: an unknown kind, a name that does not go with it, a text without words, or a
        size that is too small, or too large for the text.
    """
    if kind not in ("wordpiece", "bpe", "unigram"):
        raise InputError(f"unknown kind of vocabulary {kind!r}; choose wordpiece, bpe or unigram")
    output = epath.Path(output)
    if (output.suffix == ".model") != (kind != "wordpiece"):
        rule = "must not end" if kind == "wordpiece" else "must end"
        raise InputError(f"the name of a {kind} vocabulary {rule} in .model, but it is {output}")
    if size <= len(SPECIAL_TOKENS):
        raise InputError(f"a vocabulary of {size} pieces is too small; a useful one has thousands")
    if output.is_dir():
        raise InputError(f"{output} is a directory; give the name of the file to write")
    cuts = wordpiece_splitters(cased) if kind == "wordpiece" else sentencepiece_splitters()
    counted = [count_words(lines, *cuts, workers=workers) for lines in corpora]
    counts = reweight_counts(counted, sampling_alpha)
    if kind == "wordpiece":
        content = ("\n".join(wordpiece_from_counts(counts, size)) + "\n").encode()
    else:
        content = sentencepiece_from_counts(counts, size, kind=kind, cased=cased)
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as partial:
        partial.write_bytes(content)
    return output


# ---------------------------------------------------------------- WordPiece


def wordpiece_from_counts(counts: Mapping[str, int], size: int) -> list[str]:
    """The pieces of a WordPiece vocabulary of exactly `size` pieces, for words and their counts.

    In order: the special pieces (with [unusedN] where BERT has them, from 2,000 pieces on), the
    frequent characters, each alone and as a continuation, most frequent first, then longer pieces
    in the order in which they were joined. A character is frequent if it makes up a millionth of
    the text; characters take no more than half of the vocabulary as long as there are longer
    pieces to fill it.

    Args:
      counts: how often each word (as `basic_tokenize` gives it) occurs, in whole numbers.
      size: the number of pieces.

    Raises:
      InputError: the words cannot give so many pieces; the largest size that they can is named.
    """
    reserved = _reserved_pieces(size)
    room = size - len(reserved)
    frequent = _frequent_characters(counts)
    tokens = _merge(counts, frequent[: room // 4], room)
    if len(tokens) < room:
        tokens = _merge(counts, frequent, room)
    if len(tokens) < room:
        raise InputError(
            f"the text is too small for a vocabulary of {size} pieces: the largest size it can "
            f"give is {_largest_size(len(tokens))}"
        )
    return reserved + tokens[:room]


def _reserved_pieces(size: int) -> list[str]:
    if size < MIN_SIZE_WITH_UNUSED:
        return list(SPECIAL_TOKENS)
    pad, *others = SPECIAL_TOKENS
    return [pad, *(f"[unused{i}]" for i in range(99)), *others]


def _largest_size(tokens: int) -> int:
    """The largest size for which so many pieces, and the reserved ones of that size, suffice."""
    with_unused = tokens + len(_reserved_pieces(MIN_SIZE_WITH_UNUSED))
    if with_unused >= MIN_SIZE_WITH_UNUSED:
        return with_unused
    return min(tokens + len(SPECIAL_TOKENS), MIN_SIZE_WITH_UNUSED - 1)


def _frequent_characters(counts: Mapping[str, int]) -> list[str]:
    """The frequent characters, most frequent first; ties by code point."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    fewest = max(MIN_FREQUENCY, MIN_CHARACTER_FREQUENCY * characters.total())
    frequent = [
        char
        for char, count in characters.items()
        if count >= fewest and not "\ud800" <= char <= "\udfff"  # half a character has no UTF-8
    ]
    return sorted(frequent, key=lambda char: (-characters[char], char))


def _merge(counts: Mapping[str, int], alphabet: list[str], room: int) -> list[str]:
    """Up to `room` pieces: the alphabet, then joined pieces as long as some pair occurs twice.

    A piece is known by its place in the list of pieces. `pair_counts` holds how often two pieces
    stand side by side, `places` in which words they may; the heap holds every pair with a count
    that was right once, and an entry that is out of date is put right when it comes up.
    """
    tokens = [token for char in alphabet for token in (char, CONTINUATION_PREFIX + char)]
    index = {token: i for i, token in enumerate(tokens)}
    words, word_counts = _split_into_characters(counts, index)
    pair_counts: Counter[tuple[int, int]] = Counter()
    places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (word, count) in enumerate(zip(words, word_counts, strict=True)):
        for pair in itertools.pairwise(word):
            pair_counts[pair] += count
            places[pair].append(place)
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
        joined = index.setdefault(token, len(tokens))  # two pairs may spell the same piece
        if joined == len(tokens):
            tokens.append(token)
            if len(tokens) % 5_000 == 0:
                log.info("%d of %d pieces", len(tokens), room)
        grown = set()
        for place in places.pop(pair):
            word = words[place]
            shorter = _merge_pair(word, pair, joined)
            if len(shorter) == len(word):
                continue  # the pair was here until another took one of its pieces
            count = word_counts[place]
            for old in itertools.pairwise(word):
                pair_counts[old] -= count
            for new in itertools.pairwise(shorter):
                pair_counts[new] += count
                if joined in new:
                    places[new].append(place)
                    grown.add(new)
            words[place] = shorter
        for new in grown:
            heapq.heappush(heap, (-pair_counts[new], new))
    return tokens


def _split_into_characters(
    counts: Mapping[str, int], index: Mapping[str, int]
) -> tuple[list[list[int]], list[int]]:
    """The words as their characters' pieces, and their counts; without those that stay [UNK]."""
    words, word_counts = [], []
    for word, count in counts.items():
        spelling = [word[0], *(CONTINUATION_PREFIX + char for char in word[1:])]
        if len(word) <= MAX_INPUT_CHARS_PER_WORD and all(token in index for token in spelling):
            words.append([index[token] for token in spelling])
            word_counts.append(count)
    return words, word_counts


def _merge_pair(word: list[int], pair: tuple[int, int], joined: int) -> list[int]:
    """The word with every occurrence of the pair, from left to right, replaced by one piece."""
    shorter = []
    i = 0
    while i < len(word):
        if word[i] == pair[0] and i + 1 < len(word) and word[i + 1] == pair[1]:
            shorter.append(joined)
            i += 2
        else:
            shorter.append(word[i])
            i += 1
    return shorter


# ---------------------------------------------------------------- SentencePiece


def sentencepiece_from_counts(
    counts: Mapping[str, int], size: int, *, kind: str, cased: bool
) -> bytes:
    """A SentencePiece model (kind "bpe" or "unigram") of exactly `size` pieces, from word counts.

    The special pieces are control symbols, so that no text can spell them. The text is brought to
    NFKC; without `cased`, it is case-folded too. Pieces do not span spaces.

    Raises:
      InputError: a size that the words cannot give; the nearest one that they can is named.
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
            max_sentence_length=1 << 30,  # bytes; a longer one would be left out in silence
            num_threads=16,  # fixed, because sums over threads depend on their number
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(_size_advice(size, str(error))) from error
    return model.getvalue()


def _tsv(word: str, count: int) -> str:
    # Half of a surrogate pair has no UTF-8: it becomes a question mark.
    return f"{word.encode('utf-8', 'replace').decode()}\t{count}"


def _size_advice(size: int, message: str) -> str:
    if largest := re.search(r"value <= (\d+)", message):
        return (
            f"the text is too small for a vocabulary of {size} pieces: the largest size it can "
            f"give is {largest[1]}"
        )
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {size} pieces is too small for the characters of the text; ask for "
            f"{needed[1]} at least"
        )
    return f"SentencePiece could not train a vocabulary of {size} pieces: {message}"
