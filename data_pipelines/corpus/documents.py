"""Documents to index rows, and the index to shards: shared by all ways of preparation.

Each document is split into sentences and tokenized independently. Sentences are shorter than any
sequence: a sentence of more than `MAX_SENTENCE_TOKENS` tokens (a script without full stops, a
table, a list) is split. A row of the index has the location and number of a document's ids and the
hash of its text. All decisions about the whole corpus use the index alone: duplicates, the eval
split, the number of shards and the shard of each document.
"""

import hashlib
import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.filters import KEEP_ALL, NUM_BANDS, Filters, is_near_duplicate
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.shards import shard_name
from data_pipelines.errors import InputError
from data_pipelines.ranges import concatenate_ranges
from data_pipelines.text.sentence_splitting import split_sentences
from data_pipelines.vocabulary.tokenization import Tokenizer

INDEX = np.dtype(  # one row per document
    [
        ("hash", "<u8", 2),  # of the text
        ("start", "<i8"),  # offset of the record in the payload, in bytes
        ("size", "<i8"),  # of the record: lengths of sentences, spans (both int32), ids
        ("sentences", "<i8"),
        ("tokens", "<i8"),
        ("unknown", "<i8"),  # tokens that are [UNK]
        ("empty", "<i8"),  # sentences without tokens
        ("long", "<i8"),  # sentences longer than MAX_SENTENCE_TOKENS
        ("bytes", "<i8"),  # of the text
        ("is_other_language", "?"),  # not in a language that is kept
        ("is_random", "?"),  # a pair (see `tf_examples`) of texts of two documents
    ]
)
LENGTH_DTYPE = np.dtype("<i4")
MAX_SENTENCE_TOKENS = 64

# Minimum documents and tokens of a shard, if the number of shards is chosen here. Readers keep
# every shard open, so the number stays well below the usual limit on open files.
_MIN_TRAIN_DOCUMENTS, _MIN_TRAIN_TOKENS, _MIN_EVAL_DOCUMENTS, _MAX_SHARDS = 256, 100_000, 16, 256
MAX_SHARD_IMBALANCE = 0.02  # relative excess of the largest shard over the smallest

ShardAssignment = dict[str, list[np.ndarray]]  # split -> for each shard, its rows of the index


def index_dtype(filters: Filters, has_spans: bool = False) -> np.dtype:
    """Return the dtype of an index: `INDEX`, and what filters and entity spans need.

    Args:
      filters: with near-duplicate detection rows have MinHash bands.
      has_spans: rows have the number of spans of the document.
    """
    dtype = INDEX
    if filters.near_dedup:
        dtype = np.dtype([*dtype.descr, ("bands", "<u8", (NUM_BANDS,))])
    return np.dtype([*dtype.descr, ("spans", "<i8")]) if has_spans else dtype


def encode_documents(
    documents: Sequence[str], encoder: BulkEncoder, filters: Filters = KEEP_ALL
) -> tuple[np.ndarray, bytes]:
    """Tokenize documents.

    Args:
      documents: d texts, whose lines are separated by line feeds. A sentence ends with its line at
        the latest.
      encoder: the tokenizer.
      filters: determine what the index records of the text.

    Returns:
      The index rows of the documents [d], and the payload that contains their records.
    """
    sentences = [
        [s for line in text.split("\n") for s in split_sentences(line)] for text in documents
    ]
    tokens, lengths = encoder([s for document in sentences for s in document])
    counts = [len(document) for document in sentences]
    return index_documents(documents, counts, tokens, lengths, encoder.tokenizer, filters)


