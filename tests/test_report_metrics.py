"""Reports title metrics as the heads of the run do, and show a loss once."""

import math

import pytest

from bertjax.reports.metrics import quality_metrics, sole_loss_terms
from bertjax.reports.run import render_run
from bertjax.reports.sweep import render_sweep

# As logged by fine-tuning runs.
TRAIN = {"loss": 0.10835, "token_classification_loss": 0.10794, "accuracy": 0.97}
EVAL = {"loss": 0.6931945085525513, "sequence_classification_loss": 0.6931944727897644}


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("sequence_classification", "Accuracy"),
        ("multiple_choice", "Accuracy"),
        ("token_classification", "Accuracy of words"),
    ],
)
@pytest.mark.parametrize("eval_set", ["", "dev_matched/"])
def test_accuracy_has_the_title_of_the_head_of_the_run(head, title, eval_set) -> None:
    displays = quality_metrics(["loss", f"{eval_set}{head}_loss", f"{eval_set}accuracy"])
    assert displays["accuracy"].title == title
    assert displays["accuracy"].as_percent


def test_quality_metrics_are_those_of_the_heads_of_the_run_losses_first() -> None:
    names = list(quality_metrics(["mlm_accuracy", "mlm_loss", "nsp_accuracy", "nsp_loss", "loss"]))
    assert names[:3] == ["loss", "mlm_loss", "nsp_loss"]
    assert set(names[3:]) == {"mlm_accuracy", "mlm_perplexity", "nsp_accuracy"}
    assert list(quality_metrics(["loss"])) == ["loss"]


def test_run_report_has_one_loss_and_the_accuracy_of_its_head() -> None:
    scores = EVAL | {"accuracy": 0.5}
    entries = [{"step": 10, "split": split, **scores} for split in ("train", "eval")]
    page = render_run("run", entries, {"task": "sequence_classification"})
    assert page.count('aria-label="Loss"') == 1 and page.count("<th>Loss</th>") == 1
    assert "Accuracy" in page and "of words" not in page


def test_sweep_report_has_one_loss() -> None:
    run = {"name": "a", "point": "a", "failed": False, "scores": EVAL}
    point = {"label": "a", "num_runs": 1, "num_failed": 0, "num_pruned": 0, "mean": 0.69}
    results = {"primary_metric": "loss", "best": "a", "runs": [run], "points": [point]}
    assert "classification loss" not in render_sweep("sweep", results)
    # A metric by which runs are compared stays.
    page = render_sweep("sweep", results | {"primary_metric": "sequence_classification_loss"})
    assert "<th>sequence classification loss</th>" in page and "<th>loss</th>" in page


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([EVAL], {"sequence_classification_loss"}, id="rounding"),
        pytest.param([TRAIN], {"token_classification_loss"}, id="mean over tokens"),
        pytest.param(
            [{"a_loss": 1.0, "loss": 1.0}] * 2 + [{"a_loss": 1.0, "loss": 1.1}],
            {"a_loss"},
            id="one step differs",
        ),
        pytest.param([{"a_loss": 0.0, "loss": 0.0}], {"a_loss"}, id="zero"),
        pytest.param([{"a_loss": math.nan, "loss": math.inf}], {"a_loss"}, id="diverged"),
        pytest.param([{"a_loss": None, "loss": None}], {"a_loss"}, id="not finite, as read"),
        pytest.param(
            [{"loss": 1.0, "a_loss": 1.0, "de/loss": 2.0, "de/a_loss": 2.0}],
            {"a_loss", "de/a_loss"},
            id="eval sets",
        ),
        pytest.param([{"loss": 1.0, "mlm_loss": 1.0, "nsp_loss": 0.0}], set(), id="two terms"),
        pytest.param([{"loss": 1.0, "hinge_loss": 0.5}], set(), id="another loss"),
        pytest.param([{"a_loss": 1.0}], set(), id="no total"),
        pytest.param([{"accuracy": 0.5}], set(), id="no term"),
    ],
)
def test_sole_loss_terms_repeat_the_loss(entries, expected) -> None:
    assert sole_loss_terms(entries) == expected
