"""Drawings by matplotlib as SVG elements of a page.

matplotlib and its font cache take a second to import: they are imported when a chart is drawn.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from bertjax.html.axes import ChartAxis, tick_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A color of the drawing -> the variable of style.css that replaces it, light or dark.
CSS_VARIABLES = {
    "#fdfdfc": "--page",
    "#6a7079": "--soft",
    "#e8e8e4": "--line",
    "#2b6cb0": "--train",
    "#d1661c": "--eval",
    "#c2362f": "--bad",
}
COLORS = {variable.removeprefix("--"): color for color, variable in CSS_VARIABLES.items()}
_STYLE: dict[Any, Any] = {
    "font.size": 12,
    "path.simplify": False,  # curves are downsampled already
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # names of labels may contain "$"
}


class Layout(NamedTuple):
    """Size of a drawing and margins around its axes, in SVG units."""

    width: int
    height: int
    left: int = 52
    right: int = 16
    top: int = 8
    bottom: int = 26


@contextmanager
def new_axes(layout: Layout, salt: str = "") -> Iterator["Axes"]:
    """Yield empty axes of a new figure in the style of the pages.

    Args:
      layout: size and margins.
      salt: makes ids of this drawing differ from those of other drawings on the page.
    """
    import matplotlib
    from matplotlib.figure import Figure

    width, height, left, right, top, bottom = layout
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not those of the user's matplotlibrc
        matplotlib.rcParams.update(_STYLE | {"svg.hashsalt": f"bertjax {salt}"})
        # 72 dots per inch: a dot is a point, the unit of the SVG.
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        inner_width, inner_height = width - left - right, height - top - bottom
        box = left / width, bottom / height, inner_width / width, inner_height / height
        axes = figure.add_axes(box, frameon=False)
        axes.tick_params(length=0, labelcolor=COLORS["soft"], labelsize=12, pad=9)
        axes.tick_params(axis="x", pad=11)
        axes.grid(axis="y", color=COLORS["line"], linewidth=1, clip_on=False)
        axes.set_axisbelow(True)
        yield axes


def set_axis(axes: "Axes", name: str, axis: ChartAxis, as_percent: bool) -> None:
    """Set limits, scale, ticks and labels of the "x" or "y" axis."""
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
        axes.minorticks_off()
    axes.set(**{f"{name}lim": (axis.ticks[0], axis.ticks[-1]), f"{name}ticks": axis.ticks})
    axes.set(**{f"{name}ticklabels": tick_labels(axis, as_percent)})


def to_svg(axes: "Axes", tooltips: Sequence[str] = ()) -> str:
    """Return the content of an <svg> element, the same for the same drawing.

    Colors become variables of the style sheet, the `gid` of an artist becomes its class.

    Args:
      axes: what `new_axes` yields.
      tooltips: texts of the markers, in the order in which they were drawn.
    """
    buffer = io.StringIO()
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    classes = {artist.get_gid() for artist in axes.get_children()} - {None}
    texts = iter(tooltips)
    for element in root.iter():
        element.tag, element.tail = _local_name(element.tag), None
        element.attrib = dict(map(_page_attribute, element.attrib.items()))
        if element.tag == "g" and (gid := element.attrib.pop("id", None)) in classes:
            element.set("class", str(gid))
        if element.tag == "text":  # the font is that of the page; no text is rotated
            element.attrib.pop("transform", None)
            element.set("style", _FONT.sub("", element.get("style", "")))
        elif element.tag != "title":  # a tooltip that this loop has added
            element.text = None  # without the line breaks between elements
        if element.tag == "use" and (tooltip := next(texts, None)) is not None:
            ElementTree.SubElement(element, "title").text = tooltip
    # Without metadata and without a style sheet that would apply to the whole page.
    return "".join(ElementTree.tostring(part, encoding="unicode") for part in root.findall("g"))


_COLOR = re.compile("|".join(CSS_VARIABLES))
_FONT = re.compile(r"font[^;]*;\s*")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}")


def _local_name(name: str) -> str:
    return name.rpartition("}")[2]  # without its namespace: HTML knows SVG


def _page_attribute(item: tuple[str, str]) -> tuple[str, str]:
    name, value = _local_name(item[0]), item[1]
    if name == "style":
        value = _COLOR.sub(lambda color: f"var({CSS_VARIABLES[color[0]]})", value)
    if name in ("d", "x", "y"):  # a hundredth of a point is not seen
        value = _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}", value)
    if name == "d":
        value = " ".join(value.split())
    return name, value
