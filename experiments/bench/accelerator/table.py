"""Tables in Markdown from the lines of an accelerator benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bench.accelerator.parts import DONE, Line

GIB = 2**30
NUM_KERNELS = 10  # of a profile


def format_table(lines: Sequence[Line], parts: Sequence[str]) -> str:
    """Return tables of yardsticks, checks, speed, kernels, and parts that are not done.

    Args:
      lines: lines of `Results.read`.
      parts: names of all parts, in order.
    """
    by_name = {(line["part"], line.get("name", "")): line for line in lines}
    blocks = [_device(by_name), _checks(lines), _speed(by_name, parts)]
    blocks += [_kernels(part, by_name.get((part, "profile"))) for part in parts]
    blocks.append(_unfinished(by_name, parts))
    return "\n\n".join(filter(None, blocks))


def _device(by_name: Mapping[tuple[str, str], Line]) -> str:
    device = by_name.get(("device", "device"))
    if device is None:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    text = [f"{device['device']}; {versions}"]
    if product := by_name.get(("device", "product")):
        sizes = " x ".join(map(str, product["shape"]))
        text.append(f"product {sizes} in bfloat16: {product['tflops']:.1f} TFLOP/s")
    if copy := by_name.get(("device", "copy")):
        rate = copy["gigabytes_per_second"]
        text.append(f"copy of {copy['bytes'] / GIB:.2g} GiB: {rate:,.0f} GB/s")
    return "\n".join(text)


def _checks(lines: Sequence[Line]) -> str:
    rows = [
        (line["name"], f"{line['check']:.1e}", f"{line['tolerance']:.0e}", _verdict(line))
        for line in lines
        if "check" in line
    ]
    return _rows(("check", "difference", "tolerance", ""), rows)


def _verdict(line: Line) -> str:
    resumed = f", resumed from step {line['resumed_from']}" if "resumed_from" in line else ""
    return ("ok" if line["ok"] else "FAILED") + resumed


def _speed(by_name: Mapping[tuple[str, str], Line], parts: Sequence[str]) -> str:
    rows = []
    for part in parts:
        for name in ("step", "embeddings"):
            if (line := by_name.get((part, name))) is None:
                continue
            estimate = by_name.get((f"preflight-{part}", "preflight"), {})
            rows.append(
                (
                    f"{line['model']}, {line['length']} x {line['batch_size']}",
                    "train step" if name == "step" else name,
                    line["program"],
                    f"{1e3 * line['seconds']:.1f}",
                    _number(estimate.get("preflight_seconds"), ".1f", 1e3),
                    f"{line['tokens_per_second']:,.0f}",
                    _number(line.get("mfu"), ".1%"),
                    _number(line.get("bytes"), ".2f", 1 / GIB),
                    _number(estimate.get("preflight_bytes"), ".2f", 1 / GIB),
                )
            )
    header = ("model, tokens x sequences", "", "program", "ms", "preflight: at least", "tokens/s")
    return _rows((*header, "MFU", "peak GiB", "preflight: GiB"), rows)


def _number(value: Any, form: str, factor: float = 1) -> str:
    return format(value * factor, form) if value else ""


def _kernels(part: str, profile: Line | None) -> str:
    rows = [
        (
            kernel["kernel"][:60],
            f"{kernel['milliseconds']:.3f}",
            f"{kernel['milliseconds'] / profile['milliseconds']:.1%}",
            f"{kernel['calls']:g}",
            kernel["operation"][-60:],
        )
        for kernel in (profile or {"kernels": []})["kernels"][:NUM_KERNELS]
        if profile is not None
    ]
    return _rows((f"kernels of {part}", "ms a step", "share", "calls", "operation"), rows)


def _unfinished(by_name: Mapping[tuple[str, str], Line], parts: Sequence[str]) -> str:
    rows = []
    for part in parts:
        status = by_name.get((part, ""), {"status": "not run"})
        if status["status"] != DONE:
            rows.append((part, status["status"], status.get("error", "").replace("|", "/")))
    return _rows(("part", "status", "reason"), rows)


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; "" without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
