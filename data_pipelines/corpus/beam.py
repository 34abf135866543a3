"""Corpus preparation with Apache Beam, distributed over machines: the shards of `prepare`.

The workers apply the functions of `documents`. One worker gathers the index, about 300 bytes per
document, and assigns the documents to shards as `corpus.prepare` does; the documents themselves
stay distributed. Needs the extra `beam`: pip install 'bertjax[beam]'.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.corpus.bulk_encoder import BulkEncoder
from data_pipelines.corpus.documents import (
    assign_shards,
    compute_totals,
    encode_documents,
    index_dtype,
    name_shards,
    unpack_documents,
)
from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.options import DEFAULT_CORPUS_OPTIONS, CorpusOptions
from data_pipelines.corpus.prepare import finalize_corpus
from data_pipelines.corpus.shards import (
    Manifest,
    ShardInfo,
    ShardWriter,
    read_manifest,
    token_dtype,
)
from data_pipelines.corpus.staging import check_output, is_in_output, staging_directory
from data_pipelines.corpus.tf_examples import are_tf_examples
from data_pipelines.errors import InputError
from data_pipelines.text.sources import ReadOptions, read_source, resolve_inputs
from data_pipelines.vocabulary.tokenization import Tokenizer

try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise InputError(
        "apache_beam: not installed. Install it with pip install 'bertjax[beam]'."
    ) from error

EncodedDocument = tuple[int, bytes, bytes]  # number, ascending in input order; index row; record
_MAX_DOCUMENTS_PER_SOURCE = 1 << 40


class _Assignment(NamedTuple):
    """The shard of each document."""

    numbers: np.ndarray  # int64 [D], ascending
    shards: np.ndarray  # int32 [D], see `name_shards`
    names: list[tuple[str, str]]  # split, file name
    totals: dict[str, int | float]


def prepare_with_beam(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: epath.PathLike,
    options: CorpusOptions = DEFAULT_CORPUS_OPTIONS,
    beam_options: Sequence[str] = (),
) -> Manifest:
    """Prepare a corpus directory with a Beam pipeline; the files are those of `corpus.prepare`.

    One worker reads each input. If the runner uses other machines, inputs and output must be paths
    that its workers can access, such as `gs://`.

    Args:
      inputs: see `corpus.prepare`.
      tokenizer: see `corpus.prepare`.
      output: see `corpus.prepare`.
      options: see `corpus.prepare`.
      beam_options: Beam's flags, such as `--runner=DataflowRunner`.

    Raises:
      InputError: an input or the output is invalid. The runner raises the errors of its workers.
    """
    filters, recorded = options.filters, options.manifest_entries(inputs)
    dtype = token_dtype(len(tokenizer.tokens))
    output = epath.Path(output)
    check_output(output)  # else its files would be left out of the inputs
    is_left_out = functools.partial(is_in_output, output=output)
    sources = list(enumerate(resolve_inputs(inputs, is_left_out)))
    if are_tf_examples([source for _, source in sources]):
        raise InputError(f"{sources[0][1]}: has tf_examples. Prepare them without --runner.")
    if field := options.read_options.spans:
        raise InputError(f"spans={field}: not supported by Beam. Prepare them without --runner.")
    with staging_directory(output) as stage:
        directory = str(stage)
        # Beam's check of annotations does not support protocols such as `Tokenizer`.
        flags = PipelineOptions(list(beam_options), pipeline_type_check=False)
        with beam.Pipeline(options=flags) as pipeline:
            encoded = (
                pipeline
                | "Sources" >> beam.Create(sources)
                | "Read" >> beam.FlatMap(_read, options.read_options)
                | "Spread" >> beam.Reshuffle()
                | "Encode" >> beam.ParDo(_Encode(tokenizer, filters))
            )
            assignment = beam.pvalue.AsSingleton(
                encoded
                | "Index" >> beam.Map(lambda document: document[:2])
                | "Gather" >> beam.combiners.ToList()
                | "Assign" >> beam.Map(_assign_documents, options)
            )
            (
                encoded
                | "Route" >> beam.FlatMap(_route_document, assignment)
                | "Collect" >> beam.GroupByKey()
                | "Write" >> beam.Map(_write, directory, dtype, filters)
                | "Shards" >> beam.combiners.ToList()
                | "Finish" >> beam.Map(_finish, assignment, directory, tokenizer, recorded)
            )
        return read_manifest(stage)


def _read(source: tuple[int, str], read_options: ReadOptions) -> Iterator[tuple[int, list[str]]]:
    number, name = source
    for i, document in enumerate(read_source(name, read_options)):
        yield number * _MAX_DOCUMENTS_PER_SOURCE + i, document


class _Encode(beam.DoFn):
    def __init__(self, tokenizer: Tokenizer, filters: Filters) -> None:
        self._tokenizer, self._filters = tokenizer, filters

    def setup(self) -> None:
        self._encoder = BulkEncoder(self._tokenizer)

    def process(self, document: tuple[int, list[str]]) -> Iterator[EncodedDocument]:
        number, lines = document
        row, record = encode_documents(["\n".join(lines)], self._encoder, self._filters)
        yield number, row.tobytes(), record


def _assign_documents(rows: list[tuple[int, bytes]], options: CorpusOptions) -> _Assignment:
    rows.sort()
    index = np.frombuffer(b"".join(row for _, row in rows), index_dtype(options.filters))
    assignment = assign_shards(index, options)
    names, shard_of_document = name_shards(assignment, len(index))
    numbers = np.array([number for number, _ in rows], np.int64)
    totals = compute_totals(index, assignment, options.filters)
    return _Assignment(numbers, shard_of_document, names, totals)


def _route_document(
    document: EncodedDocument, assignment: _Assignment
) -> Iterator[tuple[tuple[str, str], EncodedDocument]]:
    shard = assignment.shards[np.searchsorted(assignment.numbers, document[0])]
    if shard < len(assignment.names):
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
            tokens, lengths, _ = unpack_documents(rows, [record], dtype)
            writer.append(tokens, lengths, rows["sentences"])
        return split, writer.close()


def _finish(
    written: list[tuple[str, ShardInfo]],
    assignment: _Assignment,
    directory: str,
    tokenizer: Tokenizer,
    recorded: dict[str, Any],
) -> None:
    shard_infos: dict[str, list[ShardInfo]] = {"train": [], "eval": []}
    for split, info in sorted(written, key=lambda shard: shard[1].name):
        shard_infos[split].append(info)
    finalize_corpus(epath.Path(directory), tokenizer, recorded, shard_infos, assignment.totals)
