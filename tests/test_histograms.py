"""How parameters are spread: what bins count, wherever arrays lie."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.mesh.sharding import make_mesh
from bertjax.steps.histograms import BINS, compute_histograms


def put(array: np.ndarray, *axes: str | None) -> jax.Array:
    mesh = make_mesh(8, 1, 1, jax.devices()[:8])
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))


@pytest.mark.parametrize("axes", [(), ("data",), (None, "data")])
def test_every_value_is_in_one_bin(axes: tuple[str | None, ...]) -> None:
    values = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    (found,) = compute_histograms({"a": put(values, *axes)}).values()
    counts, edges = np.histogram(values, BINS)
    np.testing.assert_allclose(found.edges, edges, rtol=1e-5, atol=1e-6)
    assert found.counts.tolist() == counts.tolist()
    assert found.counts.dtype == np.int32  # float32 counts no further than 16 million


def test_values_that_are_all_the_same_are_counted_too() -> None:
    (found,) = compute_histograms({"a": put(np.ones((4, 4), np.float32))}).values()
    assert found.counts.sum() == 16 and (found.edges == 1).all()


def test_layers_have_their_own() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = compute_histograms({"encoder": {"blocks": {"norm": {"bias": put(values)}}}})
    assert {name: (each.edges[0], each.edges[-1]) for name, each in found.items()} == {
        "encoder/blocks/0/norm/bias": (0, 2),
        "encoder/blocks/1/norm/bias": (3, 5),
    }
