"""Training of embeddings: a loss over the whole batch, cached gradients, evaluation and export."""

import dataclasses
import json
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import toy_embeddings
import toy_tasks
from conftest import PEERS
from pretraining_runs import metrics, params_of, stop_at
from toy_embeddings import SCORED, prepare

import bertjax
from bertjax.errors import StoppedError
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.convert import convert
from bertjax.mesh.feed import to_global
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means
from bertjax.tasks.embeddings.losses import RANKING_LOSS
from bertjax.tasks.embeddings.objective import SCORES
from bertjax.tasks.embeddings.pipeline import EmbeddingsPipeline
from bertjax.tasks.embeddings.task import EmbeddingsTask
from bertjax.tasks.pipeline import PredictInput
from bertjax.training.evaluator import evaluate
from bertjax.training.setup import make_trainer
from data_pipelines.finetuning.embeddings.distinct_batches import SLOTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    return path


def sums_and_gradient(task: EmbeddingsTask, key: jax.Array | None = None, **fields: Any) -> Any:
    """Return the mean loss of the first batch and its gradient, compiled with changed fields."""
    objective = type(task.objective)(dataclasses.replace(task.config, **fields), 8)
    params, batch = objective.init_params(jax.random.key(0)), task.train_batch(0)

    def loss(params: Any) -> jax.Array:
        sums = objective.train_sums(params, batch, key, {}, jnp.float32(0))
        value, weight = sums["embeddings_loss"]
        return value / weight

    return jax.jit(jax.value_and_grad(loss)).lower(params).compile(), params


def assert_close(ours: Any, theirs: Any, tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# The loss


@pytest.mark.seconds
def test_loss_is_that_of_texts_in_sequences_of_their_own(folder) -> None:
    packed, alone = prepare(folder), prepare(folder, packing=False)
    assert packed.objective.batch_size < alone.objective.batch_size
    results = [call(params) for call, params in map(sums_and_gradient, (packed, alone))]
    assert_close(*results, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"data__train_file": "scored.csv", "batch_size": 4}])
def test_loss_of_the_global_batch_depends_on_neither_mesh_nor_microbatches(folder, fields) -> None:
    results = []
    for *mesh, accumulation in ((1, 1, 1, 1), (8, 1, 1, 1), (2, 2, 2, 2)):
        axes = dict(zip(("mesh__data", "mesh__fsdp", "mesh__tensor"), mesh, strict=True))
        axes["gradient_accumulation_steps"] = accumulation
        task = prepare(folder, log_every=1, **axes, **fields)
        functions = StepFunctions(task.config, task.objective, jax.devices()[: np.prod(mesh)])
        step, state, losses = functions.compile_train_step(), functions.init(), []
        for batch in task.train_batches(0, 3):
            state, sums = step(state, to_global(batch, functions.batch_sharding), {})
            losses.append(means(jax.device_get(sums))["loss"])
        results.append(losses)
    assert len({*results[0]}) == 3
    for losses in results[1:]:
        np.testing.assert_allclose(losses, results[0], rtol=1e-6)


@pytest.mark.seconds
def test_cached_gradients_equal_those_of_the_whole_batch(folder) -> None:
    task = prepare(folder, gradient_accumulation_steps=4)
    assert task.objective.batch_size % 4 == 0
    (cached, params), (whole, _) = (
        sums_and_gradient(task, gradient_accumulation_steps=count) for count in (4, 1)
    )
    assert_close(cached(params), whole(params), 1e-6)
    # What the average of losses within microbatches would be: fewer negatives.
    assert float(cached(params)[0]) > np.log(16) / 2


@pytest.mark.seconds
def test_cached_gradients_have_the_dropout_of_the_forward_pass(folder) -> None:
    fields = {"model__hidden_dropout_prob": 0.1, "model__attention_probs_dropout_prob": 0.1}
    task, key = prepare(folder, gradient_accumulation_steps=2, **fields), jax.random.key(5)
    cached, params = sums_and_gradient(task, key)
    objective, batch = task.objective, task.train_batch(0)

    def loss(params: Any) -> jax.Array:  # without a loop, keeping all activations
        parts = [
            objective.apply(
                params,
                {name: array[index::2] for name, array in batch.items()},
                jax.random.fold_in(key, index),
                {},
            )["embeddings"]
            for index in range(2)
        ]
        embeddings = jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
        value, weight = objective.sums({"embeddings": embeddings}, batch)["embeddings_loss"]
        return value / weight

    assert_close(cached(params), jax.jit(jax.value_and_grad(loss))(params), 1e-6)
    other, _ = sums_and_gradient(task, jax.random.key(6))
    assert float(other(params)[0]) != float(cached(params)[0])


