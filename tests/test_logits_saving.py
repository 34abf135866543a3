"""Logits of a teacher in a file: written in parts, and runs that learn from them."""

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from etils import epath
from model_files import write_hf
from safetensors import safe_open
from toy_teachers import KINDS, configure, make_teacher, with_distill, write_data

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.formats.loading import read_model
from bertjax.formats.stored_logits import StoredClasses, StoredLogits
from bertjax.inference import logits_saving
from bertjax.inference.logits_saving import save_logits
from bertjax.tasks import registry
from bertjax.training.setup import add_teacher, make_trainer, open_teacher
from data_pipelines.errors import InputError

NO_WORKDIR = epath.Path("nowhere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


def first_losses(config: Config, steps: int = 2) -> list[dict[str, float]]:
    """Return the losses of random parameters on the first batches, without an update."""
    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    task.prepare(steps)
    objective = add_teacher(config, task.objective, open_teacher(config, task, NO_WORKDIR))
    params, constants = objective.init_params(jax.random.key(0)), objective.train_constants()

    @jax.jit
    def losses(params: Any, batch: Any, constants: Any) -> Any:
        return objective.train_sums(params, batch, None, constants, jnp.float32(0))

    return [
        {n: float(v / w) for n, (v, w) in losses(params, batch, constants).items() if "loss" in n}
        for batch in task.train_batches(0, steps)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stored_logits_give_the_losses_of_the_teacher(kind, folder, corpus, tmp_path) -> None:
    config = configure(kind, folder, corpus)
    teacher = make_teacher(config, tmp_path / "teacher")
    assert save_logits(teacher, config, tmp_path / "logits") > 1
    online = first_losses(with_distill(config, teacher=str(teacher)))
    stored = first_losses(with_distill(config, logits=str(tmp_path / "logits")))
    assert {f"{h}_logits_loss" for h in StoredLogits(tmp_path / "logits").heads} < online[0].keys()
    for expected, losses in zip(online, stored, strict=True):
        assert expected.keys() == losses.keys()
        for name, value in expected.items():
            assert value > 0, name
            np.testing.assert_allclose(losses[name], value, rtol=2e-6, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def teacher(folder, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    config = configure("single_label", folder, None, model__num_hidden_layers=2)
    return make_teacher(config, tmp_path_factory.mktemp("teacher") / "hf")


@pytest.fixture(scope="module")
def logits(folder, teacher, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("logits") / "logits"
    save_logits(teacher, configure("single_label", folder, None), path)
    return path


def train_losses(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    train = [line for line in lines if line["split"] == "train"]
    names = ("loss", "sequence_classification_loss", "sequence_classification_logits_loss")
    return {name: np.array([line[name] for line in train]) for name in names}


@pytest.mark.minutes
def test_online_and_stored_runs_have_equal_losses_for_100_steps(
    folder, teacher, logits, tmp_path
) -> None:
    fields = {"steps": 100, "checkpoint_every": 50, "eval_every": 100, "distill__temperature": 2,
              "model__hidden_size": 32, "model__num_attention_heads": 2}  # fmt: skip
    cases: dict[str, dict[str, object]] = {
        "online": {"distill__teacher": teacher},
        "stored": {"distill__logits": logits},
        "accumulated": {"distill__logits": logits, "gradient_accumulation_steps": 2},
        "tensor": {"distill__logits": logits, "mesh__data": 4, "mesh__tensor": 2},
    }
    losses = {}
    for name, case in cases.items():
        config = configure("single_label", folder, None, **fields | case)
        make_trainer(config, tmp_path / name).train()
        losses[name] = train_losses(tmp_path / name)
        assert len(losses[name]["loss"]) == 100
    for name in cases:
        for metric, values in losses["online"].items():
            np.testing.assert_allclose(losses[name][metric], values, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_run_records_the_file_and_resumes_with_it_alone(folder, teacher, logits, tmp_path) -> None:
    path = tmp_path / "logits"
    path.write_bytes(logits.read_bytes())
    config = configure("single_label", folder, None, steps=6, checkpoint_every=3, eval_every=6,
                       distill__logits=path)  # fmt: skip
    make_trainer(config, tmp_path / "whole").train()
    trainer = make_trainer(config, tmp_path / "part")
    trainer._is_last = lambda step: step >= 3  # type: ignore[method-assign]
    trainer.train()
    record = json.loads((find_checkpoint(tmp_path / "part") / "run.json").read_text())
    assert record["logits_digest"] == StoredLogits(path).digest
    make_trainer(config, tmp_path / "part").train()
    for name, values in train_losses(tmp_path / "whole").items():
        assert values.tolist() == train_losses(tmp_path / "part")[name].tolist()

    model = read_model(teacher)
    other = dataclasses.replace(model, params=jax.tree.map(lambda x: x + 1, model.params))
    write_hf(other, tmp_path / "other")
    path.unlink()
    save_logits(tmp_path / "other", configure("single_label", folder, None), path)
    with pytest.raises(InputError, match=r"distill\.logits=.* holds a run with other logits"):
        make_trainer(config, tmp_path / "part")
    both = configure("single_label", folder, None, distill__logits=path, distill__teacher=teacher)
    with pytest.raises(InputError, match=r"distill\.teacher=.* are of another teacher"):
        make_trainer(both, tmp_path / "new")


@pytest.mark.slow
def test_largest_logits_of_masked_tokens_are_stored(corpus, folder, tmp_path, caplog) -> None:
    caplog.set_level("INFO", "bertjax")
    config = configure("pretraining", folder, corpus)
    teacher = make_teacher(config, tmp_path / "teacher")
    save_logits(teacher, config, tmp_path / "whole")
    whole = first_losses(with_distill(config, logits=str(tmp_path / "whole")))
    masses, losses = [], []
    for top_k in (16, 120):
        path = tmp_path / f"top{top_k}"
        save_logits(teacher, config, path, top_k)
        assert f"the {top_k} largest of 128 classes of the mlm head" in caplog.text
        assert StoredLogits(path).heads["mlm"] == StoredClasses(128, top_k)
        assert StoredLogits(path).heads["nsp"] == StoredClasses(2, 0)
        with safe_open(path, "np") as file:
            metadata = json.loads(file.metadata()["bertjax"])
        masses.append(metadata["heads"]["mlm"]["omitted_mass"])
        losses.append(first_losses(with_distill(config, logits=str(path)))[0])
    assert 0.9 > masses[0] > masses[1] > 0
    # Merging classes loses a part of the divergence, a smaller one with less mass.
    names = "mlm_logits_loss", "nsp_logits_loss"
    merged = [[case[name] for name in names] for case in (*losses, whole[0])]
    assert 0 < merged[0][0] < merged[1][0] <= merged[2][0] * (1 + 1e-6)
    np.testing.assert_allclose([row[1] for row in merged], merged[2][1], rtol=1e-6)


@pytest.mark.slow
def test_save_logits_resumes_to_the_same_bytes(
    folder, teacher, logits, tmp_path, monkeypatch
) -> None:
    config, computed = configure("single_label", folder, None), []
    make_part = logits_saving._make_part

    def counted(*arguments: Any) -> dict[str, np.ndarray]:
        if len(computed) == 3:
            computed.append(None)
            raise KeyboardInterrupt
        computed.append(arguments)
        return make_part(*arguments)

    monkeypatch.setattr(logits_saving, "_MAX_PART_BYTES", 500)
    monkeypatch.setattr(logits_saving, "_make_part", counted)
    with pytest.raises(KeyboardInterrupt):
        save_logits(teacher, config, tmp_path / "a")
    assert save_logits(teacher, config, tmp_path / "a") == 253  # distinct texts of 300
    num_parts = len(computed) - 1
    student = dataclasses.replace(config.model, num_hidden_layers=1)  # is not used
    config = dataclasses.replace(config, model=student, init=str(teacher), init_layers="0")
    save_logits(teacher, config, tmp_path / "b")
    assert len(computed) == 1 + 2 * num_parts and num_parts > 5
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    with pytest.raises(InputError, match=r"a: exists\. Name another --save-logits"):
        save_logits(teacher, config, tmp_path / "a")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save-logits", "out", "--top-k", "-1"], "--top-k=-1: negative"),
        (["--save-logits", "out", "--top-k", "3"], "--top-k=3: there are 3 of sequence_class"),
        (["--save-logits", "out", "--config.data.eval_file=nowhere"], "nowhere: no such file"),
        (["--save-logits", "nowhere/out"], "nowhere is not a directory"),
        (["--text", "ba", "--top-k", "3"], "--config, --top-k: for --save-logits alone"),
        (["--text", "ba", "--config.seed=3"], "--config.seed: for --save-logits alone"),
    ],
)
def test_predict_rejects_invalid_arguments(
    arguments, message, folder, teacher, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    config = toy_tasks.arguments("single_label", folder) if "--save-logits" in arguments else []
    assert main(["predict", "--checkpoint", str(teacher), *config, *arguments]) == 2
    assert re.search(re.escape(message), capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
