"""How tags of words say where entities begin and end: recognising a scheme, and turning one into
another.

A tag is "O", or a prefix and a type: "B-person". The types of a scheme:

- BIO (also IOB2): B begins an entity and I goes on with it;
- IOB1: I is for all words, and B only begins what follows an entity of its type at once;
- IOBES: E ends an entity of several words, S is one of a single word; BILOU calls them L and U.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("BIO", "IOB1", "IOBES", "BILOU")
_PREFIXES = {"BIO": "BI", "IOB1": "BI", "IOBES": "BIES", "BILOU": "BILU"}
_AS_IOBES = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """The words [first, last] of a sentence are one of a type."""

    type: str
    first: int
    last: int


def parse_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; a type may hold hyphens, and be empty.

    Raises:
      ValueError: it is none; the message is a phrase.
    """
    prefix, hyphen, kind = tag.partition("-")
    if tag != OUTSIDE and (prefix not in tuple("BIESLU") or (hyphen and not kind)):
        raise ValueError(f"tag {tag!r} is neither O nor a prefix and a type, such as B-person")
    return prefix, kind


def join_tag(prefix: str, kind: str) -> str:
    """The other way round."""
    return f"{prefix}-{kind}" if kind else prefix


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence as conlleval counts them, whatever the scheme.

    An entity goes on with I or E (L) of its type, unless the word before was its end (E, L, S, U):
    so an I after nothing, or after another type, begins one too.
    """
    found: list[Entity] = []
    before, kind_before, first = OUTSIDE, "", 0
    for at, tag in enumerate((*tags, OUTSIDE)):
        prefix, kind = parse_tag(tag)
        prefix = _AS_IOBES.get(prefix, prefix)
        goes_on = prefix in "IE" and before in "BI" and kind == kind_before
        if before != OUTSIDE and not goes_on:
            found.append(Entity(kind_before, first, at - 1))
        if not goes_on:
            first = at
        before, kind_before = prefix, kind
    return found


def strict_entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """The entities of a sentence that are written as their scheme has it; others are none.

    Args:
      scheme: one of `SCHEMES`, but for IOB1, of which nothing can be broken.
    """
    return [
        each
        for each in entities(tags)
        if _entity_tags(each, scheme) == list(tags[each.first : each.last + 1])
    ]


def _entity_tags(entity: Entity, scheme: str) -> list[str]:
    """The tags of an entity's words in a scheme, but IOB1."""
    more = entity.last - entity.first
    single, last = {"IOBES": ("S", "E"), "BILOU": ("U", "L")}.get(scheme, ("B", "I"))
    prefixes = "B" + "I" * (more - 1) + last if more else single
    return [join_tag(prefix, entity.type) for prefix in prefixes]


def entities_to_tags(found: Iterable[Entity], count: int, scheme: str = "BIO") -> list[str]:
    """The tags of a sentence of `count` words from its entities, in their order."""
    tags = [OUTSIDE] * count
    before = Entity("", -2, -2)
    for each in found:
        if scheme == "IOB1":
            again = before.last == each.first - 1 and before.type == each.type
            own = [join_tag("I", each.type)] * (each.last - each.first + 1)
            own[0] = join_tag("B" if again else "I", each.type)
        else:
            own = _entity_tags(each, scheme)
        tags[each.first : each.last + 1] = own
        before = each
    return tags


def detect_scheme(sentences: Iterable[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """The scheme of some sentences' tags, and the words that break it.

    It is the scheme that the fewest words break, of those whose prefixes there are; of equal ones
    the first of `SCHEMES`.

    Returns:
      The scheme, and of each such word the numbers of its sentence and, within that, its own.
    Raises:
      ValueError: what prefixes there are is of no scheme; the message is a phrase.
    """
    kept = list(sentences)
    prefixes = {parse_tag(tag)[0] for tags in kept for tag in tags} - {OUTSIDE}
    known = [name for name in SCHEMES if prefixes <= set(_PREFIXES[name])]
    if not known:
        said = ", ".join(sorted(prefixes))
        raise ValueError(f"tags begin with {said}, which are of no scheme together")
    broken: dict[str, list[tuple[int, int]]] = {name: [] for name in known}
    for number, tags in enumerate(kept):
        found = entities(tags)
        for name in known:
            written = entities_to_tags(found, len(tags), name)
            broken[name] += [(number, at) for at, tag in enumerate(tags) if tag != written[at]]
    best = min(known, key=lambda name: len(broken[name]))
    return best, broken[best]


def label_scheme(labels: Iterable[str]) -> str:
    """The scheme of the names of a model's labels: those with an end are IOBES or BILOU.

    Raises:
      ValueError: they are of none; the message is a phrase.
    """
    prefixes = {parse_tag(label)[0] for label in labels} - {OUTSIDE}
    for name in ("BIO", "IOBES", "BILOU"):
        if prefixes <= set(_PREFIXES[name]):
            return "IOB1" if prefixes == {"I"} else name
    raise ValueError(f"tags begin with {', '.join(sorted(prefixes))}, which are of no scheme")


def labels_to_tags(labels: Sequence[str]) -> dict[str, str]:
    """The tag that each of a model's labels is; of one that is none, `PER` or `NOUN`, that of a
    type of its name, which goes on from word to word only where some words are of no type.
    """
    prefix = "I" if OUTSIDE in labels else "B"
    found = {}
    for label in labels:
        try:
            parse_tag(label)
            found[label] = label
        except ValueError:
            found[label] = join_tag(prefix, label)
    return found