@pytest.mark.slow
def test_cached_gradients_need_less_memory(folder) -> None:
    task = prepare(folder, batch_size=64, packing=False, gradient_accumulation_steps=16)
    whole, cached = (
        sums_and_gradient(task, gradient_accumulation_steps=count)[0]
        .memory_analysis()
        .temp_size_in_bytes
        for count in (1, 16)
    )
    assert cached < whole / 4


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cached_gradients_are_added_up_in_float32(folder, dtype: str) -> None:
    task = prepare(folder, gradient_accumulation_steps=4, model__dtype=dtype)
    objective, batch = task.objective, task.train_batch(0)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), objective.init_params(jax.random.key(0)))
    jaxpr = jax.make_jaxpr(
        jax.grad(
            lambda params: objective.train_sums(params, batch, None, {}, jnp.float32(0))[
                "embeddings_loss"
            ][0]
        )
    )(params)
    loops = [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]
    sums = [
        variable.aval.dtype
        for loop in loops
        for variable, aval in zip(loop.outvars, loop.params["jaxpr"].out_avals, strict=True)
        if variable.aval.ndim == aval.ndim > 1  # carried, not stacked
    ]
    assert sums and {*sums} == {jnp.dtype("float32")}


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_resumes_exactly(accumulation: int, folder, tmp_path, monkeypatch) -> None:
    fields = {"steps": 30, "log_every": 1, "checkpoint_every": 8, "optimizer__warmup": 1}
    fields |= {"model__attention_probs_dropout_prob": 0.1, "mesh__data": 8}
    fields |= {"gradient_accumulation_steps": accumulation}
    config = toy_tasks.configuration("embeddings", folder, **fields)
    make_trainer(config, tmp_path / "whole").train()
    for step in (3, 21):  # in the first epoch and in the second
        with monkeypatch.context() as patch:
            stop_at(step, patch)
            with pytest.raises(StoppedError):
                make_trainer(config, tmp_path / "stopped").train()
    make_trainer(config, tmp_path / "stopped").train()
    names = ("step", "split", "loss", "accuracy", "grad_norm")
    ours, theirs = (
        [[line.get(name) for name in names] for line in metrics(tmp_path / run)]
        for run in ("stopped", "whole")
    )
    assert ours == theirs
    for a, b in zip(*(params_of(tmp_path / r, config) for r in ("stopped", "whole")), strict=True):
        np.testing.assert_array_equal(a, b)


# Data


@pytest.mark.parametrize(
    ("file", "loss", "num_texts"),
    [
        ("translations.jsonl", RANKING_LOSS, 2),
        ("triplets.jsonl", RANKING_LOSS, 4),
        ("texts.jsonl", RANKING_LOSS, 2),
        ("scored.csv", "cosent", 2),
    ],
)
def test_columns_choose_the_loss(folder, file: str, loss: str, num_texts: int) -> None:
    dropout = {"model__hidden_dropout_prob": 0.1}
    task = prepare(folder, batch_size=8, data__train_file=file, **dropout)
    assert task.config.data["loss"] == loss and task.config.data["num_texts"] == num_texts
    batch = task.train_batch(0)
    assert {*batch} == {*task.objective.batch_shapes(1)}
    assert (SCORES in batch) == (loss == "cosent")
    slots = batch[SLOTS][batch[f"{SLOTS}_weights"] > 0]
    assert sorted(slots.tolist()) == [*range(8 * num_texts)]
    assert f"example 1 text {num_texts}" in "\n".join(
        task.format_sequence(batch, index) for index in range(len(batch["input_ids"]))
    )


@pytest.mark.seconds
def test_texts_alone_are_their_own_positives_under_dropout(folder) -> None:
    task = prepare(folder, data__train_file="texts.jsonl", model__hidden_dropout_prob=0.1)
    objective, batch = task.objective, task.train_batch(0)
    params = objective.init_params(jax.random.key(0))
    outputs = jax.jit(objective.apply, static_argnums=3)(params, batch, jax.random.key(1), None)
    order = np.argsort(batch[SLOTS][batch[f"{SLOTS}_weights"] > 0])
    ids = [
        batch["input_ids"][row][batch["example_ids"][row] == slot + 1].tolist()
        for row, slot in np.argwhere(batch[f"{SLOTS}_weights"] > 0)
    ]
    vectors = np.asarray(outputs["embeddings"])[batch[f"{SLOTS}_weights"] > 0]
    for first, second in order.reshape(-1, 2):
        assert ids[first] == ids[second]
        assert np.abs(vectors[first] - vectors[second]).max() > 1e-4


# Evaluation and export


@pytest.mark.seconds
def test_evaluation_correlates_cosines_with_scores(folder) -> None:
    task = prepare(
        folder, data__eval_file="scored.csv", data__matryoshka_dims="64,8", eval_batch_size=8
    )
    (eval_set,) = task.eval_sets()
    apply = jax.jit(task.objective.apply, static_argnums=(2, 3))
    params = task.objective.init_params(jax.random.key(0))
    outputs = [
        eval_set.keep_outputs(i, jax.device_get(apply(params, batch, None, None)))
        for i, batch in enumerate(eval_set.batches())
    ]
    assert {name: x.shape for name, x in outputs[0].items()} == {"embeddings": (16, 64)}
    evaluation = eval_set.evaluation({}, outputs)
    entries = evaluation.files["predictions"]
    cosines, gold = [entry["cosines"][0] for entry in entries], [entry["gold"] for entry in entries]
    assert gold == [i / 8 for i in range(8)]
    expected = scipy.stats.spearmanr(cosines, gold).statistic
    assert evaluation.scores["spearman"] == pytest.approx(expected, abs=1e-6)
    assert {*evaluation.scores} == {*eval_set.score_names}
    assert {"pearson", "spearman_64", "spearman_8"} < evaluation.scores.keys()
    assert "loss" not in evaluation.scores  # the training has none for scored pairs


