"""The layout for prediction on CPUs changes no result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.cpu_layout import CpuLayout, matmul_transposed


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


@pytest.mark.seconds
@pytest.mark.parametrize("shape", [(1, 5), (64, 5), (65, 5), (2, 32, 5), (2, 33, 5), (0, 5), (5,)])
def test_matmul_transposed_and_its_gradients_are_those_of_dot(shape: tuple[int, ...]) -> None:
    inputs, weights = (draw(*shape), draw(3, 5, seed=1)), draw(*shape[:-1], 3, seed=9)

    def run(function):
        def loss(x, matrix):
            product = function(x, matrix)
            return (product * weights).sum(), product

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(*inputs)

    ours = run(lambda x, matrix: matmul_transposed(x, matrix, jnp.float32))
    theirs = run(lambda x, matrix: jnp.dot(x, matrix.T))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), ours, theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_matmul_transposed_has_the_dtype_of_its_sums(dtype: str) -> None:
    x, matrix = (draw(*shape, dtype="bfloat16") for shape in ((2, 5), (3, 5)))
    assert matmul_transposed(x, matrix, dtype).dtype == dtype


@pytest.mark.parametrize(("count", "first"), [(8, "512,8"), (64, "512,64"), (65, "65,512")])
def test_matmul_transposed_puts_the_matrix_first_for_few_vectors(count: int, first: str) -> None:
    shapes = (jax.ShapeDtypeStruct((size, 128), "float32") for size in (count, 512))
    program = jax.jit(lambda x, matrix: matmul_transposed(x, matrix, jnp.float32))
    assert f"f32[{first}]{{1,0}} dot(" in program.lower(*shapes).compile().as_text()


@pytest.mark.seconds
def test_cpu_layout_keeps_logits_and_copies_no_kernel() -> None:
    config = BertConfig(60, 2, 32, 2, 96, 16)
    model = BertWithHeads(config, ("mlm", "nsp", "question_answering"))
    ids = np.arange(8, dtype=np.int32)[None]
    batch = {"input_ids": ids, "token_type_ids": ids // 4, "position_ids": ids}
    batch |= {"example_ids": ids // 8 + 1, "masked_lm_positions": ids[:, :2]}
    batch["cls_positions"] = ids[:, :1]
    init = jax.jit(functools.partial(model.init, deterministic=True))
    params = init(jax.random.key(0), batch)["params"]

    def apply(params):
        return model.apply({"params": params}, batch, deterministic=True)

    layout = CpuLayout(config, make_mesh(1, 1, 1, jax.devices()[:1]))
    placed = layout.place(params)
    assert jax.tree.map(np.shape, placed) == jax.tree.map(np.shape, layout.shapes(params))
    up = placed["encoder"]["blocks"]["feed_forward"]["up"]
    assert [kernel.shape for kernel in up["kernel"]] == [(96, 32)] * 2
    predict = jax.jit(lambda params: layout.apply(apply, params))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        predict(placed),
        jax.jit(apply)(params),
    )
    assert "f32[96,8]{1,0} dot(" in predict.lower(placed).compile().as_text()
    assert "f32[96,8]{1,0} dot(" not in jax.jit(apply).lower(params).compile().as_text()


@pytest.mark.parametrize(
    ("fields", "axes"), [({"scan_layers": True}, (1, 1, 1)), ({}, (1, 2, 1)), ({}, (1, 1, 2))]
)
def test_cpu_layout_is_the_identity_where_no_device_holds_all_layers(fields, axes) -> None:
    mesh = make_mesh(*axes, jax.devices()[: np.prod(axes)])
    params = {"encoder": {"blocks": {"kernel": np.zeros((2, 4, 8))}}}
    assert CpuLayout(BertConfig(**fields), mesh).place(params) is params


def test_parameters_of_other_modules_keep_their_layout() -> None:
    layout = CpuLayout(BertConfig(), make_mesh(1, 1, 1, jax.devices()[:1]))
    params = {"custom": {"kernel_out": np.arange(4.0).reshape(2, 2)}}
    kept = layout.apply(lambda read: read, layout.place(params))
    np.testing.assert_array_equal(kept["custom"]["kernel_out"], params["custom"]["kernel_out"])
