"""The preflight report, as records, JSON and text.

It separates known numbers (memory, FLOPs, collectives and their bytes) from estimates (cycles,
seconds, utilization).
"""

import dataclasses
import json

from bertjax.mesh.memory import format_bytes


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """Known and estimated numbers of a program on a topology; bytes are those of a device.

    Attributes:
      fits: whether the program and the other arrays in memory fit.
      per_device_batch_size: sequences of a batch on a device.
      hbm_bytes: memory of both; by the compiler's message if they do not fit.
      activation_bytes: temporary buffers of the program; None if it does not fit.
      collectives: {kind: {"runs", "bytes", "bytes_sent"}} of one run.
      model_flops: model FLOPs of one run on all devices.
      compile_seconds: seconds of the compilation.
      estimated_cycles: cycles of one run without collectives; None without a TPU compiler.
      custom_kernel_cycles: those of custom kernels, which the compiler does not estimate: by FLOPs
        or bytes at the chip's peak, whichever is slower.
      estimated_collective_seconds: seconds of collectives at full bandwidth without overlap.
      estimated_step_seconds: seconds of cycles and collectives, one after the other.
      estimated_mfu: model FLOP utilization.
      estimated_cycle_shares: {part of the model: share of the cycles}.
      roofline_seconds: lower bounds of a GPU's step, {"compute", "memory", "links"}.
    """

    fits: bool
    per_device_batch_size: int
    hbm_bytes: int
    activation_bytes: int | None
    collectives: dict[str, dict[str, float]]
    model_flops: float
    compile_seconds: float
    estimated_cycles: int | None = None
    custom_kernel_cycles: int | None = None
    estimated_collective_seconds: float | None = None
    estimated_step_seconds: float | None = None
    estimated_mfu: float | None = None
    estimated_cycle_shares: dict[str, float] = dataclasses.field(default_factory=dict)
    roofline_seconds: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PreflightReport:
    """The report of a run on a topology; bytes are those of a device.

    Attributes:
      topology: name of the topology.
      fits: whether all programs fit.
      chips: number of chips.
      devices: number of JAX devices.
      hbm_limit_bytes: memory that programs may use.
      parameter_bytes: parameters, by the sharding rules.
      optimizer_bytes: optimizer state, by the sharding rules.
      steps: training steps of the run.
      remat: whether blocks are rematerialized.
      attention: attention implementation, with the reason if it is not the fastest.
      train: the train step.
      evaluation: the eval step, with the optimizer state in memory; None if the train step does not
        fit, or with `train_only`.
      prediction: the predict step for as many sequences; None likewise and for sweeps.
    """

    topology: str
    fits: bool
    chips: int
    devices: int
    hbm_limit_bytes: int
    parameter_bytes: int
    optimizer_bytes: int
    steps: int
    remat: bool
    attention: str
    train: ProgramReport
    evaluation: ProgramReport | None = None
    prediction: ProgramReport | None = None

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)


def format_report(report: PreflightReport) -> str:
    """Return the report as text."""
    train, limit = report.train, report.hbm_limit_bytes
    lines = [_headline(report), "", "Known, from the compiler and by arithmetic"]
    lines += [
        f"  parameters       {format_bytes(report.parameter_bytes)} a device",
        f"  optimizer        {format_bytes(report.optimizer_bytes)} a device",
    ]
    if train.activation_bytes is not None:
        activations = format_bytes(train.activation_bytes)
        lines.append(f"  activations      {activations} a device, other buffers included")
    for kind, numbers in train.collectives.items():
        text = f"{numbers['runs']:.0f} a step, {numbers['bytes'] / 1e6:,.1f} MB"
        lines.append(f"  {kind:16} {text}")
    lines.append(f"  model            {train.model_flops / 1e12:,.1f} TFLOP a step")
    lines.append(f"  attention        {report.attention}")
    others = {"evaluation": report.evaluation, "prediction": report.prediction}
    programs = {name: program for name, program in others.items() if program}
    for name, program in programs.items():
        fits = "fits" if program.fits else "does NOT fit"
        used = _used_of_limit(program.hbm_bytes, limit)
        size = program.per_device_batch_size
        lines.append(f"  {name:16} {fits}: {used} a device, {size} sequences on each")
    seconds = train.compile_seconds + sum(p.compile_seconds for p in programs.values())
    lines.append(f"  compilation      {seconds:.0f} s")
    if train.roofline_seconds:
        lines += ["", "Lower bounds of a step, with each resource at its peak and the others free"]
        lines += [f"  {part:16} {1e3 * s:,.1f} ms" for part, s in train.roofline_seconds.items()]
    if train.estimated_step_seconds is None or train.estimated_cycles is None:
        return "\n".join(lines)
    days = train.estimated_step_seconds * report.steps / 86_400
    kernel_cycles = train.custom_kernel_cycles or 0
    collective_seconds = train.estimated_collective_seconds or 0
    lines += [
        "",
        "Estimated, by the compiler's cost model and the bandwidth of the links",
        f"  cycles           {train.estimated_cycles / 1e6:,.1f} million a step, "
        f"{kernel_cycles / 1e6:,.1f} of them for custom kernels, at the chip's peaks",
        f"  collectives      {1e3 * collective_seconds:,.1f} ms a step, without overlap",
        f"  step             {1e3 * train.estimated_step_seconds:,.1f} ms, model FLOP utilization "
        f"{train.estimated_mfu:.0%}",
        f"  {report.steps:,} steps  {days:,.2f} days, {days * 24 * report.chips:,.0f} chip-hours",
        "  cycle shares     "
        + ", ".join(f"{part} {share:.0%}" for part, share in train.estimated_cycle_shares.items()),
    ]
    for name, program in programs.items():
        if program.estimated_step_seconds is not None:
            text = f"{1e3 * program.estimated_step_seconds:,.1f} ms a batch"
            lines.append(f"  {name:16} {text}, utilization {program.estimated_mfu:.0%}")
    return "\n".join(lines)


def _headline(report: PreflightReport) -> str:
    """Return the first line, which says whether the run fits."""
    train, limit = report.train, report.hbm_limit_bytes
    if not train.fits:
        used, excess = format_bytes(train.hbm_bytes), format_bytes(train.hbm_bytes - limit)
        return f"does NOT fit {report.topology}: {used} a device is {excess} too many"
    if report.evaluation and not report.evaluation.fits:
        return (
            f"does NOT fit {report.topology}: it trains, and runs out of memory at its first "
            "evaluation. Lower --config.eval_batch_size."
        )
    if report.prediction and not report.prediction.fits:
        return (
            f"does NOT fit {report.topology}: it trains, and runs out of memory when it predicts "
            f"{report.prediction.per_device_batch_size} sequences a device"
        )
    return f"fits {report.topology}: {_used_of_limit(train.hbm_bytes, limit)} a device"


def _used_of_limit(used: int, limit: int) -> str:
    return f"{format_bytes(used)} of {format_bytes(limit)} ({used / limit:.0%})"
