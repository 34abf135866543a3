"""Pages from Jinja2 templates. A page is one file: no network, fonts or libraries."""

import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertjax.html.charts import Chart
from bertjax.html.plots import ConfusionMatrix
from bertjax.html.tables import TextTable

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = pathlib.Path(__file__).parent / "templates"


class Section(NamedTuple):
    """A part of a report under a heading; not shown without content.

    Attributes:
      title: the heading.
      note: a sentence above the content.
      charts: charts, two side by side.
      matrix: a table of counts.
      table: a table of text.
      table_class: CSS class of the table.
      bold_row: index of the table's row in bold.
      summary: label of a `<details>` element, closed at first, that holds the content.
      paragraphs: lines of text.
    """

    title: str
    note: str = ""
    charts: Sequence[Chart] = ()
    matrix: ConfusionMatrix | None = None
    table: TextTable | None = None
    table_class: str = ""
    bold_row: int | None = None
    summary: str = ""
    paragraphs: Sequence[str] = ()

    @property
    def has_content(self) -> bool:
        """True if the heading has content."""
        return bool(
            self.charts or self.matrix or (self.table and self.table.rows) or self.paragraphs
        )


class Status(NamedTuple):
    """A line above the title: its CSS class ("finished", "failed" or another) and its text."""

    css_class: str
    text: str


def render_report(
    title: str,
    sections: Sequence[Section],
    *,
    metrics: Sequence[tuple[str, str]] = (),
    metrics_note: str = "",
    facts: Sequence[tuple[str, str]] = (),
    status: Status | None = None,
    template: str = "report.html.j2",
    **variables: Any,
) -> str:
    """Return the HTML of a report.

    Args:
      title: plain text.
      sections: sections in order; those without content are left out.
      metrics: name and value of the numbers at the top.
      metrics_note: a sentence below these numbers.
      facts: terms and descriptions; those without description are left out.
      status: line above the title.
      template: a template that extends report.html.j2.
      **variables: what this template needs in addition.
    """
    return render_template(
        template,
        title=title,
        sections=sections,
        metrics=metrics,
        metrics_note=metrics_note,
        facts=facts,
        status=status,
        **variables,
    )


def render_template(template: str, **variables: Any) -> str:
    """Return the HTML of a template; text in its variables is escaped."""
    return _environment().get_template(template).render(variables)


@functools.cache
def _environment() -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
