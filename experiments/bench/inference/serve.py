"""Throughput and latency of a served model, with one client and with many.

    python -m experiments.bench.inference.serve --checkpoint runs/banking --input texts.txt

`bertjax serve` runs in its own process. Each line of the file, a text or a JSON object, is sent as
one request, by one client and then by many, each of which waits for its answer before it sends the
next request. Every answer is compared with that of `bertjax.load` in this process.
"""

import argparse
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.harness import child_environment


class LoadResult(NamedTuple):
    """Result of a round.

    Attributes:
      answers: answer to each input.
      latencies: seconds of each request.
      wall: seconds of the whole round.
    """

    answers: list[Any]
    latencies: list[float]
    wall: float


def send_requests(host: str, inputs: Sequence[Any], clients: int) -> LoadResult:
    """Send one input a request, from several clients at once."""
    local = threading.local()

    def request(content: Any) -> tuple[Any, float]:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(host, timeout=600)
        body, began = json.dumps({"inputs": content}), time.perf_counter()
        local.connection.request("POST", "/predict", body)
        response = local.connection.getresponse()
        reply = json.loads(response.read())
        answer = reply["answers"] if response.status == 200 else reply
        return answer, time.perf_counter() - began

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers, latencies = zip(*pool.map(request, inputs), strict=True)
    return LoadResult(list(answers), list(latencies), time.perf_counter() - began)


def answers_match(one: Any, other: Any) -> bool:
    """Return whether two answers are equal up to rounding, which depends on the batch."""
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
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
    expected = [model.predict(content) for content in inputs]
    command = [sys.executable, "-m", "bertjax", "serve", "--checkpoint", args.checkpoint]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    try:
        assert server.stdout
        host = server.stdout.readline().split("/")[2]
        print(f"ready after {time.perf_counter() - began:.1f} s, on {os.cpu_count()} cores")
        print(f"{'clients':>8}{'requests/s':>12}{'median':>10}{'95th percentile':>17} (ms)   equal")
        for _ in range(args.rounds):
            for clients in (1, args.clients):
                result = send_requests(host, inputs, clients)
                equal = sum(map(answers_match, result.answers, expected))
                median, high = 1e3 * np.quantile(result.latencies, (0.5, 0.95))
                rate = len(inputs) / result.wall
                print(
                    f"{clients:8}{rate:12.1f}{median:10.1f}{high:17.1f}{equal:9} of {len(inputs)}",
                    flush=True,
                )
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"ended with status {server.wait()}")


if __name__ == "__main__":
    main()
