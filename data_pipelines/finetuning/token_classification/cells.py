"""Rows and pairs of lines that hold the words and the tags of a whole sentence."""

import itertools
import re
from collections.abc import Sequence

from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import OUTSIDE, is_tag
from data_pipelines.finetuning.token_classification.columns import WordTable

_ELEMENT = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
_SPANS = re.compile(r"""\[\s*[\[({].*\d,.*['"].*[])}]\s*\]|\{\s*['"].*\[.*\}""", re.DOTALL)
_MIN_EQUAL = 0.9  # of the rows in which two columns have equally many elements


def join_sentence_lines(numbered: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Return lines with a tab between the words and the tags of a sentence.

    They may have ||| between them, or lines of their own: the tags below the words. Other lines are
    returned as they are.
    """
    filled = [(number, line) for number, line in numbered if line.strip()]
    if filled and all(" ||| " in line for _, line in filled):
        return [(number, line.replace(" ||| ", "\t")) for number, line in numbered]
    pairs = list(zip(filled[::2], filled[1::2], strict=False))
    if 2 * len(pairs) != len(filled) or not all(_are_tags(tags) for _, (_, tags) in pairs):
        return numbered
    sizes = [(len(words.split()), len(tags.split())) for (_, words), (_, tags) in pairs]
    if any(a != b for a, b in sizes) or max(sizes, default=(0,))[0] < 2:
        return numbered
    return [(number, f"{words}\t{tags}") for (number, words), (_, tags) in pairs]


def _are_tags(line: str) -> bool:
    return all(tag == OUTSIDE or ("-" in tag and is_tag(tag)) for tag in line.split())


def split_cells(table: WordTable) -> None:
    """Split rows with a sentence in several cells, as lists or with spaces, into rows of words.

    Raises:
      InputError: a row has more or fewer tags than words.
    """
    num_lists = sum(sum(map(_has_items, row.values)) > 1 for row in table.rows)
    if 2 * num_lists < len(table.rows):
        return
    for row in table.rows:
        if spans := next(filter(_SPANS.fullmatch, row.values), ""):
            raise InputError(
                f"{table.name}:{row.line}: spans in a table, such as {spans[:60]!r}. Write JSON "
                'lines such as {"text": "In Oslo", "spans": [[3, 7, "LOC"]]}.'
            )
    split = [[_items(value) for value in row.values] for row in table.rows]
    columns = range(len(split[0]))

    def num_equal(pair: Sequence[int]) -> int:
        return sum(len(row[pair[0]]) == len(row[pair[1]]) > 1 for row in split)

    first, second = max(itertools.combinations(columns, 2), key=num_equal)
    if 2 * num_equal((first, second)) < len(split):
        return
    minimum = _MIN_EQUAL * num_equal((first, second))
    listed = {c for c in columns if c in (first, second) or num_equal((first, c)) >= minimum}
    rows = []
    for sentence, (row, items) in enumerate(zip(table.rows, split, strict=True)):
        sizes = sorted({len(items[column]) for column in listed})
        if len(sizes) > 1:
            names = " and ".join(map(table.describe, sorted(listed)))
            raise InputError(
                f"{table.name}:{row.line}: {sizes[0]} elements and {sizes[-1]} in columns {names}. "
                "Write one tag for each word."
            )
        for index in range(sizes[0]):
            pairs = enumerate(zip(row.values, items, strict=True))
            values = [cell[index] if c in listed else value for c, (value, cell) in pairs]
            rows.append(row._replace(sentence=sentence, values=values))
    table.rows = rows


def _has_items(cell: str) -> bool:
    return " " in cell or cell[:1] == "["


def _items(cell: str) -> list[str]:
    """Return the elements of a list as Python or numpy writes it, or what spaces separate."""
    if not (cell.startswith("[") and cell.endswith("]") and len(cell) > 1):
        return cell.split()
    quoted = [single or double for single, double in _ELEMENT.findall(cell)]
    return [re.sub(r"\\(.)", r"\1", item) for item in quoted] or re.split(r"[,\s]+", cell[1:-1])
