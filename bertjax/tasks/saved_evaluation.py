"""Output of `bertjax evaluate`, read for its report."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bertjax.html.page import Section, render_report
from bertjax.html.tables import eval_set_table
from bertjax.tasks.task import EVALUATION_FILE
from data_pipelines.errors import InputError
from data_pipelines.schema import read_json_object, read_json_value

PREDICTIONS = "predictions"
_SCHEMA = {"checkpoints": [str], "config": {"data": {"dir": str, "eval_file": str}}}

PredictionEntry = Mapping[str, Any]  # of predictions.json


class SavedEvaluation(NamedTuple):
    """An evaluation.

    Attributes:
      directory: the directory of its files.
      run_info: checkpoints and configuration.
      scores: metrics by name.
      files: file name -> content, for each eval set in order.
    """

    directory: epath.Path
    run_info: Mapping[str, Any]
    scores: Mapping[str, float]
    files: Sequence[Mapping[str, Any]]

    def predictions(self, sizes: Sequence[int]) -> list[PredictionEntry]:
        """Return the predictions of all eval sets, one set after the other.

        Args:
          sizes: number of examples of each set.

        Raises:
          InputError: the predictions are not those of these sets.
        """
        predictions = []
        for file, size in zip(self.files, sizes, strict=True):
            if len(file[PREDICTIONS]) != size:
                raise InputError(
                    f"{self.directory}: {len(file[PREDICTIONS])} predictions for {size} examples. "
                    "Run bertjax evaluate again."
                )
            predictions += file[PREDICTIONS]
        return predictions

    def render(
        self,
        name: str,
        titles: Mapping[str, str],
        count: tuple[str, int],
        sections: Sequence[Section],
        *,
        score_format: str = ".4g",
        facts: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> str:
        """Return the page: scores, checkpoints, data, a table of the eval sets, the sections.

        Args:
          name: title of the page.
          titles: metrics to show with their titles, in order.
          count: title and number of the examples.
          sections: the task's own part of the page.
          score_format: format of a score.
          facts: further terms and descriptions.
          **options: passed on to `render_report`.
        """
        data = self.run_info["config"]["data"]
        scores = [
            (title, format(self.scores[key], score_format))
            for key, title in titles.items()
            if key in self.scores
        ]
        return render_report(
            name,
            [Section("Eval sets", table=eval_set_table(self.scores, titles)), *sections],
            metrics=[*scores, (count[0], f"{count[1]:,}")],
            facts=[
                ("Model", ", ".join(self.run_info["checkpoints"])),
                ("Data", " ".join(filter(None, (data["dir"], data["eval_file"])))),
                *facts,
            ],
            **options,
        )


def read_evaluation(
    directory: epath.Path, sets: Sequence[str], schemas: Mapping[str, Any]
) -> SavedEvaluation:
    """Return the evaluation in a directory.

    Args:
      directory: the output of `bertjax evaluate`.
      sets: names of the eval sets.
      schemas: name of each file to read of a set -> its schema (`data_pipelines.schema`).

    Raises:
      InputError: a file is missing or damaged.
    """
    fix = "Run bertjax evaluate again."
    run_info = read_json_object(directory / EVALUATION_FILE, _SCHEMA, fix)
    scores = read_json_object(directory / "scores.json", {str: float}, fix)
    prefixes = [f"{name}." if len(sets) > 1 else "" for name in sets]
    contents = [
        {
            file: read_json_value(directory / f"{prefix}{file}.json", schema, fix)
            for file, schema in schemas.items()
        }
        for prefix in prefixes
    ]
    return SavedEvaluation(directory, run_info, scores, contents)
