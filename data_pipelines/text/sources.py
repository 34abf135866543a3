"""Inputs to documents. A document is a list of lines: stripped, none of them empty.

An input is one of
- a path, a directory (all files in it) or a glob pattern, local or `gs://`, of
  - plain text, a blank line between documents or one on each line;
  - JSON lines, one document in the text field of each, which are told by their name (`.json`,
    `.jsonl`, `.ndjson`) or by a first line that is a JSON object;
  - Parquet or Arrow (`.parquet`, `.arrow`), one document in the text column of each row;
  text and JSON lines as they are or compressed (`.gz`, `.xz`, `.bz2`, `.zst`). What is none of
  these is refused by its first bytes;
- `tfds:NAME/CONFIG`: the text feature of a TensorFlow Datasets builder's train split;
- `builtin`: the English prose that comes with Python and its packages (see `builtin.py`).

All is streamed: of a file, a block is in memory at a time, and the document being read.
"""

import collections
import dataclasses
import glob
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import is_remote
from data_pipelines.text import arrow_tables, builtin
from data_pipelines.text.lines import read_lines

log = logging.getLogger(__name__)

BUILTIN = "builtin"
TFDS = "tfds:"
_WILDCARD = re.compile(r"[*?\[]")
_LONG_DOCUMENT_LINES = 10_000  # lines, from which on a document of a text file may be a mistake


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How inputs are read.

    Attributes:
      field: name of the text in JSON lines, columns and TensorFlow Datasets' records; a stop leads
        into an object within.
      documents: "blocks" of plain text end with a blank line; "lines" are one each.
      max_bad_fraction: share of the records of an input (lines of a text file) that may be bad: not UTF-8,
        not JSON, without their text. Each is an empty document, which gives nothing.
    """

    field: str = "text"
    documents: str = "blocks"
    max_bad_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.documents not in ("blocks", "lines"):
            raise InputError(f"documents={self.documents!r} is unknown; choose blocks or lines.")
        if not 0 <= self.max_bad_fraction < 1:
            raise InputError(
                f"max_bad_fraction={self.max_bad_fraction} is no share to skip; give one from 0 to below 1."
            )


DEFAULT_READ_OPTIONS = ReadOptions()


def read_documents(
    inputs: Sequence[str], read_options: ReadOptions = DEFAULT_READ_OPTIONS
) -> Iterator[list[str]]:
    """Documents of all inputs, in the order of the inputs, files of a pattern by name.

    Raises:
      InputError: an input does not exist, is damaged, or has more bad records than may be.
    """
    for source in resolve_inputs(inputs):
        yield from read_source(source, read_options)


def resolve_inputs(inputs: Sequence[str]) -> list[str]:
    """Inputs with the patterns replaced by the files they match; all of them exist."""
    sources: list[str] = []
    for pattern in inputs:
        special = pattern == BUILTIN or pattern.startswith(TFDS)
        sources += [pattern] if special else map(str, _match_files(pattern))
    for source, times in collections.Counter(sources).items():
        if times > 1:
            raise InputError(f"{source} is an input {times} times; name it once.")
    if not sources:
        raise InputError("there is no input; name a text file, tfds:NAME or builtin.")
    return sources


def _match_files(pattern: str) -> list[epath.Path]:
    path = epath.Path(pattern)
    if path.is_dir():
        within = sorted(_files_within(path))
        if not within:
            raise InputError(f"the directory {pattern} holds no file; name one that does.")
        return within
    if path.exists():
        return [path]
    if not _WILDCARD.search(pattern):
        raise InputError(f"there is no file {pattern}; name a file that exists.")
    if is_remote(path):
        fixed = next(parent for parent in path.parents if not _WILDCARD.search(str(parent)))
        matches: Iterable[epath.Path] = fixed.glob(str(path.relative_to(fixed)))
    else:
        matches = map(epath.Path, glob.glob(pattern, recursive=True))
    files = sorted(match for match in matches if not match.is_dir())
    if not files:
        raise InputError(f"no file matches {pattern}; mend the pattern.")
    return files


def _files_within(directory: epath.Path) -> Iterator[epath.Path]:
    """All but hidden ones, as `.git/config` and the `_SUCCESS` of big data's tools are."""
    for path in directory.iterdir():
        if path.name[0] in "._":
            continue
        if path.is_dir():
            yield from _files_within(path)
        else:
            yield path


class _BadRecordCounter:
    """Counts the records of an input and its bad ones, and ends the reading where they are many."""

    def __init__(self, source: str, allowed: float) -> None:
        self._source, self._allowed = source, allowed
        self._records = self._bad = 0
        self._first: InputError | None = None

    def count(self) -> None:
        self._records += 1

    def add_line(self, error: InputError) -> None:
        """One that is not even a line of text."""
        self.count()
        self.add(error)

    def add(self, error: InputError) -> None:
        if not self._allowed:
            raise error
        self._first = self._first or error
        self._bad += 1
        # So many that what follows cannot make good for it, if it is not far longer.
        if self._bad > 1000 and self._bad > 2 * self._allowed * self._records:
            self.end()

    def end(self) -> None:
        if not self._bad:
            return
        found = f"{self._source}: {self._bad:,} of {self._records:,} records are bad"
        if self._bad > self._allowed * self._records:
            raise InputError(
                f"{found}, more than the share of {self._allowed:g} that may be skipped; the "
                f"first: {self._first}"
            )
        log.warning("%s and were skipped; the first: %s", found, self._first)


