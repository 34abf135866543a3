"""What `bertjax evaluate` wrote, read again for its page."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from etils import epath

from bertjax.html.page import definition_list, tiles
from bertjax.tasks.task import EVALUATION_FILE
from data_pipelines.errors import InputError

PREDICTIONS = "predictions"

PredictionEntry = Mapping[str, Any]  # of predictions.json

# The style of a table of errors, whose last column is text.
ERROR_TABLE_STYLE = """
.errors td { white-space: normal; text-align: left; vertical-align: top; }
.errors th { text-align: left; }
.errors td:last-child { min-width: 320px; overflow-wrap: anywhere; }
"""


class SavedEvaluation(NamedTuple):
    """An evaluation.

    Attributes:
      about: checkpoints and configuration.
      predictions: of the examples of all sets, one after the other.
    """

    run_info: Mapping[str, Any]
    scores: Mapping[str, float]
    predictions: list[PredictionEntry]

    def render_header(self, name: str, titles: Mapping[str, str], examples: str) -> str:
        """The head of a page: some scores by their titles, how many examples, of what model."""
        shown = [
            (title, f"{self.scores[key]:.4g}")
            for key, title in titles.items()
            if key in self.scores
        ]
        data = self.run_info["config"]["data"]
        said = [
            ("Model", ", ".join(self.run_info["checkpoints"])),
            ("Data", " ".join(filter(None, (data["dir"], data["eval_file"])))),
        ]
        return (
            f"<header><h1>{escape(name)}</h1>\n"
            f"{tiles([*shown, (examples, f'{len(self.predictions):,}')])}{definition_list(said)}</header>\n"
        )


def read_evaluation(directory: epath.Path, sizes: Mapping[str, int]) -> SavedEvaluation:
    """The evaluation in a directory.

    Args:
      sizes: examples of each data set, by its name.
    Raises:
      InputError: it is not whole, or not of these data.
    """
    predictions: list[PredictionEntry] = []
    try:
        run_info = json.loads((directory / EVALUATION_FILE).read_text())
        scores = json.loads((directory / "scores.json").read_text())
        for name, count in sizes.items():
            prefix = f"{name}." if len(sizes) > 1 else ""
            found = json.loads((directory / f"{prefix}{PREDICTIONS}.json").read_text())
            if len(found) != count:
                raise InputError(
                    f"{directory} answers {len(found)} examples and the data have {count}: "
                    "evaluate again."
                )
            predictions += found
        run_info["checkpoints"], run_info["config"]["data"]
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{directory} is no whole evaluation ({error}): repeat it.") from error
    return SavedEvaluation(run_info, scores, predictions)