def index_documents(
    documents: Sequence[str],
    num_sentences: Sequence[int],
    tokens: np.ndarray,
    lengths: np.ndarray,
    tokenizer: Tokenizer,
    filters: Filters,
    spans: np.ndarray | None = None,
) -> tuple[np.ndarray, bytes]:
    """Return index rows and payload of tokenized documents, as `encode_documents`.

    Args:
      documents: d texts.
      num_sentences: sentences of each document.
      tokens: ids of all sentences [n].
      lengths: int64 [s], number of ids of each sentence.
      tokenizer: the tokenizer.
      filters: determine what the index records of the text.
      spans: int64 [e, 2], first token and end of each entity span, ascending; None for a corpus
        without them.
    """
    ends = np.cumsum(num_sentences)  # of documents
    empty = _sums_before(ends, lengths == 0)
    long = _sums_before(ends, lengths > MAX_SENTENCE_TOKENS)
    if long[-1]:
        continues = tokenizer.is_continuation[tokens]
        if spans is not None:  # no sentence ends within a span
            continues[concatenate_ranges(spans[:, 0] + 1, spans[:, 1] - spans[:, 0] - 1)] = True
        lengths, num_parts = split_long_sentences(lengths, continues)
        ends = _sums_before(ends, num_parts)
    kept = _sums_before(ends, lengths > 0)
    token_ends = _sums_before(ends, lengths)
    unknown = _sums_before(token_ends, tokens == tokenizer.unk_id)
    texts = [text.encode(errors="surrogatepass") for text in documents]
    index = np.zeros(len(documents), index_dtype(filters, spans is not None))
    index["is_other_language"] = filters.is_other_language(documents)
    if filters.near_dedup:
        index["bands"] = filters.minhash_bands(documents)
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    index["hash"] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    index["sentences"] = np.diff(kept, prepend=0)
    index["tokens"] = np.diff(token_ends, prepend=0)
    index["unknown"] = np.diff(unknown, prepend=0)
    index["empty"] = np.diff(empty, prepend=0)
    index["long"] = np.diff(long, prepend=0)
    index["bytes"] = [len(text) for text in texts]

    parts = [lengths[lengths > 0].astype(LENGTH_DTYPE).tobytes(), tokens.tobytes()]
    part_ends = [kept * LENGTH_DTYPE.itemsize, token_ends * tokens.itemsize]
    if spans is not None:
        owners = np.searchsorted(token_ends, spans[:, 0], "right")
        within = spans - (token_ends - index["tokens"])[owners, None]
        index["spans"] = np.bincount(owners, minlength=len(documents))
        parts.insert(1, within.astype(LENGTH_DTYPE).tobytes())
        part_ends.insert(1, np.cumsum(index["spans"]) * 2 * LENGTH_DTYPE.itemsize)
    index["size"] = np.diff(sum(part_ends), prepend=0)
    index["start"] = np.cumsum(index["size"]) - index["size"]
    payload = bytearray()
    begins: tuple[int, ...] = (0,) * len(parts)
    for record_ends in zip(*(offsets.tolist() for offsets in part_ends), strict=True):
        for part, begin, end in zip(parts, begins, record_ends, strict=True):
            payload += part[begin:end]
        begins = record_ends
    return index, bytes(payload)


