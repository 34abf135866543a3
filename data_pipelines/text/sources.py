"""Documents of inputs. A document is a list of stripped lines, none of them empty.

An input is one of
- a path, a directory (all files in it) or a glob pattern, local or `gs://`, of
  - plain text with a blank line between documents, or with one document per line;
  - JSON lines with one document in the text field of each object, recognized by their suffix
    (`.json`, `.jsonl`, `.ndjson`) or by a first line that is a JSON object;
  - Parquet or Arrow (`.parquet`, `.arrow`) with one document in the text column of each row;
  text and JSON lines may be compressed (`.gz`, `.xz`, `.bz2`, `.zst`). Other formats are rejected
  by their first bytes;
- `tfds:NAME/CONFIG`: the text feature of the train split of a TensorFlow Datasets builder;
- `builtin`: the English prose that comes with Python and its packages (see `builtin.py`).

Inputs are streamed: one block of a file and the current document are in memory.
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
from data_pipelines.parsing import parse_json, parse_object
from data_pipelines.paths import is_remote
from data_pipelines.text import arrow_tables, builtin
from data_pipelines.text.lines import check_readable, read_lines
from data_pipelines.text.tfds import TFDS, check_tfds_installed, read_tfds_records

log = logging.getLogger(__name__)

BUILTIN = "builtin"
_WILDCARD = re.compile(r"[*?\[]")
_LONG_DOCUMENT_LINES = 10_000  # a longer document of a text file may be a mistake


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading.

    Attributes:
      field: name of the text field, column or feature; OUTER.INNER for a field of an object.
      documents: "blocks" if a blank line ends a document of plain text, "lines" if each line is
        a document.
      max_bad_fraction: maximal fraction of the records (lines of a text file) of an input that may
        be bad: not UTF-8, not JSON or without text. They are skipped.
    """

    field: str = "text"
    documents: str = "blocks"
    max_bad_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.documents not in ("blocks", "lines"):
            raise InputError(f"documents={self.documents!r}: unknown unit. Choose blocks or lines.")
        if not 0 <= self.max_bad_fraction < 1:
            raise InputError(
                f"max_bad_fraction={self.max_bad_fraction}: not a fraction. It must be at least 0 "
                "and below 1."
            )


DEFAULT_READ_OPTIONS = ReadOptions()


def read_documents(
    inputs: Sequence[str], read_options: ReadOptions = DEFAULT_READ_OPTIONS
) -> Iterator[list[str]]:
    """Yield the documents of all inputs in order; files of a pattern are sorted by name.

    Raises:
      InputError: an input does not exist, is damaged or has too many bad records.
    """
    for source in resolve_inputs(inputs):
        yield from read_source(source, read_options)


def resolve_inputs(inputs: Sequence[str]) -> list[str]:
    """Return the inputs with directories and patterns replaced by their existing files.

    Raises:
      InputError: an input does not exist or is named twice, or needs a library that is missing.
    """
    sources: list[str] = []
    for pattern in inputs:
        is_path = pattern != BUILTIN and not pattern.startswith(TFDS)
        if pattern.startswith(TFDS):
            check_tfds_installed(pattern)
        sources += map(str, _match_files(pattern)) if is_path else [pattern]
    for source, count in collections.Counter(sources).items():
        check_readable(source)
        if count > 1:
            raise InputError(f"{source}: {count} times in the inputs. Name it once.")
    if not sources:
        raise InputError("No input. Name a text file, tfds:NAME or builtin.")
    return sources


def _match_files(pattern: str) -> list[epath.Path]:
    path = epath.Path(pattern)
    if path.is_dir():
        files = sorted(_files_within(path))
        if not files:
            raise InputError(f"{pattern}: directory without files. Name one with files.")
        return files
    if path.exists():
        return [path]
    if not _WILDCARD.search(pattern):
        raise InputError(f"{pattern}: no such file. Name one that exists.")
    if is_remote(path):
        root = next(parent for parent in path.parents if not _WILDCARD.search(str(parent)))
        matches: Iterable[epath.Path] = root.glob(str(path.relative_to(root)))
    else:
        matches = map(epath.Path, glob.glob(pattern, recursive=True))
    files = sorted(match for match in matches if not match.is_dir())
    if not files:
        raise InputError(f"{pattern}: no file matches. Fix the pattern.")
    return files


def _files_within(directory: epath.Path) -> Iterator[epath.Path]:
    """Yield all files except hidden ones, such as `.git/config` and Hadoop's `_SUCCESS`."""
    for path in directory.iterdir():
        if path.name[0] in "._":
            continue
        if path.is_dir():
            yield from _files_within(path)
        else:
            yield path


