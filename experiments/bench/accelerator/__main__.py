"""Figures of bertjax on one accelerator, beside `transformers` under PyTorch on the same one.

    python -m experiments.bench.accelerator --output DIR --budget 480 [--peer-python PYTHON]
    python -m experiments.bench.accelerator --output DIR --budget 0

Each part is a process of its own with a time limit, and appends lines of JSON to DIR/results.jsonl.
The output of the parts is in DIR/log.txt. A part that fails or is killed is recorded, and the next
one runs. The same command runs again the parts that are not done: interrupted, failed, killed, or
beyond the budget. A table of all lines is printed at the end; a budget of 0 prints it alone.

Expected seconds on an H100 with 16 cores, with empty caches of compiled programs; not measured yet.
The parts up to (d) take seven minutes. A part is killed after twice its time.

| | part | seconds |
|---|---|---:|
| (a) | device: versions, product in bfloat16, memory copy | 20 |
| (b) | losses: 50 losses and dropout bits of a CPU | 45 |
| | attention: kernels and plain attention, output and gradients, with dropout | 40 |
| | resume: a run that is killed and resumed | 65 |
| (c) | base-128, large-512: train step and its profile | 40, 60 |
| (d) | peer-base-128, peer-large-512: padded `BertForPreTraining` | 50, 60 |
| | base-512, large-128 | 50, 60 |
| | largest-batch: of Base with 128 tokens by preflight, layers scanned | 120 |
| | peer-base-128-packed: two examples a sequence, a mask [T, T] each | 50 |
| | embeddings, peer-embeddings: inference in bfloat16, Base with 128 tokens | 30, 40 |
| | peer-base-128-full, peer-large-512-full: full sequences without a mask | 50, 60 |
| | preflight-base-128, preflight-large-512: preflight's figures | 40, 60 |

Every part but `attention` and `resume` computes in bfloat16 with float32 parameters. The peer has
autocast, its fused AdamW and scaled dot-product attention. It computes the vocabulary's logits at
every token, bertjax at the masked ones. Its tokens are those that are not padding.

--rehearse runs every part at toy size on a CPU, and writes rehearsal.jsonl instead.
"""

import argparse
import functools
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.accelerator import agreement, device, parts, peer, speed, table
from experiments.bench.train_step import Case

BASE_128, LARGE_512 = ("base", 128, 32), ("large", 512, 16)
BASE_512, LARGE_128 = ("base", 512, 16), ("large", 128, 32)
TOY_LIMIT = 600.0  # seconds; other programs may share the machine of a rehearsal


class Measurement(NamedTuple):
    """Work of a part.

    Attributes:
      seconds: expected on an H100; the limit is twice that.
      function: takes a function that records a line, whether sizes are those of a rehearsal, and
        the case, unless that is None.
      case: sizes.
      options: further keyword arguments.
    """

    seconds: float
    function: Callable[..., None]
    case: Case | None = None
    options: tuple[tuple[str, str], ...] = ()


PACKED, FULL = (("mask", "packing"),), (("mask", "none"),)
MEASUREMENTS = {
    "device": Measurement(20, device.measure_device),
    "losses": Measurement(45, agreement.check_losses),
    "attention": Measurement(40, agreement.check_attention),
    "resume": Measurement(65, agreement.check_resume),
    "base-128": Measurement(40, speed.measure_train_step, BASE_128),
    "large-512": Measurement(60, speed.measure_train_step, LARGE_512),
    "peer-base-128": Measurement(50, peer.measure_train_step, BASE_128),
    "peer-large-512": Measurement(60, peer.measure_train_step, LARGE_512),
    "base-512": Measurement(50, speed.measure_train_step, BASE_512),
    "large-128": Measurement(60, speed.measure_train_step, LARGE_128),
    "largest-batch": Measurement(120, speed.measure_largest_batch, BASE_128),
    "peer-base-128-packed": Measurement(50, peer.measure_train_step, BASE_128, PACKED),
    "embeddings": Measurement(30, speed.measure_embeddings, BASE_128),
    "peer-embeddings": Measurement(40, peer.measure_embeddings, BASE_128),
    "peer-base-128-full": Measurement(50, peer.measure_train_step, BASE_128, FULL),
    "peer-large-512-full": Measurement(60, peer.measure_train_step, LARGE_512, FULL),
    "preflight-base-128": Measurement(40, speed.estimate_train_step, BASE_128),
    "preflight-large-512": Measurement(60, speed.estimate_train_step, LARGE_512),
}


def is_peer(name: str) -> bool:
    """Return whether a part runs in the peer's interpreter."""
    return name.startswith("peer-")


def run_measurement(name: str, results: parts.Results, toy: bool) -> None:
    """Do the work of a part, in its process."""
    parts.end_with_parent()
    if not is_peer(name):
        if toy:
            os.environ["JAX_PLATFORMS"] = "cpu"
        harness.set_up_process()
    measurement = MEASUREMENTS[name]
    options = dict(measurement.options)

    def record(key: str, **fields: object) -> None:
        results.append(name, name=key, **fields)

    function = functools.partial(measurement.function, record, toy, **options)
    if measurement.case is None:
        function()
    else:
        _, length, batch_size = measurement.case
        function(("tiny", length, batch_size // 8) if toy else measurement.case)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--budget", type=float, required=True, help="seconds for all parts")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--rehearse", action="store_true", help="toy sizes on a CPU")
    parser.add_argument("--worker", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    results = parts.Results(args.output / ("rehearsal.jsonl" if args.rehearse else "results.jsonl"))
    if args.worker:
        run_measurement(args.worker, results, args.rehearse)
        return

    # Parts share compiled programs. The variables also reach the processes that parts start.
    cache = os.path.join(tempfile.gettempdir(), "bertjax-bench-compiled")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    # An exception ends the running part and deletes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = ["--output", str(args.output), "--budget", "0"]
    options += ["--rehearse"] if args.rehearse else []
    todo = []
    for name, measurement in MEASUREMENTS.items():
        python = args.peer_python if is_peer(name) else sys.executable
        command = [python, "-m", "experiments.bench.accelerator", *options, "--worker", name]
        limit = TOY_LIMIT if args.rehearse else 2 * measurement.seconds
        todo.append(parts.Part(name, limit, command))
    if args.budget > 0:
        parts.run_parts(todo, results, args.output / "log.txt", args.budget)
    lines = results.read()
    print(table.format_table(lines, list(MEASUREMENTS)))
    sys.exit(not all(map(parts.is_ok, lines)))


if __name__ == "__main__":
    main()
