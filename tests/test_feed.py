"""Host batches become global arrays, in order, ahead of their use."""

import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bertjax.mesh.feed import Feed
from bertjax.mesh.sharding import ROWS, make_mesh


@pytest.fixture
def sharding() -> NamedSharding:
    return NamedSharding(make_mesh(4, 2, 1), ROWS)


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
    before = threading.active_count()
    feed = Feed(batches(10**9), sharding)
    next(iter(feed))
    feed.close()
    assert threading.active_count() == before


class Work:
    """Arrays that a device gives at some time."""

    def __init__(self, done: float) -> None:
        self.done = done

    def is_ready(self) -> bool:
        return time.perf_counter() >= self.done


@pytest.mark.parametrize(
    ("step", "gap", "share"),
    [(0.04, 0.0, 0.0), (0.0, 0.04, 1.0), (0.03, 0.06, 0.5), (0.06, 0.03, 0.0)],
    ids=["slow device", "slow data", "data at half the speed", "device at half the speed"],
)
def test_waiting_counts_from_when_the_devices_are_idle(step, gap, share, sharding) -> None:
    """A device takes `step` seconds for a batch, which comes `gap` seconds after the last one."""

    def paced():
        for batch in batches(12):
            time.sleep(gap)
            yield batch

    feed, done, idle = Feed(paced(), sharding), None, 0.0
    for _ in feed:
        now = time.perf_counter()
        if done is None:  # the first batch, for which there is nothing to do
            began, waited, done = now, feed.waited, now
        idle += max(0.0, now - done)
        done = max(now, done) + step
        feed.working = [Work(done)]
    found = feed.waited - waited
    assert found == pytest.approx(idle, abs=0.1)
    assert found / (now - began) == pytest.approx(share, abs=0.25)
