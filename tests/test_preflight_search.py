"""The search for the largest batch that fits, over memory curves in place of compilations."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import jax
import pytest
from config_loading import load

from bertjax.config.config import Config
from bertjax.preflight.analysis import mean_batch_fraction
from bertjax.preflight.search import largest_batch
from bertjax.preflight.topology import Topology


def make_config(**overrides: object) -> Config:
    return load("smoke", **{"model.vocab_size": 1000, "batch_size": 16} | overrides)


@dataclasses.dataclass
class FakeReport:
    """The part of a report that the search reads."""

    fits: bool
    train: SimpleNamespace
    hbm_limit_bytes: int = 100
    steps: int = 100
    mean_batch_fraction: float = 1.0


def fake_preflight(
    monkeypatch, largest_fit: int, used_percent: Callable[[int], float], tensor: int = 1
) -> list[int]:
    """Replace compilation by a memory curve over the sequences per device.

    Returns:
      The numbers of sequences per device that are tried, in order.
    """
    tried = []

    def preflight(config: Config, topology: Topology, train_only: bool) -> FakeReport:
        size = config.batch_size // (8 // tensor)
        tried.append(size)
        train = SimpleNamespace(per_device_batch_size=size, hbm_bytes=used_percent(size))
        return FakeReport(size <= largest_fit, train)

    monkeypatch.setattr("bertjax.preflight.search.preflight", preflight)
    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices())
    return tried


CURVES = {
    "linear": lambda size, limit: 20 + 80 * size / (limit + 0.5),
    "constant": lambda size, limit: 100,
    "step": lambda size, limit: 99 if size <= limit else 1000,
    "decreasing": lambda size, limit: 100 / size,
}


@pytest.mark.parametrize("limit", [1, 2, 5, 64, 777, 12_658])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("curve", CURVES)
def test_largest_batch_is_within_one_percent_of_the_limit(
    curve: str, limit: int, tensor: int, monkeypatch
) -> None:
    tried = fake_preflight(monkeypatch, limit, lambda size: CURVES[curve](size, limit), tensor)
    config = make_config(**{"batch_size": 32, "mesh.tensor": tensor})
    report = largest_batch(config, Topology("v5e:2x4"), remat=False)
    assert report is not None
    size = report.train.per_device_batch_size
    assert size <= limit and limit - size <= limit // 100
    assert len(tried) == len(set(tried)) <= (6 if curve == "linear" else 20)


@pytest.mark.parametrize(
    ("steps", "expected"), [(20, 100), ("20 steps", 100), ("3 epochs", 353), ("900 examples", 353)]
)
def test_largest_batch_of_a_ramp_up_need_not_be_a_multiple_of_it(
    steps: int | str, expected: int, monkeypatch
) -> None:
    fake_preflight(monkeypatch, 777, lambda size: 100 if size <= 777 else 1000)
    config = make_config(batch_size=512, batch_size_rampup=64, steps=steps)
    report = largest_batch(config, Topology("v5e:2x4"), remat=False)
    assert report is not None and 770 <= report.train.per_device_batch_size <= 777
    assert report.mean_batch_fraction == mean_batch_fraction(config)
    # A run with a ramp-up reads as many examples, with smaller batches.
    assert report.steps == expected


def test_largest_batch_is_none_if_one_sequence_does_not_fit(monkeypatch) -> None:
    fake_preflight(monkeypatch, 0, lambda size: 101 + size)
    assert largest_batch(make_config(batch_size=32), Topology("v5e:2x4"), remat=True) is None
