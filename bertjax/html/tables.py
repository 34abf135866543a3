"""Tables of text, such as scores by eval set, for a page and for a terminal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MEAN = "mean"


class TextTable(NamedTuple):
    """A header and rows of as many cells."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def eval_set_table(
    scores: Mapping[str, float | None], titles: Mapping[str, str] | None = None
) -> TextTable:
    """Return a row for each eval set, a last row "mean", and a column for each metric.

    A metric has a column if each eval set has it. The last row has the METRIC of the evaluation,
    or without one the mean over the eval sets.

    Args:
      scores: scores of an evaluation, with keys METRIC over the eval sets together and SET/METRIC
        for one eval set.
      titles: metrics to show with their titles, in order; by default every METRIC key.

    Returns:
      The table, without rows if there are fewer than two sets.
    """
    sets: dict[str, dict[str, float | None]] = {}
    for key, value in scores.items():
        name, slash, metric = key.rpartition("/")
        if slash:
            sets.setdefault(name, {})[metric] = value
    if len(sets) < 2:
        return TextTable((), [])
    candidates = [key for key in scores if "/" not in key] if titles is None else list(titles)
    metrics = [metric for metric in candidates if all(metric in values for values in sets.values())]
    columns = []
    for metric in metrics:
        values = [set_scores[metric] for set_scores in sets.values()]
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known else None
        columns.append(_format_column([*values, scores.get(metric, mean)]))
    header = ("eval set", *((titles or {}).get(metric, metric) for metric in metrics))
    return TextTable(header, list(zip((*sets, _MEAN), *columns, strict=True)))


def _format_column(values: Sequence[float | None]) -> list[str]:
    """Format with four decimals, or with two if a value exceeds 1, as a percentage may."""
    digits = 4 if all(value is None or abs(value) <= 1 for value in values) else 2
    return ["-" if value is None else f"{value:.{digits}f}" for value in values]


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines of text, the first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )
