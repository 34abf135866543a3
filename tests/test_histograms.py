"""Histograms of parameters on any sharding."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.mesh.device_mesh import make_mesh
from bertjax.steps.histograms import BINS, compute_histograms


def put(array: np.ndarray, *axes: str | None) -> jax.Array:
    mesh = make_mesh(8, 1, 1, jax.devices()[:8])
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))


@pytest.mark.parametrize("axes", [(), ("data",), (None, "data")])
def test_compute_histograms_equals_numpy_on_any_sharding(axes: tuple[str | None, ...]) -> None:
    values = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    (histogram,) = compute_histograms({"a": put(values, *axes)}).values()
    counts, edges = np.histogram(values, BINS)
    np.testing.assert_allclose(histogram.edges, edges, rtol=1e-5, atol=1e-6)
    assert histogram.counts.tolist() == counts.tolist()
    assert histogram.counts.dtype == np.int32  # float32 is exact only up to 16 million


def test_compute_histograms_counts_equal_values() -> None:
    (histogram,) = compute_histograms({"a": put(np.ones((4, 4), np.float32))}).values()
    assert histogram.counts.sum() == 16 and (histogram.edges == 1).all()


def test_compute_histograms_separates_layers() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    histograms = compute_histograms({"encoder": {"blocks": {"norm": {"bias": put(values)}}}})
    assert {name: (h.edges[0], h.edges[-1]) for name, h in histograms.items()} == {
        "encoder/blocks/0/norm/bias": (0, 2),
        "encoder/blocks/1/norm/bias": (3, 5),
    }
