"""Pairs in the output of create_pretraining_data.py (google-research/bert), to corpus records.

Such a file is a series of records, each a `tf.train.Example` with a masked pair. Masked tokens are
put back, so that training masks the pairs anew. Pairs and their labels are kept: a pair is two
sentences of one document if the second one follows, else of two. Neither needs tensorflow.
"""

import functools
import hashlib
import itertools
import logging
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.corpus.documents import INDEX, LENGTH_DTYPE
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.shards import token_dtype
from data_pipelines.corpus.spool import Position
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed
from data_pipelines.parallel import group_by_size
from data_pipelines.paths import is_remote
from data_pipelines.text.sources import BUILTIN, DEFAULT_READ_OPTIONS
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger(__name__)
_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")  # length and its CRC; CRC of the data
_MAX_RECORD_BYTES = 1 << 26
_BATCH_BYTES = 1 << 19  # of records, per batch of a worker
_INT64, _FLOAT = "int64_list", "float_list"
_FEATURES = {
    **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), _INT64),
    **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), _INT64),
    "masked_lm_weights": _FLOAT,
    "next_sentence_labels": _INT64,
}
_FIX = "Give the output of create_pretraining_data.py, and its vocabulary."
_SCHEMA = """
syntax: "proto3"
name: "bertjax/example.proto"
message_type {
  name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
message_type {
  name: "Feature"
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".FloatList" }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".Int64List" }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".Features.FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".Feature" }
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".Features" }
}
"""


class Record(NamedTuple):
    """A record and its place, such as "a.tfrecord record 7"."""

    location: str
    content: bytes


def are_tf_examples(sources: Sequence[str]) -> bool:
    """Return whether inputs are records of TensorFlow; empty files are of either kind.

    Args:
      sources: inputs from `text.sources.resolve_inputs`.

    Raises:
      InputError: some are, and others are not.
    """
    starts = {source: _read_start(source) for source in sources}
    records = [source for source, start in starts.items() if _begins_record(source, start)]
    others = [source for source, start in starts.items() if start and source not in records]
    if records and others:
        raise InputError(
            f"{others[0]}: text, and {records[0]} has tf_examples. Prepare each as a corpus of its "
            "own."
        )
    return bool(records)


def _read_start(source: str) -> bytes:
    if source == BUILTIN or source.startswith(TFDS):
        return source.encode()
    if not is_remote(source) and not os.path.isfile(source):
        return b"a pipe"  # whose first bytes can be read once
    with epath.Path(source).open("rb") as file:
        start: bytes = file.read(_HEADER.size)
    return start


def _begins_record(source: str, start: bytes) -> bool:
    """Return whether the start of an input is the header of a record."""
    # The upper half of a length is zero, which begins no text. Gzip's time may be zero as well.
    if len(start) < _HEADER.size or start[4:8] != bytes(4) or start[:3] == b"\x1f\x8b\x08":
        return False
    check_installed(source, "google_crc32c", install="google-crc32c")
    return _is_header(start)


def _is_header(start: bytes) -> bool:
    crc: int = _HEADER.unpack(start)[1]
    return _masked_crc(start[:8]) == crc


def _masked_crc(content: bytes) -> int:
    """Return the CRC-32C of a content as TFRecord files store it."""
    import google_crc32c

    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check_options(options: CorpusOptions) -> None:
    """Raise InputError for an option of text; warn if the eval split shares text with training."""
    filters, defaults = options.filters, DEFAULT_READ_OPTIONS.content_options()
    values = {"languages": (filters.languages, ""), "near_dedup": (filters.near_dedup, False)}
    values |= {k: (v, defaults[k]) for k, v in options.read_options.content_options().items()}
    for name, (value, default) in values.items():
        if value != default:
            raise InputError(f"{name}={value}: tf_examples are no text. Leave it out.")
    if options.eval_fraction:
        _log.warning(
            "eval_fraction=%g: the pairs of a document may be in both splits. To evaluate on other "
            "text, prepare tf_examples of it as a corpus of its own.",
            options.eval_fraction,
        )


def read_records(path: epath.PathLike, skip: int = 0) -> Iterator[Record]:
    """Yield the records of a file after the first `skip`.

    Raises:
      InputError: the file is damaged.
    """
    with epath.Path(path).open("rb") as file:
        for number in itertools.count(1):
            header, location = file.read(_HEADER.size), f"{path} record {number}"
            if not header:
                return
            if len(header) < _HEADER.size:
                raise InputError(f"{location}: is cut off. Copy the file again.")
            if not _is_header(header):
                raise InputError(f"{location}: damaged, another checksum. Copy the file again.")
            size = _HEADER.unpack(header)[0]
            if size > _MAX_RECORD_BYTES:
                raise InputError(f"{location}: {size:,} bytes, too long for a pair. {_FIX}")
            content, footer = file.read(size), file.read(_FOOTER.size)
            if len(content) < size or len(footer) < _FOOTER.size:
                raise InputError(f"{location}: is cut off. Copy the file again.")
            if number <= skip:
                continue
            if _masked_crc(content) != _FOOTER.unpack(footer)[0]:
                raise InputError(f"{location}: damaged, another checksum. Copy the file again.")
            yield Record(location, content)


