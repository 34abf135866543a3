"""The comparison of a sweep with runs on their own."""

import sys

import pytest

from experiments.bench import sweep_speed


def test_output_that_exists_is_rejected(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep_speed", "--config", "glue", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"--output={tmp_path}: exists. Name a new directory"):
        sweep_speed.main()
