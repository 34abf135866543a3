"""Report of preflight, as JSON and as text.

Figures of the compiler and of arithmetic (memory, operations, bytes of collectives) are separate
from estimates (cycles, seconds, utilization).
"""

import dataclasses
import json
from collections.abc import Iterator

from bertjax.mesh.memory import format_bytes
from bertjax.preflight.topology import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """Report on a compiled step function; bytes are per device, figures per call.

    Attributes:
      fits: whether the function and the arrays beside it fit in memory.
      per_device_batch_size: sequences of a batch on each device.
      hbm_bytes: bytes of the function and the arrays beside it. If the compiler runs out of memory,
        the bytes that its error names.
      activation_bytes: temporary buffers; None if the compiler runs out of memory.
      collectives: {kind: {"count", "bytes", "bytes_sent"}}.
      model_flops: operations on all devices.
      compile_seconds: time of the compilation.
      estimated_cycles: cycles without collectives; None for devices that are no TPUs.
      custom_kernel_cycles: cycles charged for custom kernels, included in `estimated_cycles`.
      estimated_collective_seconds: time of the collectives at full bandwidth.
      estimated_step_seconds: time of cycles and collectives without overlap.
      estimated_mfu: model FLOP utilization.
      estimated_cycle_shares: {part of the model: share of the cycles}.
      roofline_seconds: {"compute", "memory", "links"}: time of each at the GPU's peak.
      target_tokens: tokens of the returned targets; None for other functions than generation.
    """

    fits: bool
    per_device_batch_size: int
    hbm_bytes: int
    activation_bytes: int | None = None
    collectives: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    model_flops: float
    compile_seconds: float
    estimated_cycles: int | None = None
    custom_kernel_cycles: int | None = None
    estimated_collective_seconds: float | None = None
    estimated_step_seconds: float | None = None
    estimated_mfu: float | None = None
    estimated_cycle_shares: dict[str, float] = dataclasses.field(default_factory=dict)
    roofline_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    target_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class PreflightReport:
    """Report on a run on a topology; bytes are per device.

    Attributes:
      topology: name of the topology.
      fits: whether every step function fits.
      chips, devices: numbers of chips and of JAX devices.
      hbm_limit_bytes: memory that programs may use.
      parameter_bytes, optimizer_bytes, teacher_bytes: bytes of the shards.
      steps: steps of the run.
      remat: whether activations are recomputed.
      attention: attention implementation, with the reason if it is not the fastest.
      train: train step.
      evaluation: eval step beside the optimizer state; None without a train step that fits, or if
        left out.
      prediction: predict step, or generation, on a batch of the same size; None likewise and for
        parallel runs.
      mean_batch_fraction: mean batch size over the steps, relative to the full batch; below 1 with
        a ramp-up.
    """

    topology: str
    fits: bool
    chips: int
    devices: int
    hbm_limit_bytes: int
    parameter_bytes: int
    optimizer_bytes: int
    teacher_bytes: int
    steps: int
    remat: bool
    attention: str
    train: ProgramReport
    evaluation: ProgramReport | None = None
    prediction: ProgramReport | None = None
    mean_batch_fraction: float = 1.0

    @property
    def forward_steps(self) -> dict[str, ProgramReport]:
        """Reports of evaluation and prediction by name, where there are any."""
        reports = {"evaluation": self.evaluation, "prediction": self.prediction}
        return {name: report for name, report in reports.items() if report}

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def format_report(report: PreflightReport) -> str:
    """Return the report as text; its first line states whether the run fits."""
    train = report.train
    lines = [format_result(report), "", "Known, from the compiler and by arithmetic"]
    lines += _known_lines(report)
    if train.roofline_seconds:
        lines += ["", "Lower bounds of a step, each at the GPU's peak without the others"]
        lines += [
            _line(part, f"{1e3 * seconds:,.1f} ms")
            for part, seconds in train.roofline_seconds.items()
        ]
    if train.estimated_step_seconds is not None:
        lines += ["", "Estimated, by the compiler's cost model and the bandwidth of the links"]
        lines += _estimate_lines(report, train.estimated_step_seconds)
    return "\n".join(lines)


