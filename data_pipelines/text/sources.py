"""Documents of inputs. A document is a list of stripped lines, none of them empty.

An input is one of
- a path, a directory (all files in it) or a glob pattern, local or `gs://`, of
  - plain text with a blank line between documents, with one document per line, or wrapped;
  - JSON lines, a JSON list, CSV or TSV with one document in the text field of each object or row;
  - Wikipedia's dumps, WikiExtractor's `<doc>` blocks and others that `layouts` recognizes;
  - Parquet or Arrow (`.parquet`, `.arrow`) with one document in the text column of each row;
  text files may be compressed (`.gz`, `.xz`, `.bz2`, `.zst`). The first lines of a text file
  determine its layout. Other formats are rejected by their first bytes or lines;
- `tfds:NAME/CONFIG`: the text feature of the train split of a TensorFlow Datasets builder;
- `builtin`: the English prose that comes with Python and its packages (see `builtin.py`).

Inputs are streamed: the first lines, one block of a file and the current document are in memory.
"""

import dataclasses
import glob
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once
from data_pipelines.parsing import read_json_records
from data_pipelines.paths import distinct_files, files_within, is_remote
from data_pipelines.text import arrow_tables, builtin, plain_text, tables, wikipedia, wikitext
from data_pipelines.text.layouts import (
    Notices,
    check_documents,
    detect_layout,
    take_sample,
    warn_of_defects,
)
from data_pipelines.text.lines import MAX_LINE_MB, check_readable, decode_lines, read_blocks
from data_pipelines.text.records import BadRecordCounter, read_json_list, record_documents
from data_pipelines.text.tfds import TFDS, check_tfds_installed, read_tfds_records

