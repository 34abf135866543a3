"""Students of embeddings: a teacher in the train step or in a file, evaluation, export."""

import dataclasses
import json
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_embeddings
import toy_tasks
from conftest import PEERS
from pretraining_runs import metrics
from toy_embeddings import configure_student, read_texts, write_embeddings, write_teacher

import bertjax
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.convert import convert
from bertjax.mesh.feed import to_global
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means
from bertjax.tasks.embeddings.task import EmbeddingsTask
from bertjax.training.evaluator import evaluate
from bertjax.training.setup import add_teacher, make_trainer, open_teacher
from data_pipelines.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    return path


@pytest.fixture(scope="module")
def teacher(folder) -> pathlib.Path:
    return write_teacher(folder, folder / "teacher")


@pytest.fixture(scope="module")
def stored(folder, teacher) -> pathlib.Path:
    return write_embeddings(teacher, read_texts(folder), folder / "teacher.npz")


def prepare(config: Any, steps: int = 4) -> EmbeddingsTask:
    task = EmbeddingsTask(config.resolve(90))
    task.prepare(steps)
    return task


# The loss


def loss_and_gradient(config: Any, params: Any = None) -> Any:
    """Return the first batch's mean loss and its gradient, with a teacher of either kind."""
    task = prepare(config)
    opened = open_teacher(task.config, task, pathlib.Path("/nonexistent"))
    objective = add_teacher(task.config, task.objective, opened)
    params = objective.init_params(jax.random.key(0)) if params is None else params
    batch, constants = task.train_batch(0), objective.train_constants()

    def loss(params: Any) -> jax.Array:
        sums = objective.train_sums(params, batch, None, constants, jnp.float32(0))
        value, weight = sums["embeddings_loss"]
        return value / weight

    return jax.jit(jax.value_and_grad(loss))(params)


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_stored_embeddings_have_the_loss_of_the_teacher_in_the_step(
    folder, teacher, stored
) -> None:
    small = {"model__hidden_size": 32}
    online = loss_and_gradient(configure_student(folder, "", {"teacher": str(teacher)}, **small))
    file = loss_and_gradient(configure_student(folder, "", {"embeddings": str(stored)}, **small))
    assert_close(online, file)
    alone = configure_student(folder, "", {"embeddings": str(stored)}, packing=False, **small)
    assert_close(loss_and_gradient(alone), file)
    assert np.abs(file[1]["projection"]["kernel"]).max() > 1e-4


@pytest.mark.slow
def test_student_that_is_its_teacher_has_no_loss(folder, teacher) -> None:
    config = configure_student(folder, teacher, {"teacher": str(teacher)})
    params = {"encoder": bertjax.load(teacher).params["encoder"]}
    loss, gradient = loss_and_gradient(config, jax.device_get(params))
    assert float(loss) < 1e-12
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["teacher", "embeddings"])
def test_loss_depends_on_neither_mesh_nor_microbatches(kind, folder, teacher, stored) -> None:
    distill = {kind: str(teacher if kind == "teacher" else stored)}
    results = []
    for *mesh, accumulation in ((1, 1, 1, 1), (8, 1, 1, 1), (2, 2, 2, 2)):
        axes = dict(zip(("mesh__data", "mesh__fsdp", "mesh__tensor"), mesh, strict=True))
        axes["gradient_accumulation_steps"] = accumulation
        task = prepare(configure_student(folder, "", distill, model__hidden_size=32, **axes))
        opened = open_teacher(task.config, task, pathlib.Path("/nonexistent"))
        objective = add_teacher(task.config, task.objective, opened)
        functions = StepFunctions(task.config, objective, jax.devices()[: np.prod(mesh)])
        step, state, losses = functions.compile_train_step(), functions.init(), []
        constants = functions.train_constants()
        for batch in task.train_batches(0, 3):
            state, sums = step(state, to_global(batch, functions.batch_sharding), constants)
            losses.append(means(jax.device_get(sums))["loss"])
        results.append(losses)
    assert len({*results[0]}) == 3
    for losses in results[1:]:
        np.testing.assert_allclose(losses, results[0], rtol=1e-6)


# Runs


@pytest.fixture(scope="module")
def student(folder, teacher, tmp_path_factory) -> pathlib.Path:
    """A run of a smaller student with 8 sequences a batch, on texts and scored pairs."""
    path = tmp_path_factory.mktemp("students") / "run"
    fields = {"model__hidden_size": 32, "eval_every": 2, "data__matryoshka_dims": "16"}
    config = configure_student(folder, "", {"teacher": str(teacher)}, **fields)
    make_trainer(config, path).train()
    return path


