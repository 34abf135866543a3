"""What preflight says of both models, phases and all recipes on TPU slices or GPUs, as a table.

    python -m experiments.bench.preflight_table --cache build/preflight [--models base] \
      [--topologies h200:8]

Layers are scanned, because each program compiles in a minute or two so; unrolled they run faster
(docs/performance.md). Verdicts are kept in the cache, from which an interrupted table goes on: name
an empty one after a change of the code. Of GPUs the milliseconds are the least that a step takes:
the largest of what computing, memory and links take at their peaks.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
from typing import Any

from bertjax.config.loading import load_config
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import GIB, Topology
from bertjax.tasks import registry
from data_pipelines.paths import atomic_write_text

PRETRAIN = pathlib.Path(__file__).parent.parent / "pretraining.py"
MODELS = ("base", "large")
PHASES = (1, 2)
RECIPES = ("paper", "slides", "lamb")
TOPOLOGIES = ("v5e:4x4", "v5e:8x8", "v6e:4x4", "v6e:8x8")
MAX_MICROBATCH = {1: 64, 2: 16}  # on a chip at the most; what is above is accumulated

Case = tuple[str, int, str, str]  # of the four above


def judge(case: Case, cache: pathlib.Path) -> dict[str, Any]:
    """The verdict on a case, from the cache if it is there."""
    file = cache / ("-".join(map(str, case)).replace(":", "-") + ".json")
    if not file.exists():
        model, phase, recipe, name = case
        topology, spec = Topology(name), f"{PRETRAIN}:model={model},phase={phase},recipe={recipe}"
        rows = load_config(spec, {}, registry.data_fields()).batch_size // topology.chips
        overrides = {
            "gradient_accumulation_steps": str(-(-rows // MAX_MICROBATCH[phase])),
            "model.scan_layers": "True",
        }
        config = load_config(spec, overrides, registry.data_fields())
        verdict = json.loads(preflight(config, topology).to_json())
        verdict["gradient_accumulation_steps"] = config.gradient_accumulation_steps
        atomic_write_text(file, json.dumps(verdict, indent=1))
    return json.loads(file.read_text())


def table_row(case: Case, verdict: dict[str, Any]) -> str:
    """A line of the table."""
    train, turns = verdict["train"], verdict["gradient_accumulation_steps"]
    rows = train["per_device_batch_size"]
    cells = [*case, rows if turns == 1 else f"{turns} x {rows // turns}"]
    memory = f"{train['hbm_bytes'] / GIB:.1f}"
    if verdict["fits"] and train["roofline_seconds"]:
        least = max(train["roofline_seconds"].values())
        cells += [memory, f"at least {1e3 * least:,.1f}", "", "", ""]
    elif verdict["fits"]:
        seconds = train["estimated_step_seconds"]
        days = seconds * verdict["steps"] / 86_400
        cells += [memory, f"{1e3 * seconds:,.1f}", f"{train['estimated_mfu']:.0%}"]
        cells += [f"{days:,.2f}", f"{days * 24 * verdict['chips']:,.0f}"]
    else:
        over = (train["hbm_bytes"] - verdict["hbm_limit_bytes"]) / GIB
        cells += [memory, f"does not fit, by {over:.1f} GiB", "", "", ""]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    os.environ["JAX_PLATFORMS"] = "cpu"

    cases = list(itertools.product(arguments.models, PHASES, RECIPES, arguments.topologies))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.workers, mp_context=spawn) as pool:
        verdicts = list(pool.map(judge, cases, itertools.repeat(arguments.cache)))

    print(
        "| model | phase | recipe | topology | rows a chip | GiB | ms | MFU | days | chip-hours |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|")
    for case, verdict in zip(cases, verdicts, strict=True):
        print(table_row(case, verdict))


if __name__ == "__main__":
    main()
