"""Tag schemes: entities of tags, tags of entities, and detection of the scheme."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.finetuning.tag_schemes import (
    SCHEMES,
    Entity,
    detect_scheme,
    entities,
    entities_to_tags,
    label_scheme,
    labels_to_tags,
    strict_entities,
)


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Draw adjacent and separate entities, and the number of words."""
    drawn, word = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from("ab")), max_size=6)
    ):
        word += gap
        drawn.append(Entity(kind, word, word + length - 1))
        word += length
    return drawn, word + draw(st.integers(0, 2))


@pytest.mark.seconds
@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(sentences(), min_size=1, max_size=5))
def test_entities_to_tags_and_entities_are_inverse(scheme, entities_and_sizes) -> None:
    tags = [entities_to_tags(drawn, size, scheme) for drawn, size in entities_and_sizes]
    drawn_entities = [drawn for drawn, _ in entities_and_sizes]
    assert [entities(sentence_tags) for sentence_tags in tags] == drawn_entities
    assert detect_scheme(tags)[1] == []
    if scheme != "IOB1":
        strict = [strict_entities(sentence_tags, scheme) for sentence_tags in tags]
        assert strict == drawn_entities


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "BIO"),
        ("O B-a I-a O B-a B-a", "BIO"),
        ("I-a I-a O I-b", "IOB1"),
        ("I-a B-a I-a", "IOB1"),
        ("O S-a B-a I-a E-a", "IOBES"),
        ("B-a E-a", "IOBES"),
        ("U-a", "BILOU"),
        ("B-a I-a L-a", "BILOU"),
        ("B-a M-a E-a S-a", "BMES"),
        ("W-a O B-a M-a E-a", "BMEW"),
    ],
)
def test_detect_scheme_returns_the_scheme_of_the_tags(tags: str, scheme: str) -> None:
    assert detect_scheme([tags.split()]) == (scheme, [])


def test_detect_scheme_follows_the_majority() -> None:
    valid = ["B-a", "I-a", "O"]
    assert detect_scheme([valid, valid, ["O", "I-a"], valid]) == ("BIO", [(2, 1)])


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-a I-a", "BIO"),
        ("B-a I-a E-a S-a O", "IOBES"),
        ("U-a L-a B-a I-a O", "BILOU"),
        ("O I-a I-b", "IOB1"),
        ("B-a M-a E-a S-a O", "BMES"),
        ("O PER LOC", "IO"),
        ("NOUN VERB", "word tags"),
        ("O N V", "word tags"),
    ],
)
def test_label_scheme_returns_the_scheme_of_label_names(labels: str, scheme: str) -> None:
    assert label_scheme(labels.split()) == scheme


def test_labels_to_tags_uses_other_labels_as_types() -> None:
    """Equal labels of adjacent words form an entity only if there is a label "O"."""
    tags = labels_to_tags(["O", "PER", "B-LOC"])
    assert entities([tags[label] for label in ("PER", "PER", "O", "B-LOC", "PER")]) == [
        Entity("PER", 0, 1),
        Entity("LOC", 3, 3),
        Entity("PER", 4, 4),
    ]
    tags = labels_to_tags(["NOUN", "VERB"])
    assert entities([tags["NOUN"], tags["NOUN"]]) == [Entity("NOUN", 0, 0), Entity("NOUN", 1, 1)]