@pytest.mark.slow
def test_evaluation_has_the_loss_and_the_cosine_to_the_teacher(folder, teacher, student) -> None:
    last = [line for line in metrics(student) if line["split"] == "eval"][-1]
    texts = read_texts(folder)
    ours, theirs = (bertjax.load(path).encode(texts) for path in (student, teacher))
    expected = {
        "loss": np.mean((ours - theirs) ** 2),
        "cosine": np.mean(np.sum(ours * theirs, axis=1)),
        "cosine_16": np.mean(
            np.sum(ours[:, :16] * theirs[:, :16], axis=1)
            / np.linalg.norm(ours[:, :16], axis=1)
            / np.linalg.norm(theirs[:, :16], axis=1)
        ),
    }
    for name, value in expected.items():
        assert last[name] == pytest.approx(float(value), rel=1e-4), name
    config = configure_student(
        folder, student, {"teacher": str(teacher)}, data__matryoshka_dims="16"
    )
    scores = evaluate(config, student).scores
    assert {name: scores[name] for name in expected} == pytest.approx(
        {name: last[name] for name in expected}, rel=1e-5
    )


@pytest.mark.slow
def test_student_is_evaluated_on_scored_pairs_as_every_model(folder, student, tmp_path) -> None:
    config = toy_tasks.configuration(
        "embeddings", folder, student, data__train_file="", data__eval_file="scored.csv"
    )
    config = dataclasses.replace(config, data={**config.data, "dir": "", "train_file": ""})
    path = {"eval_file": str(folder / "scored.csv")}
    config = dataclasses.replace(config, data={**config.data, **path})
    assert EmbeddingsTask(config).config.data["projection_size"] == 64
    evaluation = evaluate(config, student)
    cosine = evaluation.files["predictions"][3]["cosines"][0]
    first, second = bertjax.load(student).encode(["ba do", "ba ba ba ki"])
    assert cosine == pytest.approx(float(first @ second), abs=1e-5)


@pytest.mark.slow
def test_student_is_exported_with_its_projection(student, folder, tmp_path) -> None:
    path, texts = tmp_path / "hf", read_texts(folder)[:5]
    convert(student, path, "bertjax", "hf")
    assert find_pooling_config(path) == (path, "mean", True, 32, False, "", "", "", 64)
    model = bertjax.load(student)
    embeddings = model.encode(texts)
    assert embeddings.shape == (5, 64) and model.encode([]).shape == (0, 64)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(bertjax.load(path).encode(texts), embeddings)
    for text, answer, embedding in zip(texts, model.predict(texts), embeddings, strict=True):
        assert answer["text"] == text
        np.testing.assert_allclose(answer["embedding"], embedding, atol=1e-6)
    assert model.encode(texts, pooling="mean").shape == (5, 32)
    with pytest.raises(InputError, match="a linear layer projects vectors of its last layer"):
        model.encode(texts, layers=(0,))
    with pytest.raises(InputError, match="the TF1 format has no linear layer after the pooling"):
        convert(student, tmp_path / "tf1", "bertjax", "tf1")
    # The exported student is a teacher, and initializes another student.
    task = EmbeddingsTask(configure_student(folder, path, {"teacher": str(path)}))
    assert task.config.data["projection_size"] == 64
    loss, _ = loss_and_gradient(
        configure_student(folder, path, {"teacher": str(path)}),
        jax.device_get(bertjax.load(path).params),
    )
    assert float(loss) < 1e-12


@pytest.mark.slow
def test_run_does_not_resume_with_another_teacher(folder, teacher, tmp_path) -> None:
    other = write_teacher(folder, tmp_path / "teacher")
    config = configure_student(folder, "", {"teacher": str(other)}, steps=2)
    make_trainer(config, tmp_path / "run").train()
    write_teacher(folder, other, projection_size=64)
    with pytest.raises(InputError, match=r"not the model that the run in .* began with"):
        make_trainer(config, tmp_path / "run")


@pytest.mark.minutes
@pytest.mark.skipif(not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch")
@pytest.mark.parametrize("python", PEERS)
def test_sentence_transformers_computes_equal_embeddings_of_students(
    python, student, folder, tmp_path
) -> None:
    if not toy_embeddings.has_sentence_transformers(python):
        pytest.skip(f"{python} has no sentence-transformers")
    convert(student, tmp_path / "hf", "bertjax", "hf")
    code = (
        "import json, sys; from sentence_transformers import SentenceTransformer as S; "
        "model = S(sys.argv[1], device='cpu'); model.save(sys.argv[2]); "
        "print(json.dumps(model.encode(sys.argv[3:]).tolist()))"
    )
    texts = read_texts(folder)[:5]
    command = [python, "-c", code, str(tmp_path / "hf"), str(tmp_path / "saved"), *texts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, theirs = bertjax.load(student).encode(texts), json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(bertjax.load(tmp_path / "saved").encode(texts), ours, atol=1e-6)
