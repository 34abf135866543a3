"""Documents to rows of an index, and the index to shards: what every way of preparing shares.

A document is cut into sentences and tokenised by itself. Sentences are short of any row: one of
more than `MAX_SENTENCE_TOKENS` pieces (a script without full stops, a table, a list) is divided. A row of the
index tells where a document's ids are, how many, and the hash of its text. What needs to know the
whole corpus is decided from the index alone: which documents are duplicates, which are held out,
how many shards there are and which document goes into which.
"""

import hashlib
import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.filters import KEEP_ALL, NUM_BANDS, Filters, is_near_duplicate
from data_pipelines.errors import InputError
from data_pipelines.text.sentence_splitting import split_sentences

INDEX = np.dtype(  # a row for each document read
    [
        ("hash", "<u8", 2),  # of the text
        ("start", "<i8"),  # byte of the payload where its record starts:
        ("size", "<i8"),  # the sentences' lengths (int32), then the ids
        ("sentences", "<i8"),
        ("tokens", "<i8"),
        ("unknown", "<i8"),  # tokens that are [UNK]
        ("empty", "<i8"),  # sentences that gave no piece
        ("long", "<i8"),  # sentences that were longer than LONGEST
        ("bytes", "<i8"),  # of text
        ("is_other_language", "?"),  # in a language that is not kept
    ]
)
_LENGTH = np.dtype("<i4")
MAX_SENTENCE_TOKENS = 64  # pieces of a sentence

# A shard is worth a file from so many documents and pieces on. Readers keep every shard open: the
# number of shards stays well below the usual limit on open files.
_TRAIN_DOCUMENTS, _TRAIN_PIECES, _HELDOUT_DOCUMENTS, _MOST_SHARDS = 256, 100_000, 16, 256
MAX_SHARD_IMBALANCE = (
    0.02  # how many more pieces the largest shard has than the smallest, if we choose
)

ShardAssignment = dict[
    str, list[np.ndarray]
]  # split -> for each shard, the index rows of its documents


def index_dtype(filters: Filters) -> np.dtype:
    """That of an index: `INDEX`, and hashes of the text where near duplicates are looked for."""
    if not filters.near_dedup:
        return INDEX
    return np.dtype([*INDEX.descr, ("bands", "<u8", (NUM_BANDS,))])


def encode_documents(
    documents: Sequence[str], encoder: BulkEncoder, filters: Filters = KEEP_ALL
) -> tuple[np.ndarray, bytes]:
    """Tokenise documents: their rows of an index [d], and the payload that the rows point into.

    Args:
      documents: texts [d], their lines apart by line feeds; a sentence ends with its line at the
        latest.
      encoder: gives the ids.
      filters: what the rows tell of the text.
    """
    sentences = [
        [s for line in text.split("\n") for s in split_sentences(line)] for text in documents
    ]
    tokens, lengths = encoder([s for document in sentences for s in document])
    ends = np.cumsum([len(document) for document in sentences])  # of documents
    empty, long = (
        _sums_before(ends, lengths == 0),
        _sums_before(ends, lengths > MAX_SENTENCE_TOKENS),
    )
    if long[-1]:
        lengths, parts_of = split_long_sentences(tokens, lengths, encoder.tokenizer.is_continuation)
        ends = _sums_before(ends, parts_of)
    kept = _sums_before(ends, lengths > 0)
    token_ends = _sums_before(ends, lengths)
    texts = [text.encode(errors="surrogatepass") for text in documents]
    index = np.zeros(len(documents), index_dtype(filters))
    index["is_other_language"] = filters.is_other_language(documents)
    if filters.near_dedup:
        index["bands"] = filters.bands(documents)
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    index["hash"] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    index["sentences"] = np.diff(kept, prepend=0)
    index["tokens"] = np.diff(token_ends, prepend=0)
    index["unknown"] = np.diff(
        _sums_before(token_ends, tokens == encoder.tokenizer.unk_id), prepend=0
    )
    index["empty"] = np.diff(empty, prepend=0)
    index["long"] = np.diff(long, prepend=0)
    index["bytes"] = [len(text) for text in texts]

    parts = lengths[lengths > 0].astype(_LENGTH).tobytes(), tokens.tobytes()
    cuts = [kept * _LENGTH.itemsize, token_ends * tokens.itemsize]
    index["size"] = np.diff(cuts[0] + cuts[1], prepend=0)
    index["start"] = np.cumsum(index["size"]) - index["size"]
    payload = bytearray()
    at: tuple[int, ...] = (0, 0)
    for to in zip(*(cut.tolist() for cut in cuts), strict=True):
        for part, begin, end in zip(parts, at, to, strict=True):
            payload += part[begin:end]
        at = to
    return index, bytes(payload)


