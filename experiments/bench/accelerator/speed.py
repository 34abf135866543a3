"""Speed of bertjax: train steps beside preflight's estimate, the largest batch, embeddings."""

import collections
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from experiments.bench import harness, train_step
from experiments.bench.accelerator import parts
from experiments.bench.harness import BERTJAX
from experiments.bench.train_step import Case

NUM_KERNELS = 30  # of a profile
PROFILED_STEPS = 3


def case_fields(case: Case, program: str, seconds: float, nonpad: float = 1.0) -> dict[str, Any]:
    """Return the fields of a line on a step of a program.

    Args:
      case: sizes.
      program: name of the program.
      seconds: seconds of a step.
      nonpad: fraction of the tokens that are not padding.
    """
    model, length, batch_size = case
    return {
        "program": program,
        "model": model,
        "length": length,
        "batch_size": batch_size,
        "seconds": seconds,
        "tokens_per_second": nonpad * length * batch_size / seconds,
    }


def measure_train_step(record: Callable[..., None], toy: bool, case: Case) -> None:
    """Record milliseconds, utilization, memory and profile of a step."""
    import jax

    config = train_step.make_config(case, "bfloat16")
    started = time.perf_counter()
    step = train_step.BertjaxStep(config)
    compile_seconds = time.perf_counter() - started
    compile_peak_bytes = _peak_bytes()
    work = step.repeat(train_step.make_batch(case))
    seconds = harness.median_seconds(work, calls=1 if toy else 20)
    record(
        "step",
        **case_fields(case, BERTJAX, seconds),
        mfu=_mfu(step.objective.step_flops(), seconds),
        bytes=_peak_bytes(),
        compile_bytes=compile_peak_bytes,
        compile_seconds=compile_seconds,
    )
    directory = parts.scratch_directory() / "trace"
    with jax.profiler.trace(str(directory)):
        harness.run_work(work, PROFILED_STEPS)
    record("profile", **summarize_trace(directory, step.compiled.as_text() or ""))


def estimate_train_step(record: Callable[..., None], toy: bool, case: Case) -> None:
    """Record preflight's figures of a train step on this device."""
    from bertjax.preflight.analysis import preflight

    topology = this_topology()
    if topology is None:
        raise RuntimeError("preflight does not know this device")
    report = preflight(train_step.make_config(case, "bfloat16"), topology, train_only=True)
    bounds = report.train.roofline_seconds
    record(
        "preflight",
        attention=report.attention,
        preflight_bytes=report.train.hbm_bytes,
        preflight_seconds=max(bounds.values()) if bounds else None,
        roofline=bounds,
    )


def this_topology() -> Any:
    """Return the topology of one device of this machine; None if preflight does not know it."""
    import jax

    from bertjax.preflight.gpus import GPUS
    from bertjax.preflight.topology import Topology

    kind = jax.devices()[0].device_kind
    names = [name for name, gpu in GPUS.items() if gpu.device_kind == kind]
    names += ["cpu"] if kind == "cpu" else []
    return Topology(f"{names[0]}:1") if names else None


def measure_largest_batch(record: Callable[..., None], toy: bool, case: Case) -> None:
    """Record the largest batch by preflight, with scanned layers, and a step with it."""
    from bertjax.preflight.search import largest_batch

    config = train_step.make_config(case, "bfloat16", **{"model.scan_layers": True})
    if toy:  # a CPU has no such limit
        batch_size = 2 * case[2]
    elif (topology := this_topology()) is None:
        raise RuntimeError("preflight does not know this device")
    else:
        report = largest_batch(config, topology, remat=False)
        if report is None:
            raise RuntimeError("no batch fits")
        batch_size = report.train.per_device_batch_size
        limit = report.hbm_limit_bytes
        record("preflight", batch_size=batch_size, bytes=report.train.hbm_bytes, limit_bytes=limit)
    case = (*case[:2], batch_size)
    step = train_step.BertjaxStep(dataclasses.replace(config, batch_size=batch_size))
    work = step.repeat(train_step.make_batch(case))
    seconds = harness.median_seconds(work, calls=2, rounds=3)
    record(
        "step",
        **case_fields(case, BERTJAX, seconds),
        mfu=_mfu(step.objective.step_flops(), seconds),
        bytes=_peak_bytes(),
    )


