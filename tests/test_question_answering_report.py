"""The page of an evaluation sorts the errors and marks them in their passages."""

import pytest

from bertjax.tasks.question_answering.report import CONTEXT_CHARS, mark_spans, score_answers
from data_pipelines.finetuning.squad import Answer, Question, QuestionAnsweringDataset

PASSAGE = "Anna lives in old Oslo <north>, and Bob in Rome."


def asked(name: str, *golds: str) -> Question:
    answers = tuple(Answer(gold, PASSAGE.index(gold)) for gold in golds)
    return Question(name, "Where?", PASSAGE, answers)


@pytest.mark.parametrize(
    ("golds", "said", "kind"),
    [
        (["Oslo"], "oslo", "right"),
        ([], "", "right"),
        (["Oslo"], "", "missed"),
        ([], "Rome", "invented"),
        (["old Oslo"], "Oslo", "boundary"),
        (["Oslo"], "Rome", "place"),
        (["Rome", "old Oslo"], "Oslo", "boundary"),
    ],
)
def test_an_answer_is_of_one_kind(golds: list[str], said: str, kind: str) -> None:
    nbest = {"q": [{"text": said, "start": PASSAGE.find(said.title()), "probability": 0.7}]}
    (one,) = score_answers(QuestionAnsweringDataset([asked("q", *golds)], 2), {"q": said}, nbest)
    assert one.kind == kind and one.probability == 0.7


def test_the_place_is_that_of_the_prediction_and_not_of_the_same_text() -> None:
    question = Question("q", "Who?", "Bob met Bob.", (Answer("Bob met", 0),))
    nbest = {"q": [{"text": "Bob", "start": 8, "probability": 0.5}]}
    (one,) = score_answers(QuestionAnsweringDataset([question], 1), {"q": "Bob"}, nbest)
    assert one.said == (8, 11) and one.kind == "place" and 0 < one.f1 < 1


def test_gold_is_marked_where_training_points() -> None:
    """At the nearest place of its text, where it is not at its offset; nowhere, if it has none."""
    for gold, place, kind in (("in Rome", (40, 47), "boundary"), ("Paris", None, "place")):
        question = Question("q", "Where?", PASSAGE, (Answer(gold, -1),))
        nbest = {"q": [{"text": "Rome", "start": 43, "probability": 0.5}]}
        (one,) = score_answers(QuestionAnsweringDataset([question], 1), {"q": "Rome"}, nbest)
        assert one.gold == place and one.kind == kind


def test_a_missing_prediction_is_no_answer() -> None:
    (one,) = score_answers(QuestionAnsweringDataset([asked("q", "Oslo")], 1), {}, {})
    assert one.kind == "missed" and one.f1 == 0


def test_what_was_said_and_gold_are_marked_and_text_is_escaped() -> None:
    html = mark_spans(PASSAGE, (18, 30), (14, 22))
    assert html == (
        'Anna lives in <mark class="gold">old </mark><mark class="said gold">Oslo</mark>'
        '<mark class="said"> &lt;north&gt;</mark>, and Bob in Rome.'
    )


def test_of_a_long_passage_the_surroundings_are_shown() -> None:
    passage = "a" * 5000 + "GOLD" + "b" * 5000
    html = mark_spans(passage, None, (5000, 5004))
    assert len(html) < 1000 and "aaa<mark" in html and "</mark>bbb" in html and html.count("…") == 2
    words = mark_spans("over " * 500 + "GOLD" + " long" * 500, None, (2500, 2504))
    kept = ["over " * (CONTEXT_CHARS // 5 - 1), " long" * (CONTEXT_CHARS // 5 - 1)]
    assert words == f'… {kept[0]}<mark class="gold">GOLD</mark>{kept[1]} …'
    assert (
        mark_spans("word " * 500, None, None) == "word " * (2 * CONTEXT_CHARS // 5 - 1) + "word …"
    )
