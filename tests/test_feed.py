"""Host batches become global arrays, in order, ahead of their use."""

import math
import queue

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bertjax.mesh import feed as feed_module
from bertjax.mesh.feed import Feed
from bertjax.mesh.sharding import BATCH_SPEC, make_mesh


@pytest.fixture
def sharding() -> NamedSharding:
    return NamedSharding(make_mesh(4, 2, 1), BATCH_SPEC)


def batches(count: int):
    for step in range(count):
        yield {"ids": np.arange(16, dtype=np.int32).reshape(8, 2) + 100 * step}


def test_every_batch_arrives_whole_and_in_order(sharding) -> None:
    arrived = [np.asarray(batch["ids"]) for batch in Feed(batches(5), sharding)]
    np.testing.assert_array_equal(arrived, [batch["ids"] for batch in batches(5)])


def test_rows_lie_over_all_devices(sharding) -> None:
    batch = next(iter(Feed(batches(1), sharding)))
    assert {shard.data.shape for shard in batch["ids"].addressable_shards} == {(1, 2)}
    assert len(batch["ids"].sharding.device_set) == len(jax.devices())


def test_an_error_of_the_source_arrives_after_the_batches_before_it(sharding) -> None:
    def failing():
        yield from batches(2)
        raise OSError("the disk is gone")

    feed = iter(Feed(failing(), sharding))
    assert len([next(feed), next(feed)]) == 2
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)


def test_closing_ends_the_thread_of_an_endless_source(sharding) -> None:
    feed = Feed(batches(10**9), sharding)
    next(iter(feed))
    feed.close()
    assert not feed._thread.is_alive()


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Paced:
    """A queue whose batches come `gap` seconds after the last one was taken."""

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
    """Arrays that a device gives at some time."""

    def __init__(self, clock: Clock, done: float) -> None:
        self._clock, self._done = clock, done

    def is_ready(self) -> bool:
        return self._clock.now >= self._done


@pytest.mark.parametrize(
    ("step", "gap", "share"),
    [(0.04, 0.0, 0.0), (0.0, 0.04, 1.0), (0.03, 0.06, 0.5), (0.06, 0.03, 0.0)],
    ids=["slow device", "slow data", "data at half the speed", "device at half the speed"],
)
def test_waiting_counts_from_when_the_devices_are_idle(
    step, gap, share, sharding, monkeypatch
) -> None:
    """A device takes `step` seconds for a batch, which comes `gap` seconds after the last one."""
    clock = Clock()
    feed = Feed([], sharding)
    feed.close()
    monkeypatch.setattr(feed_module, "time", clock)
    monkeypatch.setattr(feed, "_queue", Paced(clock, gap))
    batches = iter(feed)
    next(batches)  # the first, for which there is nothing to do
    began, wait_seconds, done, idle = clock.now, feed.wait_seconds, clock.now, 0.0
    for _ in range(50):
        done = max(clock.now, done) + step
        feed.in_flight = [Work(clock, done)]
        next(batches)
        idle += max(0.0, clock.now - done)
    found = feed.wait_seconds - wait_seconds
    # What passes between two looks is not told apart.
    assert found == pytest.approx(idle, abs=50 * feed_module._POLL_SECONDS)
    assert found == pytest.approx(share * (clock.now - began), rel=0.1)
