"""Web page to try a model."""

import importlib.util
import logging

from bertjax.html.page import render_template
from bertjax.inference.predictor import Predictor

_log = logging.getLogger("bertjax")

_NO_PAGE = "This server answers POST /predict. To try it on this page, run pip install jinja2."


def render_page(predictor: Predictor) -> str:
    """Return the web page of a model: a form for an input, and the model's answer.

    Without Jinja2 the page is a sentence.
    """
    if importlib.util.find_spec("jinja2") is None:
        _log.info("%s", _NO_PAGE)
        return _NO_PAGE
    path, fields = predictor.path, predictor.pipeline.form_fields()
    return render_template(
        "server.html.j2",
        title=path.parent.parent.name if path.name.isdigit() else path.name,
        path=str(path),
        description=predictor.pipeline.description,
        fields=fields,
        formats=[field.format for field in fields],
    )