class _BadRecordCounter:
    """Counter of an input's records and bad records that stops at too many bad ones."""

    def __init__(self, source: str, max_bad_fraction: float) -> None:
        self._source, self._max_bad_fraction = source, max_bad_fraction
        self._records = self._bad = 0
        self._first: InputError | None = None

    def count(self) -> None:
        """Count a record."""
        self._records += 1

    def add_line(self, error: InputError) -> None:
        """Count a bad record that was not counted before: a line that is not text."""
        self.count()
        self.add(error)

    def add(self, error: InputError) -> None:
        """Count a bad record, or raise its error if there are too many."""
        if not self._max_bad_fraction:
            raise error
        self._first = self._first or error
        self._bad += 1
        # Twice as many as allowed: stop early, the input would have to be twice as long.
        if self._bad > 1000 and self._bad > 2 * self._max_bad_fraction * self._records:
            self.end()

    def end(self) -> None:
        """Log the bad records, or raise InputError if there are too many."""
        if not self._bad:
            return
        counts = f"{self._source}: {self._bad:,} of {self._records:,} records are bad"
        if self._bad > self._max_bad_fraction * self._records:
            raise InputError(
                f"{counts}, more than max_bad_fraction={self._max_bad_fraction:g}. The first: "
                f"{self._first}"
            )
        log.warning("%s and skipped. The first: %s", counts, self._first)


def read_source(source: str, read_options: ReadOptions) -> Iterator[list[str]]:
    """Yield the documents of one input from `resolve_inputs`; raises as `read_documents`."""
    if source == BUILTIN:
        yield from builtin.documents()
        return
    bad = _BadRecordCounter(source, read_options.max_bad_fraction)
    yield from _documents(source, read_options, bad)
    bad.end()


def _documents(
    source: str, read_options: ReadOptions, bad: _BadRecordCounter
) -> Iterator[list[str]]:
    field = read_options.field
    if source.startswith(TFDS):
        records = read_tfds_records(source, "train")
        return _record_documents(f"{source} record ", 0, records, field, bad)
    path = epath.Path(source)
    if path.suffix in arrow_tables.SUFFIXES:
        rows = ({field: value} for value in arrow_tables.read_column(path, field))
        return _record_documents(f"{source} row ", 0, rows, field, bad)
    first, lines = _peek_first_line(read_lines(path, bad.add_line))
    has_json_suffix = any(suffix in (".json", ".jsonl", ".ndjson") for suffix in path.suffixes)
    if has_json_suffix or _is_object(first):
        return _record_documents(f"{source}:", 1, lines, field, bad)
    if read_options.documents == "lines":
        return _line_documents(lines, bad)
    return _block_documents(source, lines, bad)


def _peek_first_line(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is not blank ("" if there is none), and all lines."""
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
                    "%s: a document has more than %d lines. A blank line ends a document; if each "
                    "line is a document, choose --documents lines.",
                    source,
                    _LONG_DOCUMENT_LINES,
                )
        elif document:
            yield document
            document = []
    if document:
        yield document


def _record_documents(
    prefix: str, first: int, records: Iterable[Any], field: str, bad: _BadRecordCounter
) -> Iterator[list[str]]:
    """Yield the document in a field of each record.

    Args:
      prefix: start of the location of a record; its number follows.
      first: number of the first record.
      records: objects, or lines of JSON; blank lines are skipped.
      field: name of the field.
      bad: counts records, and bad ones, whose document is empty.
    """
    for number, record in enumerate(records, first):
        is_line = isinstance(record, str)
        if is_line and not record.strip():
            continue
        bad.count()
        location = f"{prefix}{number}"
        try:
            if is_line:
                record = parse_object(location, record)
            yield _split_document(location, _get_field(location, record, field), field)
        except InputError as error:
            bad.add(error)
            yield []


def _get_field(location: str, record: dict[str, Any], field: str) -> Any:
    if field in record:
        return record[field]
    outer, dot, inner = field.partition(".")
    if dot and isinstance(record.get(outer), dict):
        return _get_field(location, record[outer], inner)
    names = ", ".join(sorted(record)) or "none"
    raise InputError(f"{location}: no field {field!r}, only {names}. Choose one with --field.")


def _split_document(location: str, text: Any, field: str) -> list[str]:
    """Return the document in a field; blank lines in it do not end a document."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        else:
            text.encode()
    except AttributeError:
        kind = type(text).__name__
        raise InputError(f"{location}: field {field!r} is {kind}, not text. Fix it.") from None
    except UnicodeError as error:
        raise InputError(f"{location}: field {field!r} is not Unicode ({error}). Fix it.") from None
    lines = text.replace("\r", "\n").split("\n")
    return [stripped for line in lines if (stripped := line.strip())]
