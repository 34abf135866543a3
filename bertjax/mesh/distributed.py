"""Several processes: how they join and agree on numbers."""

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import jax
from jax.experimental import multihost_utils

from bertjax.errors import EXIT_RESTART, CommandError
from bertjax.faults import fault_point
from bertjax.mesh.child_process import HEARTBEAT_SECONDS, die_with_parent, is_child
from bertjax.mesh.cluster import Cluster
from bertjax.mesh.rendezvous import meet

_INITIALIZATION_TIMEOUT_SECONDS = 300
_MARGIN_SECONDS = 30  # by which JAX's timeout, which aborts the process, comes after that of ours
# Between the first and the last process at a barrier, when one of them compiles or copies.
BARRIER_TIMEOUT_SECONDS = 3600
_barrier_ids = itertools.count()


def initialize_distributed(cluster: Cluster | None, handles_preemption: bool) -> None:
    """Join the processes of the cluster; called before JAX looks for devices.

    Args:
      cluster: as `find_cluster` returns it; None does nothing.
      handles_preemption: whether the program polls `stop_signals`. Otherwise SIGTERM ends it.

    Processes with a given address meet first, so that a wrong argument is named, with a status that
    asks for no restart. Where JAX detects the cluster, a late process is a late machine.

    Raises:
      InputError: the processes' arguments contradict each other.
      CommandError: the other processes did not join in time.
    """
    if cluster is None:
        return
    if is_child():
        die_with_parent()
    fault_point("join")
    if cluster.coordinator_address:
        meet(cluster, _INITIALIZATION_TIMEOUT_SECONDS)
    jax.config.update("jax_enable_preemption_service", handles_preemption)
    try:
        with _exit_after(_INITIALIZATION_TIMEOUT_SECONDS):
            jax.distributed.initialize(
                cluster.coordinator_address or None,
                cluster.num_processes,
                cluster.process_id,
                cluster.local_device_ids or None,
                cluster_detection_method="deactivate" if cluster.coordinator_address else None,
                initialization_timeout=_INITIALIZATION_TIMEOUT_SECONDS + _MARGIN_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        if cluster.allow_single_process and isinstance(error, ValueError):  # none was detected
            return
        raise CommandError(
            f"the processes did not join ({str(error).splitlines()[0]}). Start the same command in "
            f"all processes within {_INITIALIZATION_TIMEOUT_SECONDS} s."
        ) from error
    if jax.process_count() == 1:  # JAX's handler of SIGTERM is not polled
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextlib.contextmanager
def _exit_after(seconds: float) -> Iterator[None]:
    """End this process with a message if the block takes longer: JAX would abort it without one."""

    def end() -> None:
        print(
            f"bertjax: the other processes did not join within {seconds:.0f} s: their machines are "
            "late, or their logs have an error. Run the same command in all processes.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_RESTART)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_process_0() -> bool:
    """Return whether this is process 0, which writes what is written once."""
    return jax.process_index() == 0


def broadcast_from_process_0(make: Callable[[], Sequence[int]], size: int) -> tuple[int, ...]:
    """Return on every process the integers that `make` returns on process 0.

    Args:
      make: returns `size` integers of 32 bits; called on process 0 only.
      size: their number.
    """
    if jax.process_count() == 1:
        return tuple(make())
    numbers = make() if is_process_0() else [0] * size
    sync_processes("share")  # `make` may read for minutes
    array = jax.numpy.asarray(numbers, jax.numpy.int32)
    return tuple(int(n) for n in multihost_utils.broadcast_one_to_all(array))


def failing_processes(ok: bool) -> list[int]:
    """Return, on every process, the indices of the processes where `ok` is False."""
    return [index for index, (is_ok,) in enumerate(gather_from_processes([ok])) if not is_ok]


def gather_from_processes(numbers: Sequence[int]) -> list[list[int]]:
    """Return, on every process, the numbers of each; all have as many, of 32 bits."""
    if jax.process_count() == 1:
        return [list(numbers)]
    sync_processes("gather")
    gathered = multihost_utils.process_allgather(jax.numpy.asarray(numbers, jax.numpy.int32))
    rows: list[list[int]] = gathered.reshape(jax.process_count(), -1).tolist()
    return rows


def sync_processes(name: str) -> None:
    """Wait until every process is here; the loss of one ends the others earlier.

    The barrier is the coordinator's: on CPUs a barrier of the devices fails after 30 seconds.
    """
    if jax.process_count() > 1:
        import orbax.checkpoint as ocp  # takes a second, which a supervising process does not need

        barrier = ocp.multihost.get_barrier_sync_fn()
        barrier(key=f"{name} {next(_barrier_ids)}", timeout_ms=1000 * BARRIER_TIMEOUT_SECONDS)
