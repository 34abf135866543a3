"""What `bertjax evaluate` wrote, read again for its page."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from etils import epath

from bertjax.html.page import facts, tiles
from bertjax.tasks.task import EVALUATION_FILE
from data_pipelines.errors import InputError

PREDICTIONS = "predictions"

Entry = Mapping[str, Any]  # of predictions.json

# The style of a table of errors, whose last column is text.
ERRORS = """
.errors td { white-space: normal; text-align: left; vertical-align: top; }
.errors th { text-align: left; }
.errors td:last-child { min-width: 320px; overflow-wrap: anywhere; }
"""


class Written(NamedTuple):
    """An evaluation.

    Attributes:
      about: checkpoints and configuration.
      predictions: of the examples of all sets, one after the other.
    """

    about: Mapping[str, Any]
    scores: Mapping[str, float]
    predictions: list[Entry]

    def header(self, name: str, titles: Mapping[str, str], examples: str) -> str:
        """The head of a page: some scores by their titles, how many examples, of what model."""
        shown = [
            (title, f"{self.scores[key]:.4g}")
            for key, title in titles.items()
            if key in self.scores
        ]
        data = self.about["config"]["data"]
        said = [
            ("Model", ", ".join(self.about["checkpoints"])),
            ("Data", " ".join(filter(None, (data["dir"], data["dev"])))),
        ]
        return (
            f"<header><h1>{escape(name)}</h1>\n"
            f"{tiles([*shown, (examples, f'{len(self.predictions):,}')])}{facts(said)}</header>\n"
        )


def read_evaluation(directory: epath.Path, sizes: Mapping[str, int]) -> Written:
    """The evaluation in a directory.

    Args:
      sizes: examples of each data set, by its name.
    Raises:
      InputError: it is not whole, or not of these data.
    """
    predictions: list[Entry] = []
    try:
        about = json.loads((directory / EVALUATION_FILE).read_text())
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
        about["checkpoints"], about["config"]["data"]
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{directory} is no whole evaluation ({error}): repeat it.") from error
    return Written(about, scores, predictions)