BUILTIN = "builtin"
_WIKITEXT_ROWS = 100  # in which the first article of WikiText has a section
DOCUMENTS = ("blocks", "lines", "wrapped")
_DATA_SUFFIXES = {*arrow_tables.SUFFIXES, ".json", ".jsonl", ".ndjson", ".csv", ".tsv"}
_DESCRIPTIONS = {
    *("README.md", "LICENSE", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"),
    *("state.json", "md5sums.txt"),
}
_WILDCARD = re.compile(r"[*?\[]")
# Splits in the names of files and folders: train-00000-of-00001.parquet, wiki.valid.tokens, dev/.
_SPLITS = "train|test|valid|validation|val|dev"
_SPLIT_FILE = re.compile(rf"(?:^|[-._])({_SPLITS})(?=$|[-._\d])", re.IGNORECASE)
_SPLIT_FOLDER = re.compile(_SPLITS, re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading.

    Attributes:
      field: name of the text field, column or feature; OUTER.INNER for a field of an object.
      documents: "blocks" if a blank line ends a document of plain text, "lines" if each line is
        a document, "wrapped" to join the lines of each paragraph, also those of a field.
      max_bad_fraction: maximal fraction of the records (lines of a text file) of an input that may
        be bad: not UTF-8, not JSON or without text. They are skipped.
      max_line_mb: longest line of a text file, in megabytes, which is in memory.
      spans: field of JSON lines with the entity spans of the text (see `corpus.annotated_text`);
        "" for text without them.
      wikitext: content of Wikipedia's dumps: "passages" alone, with "lists" also headings and list
        items, or all "markup".
    """

    field: str = "text"
    documents: str = "blocks"
    max_bad_fraction: float = 0.0
    wikitext: str = "passages"
    max_line_mb: int = MAX_LINE_MB
    spans: str = ""

    def __post_init__(self) -> None:
        if self.documents not in DOCUMENTS:
            raise InputError(
                f"documents={self.documents!r}: unknown unit. Choose blocks, lines or wrapped."
            )
        if self.wikitext not in wikitext.CONTENTS:
            raise InputError(
                f"wikitext={self.wikitext!r}: unknown content. Choose passages, lists or markup."
            )
        if self.max_line_mb < 1:
            raise InputError(f"max_line_mb={self.max_line_mb}: too small. Use at least 1.")
        if not 0 <= self.max_bad_fraction < 1:
            raise InputError(
                f"max_bad_fraction={self.max_bad_fraction}: not a fraction. It must be at least 0 "
                "and below 1."
            )

    def content_options(self) -> dict[str, Any]:
        """Return the options that determine the documents, by name."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "max_line_mb"}


DEFAULT_READ_OPTIONS = ReadOptions()


def read_documents(
    inputs: Sequence[str],
    read_options: ReadOptions = DEFAULT_READ_OPTIONS,
    workers: int | None = 1,
) -> Iterator[list[str]]:
    """Yield the documents of all inputs in order; files of a pattern are sorted by name.

    Args:
      inputs: the inputs.
      read_options: options of reading.
      workers: processes that parse wikitext; see `ordered_map`.

    Raises:
      InputError: an input does not exist, is damaged or has too many bad records.
    """
    notices = Notices()
    for source in resolve_inputs(inputs):
        yield from read_source(source, read_options, notices=notices, workers=workers)


def resolve_inputs(
    inputs: Sequence[str], is_left_out: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """Return the inputs with directories and patterns replaced by their existing files.

    Args:
      inputs: files, directories, patterns, `tfds:NAME` and `builtin`.
      is_left_out: whether a file is none of the inputs, such as one of the output.

    Raises:
      InputError: an input does not exist or is named twice, needs a library that is missing, or is
        a directory with the training split of a data set and another.
    """
    sources: list[str] = []
    for pattern in inputs:
        is_path = pattern != BUILTIN and not pattern.startswith(TFDS)
        if pattern.startswith(TFDS):
            check_tfds_installed(pattern)
        files = match_files(pattern, is_left_out) if is_path else []
        if is_path and epath.Path(pattern).is_dir():
            _reject_several_splits(epath.Path(pattern), files)
        sources += map(str, files) if is_path else [pattern]
    names: dict[str, str] = {}
    for source in sources:
        check_readable(source)
        file = os.path.realpath(source) if os.path.exists(source) else source
        if file in names:
            alias = "" if names[file] == source else f", also as {names[file]}"
            raise InputError(f"{source}: more than once in the inputs{alias}. Name it once.")
        names[file] = source
    if not sources:
        raise InputError("No input. Name a text file, tfds:NAME or builtin.")
    return sources


def match_files(
    pattern: str, is_left_out: Callable[[str], bool] = lambda name: False
) -> list[epath.Path]:
    """Return a file, the files in a directory or those that match a pattern, sorted by name.

    Args:
      pattern: a file, a directory or a pattern.
      is_left_out: as of `resolve_inputs`.

    Raises:
      InputError: there is none, or the pattern has `**` in a bucket.
    """
    path = epath.Path(pattern)
    if path.is_dir():
        # Those that are left out do not decide what a description is.
        files = [file for file in distinct_files(files_within(path)) if not is_left_out(str(file))]
        files = _leave_out_descriptions(path, files)
        if not files:
            raise InputError(f"{pattern}: directory without files. Name one with files.")
        return files
    if path.exists():
        return [] if is_left_out(pattern) else [path]
    if not _WILDCARD.search(pattern):
        raise InputError(f"{pattern}: no such file. Name one that exists.")
    if is_remote(path):
        if "**" in pattern:
            raise InputError(
                f"{pattern}: ** matches no folders of a bucket. Name the folder, or use * for each "
                "level."
            )
        root = next(parent for parent in path.parents if not _WILDCARD.search(str(parent)))
        matches = root.glob(str(path.relative_to(root)))
        files = sorted(match for match in matches if not match.is_dir())
    else:
        # `realpath`, as the system follows 40 links only, such as those to a directory above.
        names = glob.glob(pattern, recursive=True)
        files = distinct_files(
            epath.Path(name) for name in names if not os.path.isdir(os.path.realpath(name))
        )
    if not files:
        raise InputError(f"{pattern}: no file matches. Fix the pattern.")
    return [file for file in files if not is_left_out(str(file))]


def _leave_out_descriptions(directory: epath.Path, files: list[epath.Path]) -> list[epath.Path]:
    """Return the files without those that describe a data set of the Hub or of `save_to_disk`."""
    described = [file for file in files if file.name not in _DESCRIPTIONS]
    names = ", ".join(sorted({file.name for file in files} & _DESCRIPTIONS))
    if not names or not any(_DATA_SUFFIXES.intersection(file.suffixes) for file in described):
        return files
    warn_once(
        (str(directory), names), f"{directory}: left out, as descriptions of the data: {names}."
    )
    return described


def _reject_several_splits(directory: epath.Path, files: Iterable[epath.Path]) -> None:
    """Raise InputError if a directory has a split `train` and others, such as `test`."""
    # Is it of the training split -> name, and what to name in order to read it.
    first: dict[bool, tuple[str, str]] = {}
    root = str(directory) if is_remote(directory) else glob.escape(str(directory))
    for file in files:
        *folders, base = file.relative_to(directory).parts
        if match := _SPLIT_FILE.search(base):
            split = match[1]
            parts = [root, *map(glob.escape, folders), glob.escape(base[: match.end()]) + "*"]
        elif named := list(filter(_SPLIT_FOLDER.fullmatch, folders)):
            split = named[-1]
            parts = [str(directory), *folders[: folders.index(split) + 1]]
        else:
            continue
        named_files = "/".join((*folders, base)), "/".join(parts)
        first.setdefault(split.lower() == "train", named_files)
    if len(first) > 1:
        (name, pattern), (other, other_pattern) = first[True], first[False]
        raise InputError(
            f"{directory}: has the split train ({name}) and another ({other}). Name the files to "
            f"read, such as --input '{pattern}'; for both, also '{other_pattern}'."
        )


def read_source(
    source: str,
    read_options: ReadOptions,
    *,
    skip: int = 0,
    workers: int | None = 1,
    notices: Notices | None = None,
) -> Iterator[list[str]]:
    """Yield the documents of one input from `resolve_inputs`; raises as `read_documents`.

    Args:
      source: the input.
      read_options: options of reading.
      skip: number of documents to leave out at the start.
      workers: processes that parse wikitext; see `ordered_map`.
      notices: logs what is remarkable about several inputs, each kind once.
    """
    reader = _SourceReader(source, read_options, notices or Notices())
    yield from reader.read(skip, workers)


class _SourceReader:
    """Reader of one input."""

    def __init__(self, source: str, read_options: ReadOptions, notices: Notices) -> None:
        self._source, self._options, self._notices = source, read_options, notices
        self._bad = BadRecordCounter(source, read_options.max_bad_fraction)

    def read(self, skip: int, workers: int | None) -> Iterator[list[str]]:
        """Yield the documents; see `read_source`."""
        source, field = self._source, self._options.field
        path = epath.Path(source)
        if source == BUILTIN:
            documents = builtin.documents()
        elif source.startswith(TFDS):
            records = enumerate(read_tfds_records(source, "train"))
            documents = self._records(f"{source} record ", records)
        elif path.suffix in arrow_tables.SUFFIXES:
            values = arrow_tables.read_column(path, field)
            documents = self._records(f"{source} row ", enumerate({field: v} for v in values))
        else:
            blocks = read_blocks(path)
            start = next(blocks, b"")
            is_dump = wikipedia.is_dump(start)
            # Neither this variable nor a list may keep the block: it may be large.
            blocks = itertools.chain(iter([start]), blocks)
            del start
            if is_dump:
                documents, skip = self._articles(path, blocks, skip, workers), 0
            else:
                documents = self._text(
                    path, decode_lines(path, blocks, self._bad.add_line, self._options.max_line_mb)
                )
        yield from itertools.islice(documents, skip, None)
        self._bad.end()

    def _text(self, path: epath.Path, lines: Iterator[str]) -> Iterator[list[str]]:
        """Return the documents of a text file; its first lines determine the layout."""
        source, field, bad = self._source, self._options.field, self._bad
        sample, is_whole = take_sample(lines)
        lines = itertools.chain(sample, lines)
        layout, header = detect_layout(path, sample, is_whole, field)
        if layout == "json_list":
            return self._records(f"{source} element ", read_json_list(source, lines))
        if layout == "json_lines":
            start = [line.strip(" \t\r\n\ufeff") for line in sample if line.strip()]
            # Objects over several lines, or perhaps one with all rows.
            if len(start) == 1 or start[0] in ("{", "[{"):
                text_fields = (field, field.partition(".")[0])
                return self._records("", read_json_records(source, lines, text_fields))
            return self._records(f"{source}:", enumerate(lines, 1))
        if header:
            rows = tables.read_rows(source, lines, header, field)
            what = f"the cells of column {field!r} of {', '.join(map(repr, header.columns))}"
            return self._announce(layout, what, self._records(f"{source}:", rows))
        if layout != "separated" and not is_whole:
            lines = plain_text.reject_separators(source, lines)
        lines = bad.count_all(lines)
        if layout == "extractor":
            documents = plain_text.extractor_documents(source, lines, bad.add)
            return self._announce(layout, "<doc> blocks, without titles", documents)
        if layout == "wikitext":
            documents = plain_text.wikitext_documents(source, lines)
            return self._announce(layout, 'articles below "= Title =", without headings', documents)
        if layout == "separated":
            documents = plain_text.separated_documents(source, lines)
            return self._announce(layout, f"the parts between {plain_text.SEPARATOR}", documents)
        is_wrapped = self._options.documents == "wrapped"
        if any(map(str.strip, sample)) and {".csv", ".tsv"}.intersection(path.suffixes):
            message = "%s: no table, read as plain text. The first line of a table is its header."
            self._notices(logging.WARNING, "no table", message, source)
        warn_of_defects(source, sample, self._notices, is_wrapped)
        if self._options.documents == "blocks":
            return plain_text.block_documents(source, lines)
        if is_wrapped:
            return plain_text.wrapped_documents(source, lines)
        return plain_text.line_documents(lines)

    def _records(
        self, prefix: str, numbered: Iterable[tuple[object, object]]
    ) -> Iterator[list[str]]:
        is_wrapped = self._options.documents == "wrapped"
        documents = record_documents(prefix, numbered, self._options.field, is_wrapped, self._bad)
        first: list[list[str]] = []
        for document in documents:
            first.append(document)
            if len(document) > 1 or len(first) == _WIKITEXT_ROWS:
                break
        documents = itertools.chain(first, documents)
        lines = [line for document in first for line in document]
        if lines and max(map(len, first)) == 1 and plain_text.is_wikitext(lines):
            joined = (line for lines in documents for line in lines)
            documents = plain_text.wikitext_documents(self._source, joined)
            what = 'articles below rows "= Title =", without headings'
            return self._announce("wikitext", what, documents)
        return check_documents(self._source, documents, self._notices, is_wrapped)

    def _articles(
        self, path: epath.Path, blocks: Iterable[bytes], skip: int, workers: int | None
    ) -> Iterator[list[str]]:
        content = self._options.wikitext
        articles = wikipedia.read_dump(path, blocks, content, skip, workers)
        documents = (lines for _, lines in articles)
        return self._announce("dump", f"articles of a Wikipedia dump ({content})", documents)

    def _announce(
        self, layout: str, what: str, documents: Iterator[list[str]]
    ) -> Iterator[list[str]]:
        """Yield the documents; log what they are, with the first as an example."""
        for document in documents:
            if document:
                self._notices(
                    logging.INFO,
                    layout,
                    "%s: documents are %s, such as %r.",
                    self._source,
                    what,
                    document[0][:80],
                )
                yield document
                break
            yield document
        yield from documents
