"""Documents to rows of an index, and the index to shards: what every way of preparing shares.

A document is cut into sentences and tokenised by itself. A row of the index tells where its ids
are, how many, and the hash of its text. What needs to know the whole corpus is decided from the
index alone: which documents are duplicates, which are held out, how many shards there are and
which document goes into which.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipelines.corpus.bulk import BulkEncoder
from data_pipelines.errors import InputError
from data_pipelines.text.sentences import split_sentences

INDEX = np.dtype(  # a row for each document read
    [
        ("hash", "<u8", 2),  # of the text
        ("start", "<i8"),  # byte of the payload where its record starts:
        ("size", "<i8"),  # the sentences' lengths (int32), then the ids
        ("sentences", "<i4"),
        ("tokens", "<i4"),
        ("unknown", "<i4"),  # tokens that are [UNK]
        ("dropped", "<i4"),  # sentences that gave no piece
        ("bytes", "<i4"),  # of text
    ]
)
_LENGTH = np.dtype("<i4")

# A shard is worth a file from so many documents and pieces on. Readers keep every shard open: the
# number of shards stays well below the usual limit on open files.
_TRAIN_DOCUMENTS, _TRAIN_PIECES, _HELDOUT_DOCUMENTS, _MOST_SHARDS = 64, 100_000, 16, 256

Members = dict[str, list[np.ndarray]]  # split -> for each shard, the index rows of its documents


def encode_documents(documents: Sequence[str], encoder: BulkEncoder) -> tuple[np.ndarray, bytes]:
    """Tokenise documents: their rows of `INDEX` [d], and the payload that the rows point into.

    Args:
      documents: texts [d], their lines apart by line feeds; a sentence ends with its line at the
        latest.
      encoder: gives the ids.
    """
    sentences = [
        [s for line in text.split("\n") for s in split_sentences(line)] for text in documents
    ]
    tokens, lengths = encoder([s for document in sentences for s in document])
    ends = np.cumsum([len(document) for document in sentences])  # of documents, in sentences
    kept = _up_to(ends, lengths > 0)
    token_ends = _up_to(ends, lengths)
    texts = [text.encode(errors="surrogatepass") for text in documents]
    index = np.zeros(len(documents), INDEX)
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
    index["hash"] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    index["sentences"] = np.diff(kept, prepend=0)
    index["tokens"] = np.diff(token_ends, prepend=0)
    index["unknown"] = np.diff(_up_to(token_ends, tokens == encoder.tokenizer.unk_id), prepend=0)
    index["dropped"] = np.diff(ends, prepend=0) - index["sentences"]
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


def _up_to(ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sums of `values` before each of `ends`, int64."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[ends]


def unpack(
    rows: np.ndarray, records: Iterable[bytes], dtype: np.dtype
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


def assign_shards(index: np.ndarray, held_out: float, dedup: bool, shards: int | None) -> Members:
    """Which documents go where: the rows of `index` for each shard of each split.

    Documents without a piece are left out. A document is held out if its hash, as a number in
    [0, 1), is below `held_out`: equal texts are never on both sides. The documents of a split are
    dealt to its shards in turn.

    Raises:
      InputError: a shard would have fewer than the two documents that a random next sentence needs.
    """
    rows = np.flatnonzero(index["tokens"])
    if dedup:
        order = np.lexsort(index["hash"][rows].T)  # stable: the first of equals stays first
        ordered = index["hash"][rows[order]]
        again = np.zeros(len(rows), bool)
        again[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        rows = rows[~again]
    if len(rows) < 2:
        number = "no document with text in it" if not len(rows) else "one document only"
        raise InputError(
            f"the input holds {number}, and a random next sentence comes from another document: "
            "give two or more, a blank line between them."
        )
    held = (index["hash"][rows, 0] >> np.uint64(11)) * 2.0**-53 < held_out
    splits = {"train": rows[~held], "heldout": rows[held]}
    for split, part in splits.items():
        if len(part) < 2 and (split == "train" or held_out):
            raise InputError(
                f"held_out={held_out} puts {len(part)} of {len(rows)} documents into the {split} "
                "split, which needs two or more: choose another share, or 0 to hold out none."
            )
    train, heldout = splits.values()
    if shards is None:
        pieces = int(index["tokens"][train].sum(dtype=np.int64))
        shards = _shard_count(min(len(train) // _TRAIN_DOCUMENTS, pieces // _TRAIN_PIECES))
    elif 2 * shards > len(train):
        raise InputError(
            f"shards={shards} is too many for {len(train)} train documents, as a shard needs two: "
            f"choose {len(train) // 2} or fewer."
        )
    heldout_shards = (
        min(shards, _shard_count(len(heldout) // _HELDOUT_DOCUMENTS)) if held_out else 0
    )
    return {
        "train": [train[i::shards] for i in range(shards)],
        "heldout": [heldout[i::heldout_shards] for i in range(heldout_shards)],
    }


def _shard_count(worthwhile: int) -> int:
    """The largest power of two up to `worthwhile`, at least 1, at most `_MOST_SHARDS`."""
    return min(_MOST_SHARDS, 1 << max(0, worthwhile.bit_length() - 1))


def count(index: np.ndarray, members: Members) -> dict[str, int | float]:
    """What the manifest tells of the whole corpus, both splits together."""
    kept = index[np.concatenate([rows for parts in members.values() for rows in parts])]
    names = ("sentences", "tokens", "unknown", "dropped", "bytes")
    sentences, pieces, unknown, dropped, size = (int(kept[n].sum(dtype=np.int64)) for n in names)
    empty = int(np.count_nonzero(index["tokens"] == 0))
    return {
        "documents": len(kept),
        "sentences": sentences,
        "pieces": pieces,
        "bytes_of_text": size,
        "unknown_share": unknown / pieces,
        "dropped_sentences": dropped,
        "dropped_documents": empty,
        "duplicates": len(index) - empty - len(kept),
    }
