"""The report of a sequence classification evaluation shows scores, confusions and errors."""

import numpy as np
import pytest
from etils import epath
from run_outputs import write_evaluation

from bertjax.tasks.sequence_classification.evaluation import format_prediction
from bertjax.tasks.sequence_classification.report import render
from data_pipelines.errors import InputError


def write_report(directory, problem_type: str, labels: list, predictions: list, gold: list) -> str:
    """Write an evaluation of texts "<0>", "<1>", ... and return its report."""
    entries = [
        {"id": f"id-{i}", "gold": value}
        | format_prediction(np.array(prediction), labels, problem_type, True)
        for i, (prediction, value) in enumerate(zip(predictions, gold, strict=True))
    ]
    config = {"data": {"dir": "mood", "eval_file": "d"}}
    write_evaluation(directory, config, {"f1": 0.5}, predictions=entries)
    texts = [f"<{i}>" for i in range(len(gold))]
    return render("run", epath.Path(directory), [("dev", texts)], problem_type)


def test_single_label_report_has_confusions_and_the_most_confident_errors_first(tmp_path) -> None:
    predictions = [[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7]]
    gold = ["glad", "glad", "glad", "sad"]
    page = write_report(tmp_path, "single_label_classification", ["glad", "sad"], predictions, gold)
    assert "<b>0.5</b><span>F1</span>" in page and "<dd>mood d</dd>" in page
    assert "<td>glad</td><td>3</td><td>1.000</td><td>0.333</td><td>0.500</td>" in page
    matrix = page.partition('class="matrix"')[2].partition("</table>")[0]
    assert '%" class="hit">1</td>' in matrix and 'style="--share:67%" class="miss">2</td>' in matrix
    errors = page.partition("Most confident errors")[2]
    assert "2 errors" in errors
    first, second = (errors.index(f"<td>id-{i}</td><td>&lt;{i}&gt;</td>") for i in (1, 2))
    assert first < second


def test_single_label_report_of_many_labels_lists_the_most_frequent_confusions(tmp_path) -> None:
    labels = [f"label {i}" for i in range(30)]
    gold = [*labels, "label 3"]
    predictions = np.eye(30)[[1, *range(1, 30), 4]]
    page = write_report(tmp_path, "single_label_classification", labels, list(predictions), gold)
    assert 'class="matrix"' not in page
    assert "<td>label 0</td><td>label 1</td><td>1</td>" in page
    assert "<td>label 3</td><td>label 4</td><td>1</td>" in page


def test_multi_label_report_lists_missed_and_predicted_labels(tmp_path) -> None:
    predictions = [[0.9, 0.2], [0.4, 0.7]]
    gold = [["a", "b"], ["a", "b"]]
    page = write_report(tmp_path, "multi_label_classification", ["a", "b"], predictions, gold)
    assert "<td>80%</td><td>b</td><td>missed</td><td>id-0</td>" in page
    assert "<td>60%</td><td>a</td><td>missed</td><td>id-1</td>" in page
    assert "<td>a</td><td>2</td><td>1.000</td><td>0.500</td><td>0.667</td>" in page


def test_regression_report_shows_a_point_per_example_and_the_largest_errors_first(tmp_path) -> None:
    page = write_report(tmp_path, "regression", [], [1.0, 2.5, 3.0], [1.0, 2.0, 5.0])
    assert page.count("<use ") == 3 and "<title>5.000, 3.000</title>" in page
    assert page.index("<td>3.000</td><td>5.000</td>") < page.index("<td>2.500</td><td>2.000</td>")


def test_multiple_choice_report_has_no_labels(tmp_path) -> None:
    page = write_report(tmp_path, "multiple_choice", ["0", "1"], [[0.9, 0.1]], ["1"])
    assert "<h2>Labels</h2>" not in page and "<h2>Most confident errors</h2>" in page


def test_report_rejects_predictions_of_other_texts(tmp_path) -> None:
    write_report(tmp_path, "regression", [], [1.0], [1.0])
    with pytest.raises(InputError, match="1 predictions for 2 examples"):
        render("run", epath.Path(tmp_path), [("dev", ["a", "b"])], "regression")
