"""Tag schemes of entities: detection, and conversion between entities and tags.

A tag is "O", or a prefix and a type such as "B-person". The schemes:

- BIO (also IOB2): B begins an entity, I continues it.
- IOB1: every word of an entity has I, but B begins an entity right after another of its type.
- IOBES: like BIO, but E ends an entity of several words and S is an entity of one word.
- BILOU: IOBES with L for E and U for S.
- BMES, BMEW: IOBES with M for I, and W for S.

Tags without a prefix are types of entities, if one of them is "O" (IO), or tags of single words,
such as parts of speech.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("BIO", "IOB1", "IOBES", "BILOU", "BMES", "BMEW")
IO = "IO"
WORD_TAGS = "word tags"
_PREFIXES = {
    "BIO": "BI",
    "IOB1": "BI",
    "IOBES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "BMEW": "BMEW",
}
_ALL_PREFIXES = tuple("BIESLUMW")
_TO_IOBES = {"L": "E", "U": "S", "M": "I", "W": "S"}
# Sets of parts of speech that have one of these may have an O of their own, as Twitter's has.
_PARTS_OF_SPEECH = {"noun", "verb", "nn", "vb", "n", "v"}
_BRACKETS = re.compile(r"(?:\((?P<type>[^()*]+))?\*?(?P<end>\)?)")
_OTHER_FORMS = (  # such as B_PER or b-per, and PER-B
    re.compile(r"(?P<prefix>[BIESLUMW])[-_:|./](?P<type>.+)", re.IGNORECASE),
    re.compile(r"(?P<type>.+)[-_:|./](?P<prefix>[BIESLUMW])", re.IGNORECASE),
)


class Entity(NamedTuple):
    """An entity: its type and the indices of its first and last word in the sentence."""

    type: str
    first: int
    last: int


@functools.lru_cache(maxsize=4096)
def parse_tag(tag: str) -> tuple[str, str]:
    """Return prefix and type of a tag; a type may contain hyphens or be empty.

    Raises:
      ValueError: it is not a tag; the message is a phrase.
    """
    prefix, hyphen, entity_type = tag.partition("-")
    if tag != OUTSIDE and (prefix not in _ALL_PREFIXES or (hyphen and not entity_type)):
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
        prefix = _TO_IOBES.get(prefix, prefix)
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
      scheme: one of `SCHEMES` or IO. Every tag sequence follows IOB1 and IO.
    """
    if scheme in ("IOB1", IO):
        return entities(tags)
    return [
        entity
        for entity in entities(tags)
        if _entity_tags(entity, scheme) == list(tags[entity.first : entity.last + 1])
    ]


def _entity_tags(entity: Entity, scheme: str) -> list[str]:
    """Return the tags of an entity's words in a scheme other than IOB1."""
    num_more_words = entity.last - entity.first
    ends = {"IOBES": ("S", "I", "E"), "BILOU": ("U", "I", "L")}
    ends |= {"BMES": ("S", "M", "E"), "BMEW": ("W", "M", "E")}
    single, inside, last = ends.get(scheme, ("B", "I", "I"))
    prefixes = "B" + inside * (num_more_words - 1) + last if num_more_words else single
    return [join_tag(prefix, entity.type) for prefix in prefixes]


def entities_to_tags(
    sentence_entities: Iterable[Entity], num_words: int, scheme: str = "BIO"
) -> list[str]:
    """Return the tags of a sentence of `num_words` words from its entities, in order."""
    tags = [OUTSIDE] * num_words
    previous = Entity("", -2, -2)
    for entity in sentence_entities:
        if scheme == IO:
            entity_tags = [entity.type] * (entity.last - entity.first + 1)
        elif scheme == "IOB1":
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
    # Most sentences share their tags with others.
    words_by_tags: dict[tuple[str, ...], list[tuple[str, list[int]]]] = {}
    for number, tags in enumerate(tagged):
        key = tuple(tags)
        if key not in words_by_tags:
            words_by_tags[key] = _violations(tags, candidates)
        for name, words in words_by_tags[key]:
            violations[name] += [(number, word) for word in words]
    best = min(candidates, key=lambda name: len(violations[name]))
    return best, violations[best]


