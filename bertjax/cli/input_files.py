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
    from data_pipelines.finetuning.sequence_classification import split_column_names
    from data_pipelines.finetuning.table import is_table, read_table

    if path != "-" and is_table(path):

        def read_rows(pipeline: "Pipeline[Any] | type[Pipeline[Any]]") -> Iterable["PredictInput"]:
            # As the files of the training, a file without a header has the columns of its run.
            data = {} if isinstance(pipeline, type) else pipeline.config.data
            columns = split_column_names(data.get("columns", ""))
            return map(_input_of_row, read_table(path, columns=columns))

        return read_rows
    lines, name = read_lines(path), "" if path == "-" else path
    return lambda pipeline: pipeline.parse_lines(lines, name)


def _input_of_row(row: "TableRow") -> "PredictInput":
    """Return a row of a table as an input; values that JSON lacks, such as dates, become text."""
    from bertjax.tasks.pipeline import PredictInput

    values = json.loads(json.dumps(row.values, default=str))
    return PredictInput(row.location, values)
