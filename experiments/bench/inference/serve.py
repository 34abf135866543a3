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
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import bertjax
from experiments.ablations.commands import local_path
from experiments.bench import harness


def send_requests(
    host: str, inputs: Sequence[Any], clients: int
) -> tuple[Sequence[Any], Sequence[float]]:
    """Send one input a request, from several clients at once; return answers and seconds."""
    local = threading.local()

    def request(content: Any) -> tuple[Any, float]:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(host, timeout=600)
        body, began = json.dumps({"inputs": content}), time.perf_counter()
        local.connection.request("POST", "/predict", body)
        reply = json.loads(local.connection.getresponse().read())
        return reply.get("answers", reply), time.perf_counter() - began

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers, latencies = zip(*pool.map(request, inputs), strict=True)
    return answers, latencies


def answers_match(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal up to rounding, which depends on the batch."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4)
        return a == b

    structures: list[Any] = [jax.tree.structure(answer) for answer in (one, other)]
    leaves = [jax.tree.leaves(answer) for answer in (one, other)]
    return structures[0] == structures[1] and all(map(equal, *leaves))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--input", required=True, type=local_path, metavar="FILE")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lines = filter(None, map(str.strip, args.input.read_text(encoding="utf-8").splitlines()))
    inputs = [json.loads(line) if line.startswith("{") else line for line in lines]
    inputs = (inputs * -(-args.requests // len(inputs)))[: args.requests]
    model = bertjax.load(args.checkpoint)
    expected = [model.predict(content) for content in inputs]
    command = harness.bertjax_command("serve", "--checkpoint", args.checkpoint, "--port", "0")
    began = time.perf_counter()
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=harness.child_environment()
    )
    try:
        assert server.stdout
        host = server.stdout.readline().split("/")[2]
        print(f"ready after {time.perf_counter() - began:.1f} s, on {os.cpu_count()} cores")
        print(f"{'clients':>8}{'requests/s':>12}{'median':>10}{'95th percentile':>17} (ms)   equal")
        for _ in range(args.rounds):
            for clients in (1, args.clients):
                began = time.perf_counter()
                answers, latencies = send_requests(host, inputs, clients)
                rate = len(inputs) / (time.perf_counter() - began)
                equal = sum(map(answers_match, answers, expected))
                median, high = 1e3 * np.quantile(latencies, (0.5, 0.95))
                figures = f"{clients:8}{rate:12.1f}{median:10.1f}{high:17.1f}"
                print(f"{figures}{equal:9} of {len(inputs)}", flush=True)
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"ended with status {server.wait()}")


if __name__ == "__main__":
    main()