def split_long_sentences(
    tokens: np.ndarray, lengths: np.ndarray, is_continuation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts what is longer than `MAX_SENTENCE_TOKENS` into parts of about equal length, none longer than that.

    A part begins with a word if one begins in the second half of the part before it.

    Args:
      tokens: the ids [n] of all sentences.
      lengths: int64 [s], how many of them each sentence has.
      continues: bool [vocabulary], the pieces that continue a word.

    Returns:
      The lengths of sentences and parts, and how many of them each sentence became, int64 [s].
    """
    found: list[np.ndarray] = []
    parts_of = np.ones(len(lengths), np.int64)
    ends = np.cumsum(lengths)
    done = 0
    for sentence in np.flatnonzero(lengths > MAX_SENTENCE_TOKENS).tolist():
        at, end = int(ends[sentence] - lengths[sentence]), int(ends[sentence])
        words = ~is_continuation[tokens[at:end]]
        begin = np.maximum.accumulate(np.where(words, np.arange(at, end), -1)).tolist()
        first, cuts = at, [at]
        while end - at > MAX_SENTENCE_TOKENS:
            size = -(-(end - at) // -(-(end - at) // MAX_SENTENCE_TOKENS))
            word = begin[at + size - first]
            at = word if word - at > size // 2 else at + size
            cuts.append(at)
        found += [lengths[done:sentence], np.diff([*cuts, end])]
        parts_of[sentence] = len(cuts)
        done = sentence + 1
    return np.concatenate([*found, lengths[done:]]), parts_of


def _sums_before(ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sums of `values` before each of `ends`, int64."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[ends]


def unpack_documents(
    rows: np.ndarray, records: Iterable[bytes | memoryview], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """The token ids [n] of documents and the lengths [s] of their sentences.

    Args:
      rows: of `INDEX`, one a document.
      records: what the rows point to.
    """
    cuts = (rows["sentences"] * _LENGTH.itemsize).tolist()
    pairs = [(record[:cut], record[cut:]) for record, cut in zip(records, cuts, strict=True)]
    lengths, tokens = (b"".join(parts) for parts in zip(*pairs, strict=True))
    return np.frombuffer(tokens, dtype), np.frombuffer(lengths, _LENGTH)


def assign_shards(
    index: np.ndarray,
    eval_fraction: float,
    dedup: bool,
    shards: int | None,
    filters: Filters = KEEP_ALL,
) -> ShardAssignment:
    """Which documents go where: the rows of `index` for each shard of each split.

    Documents that the filters do not keep are left out. A document is held out if its hash, as a
    number in [0, 1), is below `eval_fraction`, and if that are fewer than two, the two texts of the
    least hashes are: equal texts are never on both sides. The shards of a split have about as many
    pieces each, so that they are passed over about as often.

    Raises:
      InputError: a shard would have fewer than the two documents that a random next sentence needs.
    """
    rows = np.flatnonzero(
        (index["tokens"] >= filters.min_document_tokens) & ~index["is_other_language"]
    )
    if dedup:
        order = np.lexsort(index["hash"][rows].T)  # stable: the first of equals stays first
        ordered = index["hash"][rows[order]]
        again = np.zeros(len(rows), bool)
        again[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        rows = rows[~again]
    if filters.near_dedup:
        rows = rows[~is_near_duplicate(index["bands"][rows])]
    if len(rows) < 2:
        number = "no document with text in it" if not len(rows) else "one document only"
        raise InputError(
            f"the input holds {number}, and a random next sentence comes from another document: "
            "give two or more, a blank line between them."
        )
    place = (index["hash"][rows, 0] >> np.uint64(11)) * 2.0**-53
    held = place < eval_fraction
    if eval_fraction and np.count_nonzero(held) < 2:
        held = place <= np.unique(place)[:2][-1]
    splits = {"train": rows[~held], "eval": rows[held]}
    for split, part in splits.items():
        if len(part) < 2 and (split == "train" or eval_fraction):
            raise InputError(
                f"eval_fraction={eval_fraction} puts {len(part)} of {len(rows)} documents into the {split} "
                "split, which needs two or more: choose another share, or 0 to hold out none."
            )
    train_documents, eval_documents = splits.values()
    tokens = index["tokens"]
    if shards is None:
        worthwhile = int(tokens[train_documents].sum()) // _TRAIN_PIECES
        most = _shard_count(min(len(train_documents) // _TRAIN_DOCUMENTS, worthwhile))
        dealt = _balance_up_to_shards(most, train_documents, tokens, MAX_SHARD_IMBALANCE)
    else:
        if 2 * shards > len(train_documents):
            raise InputError(
                f"shards={shards} is too many for {len(train_documents)} train documents, as a shard needs "
                f"two: choose {len(train_documents) // 2} or fewer."
            )
        dealt = _balance_shards(train_documents, tokens, shards)
    most = min(len(dealt), _shard_count(len(eval_documents) // _HELDOUT_DOCUMENTS))
    return {
        "train": dealt,
        "eval": _balance_up_to_shards(most, eval_documents, tokens, math.inf)
        if eval_fraction
        else [],
    }


def _balance_up_to_shards(
    shards: int, rows: np.ndarray, tokens: np.ndarray, max_imbalance: float
) -> list[np.ndarray]:
    """Deals to half as many shards until they are even."""
    while True:
        dealt = _balance_shards(rows, tokens, shards)
        sizes = [int(tokens[part].sum()) for part in dealt]
        if shards == 1 or max(sizes) <= (1 + max_imbalance) * min(sizes):
            return dealt
        shards //= 2


def _balance_shards(rows: np.ndarray, tokens: np.ndarray, shards: int) -> list[np.ndarray]:
    """Rows for each shard, rising: the longest document first, each to the shard with the least.

    Of the shortest documents every shard has one, so that two are in each if there are so many.
    """
    order = np.argsort(-tokens[rows], kind="stable")
    sizes = tokens[rows[order]].tolist()
    lightest = [(0, shard) for shard in range(shards)]
    dealt = []
    for size in sizes[: max(0, len(rows) - shards)]:
        held, shard = lightest[0]
        dealt.append(shard)
        heapq.heapreplace(lightest, (held + size, shard))
    dealt += [shard for _, shard in sorted(lightest)][: len(rows) - len(dealt)]
    shard_of = np.empty(len(rows), np.int64)
    shard_of[order] = dealt
    ends = np.cumsum(np.bincount(shard_of, minlength=shards))
    return np.split(rows[np.argsort(shard_of, kind="stable")], ends[:-1])


def _shard_count(worthwhile: int) -> int:
    """The largest power of two up to `worthwhile`, at least 1, at most `_MOST_SHARDS`."""
    return min(_MOST_SHARDS, 1 << max(0, worthwhile.bit_length() - 1))


def count(
    index: np.ndarray, assignment: ShardAssignment, filters: Filters = KEEP_ALL
) -> dict[str, int | float]:
    """What the manifest tells of the whole corpus, both splits together."""
    kept = index[np.concatenate([rows for parts in assignment.values() for rows in parts])]
    names = ("sentences", "tokens", "unknown", "empty", "long", "bytes")
    sentences, tokens, unknown, empty, long, size = (int(kept[n].sum()) for n in names)
    empty = int(np.count_nonzero(index["tokens"] == 0))
    short = int(np.count_nonzero(index["tokens"] < filters.min_document_tokens)) - empty
    is_other_language = int(
        np.count_nonzero(
            index["is_other_language"] & (index["tokens"] >= filters.min_document_tokens)
        )
    )
    return {
        "documents": len(kept),
        "sentences": sentences,
        "tokens": tokens,
        "text_bytes": size,
        "unk_fraction": unknown / tokens,
        "empty_sentences": empty,
        "long_sentences": long,
        "empty_documents": empty,
        "short_documents": short,
        "other_language_documents": is_other_language,
        "duplicate_documents": len(index) - empty - short - is_other_language - len(kept),
    }
