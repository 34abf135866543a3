"""`bertjax inspect`: sequences with their masks, arrays, a table of parameters."""

import numpy as np
import pytest
from toy_tasks import EXPERIMENTS

from bertjax.cli.main import main


@pytest.mark.slow
def test_inspect_prints_masks_and_saves_batches(corpus, tmp_path, capsys) -> None:
    config = [
        "--config",
        f"{EXPERIMENTS}/pretraining.py:smoke,data={corpus}",
        "--config.model.vocab_size=128",
    ]
    assert main(["inspect", *config, "--steps", "1"]) == 0
    output = capsys.readouterr().out
    assert "[CLS]" in output and "[MASK]" in output
    assert output.count(" sequence ") == 4 and "4 more, shown by --sequences" in output
    path = tmp_path / "batches.npz"
    assert main(["inspect", *config, "--steps", "3", "--start", "5", "--output", str(path)]) == 0
    arrays = np.load(path)
    assert arrays["input_ids"].shape == (3, 8, 32)
    assert main(["inspect", *config, "--params"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[-1].split()[0] == "total" and "encoder/embeddings/word" in "".join(table)
