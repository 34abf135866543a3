"""Objectives and step functions: batch sizes, trainable and frozen parameters, constants."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import in_test_all

from bertjax.config.config import Config, MeshConfig
from bertjax.config.optimizer_config import OptimizerSection
from bertjax.config.user_functions import import_function
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import named_leaves
from bertjax.model import losses
from bertjax.model.bert_config import BertConfig
from bertjax.steps.batch_sizes import accumulation_steps, check_batch_sizes
from bertjax.steps.objective import MAX_EVAL_TOKENS, Objective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from data_pipelines.errors import InputError

TINY = BertConfig(100, num_hidden_layers=2, hidden_size=32, num_attention_heads=2)


def make_run_config(task: str = "pretraining", **fields: object) -> Config:
    usual = {"model": TINY, "data": {**registry.data_fields()[task]}}
    usual |= {"batch_size": 8, "max_seq_length": 32}
    return Config(task, **usual | fields)


def batch_of_ones(step_functions: StepFunctions, objective: Objective) -> dict[str, jax.Array]:
    ones = {name: jnp.ones(x.shape, x.dtype) for name, x in objective.batch_shapes(8).items()}
    return jax.device_put(ones, step_functions.batch_sharding)


@pytest.mark.parametrize(("batch_size", "max_seq_length"), [(256, 128), (256, 512), (8, 32)])
def test_eval_batch_size_defaults_to_the_training_batch_size(batch_size, max_seq_length) -> None:
    config = make_run_config(batch_size=batch_size, max_seq_length=max_seq_length)
    assert registry.make_objective(config, batch_size_multiple=1).eval_batch_size == batch_size


@pytest.mark.parametrize(("batch_size", "max_seq_length"), [(65_536, 128), (32_768, 512)])
@pytest.mark.parametrize("devices", [1, 16, 64, 768])
def test_eval_batch_size_is_bounded_and_a_multiple_of_devices(
    batch_size, max_seq_length, devices
) -> None:
    config = make_run_config(batch_size=batch_size, max_seq_length=max_seq_length)
    rows = registry.make_objective(config, batch_size_multiple=devices).eval_batch_size
    assert rows % devices == 0
    assert 0 <= rows * max_seq_length - MAX_EVAL_TOKENS < devices * max_seq_length


def test_eval_batch_size_of_question_answering_gives_each_device_some_sequences() -> None:
    config = make_run_config("question_answering", max_seq_length=384, batch_size=32)
    assert registry.make_objective(config, batch_size_multiple=1).eval_batch_size == 32
    assert registry.make_objective(config, batch_size_multiple=64).eval_batch_size == 256


def test_eval_batch_size_of_fine_tuning_is_bounded_too() -> None:
    config = make_run_config("question_answering", max_seq_length=128, batch_size=4096)
    objective = registry.make_objective(config, batch_size_multiple=8)
    assert objective.eval_batch_size * 128 == MAX_EVAL_TOKENS


def test_eval_batch_size_of_the_configuration_must_divide_over_devices() -> None:
    config = make_run_config(eval_batch_size=24, mesh=MeshConfig(8, 1, 1))
    objective = registry.make_objective(config, batch_size_multiple=8)
    assert objective.eval_batch_size == 24
    step_functions = StepFunctions(config, objective)
    check_batch_sizes(config, objective, step_functions.mesh, train=True)
    config = dataclasses.replace(config, eval_batch_size=20)
    objective = registry.make_objective(config, batch_size_multiple=8)
    with pytest.raises(InputError, match=r"eval_batch_size=20: does not divide over 8 devices\."):
        check_batch_sizes(config, objective, step_functions.mesh, train=False)


def test_batch_size_must_divide_over_devices_only_for_training() -> None:
    config = make_run_config(
        batch_size=24, gradient_accumulation_steps=2, eval_batch_size=8, mesh=MeshConfig(8, 1, 1)
    )
    objective, mesh = registry.make_objective(config, batch_size_multiple=8), make_mesh(8, 1, 1)
    check_batch_sizes(config, objective, mesh, train=False)
    with pytest.raises(
        InputError, match=r"batch_size=24: .* 8 devices x gradient_accumulation_steps=2\. .* 16\."
    ):
        check_batch_sizes(config, objective, mesh, train=True)


def test_evaluation_needs_no_number_of_steps() -> None:
    config = make_run_config(
        steps="3 epochs", batch_size_rampup=4, eval_batch_size=8, mesh=MeshConfig(8, 1, 1)
    )
    objective = registry.make_objective(config, batch_size_multiple=8)
    check_batch_sizes(config, objective, make_mesh(8, 1, 1), train=False)


def test_accumulation_steps_of_a_rampup_keep_the_microbatch_size() -> None:
    """And in as few as divide over the devices."""
    config = make_run_config(
        batch_size=48, gradient_accumulation_steps=3, batch_size_rampup=4, mesh=MeshConfig(2, 1, 1)
    )
    config = config.resolve()
    objective, mesh = registry.make_objective(config), make_mesh(2, 1, 1, jax.devices()[:2])
    check_batch_sizes(config, objective, mesh, train=True)
    sizes = config.rampup.batch_sizes
    assert [accumulation_steps(config, objective, mesh, size) for size in sizes] == [1, 2, 3]


@pytest.mark.parametrize("name", ["eval_batches", "eval_batch_size"])
def test_config_rejects_negative_eval_sizes(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=-1: is too small. Use at least 0"):
        make_run_config(**{name: -1})


def test_objective_rejects_a_field_that_the_task_does_not_read() -> None:
    with pytest.raises(
        InputError,
        match=r"eval_batches=3: task=question_answering does not read this field\. Remove it\.",
    ):
        registry.make_objective(
            make_run_config("question_answering", eval_batches=3, max_seq_length=384)
        )


@pytest.mark.parametrize("is_frozen", [True, False])
def test_freeze_features_freezes_the_encoder_in_pretraining(is_frozen: bool) -> None:
    model = dataclasses.replace(TINY, feature_layers="-2..-1", freeze_features=is_frozen)
    objective = registry.make_objective(make_run_config(model=model))
    assert objective.trainable("mlm/bias")
    assert objective.trainable("encoder/embeddings/word") is not is_frozen


@pytest.mark.slow
def test_untrainable_parameters_do_not_change_and_have_no_moments() -> None:
    config = make_run_config(
        steps=10, optimizer=OptimizerSection(warmup=0, decay_steps=10), mesh=MeshConfig(8, 1, 1)
    )
    objective = registry.make_objective(config, batch_size_multiple=8)
    objective.trainable = lambda name: name.startswith("mlm/")  # type: ignore[method-assign]
    step_functions = StepFunctions(config, objective)
    state = step_functions.init()
    before = {name: np.asarray(leaf) for name, leaf in named_leaves(state.params)}
    batch = batch_of_ones(step_functions, objective)
    after, _ = step_functions.compile_train_step()(state, batch, {})
    for name, leaf in named_leaves(after.params):
        changed = not np.array_equal(leaf, before[name])
        assert not changed if not name.startswith("mlm/") else changed or name == "mlm/norm/bias"
    moments = optax.tree.get_all_with_path(after.opt_state, "mu")
    assert {n.partition("/")[0] for _, tree in moments for n, _ in named_leaves(tree)} == {"mlm"}


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [1, *in_test_all(2)])
@pytest.mark.parametrize("mesh", [(2, 2, 2), *in_test_all(((8, 1, 1),))], ids=str)
def test_frozen_layers_do_not_change_on_any_mesh(mesh: tuple, frozen: int) -> None:
    section = OptimizerSection(warmup=0, layerwise_lr_decay=0.9, frozen_layers=frozen)
    config = make_run_config(steps=10, optimizer=section, mesh=MeshConfig(*mesh)).resolve()
    objective = registry.make_objective(config, batch_size_multiple=8)
    step_functions = StepFunctions(config, objective)
    state = step_functions.init()
    before = {name: np.asarray(leaf) for name, leaf in named_leaves(state.params)}
    batch = batch_of_ones(step_functions, objective)
    step = step_functions.compile_train_step()
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
def test_constants_are_arguments_of_the_predict_function() -> None:
    config = make_run_config(steps=10, optimizer=OptimizerSection(warmup=0, decay_steps=10))
    objective = registry.make_objective(config, batch_size_multiple=8)
    plain = objective.apply
    objective.constants = lambda: {"shift": jnp.float32(3)}  # type: ignore[method-assign]
    objective.apply = lambda params, batch, key, constants: {  # type: ignore[method-assign]
        name: logits + constants["shift"] for name, logits in plain(params, batch, key, {}).items()
    }
    step_functions = StepFunctions(config, objective)
    batch = batch_of_ones(step_functions, objective)
    predict = step_functions.compile_predict_step(objective.batch_shapes(8))
    params = step_functions.predict_layout.place(step_functions.init().params)
    shifted = predict(params, batch, step_functions.constants())["nsp_logits"]
    no_shift = jax.tree.map(jnp.zeros_like, step_functions.constants())
    unshifted = predict(params, batch, no_shift)["nsp_logits"]
    np.testing.assert_allclose(shifted, unshifted + 3, rtol=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("task", ["sequence_classification", "token_classification"])
def test_label_smoothing_is_of_training_losses_alone(task: str) -> None:
    model = dataclasses.replace(TINY, num_labels=3)
    fields = registry.data_fields()[task]
    plain, smooth = (
        registry.make_objective(
            make_run_config(task, model=model, data=fields | {"label_smoothing": smoothing})
        )
        for smoothing in (0.0, 0.3)
    )
    batch = {name: jnp.ones(x.shape, x.dtype) for name, x in plain.batch_shapes(2).items()}
    params = jax.jit(plain.init_params)(jax.random.key(0))
    logits = plain.apply(params, batch, None, {})[f"{task}_logits"]
    key, weights = f"{task}_loss", plain.LOSS_INPUTS[2]  # type: ignore[attr-defined]
    loss, weight = smooth.train_sums(params, batch, None, {}, jnp.float32(0))[key]
    targets = optax.smooth_labels(jax.nn.one_hot(jnp.ones(batch[weights].shape, int), 3), 0.3)
    expected = optax.softmax_cross_entropy(logits, targets).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert weight == batch[weights].size
    outputs = smooth.apply(params, batch, None, {})
    assert smooth.sums(outputs, batch)[key] == plain.sums(outputs, batch)[key]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label_smoothing": 1.0}, r"data.label_smoothing=1.0: not in \[0, 1\)"),
        (
            {"label_smoothing": 0.1, "problem_type": "regression"},
            "data.label_smoothing=0.1: data.problem_type=regression has no single label",
        ),
    ],
)
def test_label_smoothing_needs_single_labels(fields, message) -> None:
    data = registry.data_fields()["sequence_classification"] | fields
    with pytest.raises(InputError, match=message):
        registry.make_objective(
            make_run_config(
                "sequence_classification", model=dataclasses.replace(TINY, num_labels=3), data=data
            )
        )


def make_classifier(**fields: object) -> Objective:
    model = dataclasses.replace(TINY, num_labels=3)
    return registry.make_objective(
        make_run_config("sequence_classification", model=model, **fields)
    )


@pytest.mark.seconds
def test_loss_weights_multiply_the_training_losses_of_heads() -> None:
    plain = registry.make_objective(make_run_config())
    weighted = registry.make_objective(make_run_config(loss_weights="nsp=0.25"))
    batch = {name: jnp.ones(x.shape, x.dtype) for name, x in plain.batch_shapes(2).items()}
    params = jax.jit(plain.init_params)(jax.random.key(0))
    expected, sums = (
        objective.train_sums(params, batch, None, {}, jnp.float32(0))
        for objective in (plain, weighted)
    )
    loss, weight = expected["nsp_loss"]
    np.testing.assert_allclose(sums["nsp_loss"], (loss / 4, weight), rtol=1e-6)
    assert {**sums, "nsp_loss": 0} == {**expected, "nsp_loss": 0}
    outputs = plain.apply(params, batch, None, {})
    assert weighted.sums(outputs, batch) == plain.sums(outputs, batch)  # of an evaluation
    with pytest.raises(InputError, match="loss_weights='pooler=1': 'pooler' is no head"):
        registry.make_objective(make_run_config(loss_weights="pooler=1"))


def test_weigh_losses_finds_the_head_of_each_loss() -> None:
    objective = registry.make_objective(make_run_config(loss_weights="mlm=0.5,nsp=0"))
    one = jnp.float32(1)
    names = ("mlm_loss", "mlm_logits_loss", "nsp_loss", "relation_loss", "mlm_accuracy")
    sums = objective.weigh_losses({name: (one, one) for name in names})
    assert [float(sums[name][0]) for name in names] == [0.5, 0.5, 0, 1, 1]
    infinite = objective.weigh_losses({"nsp_loss": (jnp.float32(jnp.inf), one)})
    assert infinite["nsp_loss"] == (0, 1)
    objective = make_classifier(loss_weights="sequence_classification=3")
    assert objective.weigh_losses({"null_score_loss": (one, one)}) == {"null_score_loss": (3, 1)}


def weigh_by_class(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return losses.cross_entropy(logits, labels, weights * jnp.array([1.0, 7.0, 1.0])[labels])


@pytest.mark.seconds
def test_loss_of_a_user_replaces_that_of_training_and_evaluation() -> None:
    name = f"{__name__}:weigh_by_class"
    import_function("loss", name)
    plain, custom = (
        make_classifier(),
        make_classifier(loss=name, loss_weights="sequence_classification=2"),
    )
    batch = {name: jnp.ones(x.shape, x.dtype) for name, x in plain.batch_shapes(2).items()}
    params = jax.jit(plain.init_params)(jax.random.key(0))
    key = "sequence_classification_loss"
    loss, weight = plain.sums(plain.apply(params, batch, None, {}), batch)[key]
    for factor, sums in (
        (1, custom.sums(custom.apply(params, batch, None, {}), batch)),
        (2, custom.train_sums(params, batch, None, {}, jnp.float32(0))),
    ):
        np.testing.assert_allclose(sums[key], (7 * factor * loss, 7 * weight), rtol=1e-6)
        assert "accuracy" in sums


def test_loss_of_a_user_needs_a_task_that_reads_it() -> None:
    with pytest.raises(InputError, match="loss='a:b': task=pretraining has a loss of its own"):
        registry.make_objective(make_run_config(loss="a:b"))
    fields = registry.data_fields()["sequence_classification"] | {"label_smoothing": 0.1}
    with pytest.raises(InputError, match=r"data.label_smoothing=0.1: loss=a:b replaces the"):
        make_classifier(loss="a:b", data=fields)


def test_label_counts_must_name_the_heads() -> None:
    model = dataclasses.replace(TINY, num_labels=3, label_counts="intent=1,slot=2")
    with pytest.raises(InputError, match="label_counts='intent=1,slot=2': lacks the head seq"):
        registry.make_objective(make_run_config("sequence_classification", model=model))
    assert model.num_labels_of("slot") == 2 and TINY.num_labels_of("slot") == 0
    assert model.split_labels("abc") == {"intent": ("a",), "slot": ("b", "c")}
    assert TINY.split_labels("abc") == {}


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ("slot", "not a positive number for each head"),
        ("slot=0,intent=3", "not a positive number"),
        ("slot=1,slot=2", "not a positive number"),
        ("=3", "not a positive number"),
        ("slot=3,", "not a positive number"),
        ("slot=2", "2 labels, and num_labels=3"),
    ],
)
def test_label_counts_rejects_other_texts(counts: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"^label_counts={counts!r}: {problem}"):
        dataclasses.replace(TINY, num_labels=3, label_counts=counts)