def split_long_sentences(
    lengths: np.ndarray, continues: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split sentences longer than `MAX_SENTENCE_TOKENS` into parts of about equal length.

    A part starts at a word boundary if there is one in the second half of the preceding part.

    Args:
      lengths: int64 [s], number of ids of each sentence.
      continues: bool [n], tokens that continue a word, or an entity span.

    Returns:
      The lengths of sentences and parts, and the number of parts of each sentence, int64 [s].
    """
    part_lengths: list[np.ndarray] = []
    num_parts = np.ones(len(lengths), np.int64)
    ends = np.cumsum(lengths)
    done = 0
    for sentence in np.flatnonzero(lengths > MAX_SENTENCE_TOKENS).tolist():
        start, end = int(ends[sentence] - lengths[sentence]), int(ends[sentence])
        starts_word = ~continues[start:end]
        word_starts = np.maximum.accumulate(
            np.where(starts_word, np.arange(start, end), -1)
        ).tolist()  # for each token, the start of its word
        cut, cuts = start, [start]
        while end - cut > MAX_SENTENCE_TOKENS:
            size = -(-(end - cut) // -(-(end - cut) // MAX_SENTENCE_TOKENS))
            word = word_starts[cut + size - start]
            cut = word if word - cut > size // 2 else cut + size
            cuts.append(cut)
        part_lengths += [lengths[done:sentence], np.diff([*cuts, end])]
        num_parts[sentence] = len(cuts)
        done = sentence + 1
    return np.concatenate([*part_lengths, lengths[done:]]), num_parts


def _sums_before(ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the sum of the first `ends[i]` values for each i, int64."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[ends]


def unpack_documents(
    rows: np.ndarray, records: Iterable[bytes | memoryview], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Unpack the records of documents.

    Args:
      rows: index rows of the documents.
      records: the records that the rows locate.
      dtype: dtype of the ids.

    Returns:
      The token ids of the documents [n], the lengths of their sentences [s], and the first token
      and end of each entity span, int64 [e, 2], or None.
    """
    has_spans = "spans" in (rows.dtype.names or ())
    num_spans = rows["spans"] if has_spans else np.zeros(len(rows), np.int64)
    cuts = (rows["sentences"] * LENGTH_DTYPE.itemsize).tolist()
    ends = (cuts + 2 * num_spans * LENGTH_DTYPE.itemsize).tolist()
    columns = zip(
        *(
            (record[:cut], record[cut:end], record[end:])
            for record, cut, end in zip(records, cuts, ends, strict=True)
        ),
        strict=True,
    )
    lengths, within, tokens = (b"".join(parts) for parts in columns)
    spans = None
    if has_spans:
        first = np.cumsum(rows["tokens"]) - rows["tokens"]
        spans = np.frombuffer(within, LENGTH_DTYPE).reshape(-1, 2)
        spans = spans + np.repeat(first, num_spans)[:, None]
    return np.frombuffer(tokens, dtype), np.frombuffer(lengths, LENGTH_DTYPE), spans


def document_sizes(rows: np.ndarray) -> np.ndarray:
    """Return the number of sentences of each document of index rows; a random pair is two."""
    documents = 1 + rows["is_random"].astype(np.int64)
    return np.repeat(rows["sentences"] // documents, documents)


def assign_shards(index: np.ndarray, options: CorpusOptions) -> ShardAssignment:
    """Assign documents to splits and shards.

    A document belongs to the eval split if its hash, as a number in [0, 1), is below
    `eval_fraction`. If fewer than two do, the two texts with the smallest hashes do, or the first
    alone if it is repeated and training needs the second. Equal texts are therefore always in one
    split. Shards of a split have about equal numbers of tokens, so that
    training passes over them equally often.

    Args:
      index: rows of `index_dtype(options.filters)`.
      options: the options of the preparation.

    Raises:
      InputError: a split or shard would have fewer than the two documents that a random next
        sentence needs.
    """
    filters, eval_fraction, num_shards = options.filters, options.eval_fraction, options.num_shards
    rows = np.flatnonzero(
        (index["tokens"] >= filters.min_document_tokens) & ~index["is_other_language"]
    )
    if options.dedup:
        order = np.lexsort(index["hash"][rows].T)  # stable: the first of equal texts stays first
        ordered = index["hash"][rows[order]]
        repeated = np.zeros(len(rows), bool)
        repeated[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        rows = rows[~repeated]
    if filters.near_dedup:
        rows = rows[~is_near_duplicate(index["bands"][rows])]
    if len(rows) < 2:
        raise InputError(
            f"documents={len(rows)}: a random next sentence needs another document. Provide two or "
            "more documents with text, separated by blank lines."
        )
    position = (index["hash"][rows, 0] >> np.uint64(11)) * 2.0**-53
    is_eval = position < eval_fraction
    if eval_fraction and np.count_nonzero(is_eval) < 2:
        candidates = [position <= limit for limit in np.unique(position)[1::-1]]
        sizes = [(np.count_nonzero(mask), np.count_nonzero(~mask)) for mask in candidates]
        is_eval = next(
            (m for m, s in zip(candidates, sizes, strict=True) if min(s) > 1), candidates[0]
        )
    train_rows, eval_rows = rows[~is_eval], rows[is_eval]
    for split, split_rows in (("train", train_rows), ("eval", eval_rows)):
        if len(split_rows) < 2 and (split == "train" or eval_fraction):
            raise InputError(
                f"eval_fraction={eval_fraction}: {len(split_rows)} of {len(rows)} documents in the "
                f"{split} split, which needs two. Use another fraction, or 0 for no eval split."
            )
    tokens = index["tokens"]
    if num_shards is None:
        limit = int(tokens[train_rows].sum()) // _MIN_TRAIN_TOKENS
        max_shards = _shard_count(min(len(train_rows) // _MIN_TRAIN_DOCUMENTS, limit))
        train = _balance_up_to_shards(max_shards, train_rows, tokens, MAX_SHARD_IMBALANCE)
    else:
        if 2 * num_shards > len(train_rows):
            raise InputError(
                f"num_shards={num_shards}: too many for {len(train_rows)} train documents, since a "
                f"shard needs two. Use at most {len(train_rows) // 2}."
            )
        train = _balance_shards(train_rows, tokens, num_shards)
    if not eval_fraction:
        return {"train": train, "eval": []}
    max_shards = min(len(train), _shard_count(len(eval_rows) // _MIN_EVAL_DOCUMENTS))
    return {"train": train, "eval": _balance_up_to_shards(max_shards, eval_rows, tokens, math.inf)}


def name_shards(
    assignment: ShardAssignment, num_documents: int
) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Name the shards of an assignment.

    Returns:
      The split and file name of each shard, and the index of each document's shard, int32 [D]. The
      index is the number of shards for documents that are dropped.
    """
    names: list[tuple[str, str]] = []
    shard_of_document = np.full(num_documents, sum(map(len, assignment.values())), np.int32)
    for split, shards in assignment.items():
        for i, rows in enumerate(shards):
            shard_of_document[rows] = len(names)
            names.append((split, shard_name(split, i, len(shards))))
    return names, shard_of_document


def _balance_up_to_shards(
    num_shards: int, rows: np.ndarray, tokens: np.ndarray, max_imbalance: float
) -> list[np.ndarray]:
    """Assign rows to shards; halve the number of shards until they are balanced."""
    while True:
        shards = _balance_shards(rows, tokens, num_shards)
        sizes = [int(tokens[shard].sum()) for shard in shards]
        if num_shards == 1 or max(sizes) <= (1 + max_imbalance) * min(sizes):
            return shards
        num_shards //= 2


def _balance_shards(rows: np.ndarray, tokens: np.ndarray, num_shards: int) -> list[np.ndarray]:
    """Return the rows of each shard, ascending: longest document first, to the lightest shard.

    Each shard gets one of the shortest documents, so that it has two if there are enough.
    """
    order = np.argsort(-tokens[rows], kind="stable")
    sizes = tokens[rows[order]].tolist()
    lightest = [(0, shard) for shard in range(num_shards)]
    assigned = []
    for size in sizes[: max(0, len(rows) - num_shards)]:
        shard_size, shard = lightest[0]
        assigned.append(shard)
        heapq.heapreplace(lightest, (shard_size + size, shard))
    assigned += [shard for _, shard in sorted(lightest)][: len(rows) - len(assigned)]
    shard_of_row = np.empty(len(rows), np.int64)
    shard_of_row[order] = assigned
    ends = np.cumsum(np.bincount(shard_of_row, minlength=num_shards))
    return np.split(rows[np.argsort(shard_of_row, kind="stable")], ends[:-1])


def _shard_count(limit: int) -> int:
    """Return the largest power of two up to `limit`, at least 1, at most `_MAX_SHARDS`."""
    return min(_MAX_SHARDS, 1 << max(0, limit.bit_length() - 1))


def compute_totals(
    index: np.ndarray, assignment: ShardAssignment, filters: Filters = KEEP_ALL
) -> dict[str, int | float]:
    """Compute the totals that the manifest records, of both splits together."""
    kept = index[np.concatenate([rows for shards in assignment.values() for rows in shards])]
    empty = int(np.count_nonzero(index["tokens"] == 0))
    long_enough = index["tokens"] >= filters.min_document_tokens
    short = int(np.count_nonzero(~long_enough)) - empty
    other_language = int(np.count_nonzero(index["is_other_language"] & long_enough))
    tokens = int(kept["tokens"].sum())
    return {
        "documents": len(kept),
        "sentences": int(kept["sentences"].sum()),
        "tokens": tokens,
        "text_bytes": int(kept["bytes"].sum()),
        "unk_fraction": int(kept["unknown"].sum()) / tokens,
        "empty_sentences": int(kept["empty"].sum()),
        "long_sentences": int(kept["long"].sum()),
        "empty_documents": empty,
        "short_documents": short,
        "other_language_documents": other_language,
        "duplicate_documents": len(index) - empty - short - other_language - len(kept),
    }
