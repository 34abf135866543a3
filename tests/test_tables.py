"""Scores of several eval sets are one table, in a terminal and on a page."""

import io

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bertjax.html.tables import align_columns, eval_set_table
from bertjax.reports.run import render_run
from bertjax.training.terminal import ProgressPrinter

SCORES = {
    "loss": 1.5, "accuracy": 0.5, "f1": 0.4,
    "de/accuracy": 0.25, "de/f1": 0.3, "de/mse": 4.0, "de/only": 1.0,
    "a/b.en/accuracy": 0.75, "a/b.en/f1": 0.5, "a/b.en/mse": 2.0,
}  # fmt: skip


def test_eval_set_table_has_a_row_per_set_and_a_column_per_common_metric() -> None:
    assert align_columns(*eval_set_table(SCORES)).splitlines() == [
        "eval set  accuracy      f1",
        "de          0.2500  0.3000",
        "a/b.en      0.7500  0.5000",
        "mean        0.5000  0.4000",
    ]


def test_eval_set_table_selects_and_names_columns() -> None:
    table = eval_set_table(
        SCORES, {"mse": "Squared error", "only": "Of one set", "accuracy": "Accuracy"}
    )
    assert table.header == ("eval set", "Squared error", "Accuracy")
    assert table.rows[-1] == ("mean", "3.00", "0.5000")


def test_eval_set_table_shows_a_dash_for_none() -> None:
    table = eval_set_table({"f1": None, "a/f1": None, "b/f1": 50.0})
    assert [row[1] for row in table.rows] == ["-", "50.00", "-"]


@pytest.mark.parametrize("scores", [{}, {"loss": 1.0}, {"f1": 1.0, "en/f1": 1.0}])
def test_eval_set_table_of_one_set_has_no_rows(scores: dict) -> None:
    assert not eval_set_table(scores).rows


@given(st.lists(st.tuples(*[st.text("abé", max_size=9)] * 3), min_size=1, max_size=6))
def test_align_columns_ends_lines_at_the_header(rows: list) -> None:
    lines = align_columns(("", "x" * 9, "y" * 9), rows).split("\n")
    assert len(lines) == len(rows) + 1 and max(map(len, lines)) == len(lines[0])


def test_progress_printer_prints_the_table_below_the_metrics() -> None:
    stream = io.StringIO()
    ProgressPrinter(100, stream).log(50, "eval", SCORES)
    line, *table = stream.getvalue().splitlines()
    assert line == "step 50/100  eval  loss 1.5  accuracy 50.0%  f1 0.4"
    assert table == [f"  {row}" for row in align_columns(*eval_set_table(SCORES)).splitlines()]


@pytest.mark.seconds
def test_run_report_shows_metrics_of_one_set_in_the_table_only() -> None:
    page = render_run("run", [{"step": 50, "split": "eval", **SCORES}], {})
    assert "<h2>Eval sets</h2>" in page and "<tr><td>mean</td><td>0.5000</td>" in page
    header, table = page.partition("</header>")[0], page.partition("<h2>Evaluations</h2>")[2]
    assert "Accuracy" in header and table and "de/accuracy" not in (header + table).lower()