def format_result(report: PreflightReport) -> str:
    """Return a line on whether the run fits."""
    train, limit = report.train, report.hbm_limit_bytes
    if not train.fits:
        excess = format_bytes(train.hbm_bytes - limit)
        needed = format_bytes(train.hbm_bytes)
        return f"does NOT fit {report.topology}: {needed} a device exceed its memory by {excess}"
    problem = f"does NOT fit {report.topology}: the train step fits, "
    if report.evaluation and not report.evaluation.fits:
        return f"{problem}the evaluation does not. Lower --config.eval_batch_size."
    if report.prediction and not report.prediction.fits:
        return f"{problem}a prediction with the same batch size does not."
    return f"fits {report.topology}: {_memory(train, limit)}"


def _known_lines(report: PreflightReport) -> Iterator[str]:
    train = report.train
    yield _line("parameters", f"{format_bytes(report.parameter_bytes)} a device")
    yield _line("optimizer", f"{format_bytes(report.optimizer_bytes)} a device")
    if report.teacher_bytes:
        yield _line("teacher", f"{format_bytes(report.teacher_bytes)} a device")
    if train.activation_bytes is not None:
        size = format_bytes(train.activation_bytes)
        yield _line("activations", f"{size} a device, with other temporary buffers")
    for kind, sums in train.collectives.items():
        yield _line(kind, f"{sums['count']:.0f} a step, {sums['bytes'] / 1e6:,.1f} MB")
    yield _line("model", f"{train.model_flops / 1e12:,.1f} TFLOP a step")
    yield _line("attention", report.attention)
    for name, step in report.forward_steps.items():
        fits = "fits" if step.fits else "does NOT fit"
        memory = _memory(step, report.hbm_limit_bytes)
        yield _line(name, f"{fits}: {memory}, {step.per_device_batch_size} sequences on each")
    steps = [train, *report.forward_steps.values()]
    yield _line("compilation", f"{sum(step.compile_seconds for step in steps):.0f} s")


def _estimate_lines(report: PreflightReport, step_seconds: float) -> Iterator[str]:
    train = report.train
    cycles, kernel_cycles = train.estimated_cycles or 0, train.custom_kernel_cycles or 0
    collective_seconds = train.estimated_collective_seconds or 0
    days = step_seconds * report.mean_batch_fraction * report.steps / 86_400
    shares = train.estimated_cycle_shares.items()
    yield _line(
        "cycles",
        f"{cycles / 1e6:,.1f} million a step, with {kernel_cycles / 1e6:,.1f} million for custom "
        "kernels at the chip's peaks",
    )
    chip = Topology(report.topology).tpu
    if chip and chip.product_overcharge > 1:
        yield _line(
            "",
            "an upper bound: the cost model charges a product up to "
            f"{chip.product_overcharge} times its scheduled cycles",
        )
    yield _line("collectives", f"{1e3 * collective_seconds:,.1f} ms a step, without overlap")
    yield _line(
        "step", f"{1e3 * step_seconds:,.1f} ms, model FLOP utilization {train.estimated_mfu:.0%}"
    )
    text = f"{days:,.2f} days, {days * 24 * report.chips:,.0f} chip-hours"
    if report.mean_batch_fraction < 1:
        text += ", the steps of smaller batches in proportion to their size"
    yield _line(f"{report.steps:,} steps", text)
    yield _line("share of cycles", ", ".join(f"{part} {share:.0%}" for part, share in shares))
    for name, step in report.forward_steps.items():
        if step.estimated_step_seconds is not None:
            seconds = step.estimated_step_seconds
            text = f"{1e3 * seconds:,.1f} ms a batch, utilization {step.estimated_mfu:.0%}"
            if step.target_tokens:
                text += f", {step.target_tokens / seconds:,.0f} generated tokens/s"
            yield _line(name, text)


def _line(label: str, text: str) -> str:
    return f"  {label:16} {text}"


def _memory(report: ProgramReport, limit: int) -> str:
    share = report.hbm_bytes / limit
    return f"{format_bytes(report.hbm_bytes)} of {format_bytes(limit)} ({share:.0%}) a device"
