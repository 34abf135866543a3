"""Processes that meet before JAX joins them, as threads."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import free_port

from bertjax.errors import CommandError
from bertjax.mesh import rendezvous
from bertjax.mesh.cluster import Cluster
from bertjax.mesh.rendezvous import meet
from data_pipelines.errors import InputError


def meet_all(
    *numbers: tuple[int, int], timeout: float = 60, first_delay: float = 0
) -> list[Exception | None]:
    """Return the errors of processes with (number of processes, index), None for success."""
    port = free_port()
    errors: list[Exception | None] = [None] * len(numbers)

    def run(place: int) -> None:
        time.sleep(0 if place else first_delay)
        try:
            meet(Cluster(f"localhost:{port}", *numbers[place]), timeout)
        except (InputError, CommandError) as error:
            errors[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    socket.create_server(("", port)).close()  # the port is free again
    return errors


@pytest.mark.seconds
def test_meet_returns_when_all_are_there() -> None:
    assert meet_all((3, 0), (3, 1), (3, 2), first_delay=0.2) == [None] * 3


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (((3, 0), (2, 1)), "--num-processes=3: process 1 has --num-processes=2"),
        (((2, 0), (3, 2)), "--num-processes=2: process 2 has --num-processes=3"),
        (((3, 0), (3, 1), (3, 1)), "--process-id=1: two processes have it"),
    ],
)
def test_meet_names_contradictions_on_every_process(numbers, sentence) -> None:
    for error in meet_all(*numbers):
        assert isinstance(error, InputError) and sentence in str(error)


@pytest.mark.seconds
def test_meet_names_a_missing_process(monkeypatch) -> None:
    check = rendezvous._Patience.check

    def check_or_end(patience: rendezvous._Patience, missing: str) -> None:
        patience._seconds = 0 if "process 2 missing" in missing else patience._seconds
        check(patience, missing)

    with monkeypatch.context() as patch:
        patch.setattr(rendezvous._Patience, "check", check_or_end)
        first, second = meet_all((3, 0), (3, 1), timeout=3)
    assert isinstance(first, CommandError) and "process 2 missing after 0 s" in str(first)
    assert isinstance(second, CommandError) and second.status == 1
    (lone,) = meet_all((2, 1), timeout=1)
    assert isinstance(lone, CommandError) and lone.status == 1
    assert "process 0 does not answer (Connection refused) after 1 s" in str(lone)


def test_meet_ignores_other_programs_and_ended_processes() -> None:
    port = free_port()
    process_0 = ThreadPoolExecutor(1)
    first = process_0.submit(meet, Cluster(f"localhost:{port}", 2, 0), 60)
    for line in (b"GET / HTTP/1.1\n", b"[true, 2]\n", b"[" * 5000, b""):
        while True:
            try:
                connection = socket.create_connection(("localhost", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        with connection:
            connection.sendall(line)
    meet(Cluster(f"localhost:{port}", 2, 1), 60)
    first.result()


@pytest.mark.seconds
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_meet_replaces_a_process_whose_machine_was_lost(monkeypatch, order) -> None:
    monkeypatch.setattr(rendezvous, "_ANSWER_SECONDS", 2.0)
    port = free_port()
    process_0 = ThreadPoolExecutor(1)
    first = process_0.submit(meet, Cluster(f"localhost:{port}", 3, 0), 60)
    while True:
        try:
            lost = socket.create_connection(("localhost", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    lost.sendall(b"[1, 3]\n")  # open for ever, as no one is left who would close it
    time.sleep(0.2)
    others = []
    with ThreadPoolExecutor(2) as processes:
        for index in order:
            others.append(processes.submit(meet, Cluster(f"localhost:{port}", 3, index), 60))
            time.sleep(0.2)
        for future in [first, *others]:
            future.result()
    lost.close()


def test_meet_rejects_a_port_in_use() -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=r"cannot listen there .*Use a free port"):
            meet(Cluster(f"localhost:{port}", 2, 0), 1)
