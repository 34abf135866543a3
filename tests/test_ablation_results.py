"""Results of ablations: findings, and files with every score."""

import itertools
import json

import pytest

from experiments.ablations.results import VariantResult, describe_finding, write_results
from experiments.ablations.tables import Finding


def rows(high: list[float], low: list[float]) -> list[VariantResult]:
    return [
        VariantResult(name, 9.0, {"qnli accuracy": scores}, 0)
        for name, scores in (("a", high), ("b", low))
    ]


@pytest.mark.parametrize(
    ("high", "low", "verdict"),
    [
        ([0.8, 0.9], [0.5, 0.6], "+0.3000 ± 0.0707, reproduced."),
        ([0.8, 0.9], [0.7, 0.9], "+0.0500 ± 0.1118, not reproduced."),
        ([0.5, 0.6], [0.8, 0.9], "-0.3000 ± 0.0707, reversed."),
        # More seeds make the means more precise; a single run may differ by 0.1.
        ([0.8, 0.9] * 4, [0.75, 0.85] * 4, "+0.0500 ± 0.0267, reproduced."),
        ([0.8, 0.9] * 4, [0.825, 0.825], "+0.0250 ± 0.0189, reproduced."),
        ([0.8], [0.5], "+0.3000, of one run each."),
    ],
)
def test_describe_finding_compares_with_the_standard_error_of_the_difference(
    high, low, verdict
) -> None:
    (sentence,) = describe_finding(Finding("a helps", 0, 1), rows(high, low))
    assert sentence == f"a helps: qnli accuracy {verdict}"
    assert describe_finding(Finding("a helps", 0, 1, ("squad",)), rows(high, low)) == []


def test_write_results_counts_diverged_runs(tmp_path) -> None:
    results = [
        VariantResult("a", 9.0, {"qnli accuracy": [0.5, 0.75]}, 0),
        VariantResult("b", 9.0, {"qnli accuracy": [None, None]}, 2),
        VariantResult("c", 9.0, {"qnli accuracy": [None, 0.5]}, 1),
    ]
    text = write_results(tmp_path / "x", "Caption.", results, [Finding("a helps", 0, 1)])
    lines = text.splitlines()
    assert "| b | 9.00 | - | 2 |" in lines and "| c | 9.00 | 0.5000 | 1 |" in lines
    assert "- a helps: qnli accuracy is missing for one row." in lines


def test_write_results_lists_every_score(tmp_path) -> None:
    results = rows([0.25, 0.75], [0.5, 0.5])
    text = write_results(tmp_path / "x", "Caption.", results, [Finding("a helps", 0, 1)])
    assert "| a | 9.00 | 0.5000 ± 0.3536 | 0 |" in text.splitlines()
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["rows"][0]["scores"] == {"qnli accuracy": [0.25, 0.75]}
    lines = itertools.chain(text.splitlines(), (tmp_path / "x.html").read_text().splitlines())
    assert sum("not reproduced" in line for line in lines) == 2