def _violations(tags: Sequence[str], schemes: Iterable[str]) -> list[tuple[str, list[int]]]:
    """Return the words of a sentence that violate each scheme, for the schemes that some do."""
    sentence_entities = entities(tags)
    violations = []
    for name in schemes:
        expected = entities_to_tags(sentence_entities, len(tags), name)
        if words := [word for word, tag in enumerate(tags) if tag != expected[word]]:
            violations.append((name, words))
    return violations


def tag_style(counts: Mapping[str, int]) -> str:
    """Return how tags name entities: "prefix", `IO` or `WORD_TAGS`.

    Args:
      counts: number of words of each tag. Tags without a prefix are mistakes if fewer words have
        them than tags with a prefix, or
        fewer such tags exist.
    """
    inside = counts.keys() - {OUTSIDE}
    prefixed = [tag for tag in inside if "-" in tag and is_tag(tag)]
    num_prefixed, num_inside = (sum(counts[tag] for tag in tags) for tags in (prefixed, inside))
    is_most = 2 * num_prefixed > num_inside or 2 * len(prefixed) > len(inside)
    if all(map(is_tag, inside)) or is_most:
        return "prefix"
    is_io = OUTSIDE in counts and not _PARTS_OF_SPEECH & {tag.lower() for tag in inside}
    return IO if is_io else WORD_TAGS


def to_standard_form(tags: Iterable[str]) -> dict[str, str]:
    """Return the tags of a file by its own, such as B-PER for B_PER or PER-B; {} without a form."""
    outside = {tag for tag in tags if tag in ("O", "o")}
    inside = set(tags) - outside
    for form in _OTHER_FORMS:
        matches = {tag: match for tag in inside if (match := form.fullmatch(tag))}
        standard = {
            tag: join_tag(match["prefix"].upper(), match["type"]) for tag, match in matches.items()
        }
        prefixes = {tag[0] for tag in standard.values()}
        if inside <= matches.keys() and len(outside) == 1 and prefixes & {"B", "S", "U", "W"}:
            return standard | dict.fromkeys(outside, OUTSIDE)
    return {}


def brackets_to_tags(tags: Sequence[str]) -> list[str] | None:
    """Return the BIO tags of CoNLL-2012's brackets, as in `(PER* *) * (LOC)`; None for others."""
    result, entity_type = [], ""
    for tag in tags:
        match = _BRACKETS.fullmatch(tag)
        if not match or (match["type"] and entity_type):
            return None
        prefix = "B" if match["type"] else "I"
        entity_type = match["type"] or entity_type
        result.append(join_tag(prefix, entity_type) if entity_type else OUTSIDE)
        if match["end"]:
            entity_type = ""
    return result


def label_scheme(labels: Iterable[str]) -> str:
    """Return the scheme of a model's label names: one of `SCHEMES`, `IO` or `WORD_TAGS`.

    An end tag means IOBES, BILOU or BMES.

    Raises:
      ValueError: no scheme has all these prefixes; the message is a phrase.
    """
    names = list(labels)
    has_types = any("-" in name and is_tag(name) for name in names)
    if not has_types and not all(map(is_tag, names)):
        return tag_style(dict.fromkeys(names, 1))
    prefixes = {parse_tag(label)[0] for label in names} - {OUTSIDE}
    for name in ("BIO", "IOBES", "BILOU", "BMES", "BMEW"):
        if prefixes <= set(_PREFIXES[name]):
            return "IOB1" if prefixes == {"I"} else name
    raise ValueError(f"no scheme has tags with all of {', '.join(sorted(prefixes))}")


def labels_to_tags(labels: Sequence[str]) -> dict[str, str]:
    """Return the tag of each of a model's label names.

    A label that is not a tag, such as `PER` or `NOUN`, becomes the type of a tag. Its prefix is I
    among labels of entities, so that adjacent words with the same label form an entity, else B.
    """
    is_word_tags = tag_style(dict.fromkeys(labels, 1)) == WORD_TAGS
    prefix = "I" if OUTSIDE in labels and not is_word_tags else "B"
    tags = {label for label in labels if is_tag(label) and ("-" in label or not is_word_tags)}
    return {label: label if label in tags else join_tag(prefix, label) for label in labels}
