"""Preflight of both models, all phases and recipes on TPU slices or GPUs, as a table.

    python -m experiments.bench.preflight_table --cache build/preflight [--models base] \
      [--phases 3] [--topologies h200:8]

Layers are scanned, so each program compiles in a minute or two; unrolled they run faster
(docs/performance.md). Reports are kept in the cache, from which an interrupted table resumes. Use
an empty cache after a change of the code. For GPUs the milliseconds are the lower bound of the
roofline: the largest of the times of computing, memory and links at their peaks.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
from typing import Any

from bertjax.mesh.memory import GIB
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path
from experiments.bench import harness

MODELS = ("base", "large")
PHASES = (1, 2, 3)
RECIPES = ("paper", "slides", "lamb")
TOPOLOGIES = ("v5e:4x4", "v5e:8x8", "v6e:4x4", "v6e:8x8")
# Sequences per chip, by phase; larger batches accumulate gradients.
MAX_MICROBATCH = {1: 64, 2: 16, 3: 8}

Case = tuple[str, int, str, str]  # model, phase, recipe, topology


def report_case(case: Case, cache: pathlib.Path) -> dict[str, Any]:
    """Return preflight's report of a case, from the cache if it is there."""
    file = cache / ("-".join(map(str, case)).replace(":", "-") + ".json")
    if not file.exists():
        model, phase, recipe, name = case
        topology = Topology(name)
        spec = f"pretraining:model={model},phase={phase},recipe={recipe}"
        per_chip = harness.load(spec, {}).batch_size // topology.chips
        accumulation = -(-per_chip // MAX_MICROBATCH[phase])
        fields = {"gradient_accumulation_steps": accumulation, "model.scan_layers": True}
        config = harness.load(spec, fields)
        report = json.loads(preflight(config, topology).to_json())
        report["gradient_accumulation_steps"] = accumulation
        atomic_write_text(file, json.dumps(report, indent=1))
    return json.loads(file.read_text())


def table_row(case: Case, report: dict[str, Any]) -> str:
    """Return a line of the table."""
    train, microbatches = report["train"], report["gradient_accumulation_steps"]
    per_chip = train["per_device_batch_size"]
    sequences = f"{microbatches} x {per_chip // microbatches}"
    cells = [*case, sequences, f"{train['hbm_bytes'] / GIB:.1f}"]
    if not report["fits"]:
        excess = (train["hbm_bytes"] - report["hbm_limit_bytes"]) / GIB
        cells += [f"exceeds memory by {excess:.1f} GiB", "", "", ""]
    elif train["roofline_seconds"]:
        cells += [f"at least {1e3 * max(train['roofline_seconds'].values()):,.1f}", "", "", ""]
    else:
        seconds = train["estimated_step_seconds"]
        days = seconds * report["steps"] / 86_400
        cells += [f"{1e3 * seconds:,.1f}", f"{train['estimated_mfu']:.0%}"]
        cells += [f"{days:,.2f}", f"{days * 24 * report['chips']:,.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cache", type=local_path, required=True)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--phases", nargs="+", type=int, default=PHASES)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_PLATFORMS"] = "cpu"

    # Phase 3 is the same in two recipes, and the third has none.
    products = itertools.product(args.models, args.phases, RECIPES, args.topologies)
    cases = [case for case in products if case[1] < 3 or case[2] == "paper"]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=spawn) as pool:
        reports = list(pool.map(report_case, cases, itertools.repeat(args.cache)))

    header = ["model", "phase", "recipe", "topology", "sequences per chip"]
    print(f"| {' | '.join([*header, 'GiB', 'ms', 'MFU', 'days', 'chip-hours'])} |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    for case, report in zip(cases, reports, strict=True):
        print(table_row(case, report))


if __name__ == "__main__":
    main()
