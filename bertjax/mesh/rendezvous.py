"""Meeting of processes with given numbers, at the coordinator's port before JAX joins them.

JAX ends a process by SIGABRT, after minutes, when a process is missing, two have the same index or
their numbers differ. Here process 0 listens first, on the same port, and names these faults.
"""

import json
import logging
import socket
import time

from bertjax.errors import CommandError
from bertjax.mesh.cluster import Cluster
from data_pipelines.errors import InputError

_NOTICE_SECONDS = (10.0, 60.0)  # until the first notice, and between the others
_RETRY_SECONDS = 0.5
_MAX_LINE_BYTES = 100  # of two numbers
_MAX_VERDICT_BYTES = 1000
_QUESTION, _ANSWER_SECONDS = b" ", 5.0  # whether a process still waits; blanks before JSON are JSON
_FIX = (
    "Start the same command in all processes, with the --coordinator-address of process 0, the "
    "same --num-processes and different --process-id"
)
_log = logging.getLogger("bertjax")


class _Patience:
    """Time that a process waits for others; it logs what is missing.

    Args:
      seconds: the whole time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._start = seconds, time.monotonic()
        self._next_notice, self._interval = _NOTICE_SECONDS

    def check(self, missing: str) -> None:
        """Log what is missing now and then; raise CommandError at the end of the time."""
        waited = time.monotonic() - self._start
        if waited > self._seconds:
            raise CommandError(f"{missing} after {self._seconds:.0f} s. {_FIX}, within this time.")
        if waited > self._next_notice:
            self._next_notice = waited + self._interval
            _log.info("%s after %.0f s; giving up after %.0f s.", missing, waited, self._seconds)


def meet(cluster: Cluster, timeout: float) -> None:
    """Return on every process when all are there; then the port is free for JAX's coordinator.

    Args:
      cluster: its address, number of processes and index are given.
      timeout: seconds to wait for the others.

    Raises:
      InputError: processes have different numbers of processes, or two have the same index.
      CommandError: a process is missing.
    """
    patience = _Patience(timeout)
    if cluster.process_id == 0:
        _receive(cluster, patience)
    else:
        _report(cluster, patience)


def _receive(cluster: Cluster, patience: _Patience) -> None:
    """Wait for the other processes as process 0, and send each the verdict."""
    port, count = int(cluster.coordinator_address.rpartition(":")[2]), cluster.num_processes
    assert count is not None
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(
            ("", port), family=family, backlog=count, dualstack_ipv6=dual
        )
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--coordinator-address={cluster.coordinator_address}: cannot listen there ({error}). "
            "Use a free port."
        ) from None
    connections: dict[int, socket.socket] = {}
    with listener:
        listener.settimeout(_RETRY_SECONDS)
        fault = ""
        while not fault:
            if len(connections) == count - 1:  # all, or some were lost after they had reported
                lost = [i for i, connection in connections.items() if not _answers(connection)]
                if not lost:
                    break
                for i in lost:
                    connections.pop(i).close()
            missing = [i for i in range(1, count) if i not in connections]
            patience.check(
                f"--coordinator-address={cluster.coordinator_address}: {_name(missing)} missing"
            )
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            numbers = _read(connection)
            if numbers is None:  # not one of ours, such as a port scanner
                connection.close()
                continue
            index, others_count = numbers
            if others_count != count:
                fault = (
                    f"--num-processes={count}: process {index} has --num-processes={others_count}. "
                    f"{_FIX}."
                )
            elif index == 0 or (index in connections and _answers(connections[index])):
                fault = f"--process-id={index}: two processes have it. {_FIX}."
            connections[-1 if fault and index in connections else index] = connection
    for connection in connections.values():
        with connection:
            try:
                connection.sendall(json.dumps({"fault": fault}).encode() + b"\n")
                while connection.recv(1):  # the other end closes first: the port is free then
                    pass
            except OSError:
                continue  # it will time out
    if fault:
        raise InputError(fault)


def _report(cluster: Cluster, patience: _Patience) -> None:
    """Send this process's numbers to process 0 and wait for the verdict."""
    host, _, port = cluster.coordinator_address.rpartition(":")
    numbers = json.dumps([cluster.process_id, cluster.num_processes]).encode() + b"\n"
    problem = "no answer"
    while True:
        patience.check(
            f"--coordinator-address={cluster.coordinator_address}: process 0 does not answer "
            f"({problem})"
        )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
                connection.sendall(numbers)
                connection.settimeout(_RETRY_SECONDS)
                line = b""
                while not line.endswith(b"\n"):
                    try:
                        received = connection.recv(_MAX_VERDICT_BYTES)
                    except TimeoutError:
                        patience.check("another process is missing")
                        continue
                    if not received or len(line) > _MAX_VERDICT_BYTES:
                        raise ConnectionError("it is another program, or has ended")
                    if received == _QUESTION:
                        connection.sendall(_QUESTION)
                    line += received
                fault = json.loads(line)["fault"]
        except (OSError, OverflowError, ValueError, TypeError, KeyError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            time.sleep(_RETRY_SECONDS)
            continue
        if fault:
            raise InputError(str(fault))
        return


def _read(connection: socket.socket) -> tuple[int, int] | None:
    """Return the index and the number of processes that a process sent; None for others."""
    connection.settimeout(2)
    try:
        with connection.makefile("rb") as file:
            index, count = json.loads(file.readline(_MAX_LINE_BYTES))
    except (OSError, ValueError, TypeError):
        return None
    return (index, count) if type(index) is type(count) is int else None


def _answers(connection: socket.socket) -> bool:
    """Return whether the process at the other end still waits.

    It may have been restarted, or its machine replaced: then nobody has closed the connection.
    """
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.sendall(_QUESTION)
        return bool(connection.recv(1))
    except OSError:
        return False
    finally:
        connection.settimeout(2)


def _name(indices: list[int]) -> str:
    names = ", ".join(map(str, indices[:8])) + (" ..." if len(indices) > 8 else "")
    return f"process{'es' * (len(indices) > 1)} {names}"