def measure_embeddings(record: Callable[..., None], toy: bool, case: Case) -> None:
    """Record the time in which a batch of texts is embedded in bfloat16."""
    import jax

    from bertjax.config.config import Config
    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks.embeddings.encoder_embeddings import EmbeddingOptions, EmbeddingsObjective

    _, length, batch_size = case
    model = train_step.make_config(case, "bfloat16").model
    config = Config(model=model, max_seq_length=length, batch_size=batch_size, packing=False)
    objective = EmbeddingsObjective(config, 1, EmbeddingOptions())
    functions = StepFunctions(config, objective, jax.devices()[:1])
    shapes = objective.batch_shapes(batch_size)
    predict = functions.compile_predict_step(shapes)
    params = functions.predict_layout.shapes(functions.param_shapes)
    params = jax.tree.map(lambda x: jax.device_put(_random(x.shape), x.sharding), params)
    arrays = train_step.make_batch(case)
    batch = {
        name: arrays[name] if name in arrays else np.zeros(shape.shape, shape.dtype)
        for name, shape in shapes.items()
    }
    batch, constants = jax.device_put(batch, functions.batch_sharding), functions.constants()

    def work() -> object:
        return functools.partial(jax.block_until_ready, predict(params, batch, constants))

    seconds = harness.median_seconds(work, calls=1 if toy else 50)
    flops = objective.forward_flops(batch_size)
    record("embeddings", **case_fields(case, BERTJAX, seconds), mfu=_mfu(flops, seconds))


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return 0.02 * np.random.Generator(np.random.Philox(key=0)).standard_normal(shape, np.float32)


def _mfu(step_flops: float, seconds: float) -> float | None:
    import jax

    from bertjax.model.flops import peak_flops

    peak = peak_flops(jax.devices()[0].device_kind)
    return step_flops / seconds / peak if peak else None


def _peak_bytes() -> int | None:
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def summarize_trace(directory: pathlib.Path, hlo: str) -> dict[str, Any]:
    """Return the kernels of a trace of some train steps that take most time.

    Args:
      directory: directory of `jax.profiler`.
      hlo: text of the compiled step, which names the operation of a kernel.

    Returns:
      "milliseconds" of device time a step, "kernels": name, milliseconds a step, calls a step, and
      the operation where known; "timelines" of the devices.
    """
    import jax

    from bertjax.preflight.hlo import find_group, parse_hlo

    (file,) = directory.rglob("*.xplane.pb")
    times: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    operations = {
        instruction.name: find_group(r'op_name="([^"]*)"', instruction.text)
        for instructions in parse_hlo(hlo).computations.values()
        for instruction in instructions
    }
    operation_of: dict[str, str] = {}
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    for event in _kernel_events(planes):
        times[event.name] += event.duration_ns
        calls[event.name] += 1
        instruction = str(dict(event.stats).get("hlo_op", event.name))
        operation_of[event.name] = operations.get(instruction, "")
    return {
        "milliseconds": sum(times.values()) / 1e6 / PROFILED_STEPS,
        "timelines": [
            f"{plane.name}: {line.name}"
            for plane in planes
            for line in plane.lines
            if plane.name.startswith("/device:")
        ],
        "kernels": [
            {
                "kernel": name[:120],
                "milliseconds": nanoseconds / 1e6 / PROFILED_STEPS,
                "calls": calls[name] / PROFILED_STEPS,
                "operation": operation_of[name],
            }
            for name, nanoseconds in times.most_common(NUM_KERNELS)
        ],
    }


def _kernel_events(planes: Sequence[Any]) -> Iterable[Any]:
    """Yield the events on a GPU's streams, of a TPU's operations, or of a CPU's."""
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    for line in (line for plane in devices or planes for line in plane.lines):
        if devices and line.name.startswith(("Stream", "XLA Ops")):
            yield from line.events
        elif not devices:
            yield from (event for event in line.events if "hlo_op" in dict(event.stats))
