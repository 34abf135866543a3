"""Reading of a file of inputs for the pipeline of a model."""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bertjax.cli.files import read_lines

if TYPE_CHECKING:
    from bertjax.tasks.pipeline import Pipeline, PredictInput
    from data_pipelines.finetuning.table import TableRow

InputReader = Callable[["Pipeline[Any] | type[Pipeline[Any]]"], Iterable["PredictInput"]]


def input_file_reader(path: str) -> InputReader:
    """Return a function that reads the inputs of a file for a pipeline.

    Args:
      path: a table (.csv, .tsv, .parquet), or lines in a format that the pipeline parses; "-" for
        lines of standard input.

    Raises:
      InputError: see `read_lines` and `read_table`.
    """
    from data_pipelines.finetuning.table import is_table, read_table

    if path != "-" and is_table(path):
        rows = read_table(path)
        return lambda pipeline: map(_input_of_row, rows)
    lines, name = read_lines(path), "" if path == "-" else path
    return lambda pipeline: pipeline.parse_lines(lines, name)


def _input_of_row(row: "TableRow") -> "PredictInput":
    """Return a row of a table as an input; values that JSON lacks, such as dates, become text."""
    from bertjax.tasks.pipeline import PredictInput

    values = json.loads(json.dumps(row.values, default=str))
    return PredictInput(row.location, values)
