"""Search for configurations that fit a topology; each try compiles a train step."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from bertjax.config.config import Config
from bertjax.config.durations import parse_duration
from bertjax.preflight.analysis import mean_batch_fraction, num_shards_on, preflight
from bertjax.preflight.report import PreflightReport
from bertjax.preflight.topology import Topology
from bertjax.training.memory_budget import memory_fixes

_MAX_LINEAR_TRIES = 8  # with more tries, memory is not linear in the batch size
_MAX_EXTRAPOLATION = 16  # factor above the largest batch that fits


def suggested_fixes(config: Config, topology: Topology) -> Iterator[tuple[str, PreflightReport]]:
    """Yield overrides that need less memory, with their reports, the mildest first.

    The last one fits, or leaves one sequence per device.
    """
    fixes = memory_fixes(config, num_shards_on(topology, config), topology.kind == "cpu")
    for override, changed in fixes:
        report = preflight(changed, topology, train_only=True)
        yield override, report
        if report.fits:
            return


def largest_batch(config: Config, topology: Topology, remat: bool) -> PreflightReport | None:
    """Return the report of the largest batch that fits, to one percent.

    The search starts at the batch size of the configuration.

    Returns:
      None if a microbatch of one sequence per device does not fit.
    """
    model = dataclasses.replace(config.model, remat=remat)
    # The full batch decides, and the sizes tried need not be multiples of a ramp-up.
    fraction = mean_batch_fraction(config)
    config = dataclasses.replace(config, model=model, batch_size_rampup=1)
    unit = config.gradient_accumulation_steps * num_shards_on(topology, config)
    report, largest_fit, smallest_failure = None, 0, None
    excess_bytes: dict[int, int] = {}
    multiple = max(1, config.batch_size // unit)
    while smallest_failure is None or smallest_failure - largest_fit > _tolerance(largest_fit):
        changed = dataclasses.replace(config, batch_size=multiple * unit)
        tried = preflight(changed, topology, train_only=True)
        excess_bytes[multiple] = tried.train.hbm_bytes - tried.hbm_limit_bytes
        if tried.fits:
            report, largest_fit = tried, multiple
        else:
            smallest_failure = multiple
        multiple = _next_try(excess_bytes, largest_fit, smallest_failure)
    if report is None:
        return None
    # Without the ramp-up, which takes more steps for as many examples.
    counts_examples = parse_duration("steps", config.steps)[1] in ("epoch", "example")
    steps = math.ceil(report.steps / fraction) if counts_examples else report.steps
    return dataclasses.replace(report, steps=steps, mean_batch_fraction=fraction)


def _next_try(
    excess_bytes: Mapping[int, int], largest_fit: int, smallest_failure: int | None
) -> int:
    """Return the multiple to try next.

    Memory is nearly linear in the batch size, so a line through two tries predicts the limit. If
    the first predictions fail, doubling and bisection end the search.

    Args:
      excess_bytes: bytes above the limit by the multiple tried.
      largest_fit: largest multiple that fits, 0 for none.
      smallest_failure: smallest multiple that does not fit, None for none.
    """
    multiple = 2 * largest_fit
    upper = _MAX_EXTRAPOLATION * largest_fit
    if smallest_failure is not None:
        multiple = (largest_fit + smallest_failure) // 2
        upper = smallest_failure - _tolerance(largest_fit)
    if 2 <= len(excess_bytes) < _MAX_LINEAR_TRIES:
        nearest = sorted(excess_bytes, key=lambda tried: abs(excess_bytes[tried]))
        x, y = (largest_fit, smallest_failure) if largest_fit and smallest_failure else nearest[:2]
        slope = (excess_bytes[y] - excess_bytes[x]) / (y - x)
        if slope > 0:
            multiple = min(math.floor(x - excess_bytes[x] / slope), upper)
    return max(largest_fit + _tolerance(largest_fit), multiple)


def _tolerance(largest_fit: int) -> int:
    """Return one percent of a multiple, at least 1."""
    return max(1, largest_fit // 100)
