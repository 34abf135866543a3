"""Stored logits of a teacher: digests of inputs, the file, and runs that learn from it."""

import dataclasses
import io
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_squad
import toy_tasks
from etils import epath
from model_files import write_hf
from pretraining_runs import make_run_config
from random_models import draw_model
from safetensors import safe_open

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.formats.example_digests import BatchExamples, ExampleInputs
from bertjax.formats.loading import read_model
from bertjax.formats.stored_logits import LogitsWriter, StoredClasses, StoredLogits
from bertjax.inference import logits_saving
from bertjax.inference.logits_saving import save_logits
from bertjax.tasks import registry
from bertjax.training.setup import add_teacher, make_trainer, open_teacher
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import (
    PackedShape,
    build_batch,
    pack_examples,
)

LABELS = ("glad", "odd, or so", "sad")
NO_WORKDIR = epath.Path("nowhere")
ROWS = [[2, 7, 3], [2, 9, 11, 3, 8, 3], [2, 5, 3], [2, 7, 3]]
PREFIXES = [3, 4, 3, 3]


# Digests.


def batch_of(indices: list[int], tokens: int, num_sequences: int) -> dict[str, np.ndarray]:
    examples = Examples.from_rows(ROWS, PREFIXES, {})
    shape = PackedShape(tokens, 4)
    layout = pack_examples(examples, np.array(indices), shape)
    batch = build_batch(examples, layout, num_sequences, shape)
    return batch | {"cls_positions": np.zeros((num_sequences, 4), np.int32)}


def digests(batch: dict[str, np.ndarray], *heads: str) -> list[bytes]:
    return sorted(map(bytes, BatchExamples(batch, heads).inputs.digests))


def test_digests_depend_neither_on_packing_nor_on_order() -> None:
    expected = ExampleInputs.of_examples(Examples.from_rows(ROWS, PREFIXES, {})).digests
    assert bytes(expected[0]) == bytes(expected[3]) and len({*map(bytes, expected)}) == 3
    for batch in (batch_of([0, 1, 2, 3], 16, 1), batch_of([3, 1, 0, 2], 6, 4)):
        assert digests(batch) == sorted(map(bytes, expected))


def test_digests_cover_every_input_of_the_model() -> None:
    batch = batch_of([1], 16, 1) | {
        "masked_lm_positions": np.array([[2, 0]], np.int32),
        "masked_lm_weights": np.array([[1, 0]], np.float32),
    }
    changes: dict[str, np.ndarray] = {
        name: batch[name] + (batch["example_ids"] > 0)
        for name in ("input_ids", "token_type_ids", "position_ids")
    }
    changes["masked_lm_positions"] = np.array([[4, 0]], np.int32)
    changes["masked_lm_weights"] = np.array([[1, 1]], np.float32)
    all_digests = [
        digests(batch, "mlm"),
        *(digests(batch | {n: a}, "mlm") for n, a in changes.items()),
    ]
    assert len({*map(tuple, all_digests)}) == len(changes) + 1


# The file.


def write_file(path: pathlib.Path, **arrays: np.ndarray) -> StoredLogits:
    """Write logits [C] of a classifier and [tokens, 2] of spans for the rows, their sums."""
    examples = Examples.from_rows(ROWS[:3], PREFIXES[:3], {})
    sums = np.array([sum(row) for row in ROWS[:3]], np.float32)
    part = {
        "digests": ExampleInputs.of_examples(examples).digests,
        "sequence_classification.counts": np.ones(3, np.int32),
        "sequence_classification.logits": sums[:, None] + np.arange(3, dtype=np.float32),
        "question_answering.counts": examples.lengths.astype(np.int32),
        "question_answering.logits": np.repeat(examples.ids[:, None], 2, 1).astype(np.float32),
    } | arrays
    classes = {name: StoredClasses(size, 0) for name, size in
               (("sequence_classification", 3), ("question_answering", 2))}  # fmt: skip
    halves = [
        {n: a[:2] if "question_answering.l" not in n else a[:9] for n, a in part.items()},
        {n: a[2:] if "question_answering.l" not in n else a[9:] for n, a in part.items()},
    ]
    content = io.BytesIO()
    LogitsWriter("teacher", "digest", LABELS, "words", classes).write(content, lambda: iter(halves))
    path.write_bytes(content.getvalue())
    return StoredLogits(path)


def test_file_gives_each_example_its_logits_in_any_packing(tmp_path) -> None:
    stored = write_file(tmp_path / "logits")
    for batch in (batch_of([0, 1, 2, 3], 16, 2), batch_of([3, 1, 0, 2], 6, 4)):
        added = stored.add_to(batch, toy_tasks.TOKENIZER)
        spans = added["teacher_question_answering_logits"]
        np.testing.assert_array_equal(spans, np.repeat(batch["input_ids"][..., None], 2, 2))
        logits = added["teacher_sequence_classification_logits"]
        slots = np.arange(1, 5)[:, None]
        sums = (batch["input_ids"][:, None] * (batch["example_ids"][:, None] == slots)).sum(-1)
        expected = np.where(sums[..., None] > 0, sums[..., None] + np.arange(3), 0)
        np.testing.assert_array_equal(logits, expected)


