"""Entities are counted as conlleval counts them, and where asked as seqeval's strict mode does.

The goldens are of goldens/make_tag_scores.py.
"""

import json

import numpy as np
import pytest
from etils import epath
from goldens import make_tag_scores as recipe
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tasks.task import EVALUATION_FILE
from bertjax.tasks.token_classification.metrics import EntityCounts, count_entities, sum_counts
from bertjax.tasks.token_classification.report import ERROR_KINDS, find_errors, render
from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import Entity, entities, strict_entities

GOLDEN = np.load(recipe.PATH)
COUNTERS = [name for name in GOLDEN if len(GOLDEN[name]) > 3]


@pytest.mark.parametrize("counter", COUNTERS)
def test_ten_thousand_sentences_of_each_scheme_are_counted_as_others_count_them(counter) -> None:
    scheme, _, whose = counter.partition(" ")
    strict = scheme if whose == "strict" else ""
    pairs = [recipe.draw_pair(scheme, number) for number in range(recipe.SENTENCES)]
    ours = []
    for first in range(0, recipe.SENTENCES, recipe.BLOCK):
        gold, said = zip(*pairs[first : first + recipe.BLOCK], strict=True)
        ours.append(sum_counts(count_entities(gold, said, strict).values()))
    np.testing.assert_array_equal(ours, GOLDEN[counter])


@pytest.mark.parametrize("name", recipe.ODD)
def test_the_perl_script_knows_no_single_words_and_no_beginning_after_an_end(name) -> None:
    """It takes two entities for one there; ours, as seqeval, finds both."""
    tags = recipe.ODD[name]
    assert GOLDEN[name][0] == 1
    assert len(entities(tags)) == len(strict_entities(tags, "IOBES")) == 2


def test_an_entity_without_a_beginning_counts_but_in_strict_mode() -> None:
    stray = ["O", "I-per", "I-per", "I-loc"]
    assert entities(stray) == [Entity("per", 1, 2), Entity("loc", 3, 3)]
    assert strict_entities(stray, "BIO") == []


def test_strict_mode_by_another_scheme_would_find_nothing() -> None:
    """Which is why it goes by that of the labels."""
    tags = ["S-per", "O", "B-loc", "E-loc"]
    assert len(strict_entities(tags, "IOBES")) == 2 and strict_entities(tags, "BIO") == []


def test_types_may_hold_hyphens_and_be_left_out() -> None:
    assert entities(["B-creative-work", "I-creative-work"]) == [Entity("creative-work", 0, 1)]
    assert entities(["B", "I", "B", "O"]) == [Entity("", 0, 1), Entity("", 2, 2)]


def test_right_entities_are_those_with_the_words_and_the_type() -> None:
    gold = [["B-per", "I-per", "O", "B-loc"], ["O", "B-loc"]]
    said = [["B-per", "O", "O", "B-per"], ["O", "B-loc"]]
    counts = count_entities(gold, said)
    assert counts == {"loc": EntityCounts(2, 1, 1), "per": EntityCounts(1, 2, 0)}
    scores = sum_counts(counts.values()).scores()
    assert scores == {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}


@given(st.lists(st.lists(st.sampled_from(["O", "B-a", "I-a", "B-b"]), min_size=1), min_size=1))
def test_what_is_said_right_throughout_scores_one_and_nothing_said_none(gold) -> None:
    count = sum_counts(count_entities(gold, gold).values())
    assert count.gold == count.said == count.right
    assert count.scores()["f1"] == (1 if count.gold else 0)
    nothing = [["O"] * len(tags) for tags in gold]
    assert set(sum_counts(count_entities(gold, nothing).values()).scores().values()) == {0}


def test_errors_are_told_apart_by_what_is_wrong() -> None:
    entry = {
        "words": list("abcdefgh"),
        "gold": ["B-x", "I-x", "O", "B-y", "O", "B-x", "O", "B-y"],
        "tags": ["B-y", "I-y", "B-x", "B-y", "I-y", "O", "O", "B-y"],
        "probabilities": [0.9, 0.6, 0.7, 0.8, 0.5, 0.4, 1.0, 1.0],
    }
    found = [(each.kind, each.said, each.gold, each.sure) for each in find_errors(entry)]
    assert found == [
        ("type", Entity("y", 0, 1), Entity("x", 0, 1), 0.6),
        ("invented", Entity("x", 2, 2), None, 0.7),
        ("boundary", Entity("y", 3, 4), Entity("y", 3, 3), 0.5),
        ("missed", None, Entity("x", 5, 5), 0.4),
    ]
    assert {each[0] for each in found} == ERROR_KINDS.keys()


def test_errors_and_pages_are_strict_where_scores_are(tmp_path) -> None:
    entry = {"words": ["in", "Rome"], "gold": ["O", "B-loc"], "tags": ["O", "I-loc"]}
    entry |= {"probabilities": [1.0, 0.75]}
    assert not list(find_errors(entry))
    assert [each.kind for each in find_errors(entry, "BIO")] == ["missed"]
    for strict, rates in ((False, "1.000"), (True, "0.000")):
        data = {"dir": "ner", "eval_file": "", "strict": strict}
        about = {"checkpoints": ["runs/x"], "config": {"data": data}}
        files = {"predictions": [entry], "scores": {"f1": 0.0}, EVALUATION_FILE[:-5]: about}
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        text = render("x", epath.Path(tmp_path), {"dev": 1})
        assert f"<td>loc</td><td>1</td><td>{rates}</td>" in text


def test_a_page_has_every_type_and_the_words_around_an_error(tmp_path) -> None:
    entry = {"words": ["in", "<Rome>", "now"], "gold": ["O", "B-loc", "O"]}
    entry |= {"tags": ["O", "B-per", "O"], "probabilities": [1.0, 0.75, 1.0]}
    about = {
        "checkpoints": ["runs/x"],
        "config": {"data": {"dir": "ner", "eval_file": "", "strict": False}},
    }
    files = {"predictions": [entry], "scores": {"f1": 0.0}, EVALUATION_FILE[:-5]: about}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    text = render("x", epath.Path(tmp_path), {"dev": 1})
    assert "in &gt;&gt;[&lt;Rome&gt;]&lt;&lt; now" in text
    assert "<td>loc</td>" in text and "<td>per</td>" in text
    with pytest.raises(InputError, match="answers 1 examples and the data have 2"):
        render("x", epath.Path(tmp_path), {"dev": 2})
