"""Host-to-device feed: order, sharding, errors, and time spent waiting for data."""

import math
import queue

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bertjax.mesh import feed as feed_module
from bertjax.mesh.device_mesh import BATCH_SPEC, make_mesh
from bertjax.mesh.feed import Feed


@pytest.fixture
def sharding() -> NamedSharding:
    return NamedSharding(make_mesh(4, 2, 1), BATCH_SPEC)


def batches(count: int):
    for step in range(count):
        yield {"ids": np.arange(16, dtype=np.int32).reshape(8, 2) + 100 * step}


def test_feed_yields_every_batch_in_order(sharding) -> None:
    arrays = [np.asarray(batch["ids"]) for batch in Feed(batches(5), sharding)]
    np.testing.assert_array_equal(arrays, [batch["ids"] for batch in batches(5)])


def test_feed_shards_batches_over_all_devices(sharding) -> None:
    batch = next(iter(Feed(batches(1), sharding)))
    assert {shard.data.shape for shard in batch["ids"].addressable_shards} == {(1, 2)}
    assert len(batch["ids"].sharding.device_set) == len(jax.devices())


def test_feed_raises_an_error_of_the_source_after_earlier_batches(sharding) -> None:
    def failing():
        yield from batches(2)
        raise OSError("the disk is gone")

    feed = iter(Feed(failing(), sharding))
    assert len([next(feed), next(feed)]) == 2
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)


def test_close_stops_the_thread(sharding) -> None:
    feed = Feed(batches(10**9), sharding)
    next(iter(feed))
    feed.close()
    assert not feed._thread.is_alive()


class Clock:
    """A clock that advances only when code waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Paced:
    """A queue whose next batch is ready `gap` seconds after the last one was taken."""

    def __init__(self, clock: Clock, gap: float) -> None:
        self._clock, self._gap, self._due = clock, gap, gap

    def get(self, timeout: float = math.inf) -> dict:
        if self._due > self._clock.now + timeout:
            self._clock.now += timeout
            raise queue.Empty
        self._clock.now = max(self._clock.now, self._due)
        self._due = self._clock.now + self._gap
        return {}


class Work:
    """Arrays that are ready at a given time."""

    def __init__(self, clock: Clock, done: float) -> None:
        self._clock, self._done = clock, done

    def is_ready(self) -> bool:
        return self._clock.now >= self._done


@pytest.mark.parametrize(
    ("step", "gap", "share"),
    [(0.04, 0.0, 0.0), (0.0, 0.04, 1.0), (0.03, 0.06, 0.5), (0.06, 0.03, 0.0)],
    ids=["slow device", "slow data", "data at half the speed", "device at half the speed"],
)
def test_wait_seconds_counts_only_while_devices_are_idle(
    step, gap, share, sharding, monkeypatch
) -> None:
    """A step takes `step` seconds, and a batch is ready `gap` seconds after the last one."""
    clock = Clock()
    feed = Feed([], sharding)
    feed.close()
    monkeypatch.setattr(feed_module, "time", clock)
    monkeypatch.setattr(feed, "_queue", Paced(clock, gap))
    batches = iter(feed)
    next(batches)  # the devices have no step yet
    start, wait_seconds, done, idle = clock.now, feed.wait_seconds, clock.now, 0.0
    for _ in range(50):
        done = max(clock.now, done) + step
        feed.in_flight = [Work(clock, done)]
        next(batches)
        idle += max(0.0, clock.now - done)
    waited = feed.wait_seconds - wait_seconds
    # Times shorter than a poll are not resolved.
    assert waited == pytest.approx(idle, abs=50 * feed_module._POLL_SECONDS)
    assert waited == pytest.approx(share * (clock.now - start), rel=0.1)
