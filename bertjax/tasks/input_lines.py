"""Lines of a file of inputs, some of which may be blank or invalid."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import JSON_SUFFIXES, file_format
from data_pipelines.log import warn_once
from data_pipelines.parsing import parse_object, read_json_records

T_co = TypeVar("T_co", covariant=True)


class InvalidInput(NamedTuple):
    """A line of a file that is not an input.

    Attributes:
      location: where it was read, such as "line 3".
      error: message of its error, which starts with the location.
    """

    location: str
    error: str


class InputLines(Iterable[T_co]):
    """Inputs in the records of a file, parsed lazily.

    Iteration skips blank lines and raises the InputError of an invalid record.

    Args:
      records: location and content of each record, blank lines included.
      parse: returns the input of a location and a content.
    """

    def __init__(
        self, records: Iterable[tuple[str, Any]], parse: Callable[[str, Any], T_co]
    ) -> None:
        self._records, self._parse = records, parse

    def __iter__(self) -> Iterator[T_co]:
        for location, content in self._records:
            if not _is_blank(content):
                yield self._parse(location, content)

    def with_invalid(self) -> Iterator[T_co | InvalidInput]:
        """Yield the input of each record, or its error, so that outputs and lines correspond."""
        for location, content in self._records:
            if _is_blank(content):
                yield InvalidInput(location, f"{location}: blank. Write an input or delete it.")
                continue
            try:
                item = self._parse(location, content)
            except InputError as error:
                yield InvalidInput(location, str(error))
            else:
                yield item


def numbered_lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield location and text of each line."""
    return ((f"line {number}", line) for number, line in enumerate(lines, 1))


def json_records(lines: Iterable[str]) -> Iterator[tuple[str, str | dict[str, Any]]]:
    """Yield location and content of each record of a JSON file; see `read_json_records`.

    Blank lines are records among JSON lines, and are left out in other layouts.
    """
    num_read = last = 0  # lines; last is that of a record

    def counted() -> Iterator[str]:
        nonlocal num_read
        for line in lines:
            num_read += 1
            yield line.rstrip("\r\n")

    def blank_lines(end: int) -> Iterator[tuple[str, str]]:
        return ((f"line {number}", "") for number in range(last + 1, end))

    for name, record in read_json_records("", counted()):
        if isinstance(record, str):
            number = int(name.removeprefix(":"))
            yield from blank_lines(number)
            last = number
        yield name.replace(":", "line ").strip(), record
    if last:
        yield from blank_lines(num_read + 1)


def is_json_file(file_name: str) -> bool:
    """Return whether the suffix of a file is one of JSON, perhaps before that of a compression."""
    return file_format(epath.Path(file_name)) in JSON_SUFFIXES


def parse_line(location: str, line: str, file_name: str = "") -> str | dict[str, Any]:
    """Return the JSON object in a line that starts with a brace, or else the line as a text.

    Args:
      location: where the line was read, for error messages.
      line: the line.
      file_name: name of its file; "" for standard input. In a file that is not one of JSON a line
        that starts with a brace and is no JSON object is a text, too, with a warning.

    Raises:
      InputError: the line starts with a brace, and is no JSON object.
    """
    text = line.strip()
    if not text.startswith("{"):
        return text
    try:
        return parse_object(location, text)
    except InputError:
        if not file_name or is_json_file(file_name):
            raise
    warn_once(
        ("braces", file_name),
        f"{file_name}: lines that start with a brace and are no JSON objects are texts, the first "
        f"at {location}. If all lines are objects, name the file .jsonl.",
    )
    return text


def _is_blank(content: Any) -> bool:
    return isinstance(content, str) and not content.strip()
