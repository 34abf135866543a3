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


def test_parameters_of_a_classifier_have_the_labels_of_its_data(tmp_path, capsys) -> None:
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "some", "text"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    rows = "".join(f"mood {number}\tsome text\n" for number in range(3))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(f"label\ttext\n{rows}")
    model = {"vocab_size": 7, "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    config = ["--config", f"{EXPERIMENTS}/sequence_classification.py:data={tmp_path}"]
    config += [f"--config.model.{name}={value}" for name, value in model.items()]
    config += [f"--config.data.vocab={tmp_path}/vocab.txt"]
    assert main(["inspect", "--params", *config]) == 0
    assert "(8, 3)" in capsys.readouterr().out
    assert main(["inspect", "--params", *config, "--config.model.num_labels=5"]) == 0
    assert "(8, 5)" in capsys.readouterr().out
