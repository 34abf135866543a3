"""The report of a question answering evaluation groups errors and marks them in passages."""

import pytest
from etils import epath
from run_outputs import write_evaluation

from bertjax.tasks.question_answering.report import (
    CONTEXT_CHARS,
    Segment,
    mark_spans,
    render,
    score_answers,
)
from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import (
    Answer,
    Question,
    QuestionAnsweringDataset,
)

PASSAGE = "Anna lives in old Oslo <north>, and Bob in Rome."


def make_question(name: str, *golds: str) -> Question:
    answers = tuple(Answer(gold, PASSAGE.index(gold)) for gold in golds)
    return Question(name, "Where?", PASSAGE, answers)


@pytest.mark.parametrize(
    ("golds", "prediction", "outcome"),
    [
        (["Oslo"], "oslo", "correct"),
        ([], "", "correct"),
        (["Oslo"], "", "missed"),
        ([], "Rome", "spurious"),
        (["old Oslo"], "Oslo", "boundary"),
        (["Oslo"], "Rome", "location"),
        (["Rome", "old Oslo"], "Oslo", "boundary"),
    ],
)
def test_scored_answer_has_one_outcome(golds: list[str], prediction: str, outcome: str) -> None:
    start = PASSAGE.find(prediction.title())
    nbest = {"q": [{"text": prediction, "start": start, "probability": 0.7}]}
    data = QuestionAnsweringDataset([make_question("q", *golds)], 2)
    (answer,) = score_answers(data, {"q": prediction}, nbest)
    assert answer.outcome == outcome and answer.probability == 0.7


def test_score_answers_takes_the_span_of_the_prediction_not_of_the_same_text() -> None:
    question = Question("q", "Who?", "Bob met Bob.", (Answer("Bob met", 0),))
    nbest = {"q": [{"text": "Bob", "start": 8, "probability": 0.5}]}
    (answer,) = score_answers(QuestionAnsweringDataset([question], 1), {"q": "Bob"}, nbest)
    assert answer.answer_span == (8, 11) and answer.outcome == "location" and 0 < answer.f1 < 1


def test_score_answers_places_gold_as_training_does() -> None:
    """At the occurrence nearest to its offset; nowhere, if the passage does not contain it."""
    for gold, span, outcome in (("in Rome", (40, 47), "boundary"), ("Paris", None, "location")):
        question = Question("q", "Where?", PASSAGE, (Answer(gold, -1),))
        nbest = {"q": [{"text": "Rome", "start": 43, "probability": 0.5}]}
        (answer,) = score_answers(QuestionAnsweringDataset([question], 1), {"q": "Rome"}, nbest)
        assert answer.gold_span == span and answer.outcome == outcome


def test_score_answers_counts_a_missing_prediction_as_no_answer() -> None:
    (answer,) = score_answers(QuestionAnsweringDataset([make_question("q", "Oslo")], 1), {}, {})
    assert answer.outcome == "missed" and answer.f1 == 0


def test_mark_spans_marks_prediction_and_gold() -> None:
    assert mark_spans(PASSAGE, (18, 30), (14, 22)) == [
        Segment("Anna lives in "),
        Segment("old ", "gold"),
        Segment("Oslo", "predicted gold"),
        Segment(" <north>", "predicted"),
        Segment(", and Bob in Rome."),
    ]


def test_mark_spans_shortens_a_long_passage() -> None:
    before, gold, after = mark_spans("a" * 5000 + "GOLD" + "b" * 5000, None, (5000, 5004))
    assert before.text.endswith("aaa") and after.text.startswith("bbb") and gold.text == "GOLD"
    assert len(before.text + after.text) < 1000 and (before.text + after.text).count("…") == 2
    words = mark_spans("over " * 500 + "GOLD" + " long" * 500, None, (2500, 2504))
    kept = ["over " * (CONTEXT_CHARS // 5 - 1), " long" * (CONTEXT_CHARS // 5 - 1)]
    assert words == [Segment(f"… {kept[0]}"), Segment("GOLD", "gold"), Segment(f"{kept[1]} …")]
    assert mark_spans("word " * 500, None, None) == [
        Segment("word " * (2 * CONTEXT_CHARS // 5 - 1) + "word …")
    ]


def test_report_shows_scores_outcomes_and_escaped_passages(tmp_path) -> None:
    nbest = {"q": [{"text": "Oslo <north>", "start": 18, "probability": 0.5}]}
    config = {"data": {"dir": "squad", "eval_file": ""}}
    scores = {"exact": 0.0, "f1": 50.0, "null_score_diff_threshold": -1.5}
    files = {"predictions": {"q": "Oslo <north>"}, "nbest_predictions": nbest}
    write_evaluation(tmp_path, config, scores, **files)
    sets = [("dev", QuestionAnsweringDataset([make_question("q", "old Oslo")], 2))]
    page = render("squad", epath.Path(tmp_path), sets)
    assert "<b>50.0</b><span>F1</span>" in page and "exceeds the best by -1.50" in page
    assert "<td>Overlap with the gold answer</td><td>1</td><td>100.0%</td>" in page
    assert (
        '<p>Anna lives in <mark class="gold">old </mark><mark class="predicted gold">Oslo</mark>'
        '<mark class="predicted"> &lt;north&gt;</mark>, and Bob in Rome.</p>' in page
    )
    assert "0 errors" not in page
    (tmp_path / "predictions.json").unlink()
    with pytest.raises(
        InputError, match=r"predictions\.json: cannot be read .* Run bertjax evaluate again"
    ):
        render("squad", epath.Path(tmp_path), sets)
