"""Tag schemes of entities: detection, and conversion between entities and tags.

A tag is "O", or a prefix and a type such as "B-person". The schemes:

- BIO (also IOB2): B begins an entity, I continues it.
- IOB1: every word of an entity has I, but B begins an entity right after another of its type.
- IOBES: like BIO, but E ends an entity of several words and S is an entity of one word.
- BILOU: IOBES with L for E and U for S.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("BIO", "IOB1", "IOBES", "BILOU")
_PREFIXES = {"BIO": "BI", "IOB1": "BI", "IOBES": "BIES", "BILOU": "BILU"}
_BILOU_TO_IOBES = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """An entity: its type and the indices of its first and last word in the sentence."""

    type: str
    first: int
    last: int


def parse_tag(tag: str) -> tuple[str, str]:
    """Return prefix and type of a tag; a type may contain hyphens or be empty.

    Raises:
      ValueError: it is not a tag; the message is a phrase.
    """
    prefix, hyphen, entity_type = tag.partition("-")
    if tag != OUTSIDE and (prefix not in tuple("BIESLU") or (hyphen and not entity_type)):
        raise ValueError(f"tag {tag!r} is neither O nor a prefix and a type, such as B-person")
    return prefix, entity_type


def is_tag(text: str) -> bool:
    """Return whether a text is a tag."""
    try:
        parse_tag(text)
    except ValueError:
        return False
    return True


def join_tag(prefix: str, entity_type: str) -> str:
    """Return the tag of a prefix and a type."""
    return f"{prefix}-{entity_type}" if entity_type else prefix


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence in any scheme, as conlleval counts them.

    I, E and L continue an entity of their type that has not ended with E, L, S or U. Otherwise
    they begin an entity.
    """
    result: list[Entity] = []
    previous_prefix, previous_type, first = OUTSIDE, "", 0
    for index, tag in enumerate((*tags, OUTSIDE)):
        prefix, entity_type = parse_tag(tag)
        prefix = _BILOU_TO_IOBES.get(prefix, prefix)
        continues = prefix in "IE" and previous_prefix in "BI" and entity_type == previous_type
        if previous_prefix != OUTSIDE and not continues:
            result.append(Entity(previous_type, first, index - 1))
        if not continues:
            first = index
        previous_prefix, previous_type = prefix, entity_type
    return result


def strict_entities(tags: Sequence[str], scheme: str) -> list[Entity]:
    """Return the entities of a sentence whose tags are exactly those of the scheme.

    Args:
      tags: the tags of the sentence.
      scheme: one of `SCHEMES` without IOB1, which every tag sequence follows.
    """
    return [
        entity
        for entity in entities(tags)
        if _entity_tags(entity, scheme) == list(tags[entity.first : entity.last + 1])
    ]


def _entity_tags(entity: Entity, scheme: str) -> list[str]:
    """Return the tags of an entity's words in a scheme other than IOB1."""
    num_more_words = entity.last - entity.first
    single, last = {"IOBES": ("S", "E"), "BILOU": ("U", "L")}.get(scheme, ("B", "I"))
    prefixes = "B" + "I" * (num_more_words - 1) + last if num_more_words else single
    return [join_tag(prefix, entity.type) for prefix in prefixes]


def entities_to_tags(
    sentence_entities: Iterable[Entity], num_words: int, scheme: str = "BIO"
) -> list[str]:
    """Return the tags of a sentence of `num_words` words from its entities, in order."""
    tags = [OUTSIDE] * num_words
    previous = Entity("", -2, -2)
    for entity in sentence_entities:
        if scheme == "IOB1":
            follows = previous.last == entity.first - 1 and previous.type == entity.type
            entity_tags = [join_tag("I", entity.type)] * (entity.last - entity.first + 1)
            entity_tags[0] = join_tag("B" if follows else "I", entity.type)
        else:
            entity_tags = _entity_tags(entity, scheme)
        tags[entity.first : entity.last + 1] = entity_tags
        previous = entity
    return tags


def detect_scheme(sentences: Iterable[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """Return the scheme that the fewest words violate, and their (sentence, word) indices.

    The order of `SCHEMES` decides between schemes with equally many violations.

    Raises:
      ValueError: no scheme has all these prefixes; the message is a phrase.
    """
    tagged = list(sentences)
    prefixes = {parse_tag(tag)[0] for tags in tagged for tag in tags} - {OUTSIDE}
    candidates = [name for name in SCHEMES if prefixes <= set(_PREFIXES[name])]
    if not candidates:
        raise ValueError(f"no scheme has tags with all of {', '.join(sorted(prefixes))}")
    violations: dict[str, list[tuple[int, int]]] = {name: [] for name in candidates}
    for number, tags in enumerate(tagged):
        sentence_entities = entities(tags)
        for name in candidates:
            expected = entities_to_tags(sentence_entities, len(tags), name)
            violations[name] += [
                (number, word) for word, tag in enumerate(tags) if tag != expected[word]
            ]
    best = min(candidates, key=lambda name: len(violations[name]))
    return best, violations[best]


def label_scheme(labels: Iterable[str]) -> str:
    """Return the scheme of a model's label names; an end tag means IOBES or BILOU.

    Raises:
      ValueError: no scheme has all these prefixes; the message is a phrase.
    """
    prefixes = {parse_tag(label)[0] for label in labels} - {OUTSIDE}
    for name in ("BIO", "IOBES", "BILOU"):
        if prefixes <= set(_PREFIXES[name]):
            return "IOB1" if prefixes == {"I"} else name
    raise ValueError(f"no scheme has tags with all of {', '.join(sorted(prefixes))}")


def labels_to_tags(labels: Sequence[str]) -> dict[str, str]:
    """Return the tag of each of a model's label names.

    A label that is not a tag, such as `PER` or `NOUN`, becomes the type of a tag. Its prefix is I
    if there is a label "O", so that adjacent words with the same label form an entity, else B.
    """
    prefix = "I" if OUTSIDE in labels else "B"
    return {label: label if is_tag(label) else join_tag(prefix, label) for label in labels}
