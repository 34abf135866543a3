"""Web page of a served model: a form for an input and the model's answer."""

from bertjax.html.page import render_template
from bertjax.inference.predictor import Predictor


def render_page(predictor: Predictor) -> str:
    """Return the page, which sends its requests to the server that it comes from."""
    path, fields = predictor.path, predictor.pipeline.form_fields()
    return render_template(
        "server.html.j2",
        title=path.parent.parent.name if path.name.isdigit() else path.name,
        path=str(path),
        description=predictor.pipeline.description,
        fields=fields,
        formats=[field.format for field in fields],
    )
