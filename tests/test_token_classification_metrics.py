"""Entities are counted as conlleval counts them, optionally as seqeval's strict mode does.

goldens/make_token_classification_scores.py made the goldens.
"""

import numpy as np
import pytest
from etils import epath
from goldens import make_token_classification_scores as recipe
from hypothesis import given
from hypothesis import strategies as st
from run_outputs import write_evaluation

from bertjax.tasks.token_classification.metrics import EntityCounts, count_entities, sum_counts
from bertjax.tasks.token_classification.report import ERROR_KINDS, find_errors, render
from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import Entity, entities, strict_entities

GOLDEN = np.load(recipe.PATH)
COUNTERS = [name for name in GOLDEN if len(GOLDEN[name]) > 3]


@pytest.mark.seconds
@pytest.mark.parametrize("counter", COUNTERS)
def test_count_entities_equals_reference_counts(counter) -> None:
    scheme, _, counter_name = counter.partition(" ")
    strict = scheme if counter_name == "strict" else ""
    pairs = [recipe.draw_pair(scheme, number) for number in range(recipe.SENTENCES)]
    counts = []
    for first in range(0, recipe.SENTENCES, recipe.BLOCK):
        gold, predicted = zip(*pairs[first : first + recipe.BLOCK], strict=True)
        counts.append(sum_counts(count_entities(gold, predicted, strict).values()))
    np.testing.assert_array_equal(counts, GOLDEN[counter])


@pytest.mark.parametrize("name", recipe.ODD)
def test_entities_differ_from_conlleval_for_iobes(name) -> None:
    """conlleval counts one entity there; bertjax and seqeval count two."""
    tags = recipe.ODD[name]
    assert GOLDEN[name][0] == 1
    assert len(entities(tags)) == len(strict_entities(tags, "IOBES")) == 2


def test_entities_without_beginning_count_unless_strict() -> None:
    stray = ["O", "I-per", "I-per", "I-loc"]
    assert entities(stray) == [Entity("per", 1, 2), Entity("loc", 3, 3)]
    assert strict_entities(stray, "BIO") == []


def test_strict_entities_depend_on_the_scheme() -> None:
    tags = ["S-per", "O", "B-loc", "E-loc"]
    assert len(strict_entities(tags, "IOBES")) == 2 and strict_entities(tags, "BIO") == []


def test_entities_accept_hyphenated_and_empty_types() -> None:
    assert entities(["B-creative-work", "I-creative-work"]) == [Entity("creative-work", 0, 1)]
    assert entities(["B", "I", "B", "O"]) == [Entity("", 0, 1), Entity("", 2, 2)]


def test_count_entities_requires_boundaries_and_type() -> None:
    gold = [["B-per", "I-per", "O", "B-loc"], ["O", "B-loc"]]
    predicted = [["B-per", "O", "O", "B-per"], ["O", "B-loc"]]
    counts = count_entities(gold, predicted)
    assert counts == {"loc": EntityCounts(2, 1, 1), "per": EntityCounts(1, 2, 0)}
    scores = sum_counts(counts.values()).scores()
    assert scores == {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}


@pytest.mark.seconds
@given(st.lists(st.lists(st.sampled_from(["O", "B-a", "I-a", "B-b"]), min_size=1), min_size=1))
def test_perfect_tags_score_1_and_empty_tags_0(gold) -> None:
    count = sum_counts(count_entities(gold, gold).values())
    assert count.gold == count.predicted == count.correct
    assert count.scores()["f1"] == (1 if count.gold else 0)
    no_entities = [["O"] * len(tags) for tags in gold]
    assert set(sum_counts(count_entities(gold, no_entities).values()).scores().values()) == {0}


def test_find_errors_returns_the_kind_of_error() -> None:
    entry = {
        "words": list("abcdefgh"),
        "gold": ["B-x", "I-x", "O", "B-y", "O", "B-x", "O", "B-y"],
        "tags": ["B-y", "I-y", "B-x", "B-y", "I-y", "O", "O", "B-y"],
        "scores": [0.9, 0.6, 0.7, 0.8, 0.5, 0.4, 1.0, 1.0],
    }
    errors = [
        (error.kind, error.predicted, error.gold, error.probability) for error in find_errors(entry)
    ]
    assert errors == [
        ("type", Entity("y", 0, 1), Entity("x", 0, 1), 0.6),
        ("spurious", Entity("x", 2, 2), None, 0.7),
        ("boundary", Entity("y", 3, 4), Entity("y", 3, 3), 0.5),
        ("missed", None, Entity("x", 5, 5), 0.4),
    ]
    assert {error[0] for error in errors} == ERROR_KINDS.keys()


def write(directory, entry, strict: bool = False) -> None:
    config = {"data": {"dir": "ner", "eval_file": "", "strict": strict}}
    write_evaluation(directory, config, {"f1": 0.0}, predictions=[entry])


def test_report_is_strict_if_scores_are(tmp_path) -> None:
    entry = {"words": ["in", "Rome"], "gold": ["O", "B-loc"], "tags": ["O", "I-loc"]}
    entry |= {"scores": [1.0, 0.75]}
    assert not list(find_errors(entry))
    assert [error.kind for error in find_errors(entry, "BIO")] == ["missed"]
    for strict, rates in ((False, "1.000"), (True, "0.000")):
        write(tmp_path, entry, strict)
        text = render("x", epath.Path(tmp_path), {"dev": 1})
        assert f"<td>loc</td><td>1</td><td>{rates}</td>" in text


def test_report_lists_types_and_error_context(tmp_path) -> None:
    entry = {"words": ["in", "<Rome>", "now"], "gold": ["O", "B-loc", "O"]}
    entry |= {"tags": ["O", "B-per", "O"], "scores": [1.0, 0.75, 1.0]}
    write(tmp_path, entry)
    text = render("x", epath.Path(tmp_path), {"dev": 1})
    assert "in &gt;&gt;[&lt;Rome&gt;]&lt;&lt; now" in text
    assert "<td>loc</td>" in text and "<td>per</td>" in text
    with pytest.raises(InputError, match=r"1 predictions for 2 examples\. Run"):
        render("x", epath.Path(tmp_path), {"dev": 2})