@pytest.mark.slow
def test_evaluation_of_several_sets_averages_what_all_have(folder, tmp_path) -> None:
    fields = {"steps": 2, "optimizer__warmup": 1, "data__train_file": "scored.csv", "batch_size": 8}
    config = toy_tasks.configuration("embeddings", folder, **fields, data__eval_file="s*.csv")
    (folder / "second.csv").write_text("".join(SCORED[:5]))
    make_trainer(config, tmp_path / "run").train()
    scores = evaluate(config, tmp_path / "run").scores
    assert scores["spearman"] == pytest.approx(
        (scores["scored/spearman"] + scores["second/spearman"]) / 2
    )
    assert scores["loss"] == pytest.approx((scores["scored/loss"] + scores["second/loss"]) / 2)


def test_runs_are_ranked_by_a_score_that_their_eval_set_has(folder) -> None:
    for file in ("translations-dev.jsonl", "scored.csv"):
        task = prepare(folder, data__eval_file=file)
        (eval_set,) = task.eval_sets()
        assert task.primary_metrics[0] in eval_set.score_names


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> pathlib.Path:
    fields = {"steps": 4, "optimizer__warmup": 1, "data__pooling": "max", "max_seq_length": 16}
    path = tmp_path_factory.mktemp("trained") / "run"
    make_trainer(toy_tasks.configuration("embeddings", folder, **fields), path).train()
    return path


TEXTS = ["ba do", "ki " * 40, "lu me"]


@pytest.mark.slow
def test_pooling_is_that_of_the_model_that_init_names(trained, folder, tmp_path) -> None:
    convert(trained, tmp_path / "hf", "bertjax", "hf")
    for init, pooling in ((trained, "max"), (tmp_path / "hf", "max"), ("", "mean")):
        task = EmbeddingsTask(toy_tasks.configuration("embeddings", folder, init))
        assert task.config.data["pooling"] == task.objective.pooling == pooling
    named = toy_tasks.configuration("embeddings", folder, trained, data__pooling="cls")
    assert EmbeddingsTask(named).objective.pooling == "cls"


@pytest.mark.slow
def test_encode_and_predict_pool_as_in_training(trained) -> None:
    model = bertjax.load(trained)
    embeddings = model.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)
    answers = model.predict(TEXTS)
    for text, answer, embedding in zip(TEXTS, answers, embeddings, strict=True):
        assert answer["text"] == text and ("truncated" in answer) == (len(text) > 40)
        np.testing.assert_allclose(answer["embedding"], embedding, atol=1e-6)
    hidden = model.encode(TEXTS[0], pooling="max")
    np.testing.assert_allclose(hidden / np.linalg.norm(hidden), embeddings[0], atol=1e-6)


@pytest.mark.seconds
def test_preprocess_warns_once_of_the_prompts_of_the_run(folder, caplog) -> None:
    task = toy_embeddings.prepare(folder, data__query_prompt="pipeline: ")
    pipeline = EmbeddingsPipeline(task.objective, task.tokenizer)
    for text in ("ba", "do"):
        pipeline.preprocess([PredictInput("line 1", text)])
    (warning,) = (message for message in caplog.messages if "prompt" in message)
    assert warning.startswith("data.query_prompt='pipeline: ': put before texts in training")


@pytest.mark.slow
def test_export_has_the_modules_of_sentence_transformers(trained, tmp_path) -> None:
    path = tmp_path / "hf"
    convert(trained, path, "bertjax", "hf")
    assert find_pooling_config(path) == (path, "max", True, 16, False, "", "", "", 0)
    ours, theirs = (bertjax.load(model).encode(TEXTS) for model in (trained, path))
    np.testing.assert_array_equal(ours, theirs)
    assert "library_name: sentence-transformers" in (path / "README.md").read_text()


@pytest.mark.minutes
@pytest.mark.skipif(not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch")
@pytest.mark.parametrize("python", PEERS)
def test_sentence_transformers_computes_equal_embeddings(python, trained, tmp_path) -> None:
    if not toy_embeddings.has_sentence_transformers(python):
        pytest.skip(f"{python} has no sentence-transformers")
    convert(trained, tmp_path / "hf", "bertjax", "hf")
    code = (
        "import json, sys; from sentence_transformers import SentenceTransformer as S; "
        "print(json.dumps(S(sys.argv[1], device='cpu').encode(sys.argv[2:]).tolist()))"
    )
    done = subprocess.run(
        [python, "-c", code, str(tmp_path / "hf"), *TEXTS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(bertjax.load(trained).encode(TEXTS), theirs, atol=1e-6)
