"""Scores of several data sets as one table, on a page and in a terminal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MEAN = "mean"


class ScoreTable(NamedTuple):
    """A head, and rows of as many cells; no rows where there is nothing to compare."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def eval_set_table(
    scores: Mapping[str, float | None], titles: Mapping[str, str] | None = None
) -> ScoreTable:
    """A row for each data set, a column for each score that all have, and the means below.

    Args:
      scores: as an evaluation gives them, those of a set as NAME/METRIC.
      titles: of the metrics that are shown, in their order; None for those that stand for all sets
        together, under their own names.
    Returns:
      The table; it has no rows where there are not two sets.
    """
    sets: dict[str, dict[str, float | None]] = {}
    for key, value in scores.items():
        name, slash, metric = key.rpartition("/")
        if slash:
            sets.setdefault(name, {})[metric] = value
    if len(sets) < 2:
        return ScoreTable((), [])
    wanted = [key for key in scores if "/" not in key] if titles is None else list(titles)
    metrics = [metric for metric in wanted if all(metric in own for own in sets.values())]
    columns = []
    for metric in metrics:
        values = [own[metric] for own in sets.values()]
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known else None
        columns.append(_format_column([*values, scores.get(metric, mean)]))
    header = ("data set", *((titles or {}).get(metric, metric) for metric in metrics))
    return ScoreTable(header, list(zip((*sets, _MEAN), *columns, strict=True)))


def _format_column(values: Sequence[float | None]) -> list[str]:
    """A column; of shares four decimals, of percents two."""
    digits = 4 if all(value is None or abs(value) <= 1 for value in values) else 2
    return ["-" if value is None else f"{value:.{digits}f}" for value in values]


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of text, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )
