"""The decoder with cross-attention: dependencies, computation, initialization, configurations."""

import dataclasses
import functools
import logging
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import model_files
import numpy as np
import pytest
from generation_batches import CLS, SEP, SHAPE, by_target, make_batch
from model_files import CONFIG as BERT
from random_models import assert_same_params, draw_model
from traced_programs import matrix_flops

from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import map_named, named_leaves, tree_shardings
from bertjax.model.attention import cpu as cpu_attention
from bertjax.model.bert import BertWithHeads, param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.model.decoder.cross_attention import CrossAttention, DecoderBlock, decoder_inputs
from bertjax.model.flops import forward_flops
from bertjax.model.initialization import merge_pretrained
from bertjax.steps.distillation import DistillationObjective
from bertjax.steps.optimizer import scale_by_layerwise_decay
from bertjax.tasks import registry
from bertjax.tasks.embeddings.encoder_embeddings import EmbeddingOptions, EmbeddingsObjective
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError

CONFIG = BertConfig(
    **{"vocab_size": 40, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4},
    **{"max_position_embeddings": 32, "initializer_range": 0.3, "decoder": "cross_attention"},
)
PAIRS = [  # source, target
    ([5, 6, 7], [8, 9, 10, 11]),
    ([12, 13], [14, 15]),
    ([16, 17, 18, 19, 20], [21, 22, 23]),
]
BATCH = make_batch(PAIRS, 2)


@functools.cache
def params() -> Any:
    model = BertWithHeads(CONFIG, ("mlm",))
    init = jax.jit(functools.partial(model.init, deterministic=True))
    return init(jax.random.key(0), BATCH)["params"]


@jax.jit
def apply(params: Any, batch: Any) -> jax.Array:
    outputs = BertWithHeads(CONFIG, ("mlm",)).apply({"params": params}, batch, deterministic=True)
    return outputs["mlm_logits"]


def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(apply(params(), batch))


def test_batch_has_packed_examples_and_empty_slots() -> None:
    assert BATCH["example_ids"].max() == 2
    assert (BATCH["masked_lm_weights"] == 0).any(axis=1).all()


# Dependencies


def test_decoder_inputs_are_shifted_targets_in_slots() -> None:
    ids, example_ids, positions = map(np.asarray, decoder_inputs(BATCH))
    inputs = []
    for row in range(2):
        for example in range(1, BATCH["example_ids"][row].max() + 1):
            slots = np.flatnonzero(example_ids[row] == example)
            assert positions[row, slots].tolist() == [*range(len(slots))]
            inputs.append(ids[row, slots].tolist())
    assert sorted(inputs) == sorted([CLS, *target] for _, target in PAIRS)
    is_empty = BATCH["masked_lm_weights"] == 0
    np.testing.assert_array_equal(example_ids == 0, is_empty)
    assert not positions[is_empty].any()


@functools.cache
def changed_slots(row: int, position: int) -> list[int]:
    """Return the slots of a sequence whose logits a change of the token at a position changes."""
    batch = {name: array.copy() for name, array in BATCH.items()}
    batch["input_ids"][row, position] = 30
    differences = np.abs(logits(batch) - logits(BATCH)).max(axis=-1)
    differences[BATCH["masked_lm_weights"] == 0] = 0
    changed = np.argwhere(differences > 1e-6)
    assert set(changed[:, 0]) <= {row}
    return changed[:, 1].tolist()


@pytest.mark.seconds
def test_a_target_token_changes_later_predictions_of_its_example_alone() -> None:
    for row, slot in np.argwhere(BATCH["masked_lm_weights"] > 0):
        position = BATCH["masked_lm_positions"][row, slot] + 1  # of the token it predicts
        example = BATCH["example_ids"][row, position]
        slots = BATCH["masked_lm_positions"][row]
        is_later = (slots >= position) & (BATCH["example_ids"][row, slots] == example)
        assert changed_slots(row, position) == np.flatnonzero(is_later).tolist()


@pytest.mark.seconds
def test_a_source_token_changes_all_predictions_of_its_example() -> None:
    for row, position in np.argwhere(BATCH["position_ids"] == 1):
        slots = BATCH["masked_lm_positions"][row]
        is_own = BATCH["example_ids"][row, slots] == BATCH["example_ids"][row, position]
        is_own &= BATCH["masked_lm_weights"][row] > 0
        assert changed_slots(row, position) == np.flatnonzero(is_own).tolist()


@pytest.mark.seconds
def test_packed_examples_equal_examples_alone() -> None:
    packed = by_target(BATCH, logits(BATCH))
    for source, target in PAIRS:
        alone = make_batch([(source, target)], 1)
        expected = logits(alone)[0, : len(target) + 1]
        np.testing.assert_allclose(packed[(*target, SEP)], expected, atol=1e-5)


@pytest.mark.seconds
def test_a_decoder_needs_one_token_type() -> None:
    single = dataclasses.replace(CONFIG, type_vocab_size=1)
    tree = map_named(lambda name, leaf: leaf[:1] if "/type" in name else leaf, params())
    run = BertWithHeads(single, ("mlm",)).apply
    outputs = run({"params": tree}, BATCH, deterministic=True)
    np.testing.assert_allclose(outputs["mlm_logits"], logits(BATCH), atol=1e-5)


@pytest.mark.seconds
def test_a_block_can_be_computed_for_a_new_slot_alone() -> None:
    random = np.random.default_rng(0)
    x, vectors = (random.normal(size=(1, n, 32)).astype(np.float32) for n in (5, 7))
    config = dataclasses.replace(CONFIG, direction="left_to_right", decoder="")
    block = DecoderBlock(config, True)
    ids, mask = np.ones((1, 5), np.int32), np.ones((1, 5, 7), bool)
    tree = block.init(jax.random.key(0), x, ids, vectors, mask)["params"]
    names = {"attention", "attention_norm", "feed_forward", "feed_forward_norm"}
    assert tree.keys() == names | {"cross_attention", "cross_attention_norm"}
    cross, variables = CrossAttention(config, True), {"params": tree["cross_attention"]}
    keys, values = cross.apply(variables, vectors, method="keys_and_values")
    assert keys.shape == values.shape == (1, 7, 4, 8)
    whole = cross.apply(variables, x, keys, values, mask)
    last = cross.apply(variables, x[:, -1:], keys, values, mask[:, -1:])
    np.testing.assert_allclose(last, whole[:, -1:], atol=1e-6)


# Computation


@pytest.mark.slow
def test_gradients_with_dropout_do_not_depend_on_mesh_scan_and_remat() -> None:
    batch = {name: np.tile(array, (4, 1)) for name, array in BATCH.items()}
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}

    @functools.partial(jax.jit, static_argnames=("config", "is_sharded"))
    def gradient(params: Any, config: BertConfig, is_sharded: bool) -> Any:
        def total(params: Any) -> jax.Array:
            outputs = BertWithHeads(config, ("mlm",)).apply(
                {"params": params}, batch, deterministic=False, rngs={"dropout": jax.random.key(7)}
            )
            weights = batch["masked_lm_weights"][..., None] * np.arange(CONFIG.vocab_size)
            return (outputs["mlm_logits"] * weights).mean()

        return jax.grad(total)(params)

    config = dataclasses.replace(CONFIG, **rates)
    plain = gradient(params(), config, False)
    assert all(np.abs(leaf).max() > 0 for _, leaf in named_leaves(plain["decoder"]["embeddings"]))
    looped = gradient(params(), dataclasses.replace(config, scan_layers=True, remat=True), False)
    with jax.set_mesh(make_mesh(2, 2, 2)):
        sharded = gradient(params(), config, True)
    for other in (looped, sharded):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), plain, other)


def test_every_kernel_of_the_decoder_is_sharded_over_all_axes() -> None:
    shardings = tree_shardings(make_mesh(2, 2, 2), params()["decoder"])
    for name, sharding in named_leaves(shardings):
        axes = [
            axis
            for part in sharding.spec
            for axis in ([part] if isinstance(part, str) else part or ())
        ]
        is_kernel = name.startswith("blocks/") and name.endswith("/kernel")
        assert not is_kernel or sorted(axes) == ["data", "fsdp", "tensor"], name


@pytest.mark.seconds
def test_flops_equal_the_program(monkeypatch) -> None:
    monkeypatch.setattr(cpu_attention, "unsupported_reason", lambda query: "counted")
    model = BertWithHeads(CONFIG, ("mlm",))

    def total(params: Any) -> jax.Array:
        return model.apply({"params": params}, BATCH, deterministic=True)["mlm_logits"].sum()

    counted = matrix_flops(jax.make_jaxpr(jax.grad(total))(params()).jaxpr)
    assert counted == 3 * forward_flops(CONFIG, 2, SHAPE.tokens, SHAPE.predictions)


# Initialization


def test_a_decoder_begins_with_the_encoder_and_random_cross_attention() -> None:
    random = params()
    encoder = jax.tree.map(lambda leaf: leaf + 1, random["encoder"])
    merged = merge_pretrained(random, {"encoder": encoder}, 0)
    assert_same_params(merged["decoder"]["embeddings"], encoder["embeddings"])
    for name, tree in merged["decoder"]["blocks"].items():
        source = random["decoder"] if name.startswith("cross_attention") else encoder
        assert_same_params(tree, source["blocks"][name])
    partly = merge_pretrained(random, {"encoder": encoder}, 1)
    for part in ("encoder", "decoder"):
        kernel, before, new = (
            tree[part]["blocks"]["feed_forward"]["up"]["kernel"]
            for tree in (partly, random, {**merged})
        )
        np.testing.assert_array_equal(kernel[0], new[0])
        np.testing.assert_array_equal(kernel[1], before[1])
    whole = {"encoder": encoder, "decoder": random["decoder"]}
    assert_same_params(merge_pretrained(random, whole, 0)["decoder"], random["decoder"])