def record_batches(
    sources: Sequence[str], start: Position, positions: deque[Position]
) -> Iterator[list[Record]]:
    """Yield batches of records after a position; append the end of each batch to `positions`."""

    def records() -> Iterator[tuple[Position, Record]]:
        for number, source in enumerate(sources[start.source :], start.source):
            skipped = start.documents if number == start.source else 0
            for done, record in enumerate(read_records(source, skipped), skipped + 1):
                yield Position(number, done), record

    for batch in group_by_size(records(), lambda item: len(item[1].content), _BATCH_BYTES):
        positions.append(batch[-1][0])
        yield [record for _, record in batch]


def make_encoder(tokenizer: Tokenizer) -> Callable[[list[Record]], tuple[np.ndarray, bytes]]:
    """Return a function of records that returns index rows and payload, one row for each pair."""
    dtype = token_dtype(len(tokenizer.tokens))
    # Bytes of the text of a token, with the space before a word.
    token_bytes = np.array([len(token.removeprefix("##").encode()) for token in tokenizer.tokens])
    token_bytes += ~tokenizer.is_continuation

    def encode(records: list[Record]) -> tuple[np.ndarray, bytes]:
        index, payload = np.zeros(len(records), INDEX), bytearray()
        for row, record in zip(index, records, strict=True):
            ids, a_length, is_random = _read_pair(record, tokenizer)
            lengths = np.array([a_length, len(ids) - a_length], LENGTH_DTYPE)
            content = lengths.tobytes() + ids.astype(dtype).tobytes()
            digest = hashlib.blake2b(content + bytes([is_random]), digest_size=16).digest()
            row["hash"] = np.frombuffer(digest, "<u8")
            row["start"], row["size"] = len(payload), len(content)
            row["sentences"], row["tokens"], row["is_random"] = 2, len(ids), is_random
            row["unknown"] = np.count_nonzero(ids == tokenizer.unk_id)
            row["bytes"] = token_bytes[ids].sum()
            payload += content
        return index, bytes(payload)

    return encode


def _read_pair(record: Record, tokenizer: Tokenizer) -> tuple[np.ndarray, int, bool]:
    """Return the ids of both texts of a pair, the length of the first, and the label.

    Raises:
      InputError: the record is not a masked pair of this vocabulary.
    """
    features = _parse(record)
    ids, mask, segments, positions, masked_ids, weights, label = features.values()
    problem = ""
    length, masked = int(np.count_nonzero(mask)), positions[weights > 0]
    if not len(ids) == len(mask) == len(segments) or not mask[:length].all():
        problem = "input_ids, input_mask and segment_ids do not fit together"
    elif not len(positions) == len(masked_ids) == len(weights):
        problem = "masked_lm_positions, masked_lm_ids and masked_lm_weights do not fit together"
    elif len(masked) and not 0 < masked.min() <= masked.max() < length - 1:
        problem = "masked_lm_positions are not those of text"
    elif label.tolist() not in ([0], [1]):
        problem = "next_sentence_labels is not one label, 0 or 1"
    if problem:
        raise InputError(f"{record.location}: {problem}. {_FIX}")
    ids[masked] = masked_ids[weights > 0]
    ids, segments = ids[:length], segments[:length]
    ends = np.flatnonzero(ids == tokenizer.sep_id)
    special = np.isin(ids, (tokenizer.cls_id, tokenizer.mask_id))
    has_form = len(ends) == 2 and special.tolist() == [True] + [False] * (length - 1)
    if not has_form or not 1 < ends[0] < ends[1] - 1 == length - 2:
        raise InputError(
            f"{record.location}: input_ids are not [CLS] text [SEP] text [SEP] with this "
            f"vocabulary. {_FIX}"
        )
    if not np.array_equal(segments, np.arange(length) > ends[0]):
        raise InputError(f"{record.location}: segment_ids are not 0 and 1. {_FIX}")
    if not 0 <= ids.min() <= ids.max() < len(tokenizer.tokens):
        raise InputError(
            f"{record.location}: has ids beyond the {len(tokenizer.tokens):,} tokens of this "
            f"vocabulary. {_FIX}"
        )
    return np.delete(ids, [0, *ends]), int(ends[0]) - 1, bool(label[0])


def _parse(record: Record) -> dict[str, np.ndarray]:
    """Return the features of an example by name, in the order of `_FEATURES`."""
    from google.protobuf.message import DecodeError

    try:
        features = _example_class().FromString(record.content).features.feature
    except DecodeError as error:
        raise InputError(f"{record.location}: not a tf.train.Example ({error}). {_FIX}") from None
    arrays = {}
    for name, kind in _FEATURES.items():
        if name not in features or not features[name].HasField(kind):
            known = ", ".join(sorted(features)) or "none"
            raise InputError(f"{record.location}: no feature {name}, only {known}. {_FIX}")
        dtype = np.int64 if kind == _INT64 else np.float32
        arrays[name] = np.array(getattr(features[name], kind).value, dtype)
    return arrays


@functools.cache
def _example_class() -> Any:
    """Return the class of `tf.train.Example`, without features of bytes."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))