def test_file_is_safetensors(tmp_path) -> None:
    from safetensors.numpy import load

    write_file(tmp_path / "logits")
    arrays = load((tmp_path / "logits").read_bytes())
    assert arrays["digests"].shape == (3, 16)
    assert arrays["question_answering.logits"].shape == (12, 2)


def test_writer_states_the_omitted_mass() -> None:
    part = {"digests": np.zeros((2, 16), np.uint8), "mlm.counts": np.ones(2, np.int32),
            "mlm.logits": np.log(np.array([[0.7, 0.2, 0.1], [0.5, 0.2, 0.3]], np.float32)),
            "mlm.ids": np.zeros((2, 2), np.int32)}  # fmt: skip
    content = io.BytesIO()
    writer = LogitsWriter("teacher", "digest", (), "words", {"mlm": StoredClasses(9, 2)})
    assert writer.write(content, lambda: iter([part])) == {"mlm": pytest.approx(0.2)}
    assert b"omitted_mass" in content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not a file of stored logits"),
        (b"mood,text\nglad,ba do\n" * 9, r"not a file of stored logits \(a header of"),
        ((2).to_bytes(8, "little") + b"{}", "__metadata__: missing. Write it again"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "not an object. Write it again"),
    ],
)
def test_file_rejects_other_content(tmp_path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=message):
        StoredLogits(tmp_path / "file")


def test_file_rejects_damage(tmp_path) -> None:
    path = tmp_path / "logits"
    for name, array in {
        "question_answering.counts": np.ones(3, np.int32),
        "digests": np.zeros((3, 8), np.uint8),
        "sequence_classification.logits": np.zeros((3, 2), np.float32),
    }.items():
        stored = write_file(path, **{name: array})
        with pytest.raises(InputError, match=r"logits: damaged \(.*Write it again with"):
            stored.add_to(batch_of([0], 16, 1), toy_tasks.TOKENIZER)
    write_file(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="damaged"):
        StoredLogits(path).add_to(batch_of([0], 16, 1), toy_tasks.TOKENIZER)


def test_missing_example_is_named(tmp_path) -> None:
    stored = write_file(tmp_path / "logits")
    tokens = toy_tasks.TOKENIZER.tokens
    batch = batch_of([0, 2], 16, 1)
    batch["input_ids"][0, 4] += 1
    message = f"has no logits of example 2 of a batch, '.*{tokens[6]}.*', nor of 0 others of 2"
    with pytest.raises(InputError, match=message):
        stored.add_to(batch, toy_tasks.TOKENIZER)
    examples = Examples.from_rows([[2, 8, 3]], [3], {})
    with pytest.raises(InputError, match="example 1 of the training data"):
        stored.check_examples(examples, toy_tasks.TOKENIZER)


# Runs.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("data")
    toy_tasks.write_data(path)
    squad = path / "squad"
    squad.mkdir()
    for split, count in (("train", 24), ("dev", 4)):
        content = json.dumps(toy_squad.questions(1, count))
        (squad / f"{split}-v1.1.json").write_text(content)
    config = dataclasses.replace(toy_tasks.configuration("single_label", path).model,
                                 vocab_size=len(toy_squad.TOKENIZER.tokens))  # fmt: skip
    write_hf(draw_model(config, toy_squad.TOKENIZER, "pooler"), squad / "model")
    return path


KINDS = {
    "single_label": "sequence_classification", "multi_label": "sequence_classification",
    "regression": "sequence_classification", "multiple_choice": "multiple_choice",
    "token_classification": "token_classification", "squad": "question_answering",
    "pretraining": "pretraining",
}  # fmt: skip


def configure(kind: str, folder: pathlib.Path, corpus: object, **overrides: object) -> Config:
    fields = {"steps": 4, "log_every": 1, "optimizer__warmup": 0, "mesh__data": 8} | overrides
    if kind == "pretraining":
        fields = {"data__dupe_factor": 2, "steps": 2, "data__workers": 1} | overrides
        return make_run_config(corpus, **fields)
    if kind == "squad":
        return toy_tasks.load_arguments(toy_squad.arguments(folder / "squad", 1, **fields))
    return toy_tasks.configuration(kind, folder, **fields)


def make_teacher(config: Config, path: pathlib.Path) -> pathlib.Path:
    """Write a model with random parameters that has the heads and labels of a configuration."""
    task = registry.find_task(config.task)(config)
    model = dataclasses.replace(task.config.model, num_hidden_layers=1, bilstm=0)
    needed = task.objective.heads
    parts = needed if config.task in ("question_answering", "token_classification") else (
        "pooler", *needed)  # fmt: skip
    drawn = draw_model(model, task.tokenizer, *parts)
    problem = config.data.get("problem_type", "")
    fields = {"problem_type": problem} if problem else {}
    return write_hf(dataclasses.replace(drawn, labels=task.labels, **fields), path)


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


def with_distill(config: Config, **fields: object) -> Config:
    return dataclasses.replace(config, distill=DistillConfig(temperature=2.0, **fields))


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
    save_logits(teacher, config, tmp_path / "b")
    assert len(computed) == 1 + 2 * num_parts and num_parts > 5
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    with pytest.raises(InputError, match=r"a: exists\. Name another --save-logits"):
        save_logits(teacher, config, tmp_path / "a")
