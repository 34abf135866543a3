"""Labeled spans of a text in the layouts of annotation tools.

A span is `[start, end, label]`, or an object whose keys begin with "start" and "end". Read are
spans of doccano, spaCy, Label Studio, Prodigy, Dataturks and CLUENER, and columns of spans.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data_pipelines.errors import InputError

_LABEL_KEYS = (
    *("label", "labels", "label_type", "type", "entity_type", "entity_group", "tag", "class"),
    *("entitytype", "label_name", "category", "kind", "name", "ner"),
    "entity",  # may also be the text of the span
)
_SURFACE_KEYS = ("text", "value", "entity", "word", "mention", "surface")


class Span(NamedTuple):
    """A labeled part of a text.

    Attributes:
      start: first character.
      end: character after the last one.
      label: type of the entity.
      surface: text of the span in the annotation; "" if unknown.
    """

    start: int
    end: int
    label: str
    surface: str = ""


def has_spans(value: Any) -> bool:
    """Return whether a value has spans of a known layout, at least one."""
    try:
        return any(True for _ in parse_spans(value))
    except InputError:  # spans that cannot be used
        return True
    except (TypeError, ValueError, KeyError):
        return False


def parse_spans(value: Any) -> Iterator[Span]:
    """Yield the spans in a value of any layout; raise TypeError, ValueError or KeyError if none."""
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        if lists and len(lists) == len(value):  # a table as {column: values}
            value = [dict(zip(value, inner, strict=True)) for inner in zip(*lists, strict=True)]
        else:  # CLUENER: {label: {surface: [[start, end], ...]}}
            for label, surfaces in value.items():
                if not isinstance(surfaces, dict):
                    raise TypeError
                for surface, places in surfaces.items():
                    yield from (Span(int(a), int(b), label, surface) for a, b in places)
            return
    if not isinstance(value, list):
        raise TypeError
    if value and all(isinstance(item, dict) and "result" in item for item in value):
        yield from _label_studio_spans(value)
        return
    for item in value:
        yield from _item_spans(item)


def _label_studio_spans(annotations: Sequence[dict[str, Any]]) -> Iterator[Span]:
    valid = [item for item in annotations if not item.get("was_cancelled")]
    results = [
        [result["value"] for result in item["result"] if result.get("type") != "relation"]
        for item in valid
    ]
    if any(result != results[0] for result in results[1:]):
        raise InputError("annotators disagree")
    for value in results[0] if results else ():
        yield from _item_spans(value)


def _item_spans(item: Any) -> Iterator[Span]:
    if isinstance(item, list):
        start, end = (x for x in item if isinstance(x, int))
        (label,) = (x for x in item if isinstance(x, str))
        yield Span(start, end, label)
        return
    if not isinstance(item, dict):
        raise TypeError
    if "points" in item:  # Dataturks
        labels = item["label"] if isinstance(item["label"], list) else [item["label"]]
        for point, label in itertools.product(item["points"], labels):
            yield from _item_spans({**point, "label": label})
        return
    lower = {key.lower(): value for key, value in item.items()}
    if "offset" in lower and "length" in lower:
        lower |= {"start": lower["offset"], "end": int(lower["offset"]) + int(lower["length"])}
    pairs = [x for x in lower.values() if isinstance(x, list) and [*map(type, x)] == [int, int]]
    if len(pairs) == 1 and not any(key.startswith("start") for key in lower):
        lower |= {"start": pairs[0][0], "end": pairs[0][1]}
    label_key = next((key for key in _LABEL_KEYS if lower.get(key) is not None), "label")
    label = lower[label_key]
    start, end = _number(lower, ("start", "begin")), _number(lower, ("end",))
    labels = label if isinstance(label, list) else [label]
    if len(labels) > 1:
        raise InputError(f"a span has labels {labels!r}, not one")
    (label,) = labels
    if isinstance(label, int):
        raise InputError(f"label {label!r} is a number, not a name")
    if not isinstance(label, str) or not label:
        raise ValueError
    keys = (key for key in _SURFACE_KEYS if isinstance(lower.get(key), str) and key != label_key)
    surface = lower.get(next(keys, ""), "")
    yield Span(start, end, label, surface)


def _number(item: dict[str, Any], prefixes: tuple[str, ...]) -> int:
    names = [name for name in item if name.startswith(prefixes) and "token" not in name]
    value = item[min(names, key=len, default=prefixes[0])]
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise TypeError
    return int(value)
