"""Corpus preparation with Apache Beam: on as many machines as there are, the same shards.

The functions that see a document are those of `documents`. Their index comes together on one
worker, some 300 bytes a document there, which deals the documents to shards as `corpus.prepare`
does; the documents stay apart. Needs the extra `beam`: pip install 'bertjax[beam]'.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import (
    assign_shards,
    count,
    encode_documents,
    index_dtype,
    unpack_documents,
)
from data_pipelines.corpus.filters import KEEP_ALL, Filters
from data_pipelines.corpus.prepare import checked_options, finalize_corpus
from data_pipelines.corpus.shards import (
    Manifest,
    ShardInfo,
    ShardWriter,
    read_manifest,
    shard_name,
    token_dtype,
)
from data_pipelines.corpus.staging import staging_directory
from data_pipelines.errors import InputError
from data_pipelines.text.sources import (
    DEFAULT_READ_OPTIONS,
    ReadOptions,
    read_source,
    resolve_inputs,
)
from data_pipelines.vocabulary.tokenization import Tokenizer

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise InputError("Apache Beam is missing; pip install 'bertjax[beam]'.") from error

EncodedDocument = tuple[int, bytes, bytes]  # number (its order says that of the input), row, record
_DOCUMENTS_OF_A_SOURCE = 1 << 40


class _Assignment(NamedTuple):
    """Where the documents go."""

    numbers: np.ndarray  # int64 [D], rising
    shards: np.ndarray  # int32 [D], positions in `names`, -1 for none
    names: list[tuple[str, str]]  # split, file
    totals: dict[str, int | float]


def prepare_with_beam(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: epath.PathLike,
    beam_options: Sequence[str] = (),
    *,
    eval_fraction: float = 0.01,
    dedup: bool = False,
    shards: int | None = None,
    filters: Filters = KEEP_ALL,
    read_options: ReadOptions = DEFAULT_READ_OPTIONS,
    license: str = "",
) -> Manifest:
    """What `corpus.prepare` does, by a Beam pipeline; the shards are equal to the byte.

    Every input is read by one worker. With a runner beyond this machine, inputs and output must be
    paths that its workers see, as `gs://` is.

    Args:
      beam_options: Beam's own flags, such as `--runner=DataflowRunner`.
      inputs, tokenizer, output, eval_fraction, dedup, shards, filters, reading, license: as in
        `corpus.prepare`.

    Raises:
      InputError: unusable options or output. What a worker refuses is the runner's error to raise.
    """
    options = checked_options(inputs, read_options, eval_fraction, dedup, shards, filters, license)
    dtype = token_dtype(len(tokenizer.tokens))
    sources = list(enumerate(resolve_inputs(inputs)))
    with staging_directory(epath.Path(output)) as stage:
        directory = str(stage)
        # Beam's own check of annotations knows no protocols, and `Tokenizer` is one.
        flags = PipelineOptions(list(beam_options), pipeline_type_check=False)
        with beam.Pipeline(options=flags) as pipeline:
            encoded = (
                pipeline
                | "Sources" >> beam.Create(sources)
                | "Read" >> beam.FlatMap(_read, read_options)
                | "Spread" >> beam.Reshuffle()
                | "Encode" >> beam.ParDo(_Encode(tokenizer, filters))
            )
            assignment = beam.pvalue.AsSingleton(
                encoded
                | "Index" >> beam.Map(lambda document: document[:2])
                | "Gather" >> beam.combiners.ToList()
                | "Deal" >> beam.Map(_assign_documents, eval_fraction, dedup, shards, filters)
            )
            (
                encoded
                | "Place" >> beam.FlatMap(_route_document, assignment)
                | "Collect" >> beam.GroupByKey()
                | "Write" >> beam.Map(_write, directory, dtype, filters)
                | "Shards" >> beam.combiners.ToList()
                | "Finish" >> beam.Map(_finish, assignment, directory, tokenizer, options)
            )
        return read_manifest(stage)


def _read(source: tuple[int, str], read_options: ReadOptions) -> Iterator[tuple[int, list[str]]]:
    number, name = source
    for i, document in enumerate(read_source(name, read_options)):
        yield number * _DOCUMENTS_OF_A_SOURCE + i, document


class _Encode(beam.DoFn):
    def __init__(self, tokenizer: Tokenizer, filters: Filters) -> None:
        self._tokenizer, self._filters = tokenizer, filters

    def setup(self) -> None:
        self._encoder = BulkEncoder(self._tokenizer)

    def process(self, document: tuple[int, list[str]]) -> Iterator[EncodedDocument]:
        number, lines = document
        row, record = encode_documents(["\n".join(lines)], self._encoder, self._filters)
        yield number, row.tobytes(), record


def _assign_documents(
    rows: list[tuple[int, bytes]],
    eval_fraction: float,
    dedup: bool,
    shards: int | None,
    filters: Filters,
) -> _Assignment:
    rows.sort()
    index = np.frombuffer(b"".join(row for _, row in rows), index_dtype(filters))
    assignment = assign_shards(index, eval_fraction, dedup, shards, filters)
    place = np.full(len(index), -1, np.int32)
    names: list[tuple[str, str]] = []
    for split, parts in assignment.items():
        for i, part in enumerate(parts):
            place[part] = len(names)
            names.append((split, shard_name(split, i, len(parts))))
    numbers = np.array([number for number, _ in rows], np.int64)
    return _Assignment(numbers, place, names, count(index, assignment, filters))


def _route_document(
    document: EncodedDocument, assignment: _Assignment
) -> Iterator[tuple[tuple[str, str], EncodedDocument]]:
    shard = assignment.shards[np.searchsorted(assignment.numbers, document[0])]
    if shard >= 0:
        yield assignment.names[shard], document


def _write(
    shard: tuple[tuple[str, str], Iterable[EncodedDocument]],
    directory: str,
    dtype: np.dtype,
    filters: Filters,
) -> tuple[str, ShardInfo]:
    (split, name), documents = shard
    with ShardWriter(directory, name, dtype) as writer:
        for _, row, record in sorted(documents):
            rows = np.frombuffer(row, index_dtype(filters))
            writer.append_flat(*unpack_documents(rows, [record], dtype), rows["sentences"])
        return split, writer.close()


def _finish(
    written: list[tuple[str, ShardInfo]],
    assignment: _Assignment,
    directory: str,
    tokenizer: Tokenizer,
    options: dict[str, Any],
) -> None:
    shard_infos: dict[str, list[ShardInfo]] = {"train": [], "eval": []}
    for split, info in sorted(written, key=lambda shard: shard[1].name):
        shard_infos[split].append(info)
    finalize_corpus(epath.Path(directory), tokenizer, options, shard_infos, assignment.totals)
