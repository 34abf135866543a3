"""`make demo` with fewer steps and less text."""

import shutil
import subprocess
import sys

import pytest
from conftest import LONG, process_environment, sample_text
from documented_commands import ROOT

REPLACEMENTS = {
    "CLM_STEPS, STEPS = 600, 1600": "CLM_STEPS, STEPS = 10, 120",
    "VOCAB_SIZE = 4096": "VOCAB_SIZE = 200",
    '"builtin"': '"text.txt"',
    "log_every=50": "log_every=10",
    "checkpoint_every=400": "checkpoint_every=20",
}


@pytest.mark.minutes
def test_demo_runs_every_part(tmp_path) -> None:
    source = (ROOT / "experiments" / "demo" / "__main__.py").read_text()
    for text, replacement in REPLACEMENTS.items():
        assert text in source
        source = source.replace(text, replacement)
    (tmp_path / "experiments" / "demo").mkdir(parents=True)
    (tmp_path / "experiments" / "demo" / "__main__.py").write_text(source)
    (tmp_path / "text.txt").write_text(sample_text(seed=1, documents=200))
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(
        ["make", "demo", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed-test"],
        cwd=tmp_path,
        env=process_environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    for part in range(1, 9):
        assert f"\n{part}. " in done.stdout
    assert "killed after step" in done.stdout and "└─" in done.stdout
    assert "resuming from step" in done.stderr
    assert done.stdout.count("[MASK]") >= 5
    assert (tmp_path / "runs/demo/workdir/report.html").exists()
