"""What preflight found, for a program and for a person.

What the compiler and arithmetic know (memory, operations, collectives and their bytes) and what is
estimated (cycles, seconds, utilisation) are told apart in all that is reported.
"""

import dataclasses
import json

from bertjax.mesh.memory import format_bytes


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """What is known and what is estimated of a program on a topology; bytes are a device's.

    Attributes:
      fits: whether the program and what lies beside it in memory fit.
      per_device_batch_size: of a batch.
      hbm_bytes: what both need; where they do not fit, as much as the compiler says they would.
      activation_bytes: what the program keeps while it runs, besides what it is given and gives;
        None if it does not fit.
      collectives: {kind: {"runs", "bytes", "bytes_sent"}} of one run.
      model_flops: of one run on all devices.
      estimated_cycles: of one run, collectives left out; None without a TPU's compiler.
      custom_kernel_cycles: those among them that the compiler does not see: of kernels of our own, which
        are charged what they compute or move at the chip's peaks, whichever takes longer.
      estimated_collective_seconds: if links carry what they can and nothing runs beside them.
      estimated_step_seconds: cycles and collectives one after the other.
      estimated_cycle_shares: {part of the model: share of the cycles}.
      roofline_seconds: of a GPU's step, {"compute", "memory", "links"}: what each takes at its peak.
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
    """What a topology makes of a run; bytes are a device's.

    Attributes:
      fits: whether each program does.
      parameter_bytes, optimizer_bytes: by the sharding table.
      attention: how the train step attends, and why not as its devices do best where it does not.
      train: the train step.
      evaluation: a batch of held-out data, with the optimizer's state beside it in memory; None
        where the train step does not fit, or was asked for alone.
      prediction: the forward pass of `bertjax predict` over as many rows; None likewise.
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
        return json.dumps(dataclasses.asdict(self), indent=1)


def format_report(verdict: PreflightReport) -> str:
    """The verdict for a person."""
    v, train, limit = verdict, verdict.train, verdict.hbm_limit_bytes
    least = f"{v.topology}: {format_bytes(train.hbm_bytes)}"
    if not train.fits:
        over = train.hbm_bytes - limit
        head = f"does NOT fit {least} a device is {format_bytes(over)} too many"
    elif v.evaluation and not v.evaluation.fits:
        head = (
            f"does NOT fit {v.topology}: it trains, and dies at its first evaluation: "
            "lower --config.eval_batch_size"
        )
    elif v.prediction and not v.prediction.fits:
        head = f"does NOT fit {v.topology}: it trains, and cannot predict so many rows at once"
    else:
        head = f"fits {least}{_percent_of_limit(limit, train.hbm_bytes)} a device"
    lines = [head, "", "Known, from the compiler and by arithmetic"]
    lines += [
        f"  parameters       {format_bytes(v.parameter_bytes)} a device",
        f"  optimizer        {format_bytes(v.optimizer_bytes)} a device",
    ]
    if train.activation_bytes is not None:
        lines.append(
            f"  activations      {format_bytes(train.activation_bytes)} a device, with other buffers"
        )
    for kind, numbers in train.collectives.items():
        text = f"{numbers['runs']:.0f} a step, {numbers['bytes'] / 1e6:,.1f} MB"
        lines.append(f"  {kind:16} {text}")
    lines.append(f"  model            {train.model_flops / 1e12:,.1f} TFLOP a step")
    lines.append(f"  attention        {v.attention}")
    programs = {"evaluation": v.evaluation, "prediction": v.prediction}
    for name, each in programs.items():
        if each:
            fits = "fits" if each.fits else "does NOT fit"
            lines.append(
                f"  {name:16} {fits}: {format_bytes(each.hbm_bytes)}{_percent_of_limit(limit, each.hbm_bytes)} a "
                f"device, {each.per_device_batch_size} rows on each"
            )
    seconds = train.compile_seconds + sum(p.compile_seconds for p in programs.values() if p)
    lines.append(f"  compilation      {seconds:.0f} s")
    if train.roofline_seconds:
        lines += ["", "A step takes at the least, if each were at its peak and the others free"]
        lines += [f"  {part:16} {1e3 * s:,.1f} ms" for part, s in train.roofline_seconds.items()]
    if train.estimated_step_seconds is None or train.estimated_cycles is None:
        return "\n".join(lines)
    days = train.estimated_step_seconds * v.steps / 86_400
    lines += [
        "",
        "Estimated, by the compiler's cost model and the bandwidth of the links",
        f"  cycles           {train.estimated_cycles / 1e6:,.1f} million a step, of them "
        f"{(train.custom_kernel_cycles or 0) / 1e6:,.1f} for kernels that the compiler does not see, at "
        "the chip's peaks",
        f"  collectives      {1e3 * (train.estimated_collective_seconds or 0):,.1f} ms a step, if "
        "none runs beside other work",
        f"  step             {1e3 * train.estimated_step_seconds:,.1f} ms, model FLOP utilisation "
        f"{train.estimated_mfu:.0%}",
        f"  {v.steps:,} steps  {days:,.2f} days, {days * 24 * v.chips:,.0f} chip-hours",
        "  of the cycles    "
        + ", ".join(f"{part} {share:.0%}" for part, share in train.estimated_cycle_shares.items()),
    ]
    for name, each in programs.items():
        if each and each.estimated_step_seconds is not None:
            text = f"{1e3 * each.estimated_step_seconds:,.1f} ms a batch of held-out rows"
            lines.append(f"  {name:16} {text}, utilisation {each.estimated_mfu:.0%}")
    return "\n".join(lines)


def _percent_of_limit(limit: int, used: int) -> str:
    return f" of {format_bytes(limit)} ({used / limit:.0%})"
