"""How fast a served model answers many clients at once, beside one after the other.

    python -m experiments.bench.serve_speed --checkpoint runs/banking --input texts.txt

`bertjax serve` runs in a process of its own. The lines of the file, a text or a JSON object each,
are asked by one client, a request a line, and then by many clients at once, each of which waits for
its answer before it asks again. Every answer is compared with that of `bertjax.load` in this
process. It tells the requests a second, and of the time that a request takes the median and what
95 of 100 stay below.
"""

import argparse
import http.client
import json
import math
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.alternating_runs import child_environment


class LoadResult(NamedTuple):
    """What came of a round: the answers in their order, seconds of each, and of all of them."""

    answers: list[Any]
    seconds: list[float]
    wall: float


def send_requests(host: str, inputs: Sequence[Any], clients: int) -> LoadResult:
    """Asks one input a request."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(inputs)):
        left.put(number)
    answers: list[Any] = [None] * len(inputs)
    seconds = [math.nan] * len(inputs)

    def work() -> None:
        connection = http.client.HTTPConnection(host, timeout=600)
        while True:
            try:
                number = left.get_nowait()
            except queue.Empty:
                return connection.close()
            body, began = json.dumps({"inputs": inputs[number]}), time.perf_counter()
            connection.request("POST", "/predict", body)
            response = connection.getresponse()
            said = json.loads(response.read())
            seconds[number] = time.perf_counter() - began
            answers[number] = said["answers"] if response.status == 200 else said

    threads = [threading.Thread(target=work) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return LoadResult(answers, seconds, time.perf_counter() - began)


def answers_match(one: Any, other: Any) -> bool:
    """Whether two answers are the same, but for rounding where rows were shared with others."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            answers_match(one[key], other[key]) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(answers_match, one, other))
    return bool(one == other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--input", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lines = filter(None, map(str.strip, args.input.read_text(encoding="utf-8").splitlines()))
    inputs = [json.loads(line) if line.startswith("{") else line for line in lines]
    inputs = (inputs * -(-args.requests // len(inputs)))[: args.requests]

    from bertjax import load

    model = load(args.checkpoint)
    gold = [model.predict(each) for each in inputs]
    command = [sys.executable, "-m", "bertjax", "serve", "--checkpoint", args.checkpoint]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    try:
        assert server.stdout
        host = server.stdout.readline().split("/")[2]
        print(f"ready after {time.perf_counter() - began:.1f} s, on {os.cpu_count()} cores")
        print(f"{'clients':>8}{'requests/s':>12}{'median':>10}{'95 %':>10} (ms)   answers")
        for _ in range(args.rounds):
            for clients in (1, args.clients):
                found = send_requests(host, inputs, clients)
                right = sum(map(answers_match, found.answers, gold))
                middle, most = 1e3 * np.quantile(found.seconds, (0.5, 0.95))
                print(
                    f"{clients:8}{len(inputs) / found.wall:12.1f}{middle:10.1f}{most:10.1f}"
                    f"        {right} of {len(inputs)} right",
                    flush=True,
                )
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"ended with status {server.wait()}")


if __name__ == "__main__":
    main()
