"""The page of a served model: a form for an input and the model's answer."""

from collections.abc import Mapping
from typing import NamedTuple

from bertjax.html.page import render_template
from bertjax.inference.model import METHODS
from bertjax.inference.predictor import Predictor
from bertjax.tasks.sequence_classification.data import columns_from_config


class _FormField(NamedTuple):
    """A text area.

    Attributes:
      key: name in the input; "" if the input is the text itself.
      label: what the user reads.
      text: initial content.
      lines: height.
    """

    key: str
    label: str
    text: str = ""
    lines: int = 3


_FORM_FIELDS: Mapping[str, list[_FormField]] = {
    "fill_mask": [_FormField("", "Text", "The capital of France is [MASK].")],
    "continue": [_FormField("", "Text", "The capital of France is")],
    "answer": [
        _FormField("question", "Question", "Where is Oslo?", 1),
        _FormField("context", "Passage", "Oslo lies in Norway.", 9),
    ],
    "tag": [_FormField("", "Text", "Ada Lovelace wrote to Charles Babbage.", 5)],
    "choose": [
        _FormField("context", "Text", "She opens the"),
        _FormField("choices", "Choices, one per line", "door\nsky", 5),
    ],
    "predict": [_FormField("", "Text, or a JSON object", "", 5)],
}


def render_page(predictor: Predictor) -> str:
    """Return the page, which sends its requests to the server that it comes from."""
    kind = METHODS.get(predictor.config.task, "predict")
    if kind == "fill_mask" and predictor.config.model.causal:
        kind = "continue"
    path = predictor.path
    return render_template(
        "server.html.j2",
        title=path.parent.parent.name if path.name.isdigit() else path.name,
        path=str(path),
        description=predictor.description,
        fields=_column_fields(predictor) if kind == "classify" else _FORM_FIELDS[kind],
        kind=kind,
    )


def _column_fields(predictor: Predictor) -> list[_FormField]:
    """Return a text area for each column that a classifier reads."""
    columns = columns_from_config(predictor.config)
    names = (*columns.text, *columns.text_pair)
    if len(names) == 1:
        return [_FormField("", "Text", lines=5)]
    return [_FormField(name, name) for name in names]
