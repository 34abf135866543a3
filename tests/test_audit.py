"""Audits: an untouched or resumed run passes; an edited checkpoint or a changed shard does not."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import toy_tasks
from conftest import bertjax
from etils import epath
from pretraining_runs import make_run_config, stop_at

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.cli.main import main
from bertjax.config import user_functions
from bertjax.config.user_functions import import_function
from bertjax.errors import StoppedError
from bertjax.training.setup import make_trainer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(corpus, tmp_path_factory) -> pathlib.Path:
    """A copy of the corpus, which a test changes."""
    return pathlib.Path(shutil.copytree(corpus, tmp_path_factory.mktemp("corpus") / "shards"))


@pytest.fixture(scope="module")
def run(shards, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("audited")
    make_trainer(make_run_config(shards), workdir).train()
    return workdir


def test_audit_accepts_an_untouched_run(run, capsys) -> None:
    assert main(["audit", str(run)]) == 0
    output = capsys.readouterr().out.splitlines()
    starts = ("0 to 4", "4 to 8", "8 to 12")
    assert output[:3] == [f"steps {s}: the same bits, expected the same bits" for s in starts]
    assert output[3].endswith(": the checkpoints came from these data, code and seed.")
    assert main(["audit", str(run), "--segments", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_audit_accepts_a_run_that_was_resumed_with_other_microbatches(
    toys, tmp_path, monkeypatch, capsys
) -> None:
    workdir = tmp_path / "run"
    fields = {"steps": 6, "checkpoint_every": 2, "max_to_keep": 9, "optimizer.warmup": 0}
    fields |= {"log_every": 4, "model.hidden_dropout_prob": 0.1}
    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        stop_at(3, patch)
        make_trainer(toy_tasks.configuration("single_label", toys, **fields), workdir).train()
    changed = {"gradient_accumulation_steps": 2, "log_every": 5, "model.remat": True}
    make_trainer(toy_tasks.configuration("single_label", toys, **fields | changed), workdir).train()
    assert main(["audit", str(workdir)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[:3] == [
        "steps 0 to 2: the same bits, expected the same bits",
        "steps 2 to 4: the same bits, expected the same bits",
        "steps 4 to 6: the same bits, expected at most 0.05 after a change of "
        "gradient_accumulation_steps, log_every, model.remat",
    ]


def test_audit_has_a_tolerance_on_other_devices(run) -> None:
    done = bertjax("audit", run)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    for line in done.stdout.splitlines()[:3]:
        assert line.endswith("expected at most 0.05 on other devices")
        assert float(line.split("difference of ")[1].split(",")[0]) < 0.01


def test_audit_finds_an_edited_checkpoint(run, tmp_path, capsys) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    file = copy / "checkpoints" / "00000004" / "vocab.txt"
    text = file.read_text()
    file.write_text(text + " ")
    assert main(["audit", str(copy)]) == 1
    assert "00000004: the files differ" in capsys.readouterr().err
    file.write_text(text)
    # Whoever edits the arrays may write a new manifest too.
    checkpoints = Checkpointer(copy / "checkpoints")
    trainer = make_trainer(make_run_config(corpus_of(copy)), copy)
    state = checkpoints.restore(trainer.step_functions.state_shapes)
    bias = state.params["mlm"]["bias"]
    changed = np.asarray(bias).copy()
    changed[5] = np.nextafter(changed[5], np.float32(np.inf))
    params = state.params | {
        "mlm": state.params["mlm"] | {"bias": jax.device_put(changed, bias.sharding)}
    }
    path = checkpoints.path(12)
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    kept.pop(MANIFEST_FILE)

    def write_metadata(directory: epath.Path) -> None:
        for name, content in kept.items():
            (directory / name).write_bytes(content)

    checkpoints.save(state._replace(params=params), write_metadata)
    checkpoints.wait_until_finished()
    assert main(["audit", str(copy)]) == 1
    output = capsys.readouterr()
    assert "steps 4 to 8: the same bits" in output.out
    assert "steps 8 to 12: a difference of" in output.out
    assert "steps 8 to 12 do not lead from one checkpoint to the next" in output.err


def corpus_of(workdir: pathlib.Path) -> pathlib.Path:
    """Return the corpus of a run."""
    return pathlib.Path(json.loads((workdir / "config.json").read_text())["data"]["dir"])


def test_audit_finds_a_changed_shard(run, shards, capsys) -> None:
    file = max(shards.glob("*train*.tokens"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    tokens = np.frombuffer(content, np.uint16).copy()
    tokens[50:] = np.where(tokens[50:] == 9, 10, tokens[50:])  # one word becomes another
    try:
        file.write_bytes(tokens.tobytes())
        assert main(["audit", str(run), "--segments", "0"]) in (1, 2)
        assert "do not lead" in (error := capsys.readouterr().err) or str(file.name) in error
    finally:
        file.write_bytes(content)


LOSS = """
from bertjax.model.losses import cross_entropy


def halved(logits, labels, weights):
    total, weight = cross_entropy(logits, labels, weights)
    return total / 2, weight
"""


def test_audit_imports_the_loss_that_the_user_names(toys, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "audited_losses.py").write_text(LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    name, workdir = "audited_losses:halved", tmp_path / "run"
    fields = {"loss": name, "steps": 2, "checkpoint_every": 1, "optimizer.warmup": 0}
    import_function("loss", name)
    make_trainer(toy_tasks.configuration("single_label", toys, **fields), workdir).train()
    monkeypatch.setattr(user_functions, "_imported", {})  # as in a new process
    for arguments, message in (
        ([], f"loss='{name}': not imported, because a file names it"),
        (["--config.loss="], f"--config.loss=: the run has loss='{name}'. Write --config.loss="),
        (["--config.loss=a:b"], f"--config.loss=a:b: the run has loss='{name}'"),
        (["--config.steps=3"], "--config.steps: an audit repeats the run as it was configured"),
    ):
        assert main(["audit", str(workdir), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["audit", str(workdir), f"--config.loss={name}"]) == 0
    assert "steps 1 to 2: the same bits, expected the same bits" in capsys.readouterr().out
