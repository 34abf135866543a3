"""What is compiled follows from the configuration alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config.config import Config, MeshConfig, OptimizerSection
from bertjax.mesh.sharding import named_leaves
from bertjax.model.encoder import BertConfig
from bertjax.steps.objective import MAX_EVAL_TOKENS
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from data_pipelines.errors import InputError

TINY = BertConfig(
    vocab_size=100,
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    max_position_embeddings=512,
)


def make_run_config(task: str = "pretraining", **fields: object) -> Config:
    data = {**registry.data_fields()[task]}
    return Config(
        task, **{"model": TINY, "data": data, "batch_size": 8, "max_seq_length": 32} | fields
    )


@pytest.mark.parametrize(("batch_size", "max_seq_length"), [(256, 128), (256, 512), (8, 32)])
def test_held_out_rows_are_those_of_a_step_where_they_are_not_many(
    batch_size, max_seq_length
) -> None:
    config = make_run_config(batch_size=batch_size, max_seq_length=max_seq_length)
    assert registry.objective(config, batch_size_multiple=1).eval_batch_size == batch_size


@pytest.mark.parametrize(("batch_size", "max_seq_length"), [(65_536, 128), (32_768, 512)])
@pytest.mark.parametrize("devices", [1, 16, 64, 768])
def test_large_batches_are_evaluated_in_rows_that_devices_share(
    batch_size, max_seq_length, devices
) -> None:
    config = make_run_config(batch_size=batch_size, max_seq_length=max_seq_length)
    rows = registry.objective(config, batch_size_multiple=devices).eval_batch_size
    assert rows % devices == 0
    assert 0 <= rows * max_seq_length - MAX_EVAL_TOKENS < devices * max_seq_length


def test_spans_are_evaluated_with_some_rows_on_each_device() -> None:
    config = make_run_config("question_answering", max_seq_length=384, batch_size=32)
    assert registry.objective(config, batch_size_multiple=1).eval_batch_size == 32
    assert registry.objective(config, batch_size_multiple=64).eval_batch_size == 256


def test_rows_that_are_asked_for_are_taken_or_refused() -> None:
    config = make_run_config(eval_batch_size=24, mesh=MeshConfig(8, 1, 1))
    objective = registry.objective(config, batch_size_multiple=8)
    assert objective.eval_batch_size == 24
    StepFunctions(config, objective).check_batch_sizes(train=True)
    config = dataclasses.replace(config, eval_batch_size=20)
    programs = StepFunctions(config, registry.objective(config, batch_size_multiple=8))
    with pytest.raises(InputError, match="20 rows of held-out data do not divide over 8 devices"):
        programs.check_batch_sizes(train=False)


def test_rows_of_training_must_divide_where_something_trains() -> None:
    config = make_run_config(
        batch_size=24, gradient_accumulation_steps=2, eval_batch_size=8, mesh=MeshConfig(8, 1, 1)
    )
    programs = StepFunctions(config, registry.objective(config, batch_size_multiple=8))
    programs.check_batch_sizes(train=False)
    with pytest.raises(InputError, match=r"batch_size=24 .* 8 devices x accumulation=2: .* 16\."):
        programs.check_batch_sizes(train=True)


def test_smaller_batches_are_in_parts_no_larger_than_those_of_the_last() -> None:
    """And in as few as divide over the devices."""
    config = make_run_config(
        batch_size=48, gradient_accumulation_steps=3, batch_size_rampup=4, mesh=MeshConfig(2, 1, 1)
    )
    config = config.resolve()
    programs = StepFunctions(config, registry.objective(config), jax.devices()[:2])
    programs.check_batch_sizes(train=True)
    assert [programs._gradient_accumulation_steps(rows) for rows in config.rampup.batch_sizes] == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("name", ["eval_batches", "eval_batch_size"])
def test_numbers_of_held_out_rows_are_not_negative(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=-1 must be at least 0"):
        make_run_config(**{name: -1})


def test_a_field_that_the_task_does_not_read_is_refused() -> None:
    with pytest.raises(
        InputError, match="task=question_answering does not read eval_batches=3: leave it out"
    ):
        registry.objective(
            make_run_config("question_answering", eval_batches=3, max_seq_length=384)
        )


@pytest.mark.slow
def test_what_is_not_trainable_stays_what_it_was_and_has_no_moments() -> None:
    config = make_run_config(
        steps=10, optimizer=OptimizerSection(warmup=0, decay_steps=10), mesh=MeshConfig(8, 1, 1)
    )
    objective = registry.objective(config, batch_size_multiple=8)
    objective.trainable = lambda name: name.startswith("mlm/")  # type: ignore[method-assign]
    programs = StepFunctions(config, objective)
    state = programs.init()
    before = {name: np.asarray(leaf) for name, leaf in named_leaves(state.params)}
    batch = {
        name: jax.device_put(jnp.ones(leaf.shape, leaf.dtype), programs.batch_sharding)
        for name, leaf in objective.batch_shapes(8).items()
    }
    after, _ = programs.compile_train_step()(state, batch, {})
    for name, leaf in named_leaves(after.params):
        changed = not np.array_equal(leaf, before[name])
        assert not changed if not name.startswith("mlm/") else changed or name == "mlm/norm/bias"
    moments = optax.tree.get_all_with_path(after.opt_state, "mu")
    assert {n.partition("/")[0] for _, tree in moments for n, _ in named_leaves(tree)} == {"mlm"}


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [1, 2])
@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)], ids=str)
def test_frozen_layers_stay_what_they_were_on_any_mesh(mesh: tuple, frozen: int) -> None:
    section = OptimizerSection(warmup=0, layerwise_lr_decay=0.9, frozen_layers=frozen)
    config = make_run_config(steps=10, optimizer=section, mesh=MeshConfig(*mesh)).resolve()
    objective = registry.objective(config, batch_size_multiple=8)
    programs = StepFunctions(config, objective)
    state = programs.init()
    before = {name: np.asarray(leaf) for name, leaf in named_leaves(state.params)}
    batch = {
        name: jax.device_put(jnp.ones(leaf.shape, leaf.dtype), programs.batch_sharding)
        for name, leaf in objective.batch_shapes(8).items()
    }
    step = programs.compile_train_step()
    for _ in range(3):
        state, _ = step(state, batch, {})
    for name, leaf in named_leaves(state.params):
        after, start = np.asarray(leaf), before[name]
        if "/blocks/" in name:
            np.testing.assert_array_equal(after[:frozen], start[:frozen])
            after, start = after[frozen:], start[frozen:]
        still = "/embeddings/" in name or not after.size
        assert np.array_equal(after, start) == still, name


@pytest.mark.slow
def test_constants_are_read_and_do_not_learn() -> None:
    config = make_run_config(steps=10, optimizer=OptimizerSection(warmup=0, decay_steps=10))
    objective = registry.objective(config, batch_size_multiple=8)
    plain = objective.apply
    objective.constants = lambda: {"shift": jnp.float32(3)}  # type: ignore[method-assign]
    objective.apply = lambda params, batch, key, constants: {  # type: ignore[method-assign]
        name: logits + constants["shift"] for name, logits in plain(params, batch, key, {}).items()
    }
    programs = StepFunctions(config, objective)
    batch = {
        name: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), programs.batch_sharding)
        for name, leaf in objective.batch_shapes(8).items()
    }
    predict = programs.compile_predict_step(objective.batch_shapes(8))
    params = programs.layout_params(programs.init().params)
    shifted = predict(params, batch, programs.constants())["nsp_logits"]
    unshifted = predict(params, batch, {"shift": 0 * programs.constants()["shift"]})["nsp_logits"]
    np.testing.assert_allclose(shifted, unshifted + 3, rtol=1e-6)
