"""Tuples of texts, read from the rows of a table as sentence-transformers reads them."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow, describe_missing_column

SCORE_COLUMNS = ("score", "scores", "label", "labels")
_MAX_FLOAT32 = 3.4e38


@dataclasses.dataclass(frozen=True)
class EmbeddingsDataset:
    """N examples of C texts each.

    Attributes:
      name: name for messages.
      columns: the columns of the texts, in their order.
      texts: the texts of each example: an anchor, a positive and negatives, or the texts of a pair.
      scores: similarity of each pair; None without scores.
      locations: location of each example for messages.
    """

    name: str
    columns: tuple[str, ...]
    texts: list[tuple[str, ...]]
    scores: list[float] | None
    locations: list[str]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.texts)

    @property
    def all_texts(self) -> list[str]:
        """The texts of all examples, one example after the other."""
        return [*itertools.chain(*self.texts)]

    @property
    def num_texts(self) -> int:
        """Texts of each example."""
        return len(self.texts[0])

    @property
    def is_unlabeled(self) -> bool:
        """True if an example is a text alone."""
        return self.num_texts == 1


def dataset_from_rows(
    name: str,
    rows: Sequence[TableRow],
    columns: Sequence[str] = (),
    score: str = "",
    reads_scores: bool = True,
) -> EmbeddingsDataset:
    """Return the examples of a table.

    The order of the columns says what they are, not their names. A column of lists counts as a
    column for each element.

    Args:
      name: name of the table.
      rows: its rows.
      columns: columns of the texts; none for all but that of the scores.
      score: column of the scores; "" for the one with a name in `SCORE_COLUMNS`, if there is one.
      reads_scores: False leaves that column out.

    Raises:
      InputError: a column is missing, a text is empty or no text, a score is no number, or rows
        have different numbers of texts.
    """
    known = dict.fromkeys(column for row in rows for column in row.values)
    for field, named in (("texts", columns), ("score", (score,) if score else ())):
        for column in named:
            if column not in known:
                problem = describe_missing_column(rows, column, f"data.{field}")
                raise InputError(f"{name}: {problem}")
    score = score or next((c for c in SCORE_COLUMNS if c in known and c not in columns), "")
    if score in columns:
        raise InputError(
            f"data.score={score!r}: this column is also read as text. Name another one."
        )
    names = tuple(columns or (column for column in known if column != score))
    if not names:
        raise InputError(f"{name}: has no column but {score!r}. Give columns of texts.")
    texts = [_read_texts(row, names, bool(columns)) for row in rows]
    for row, example in zip(rows, texts, strict=True):
        if len(example) != len(texts[0]):
            raise InputError(
                f"{row.location}: {len(example)} texts, and {len(texts[0])} in the first row. Give "
                "each row as many."
            )
    scores = [_read_score(row, score) for row in rows] if score and reads_scores else None
    if scores and len(texts[0]) != 2:
        raise InputError(
            f"{name}: scores in {score!r} and {len(texts[0])} texts, {', '.join(names)}. Name the "
            "two texts of a pair, data.texts=FIRST+SECOND, or set data.loss="
            "multiple_negatives_ranking, which reads no scores."
        )
    return EmbeddingsDataset(name, names, texts, scores, [row.location for row in rows])


def texts_from_rows(
    name: str, rows: Sequence[TableRow], columns: Sequence[str] = ()
) -> EmbeddingsDataset:
    """Return the texts of one column of a table.

    Args:
      name: name of the table.
      rows: its rows.
      columns: the column; none for the only one.

    Raises:
      InputError: it is missing, or there are several; a text is empty or no text.
    """
    names = tuple(columns or dict.fromkeys(column for row in rows for column in row.values))
    if len(names) != 1:
        raise InputError(
            f"{name}: has the columns {', '.join(names)}, and the texts that a teacher embeds are "
            "one. Name it, data.texts=COLUMN."
        )
    dataset = dataset_from_rows(name, rows, names, reads_scores=False)
    if not dataset.is_unlabeled:
        raise InputError(
            f"{name}: column {names[0]!r} has lists, and the texts that a teacher embeds are one a "
            "row. Give a row for each."
        )
    return dataset


def _read_texts(row: TableRow, names: Sequence[str], are_named: bool) -> tuple[str, ...]:
    texts: list[str] = []
    for name in names:
        value = row.value(name)
        if isinstance(value, list):
            elements = {f"{name}[{i}]": element for i, element in enumerate(value)}
            whole = TableRow(row.location, elements)
            texts += [whole.text((element,)) for element in elements]
        elif isinstance(value, int | float) and not are_named:
            raise InputError(
                f"{row.location}: column {name!r} is {value!r}, not text. Name the columns of the "
                "texts, data.texts=ANCHOR+POSITIVE."
            )
        else:
            texts.append(row.text((name,)))
    return tuple(texts)


def _read_score(row: TableRow, column: str) -> float:
    value: Any = row.value(column)
    try:
        score = math.nan if isinstance(value, bool | None) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not abs(score) <= _MAX_FLOAT32:
        raise InputError(
            f"{row.location}: column {column!r} is {value!r}, not a finite number. Fix it, or set "
            "data.loss=multiple_negatives_ranking, which reads no scores."
        )
    return score