def read_source(source: str, read_options: ReadOptions) -> Iterator[list[str]]:
    """Documents of one input as `resolve_inputs` names it; raises what `read_documents` raises."""
    if source == BUILTIN:
        yield from builtin.documents()
        return
    bad = _BadRecordCounter(source, read_options.max_bad_fraction)
    yield from _documents(source, read_options, bad)
    bad.end()


def _documents(
    source: str, read_options: ReadOptions, bad: _BadRecordCounter
) -> Iterator[list[str]]:
    if source.startswith(TFDS):
        records = ((record, None) for record in tfds_records(source, "train"))
        return _record_documents(source, "record", records, read_options.field, bad)
    path = epath.Path(source)
    if path.suffix in arrow_tables.SUFFIXES:
        values = arrow_tables.read_column(path, read_options.field)
        return _value_documents(source, values, read_options.field, bad)
    first, lines = _peek_first_line(read_lines(path, bad.add_line))
    if any(suffix in (".json", ".jsonl", ".ndjson") for suffix in path.suffixes) or _is_object(
        first
    ):
        return _record_documents(source, "line", _parse_json_lines(lines), read_options.field, bad)
    if read_options.documents == "lines":
        return _line_documents(lines, bad)
    return _block_documents(source, lines, bad)


def _peek_first_line(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, and all lines."""
    for blank, line in enumerate(lines):
        if line.strip():
            return line, itertools.chain(itertools.repeat("", blank), [line], lines)
    return "", iter(())


def _is_object(line: str) -> bool:
    try:
        return line.lstrip("\ufeff \t").startswith("{") and bool(parse_json(line))
    except ValueError:
        return False


def _line_documents(lines: Iterator[str], bad: _BadRecordCounter) -> Iterator[list[str]]:
    for line in lines:
        bad.count()
        if line := line.strip():
            yield [line]


def _block_documents(
    source: str, lines: Iterator[str], bad: _BadRecordCounter
) -> Iterator[list[str]]:
    document: list[str] = []
    for line in lines:
        bad.count()
        if line := line.strip():
            document.append(line)
            if len(document) == _LONG_DOCUMENT_LINES:
                log.warning(
                    "%s: a document has more than %d lines; a blank line ends one, and if each "
                    "line is a document, choose --documents lines",
                    source,
                    _LONG_DOCUMENT_LINES,
                )
        elif document:
            yield document
            document = []
    if document:
        yield document


_ParsedRecord = tuple[Any, str | None]  # what was parsed, or else why it could not be


def _parse_json_lines(lines: Iterator[str]) -> Iterator[_ParsedRecord | None]:
    """Each line's JSON; None for a blank line."""
    for line in lines:
        if not line.strip():
            yield None
            continue
        try:
            yield parse_json(line), None
        except ValueError as error:
            yield None, str(error)


def _record_documents(
    source: str,
    unit: str,
    records: Iterable[_ParsedRecord | None],
    field: str,
    bad: _BadRecordCounter,
) -> Iterator[list[str]]:
    for number, record in enumerate(records, unit == "line"):
        if record is None:
            continue
        bad.count()
        where = f"{source}: {unit} {number}"
        value, fault = record
        try:
            if fault:
                raise InputError(f"{where} is not JSON ({fault}); mend the line.")
            yield _split_document(where, _get_field(where, value, field), field)
        except InputError as error:
            bad.add(error)
            yield []


def _value_documents(
    source: str, values: Iterator[Any], field: str, bad: _BadRecordCounter
) -> Iterator[list[str]]:
    for number, value in enumerate(values):
        bad.count()
        try:
            yield _split_document(f"{source}: row {number}", value, field)
        except InputError as error:
            bad.add(error)
            yield []


def tfds_records(source: str, split: str) -> Iterator[dict[str, Any]]:
    """The records of a split of `tfds:NAME/CONFIG`, always in the same order; downloads it first.

    Raises:
      InputError: there is no such data set, or it has no such split.
    """
    import tensorflow_datasets as tfds  # takes seconds to import

    name = source.removeprefix(TFDS)
    try:
        builder = tfds.builder(name)
    except ValueError:
        raise InputError(
            f"TensorFlow Datasets has no {name}; write NAME/CONFIG as its catalogue does."
        ) from None
    builder.download_and_prepare()
    if split.partition("[")[0] not in builder.info.splits:
        splits = ", ".join(builder.info.splits) or "none"
        raise InputError(f"{source} has no split {split}, but {splits}; choose another data set.")
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        records = builder.as_dataset(split=split, shuffle_files=False, read_config=in_order)
    except ValueError as error:
        raise InputError(f"{source} has no part {split} ({error}); mend it.") from None
    yield from tfds.as_numpy(records)


def _get_field(where: str, record: Any, field: str) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where} is not an object with a field '{field}'; mend it.")
    if field in record:
        return record[field]
    outer, dot, inner = field.partition(".")
    if dot and isinstance(record.get(outer), dict):
        return _get_field(where, record[outer], inner)
    names = ", ".join(sorted(record)) or "none"
    raise InputError(f"{where} has no field '{field}', but {names}; choose with --field.")


def _split_document(where: str, text: Any, field: str) -> list[str]:
    """The document that a field holds; a blank line in it separates paragraphs only."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        else:
            text.encode()
    except AttributeError:
        kind = type(text).__name__
        raise InputError(f"{where}: field '{field}' is {kind}, not text; mend it.") from None
    except UnicodeError as error:
        raise InputError(f"{where}: field '{field}' is not Unicode ({error}); mend it.") from None
    parts = text.replace("\r", "\n").split("\n")
    return [line for part in parts if (line := part.strip())]
