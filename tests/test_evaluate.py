"""`bertjax evaluate` names the command that follows."""

import shlex

import pytest

from bertjax.cli.evaluate import _next_command


@pytest.mark.parametrize("output", ["scores", "my runs/scores", "it's here"])
def test_evaluate_suggests_a_command_that_a_shell_reads(output: str) -> None:
    before, next_, command = _next_command("sequence_classification", output).partition(" Next: ")
    assert (before, bool(next_)) == ("", True)
    assert shlex.split(command) == ["bertjax", "report", output]


def test_evaluate_suggests_nothing_for_a_task_without_a_report() -> None:
    assert _next_command("pretraining", "scores") == ""