def bert_with(**fields: Any) -> BertConfig:
    return dataclasses.replace(BERT, **fields)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    model = draw_model(BERT, model_files.TOKENIZER, "pooler", "mlm")
    return model_files.write_hf(model, tmp_path_factory.mktemp("bert") / "bert")


@pytest.mark.seconds
def test_init_logs_what_the_decoder_begins_with(published, caplog) -> None:
    config = bert_with(decoder="cross_attention")
    shapes = {part: param_shapes(config)[part] for part in ("encoder", "decoder", "mlm")}
    pretrained = PretrainedModel(published)
    pretrained.check_compatible(config, shapes, ())
    with caplog.at_level(logging.INFO, "bertjax"):
        pretrained.load_init_params(
            jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(
                    leaf.shape,
                    leaf.dtype,
                    sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]),
                ),
                shapes,
            )
        )
    message = (
        "(encoder, mlm); decoder: copied from the encoder; random: cross-attention of the decoder."
    )
    assert message in caplog.text


@pytest.mark.seconds
def test_another_task_is_initialized_from_the_encoder_alone(published) -> None:
    pretrained = PretrainedModel(published)
    pretrained.bert_config = config = bert_with(decoder="cross_attention")
    pretrained._shapes = {p: param_shapes(config)[p] for p in ("encoder", "decoder", "mlm")}
    pretrained.check_compatible(config, pretrained._shapes, ())
    assert pretrained.parts == ("encoder", "decoder", "mlm")
    shapes = {part: param_shapes(BERT)[part] for part in ("encoder", "mlm", "nsp")}
    pretrained.check_compatible(BERT, shapes, ())
    assert pretrained.parts == ("encoder",)


@pytest.mark.seconds
def test_layer_selection_applies_to_the_decoder(published) -> None:
    pretrained = PretrainedModel(published)
    config = bert_with(decoder="cross_attention")
    model = draw_model(config, None, "decoder", "mlm")
    pretrained._published, pretrained._shapes = model, model.params
    pretrained.select_layers("1")
    for part in ("encoder", "decoder"):
        for (name, selected), (_, before) in zip(
            named_leaves(pretrained.host_params()[part]),
            named_leaves(model.params[part]),
            strict=True,
        ):
            expected = before[1:] if "blocks/" in name else before
            np.testing.assert_array_equal(selected, expected)


@pytest.mark.seconds
def test_layerwise_decay_and_freezing_concern_the_encoder() -> None:
    config = OptimizerConfig(
        **{"num_hidden_layers": 2, "warmup_steps": 0, "total_steps": 1},
        **{"layerwise_lr_decay": 0.5, "frozen_layers": 1},
    )
    ones = jax.tree.map(jnp.ones_like, params())
    scaled, _ = scale_by_layerwise_decay(config).update(ones, (), ones)
    for name, leaf in named_leaves(scaled):
        if not name.startswith("encoder/"):
            np.testing.assert_array_equal(leaf, 1, err_msg=name)
    assert not scaled["encoder"]["embeddings"]["word"].any()


# Configurations


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"direction": "left_to_right"}, "decoder='cross_attention': the source is bidirectional"),
        ({"feature_layers": "-1"}, "feature_layers='-1': decoder='cross_attention' reads"),
        ({"bilstm": 8}, "bilstm=8: decoder='cross_attention' reads the encoder's last layer"),
    ],
)
def test_bert_config_rejects_what_a_decoder_does_not_read(fields, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        dataclasses.replace(CONFIG, **fields)


@pytest.mark.parametrize("task", sorted({*registry.TASKS} - {"generation"}))
def test_other_tasks_reject_cross_attention(task: str) -> None:
    data = registry.data_fields()[task]
    config = Config(task, model=CONFIG, data=data, max_seq_length=32)
    message = f"^model.decoder='cross_attention': task={task} does not support it. Use '' or prefix"
    with pytest.raises(InputError, match=message):
        registry.make_objective(config)


def test_embeddings_are_those_of_the_encoder() -> None:
    config = Config(model=CONFIG, max_seq_length=16, batch_size=1)
    objective = EmbeddingsObjective(config, 1, EmbeddingOptions())
    assert objective.config.model == dataclasses.replace(CONFIG, decoder="")


@pytest.mark.parametrize(
    ("teacher", "distill", "message"),
    [
        (CONFIG, {"hidden_weight": 1.0}, "has a decoder with cross-attention. Distill its logits"),
        (dataclasses.replace(CONFIG, decoder=""), {}, "the teacher has decoder='', the model 'cr"),
    ],
)
def test_distillation_rejects_what_does_not_fit_the_decoder(teacher, distill, message) -> None:
    data = {**registry.data_fields()["generation"], "max_target_length": 8}
    config = Config("generation", model=CONFIG, data=data, max_seq_length=32)
    objective = registry.make_objective(config)
    config = dataclasses.replace(config, distill=DistillConfig("teacher", **distill))
    with pytest.raises(InputError, match=message):
        DistillationObjective(objective, config, teacher, ("mlm",), lambda: None)
