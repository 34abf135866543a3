"""Search for configurations that fit a topology: less memory, or the largest batch."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from bertjax.config.config import Config
from bertjax.preflight.analysis import num_config_shards, preflight
from bertjax.preflight.report import PreflightReport
from bertjax.preflight.topology import Topology
from bertjax.training.memory_budget import memory_fixes

_MAX_LINEAR_TRIES = 8  # after these the search bisects
_MAX_EXTRAPOLATION = 16  # times the largest batch known to fit


def suggested_fixes(config: Config, topology: Topology) -> Iterator[tuple[str, PreflightReport]]:
    """Yield overrides that need less memory, with their reports, the mildest first.

    The last is the first that fits, or leaves one sequence per device.
    """
    num_shards = num_config_shards(config, topology)
    for override, fixed in memory_fixes(config, num_shards, topology.kind == "cpu"):
        report = preflight(fixed, topology, train_only=True)
        yield override, report
        if report.fits:
            return


def largest_batch(config: Config, topology: Topology, remat: bool) -> PreflightReport | None:
    """Return the report of the largest batch size per device that fits, to one percent.

    The search starts from the configuration's batch size. The result is None if not even one
    sequence per device and accumulation step fits.
    """
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))
    unit = config.gradient_accumulation_steps * num_config_shards(config, topology)
    best, largest_fit, smallest_failure = None, 0, None
    excess_bytes: dict[int, int] = {}
    multiple = max(1, config.batch_size // unit)
    while smallest_failure is None or smallest_failure - largest_fit > _search_step(largest_fit):
        tried = dataclasses.replace(config, batch_size=multiple * unit)
        report = preflight(tried, topology, train_only=True)
        excess_bytes[multiple] = report.train.hbm_bytes - report.hbm_limit_bytes
        if report.fits:
            best, largest_fit = report, multiple
        else:
            smallest_failure = multiple
        multiple = _next_try(excess_bytes, largest_fit, smallest_failure)
    return best


def _next_try(
    excess_bytes: Mapping[int, int], largest_fit: int, smallest_failure: int | None
) -> int:
    """Return the next multiple to try. Each try compiles a program, so tries should be few.

    Memory is nearly linear in the batch size. The line through two tries, if possible one on each
    side of the limit, crosses it near the solution. Where memory is not linear, doubling and
    bisection end the search.

    Args:
      excess_bytes: multiple -> bytes above the limit.
      largest_fit: largest multiple that fits; 0 for none.
      smallest_failure: smallest multiple that does not fit; None for none.
    """
    if smallest_failure is None:
        multiple = 2 * largest_fit
    else:
        multiple = (largest_fit + smallest_failure) // 2
    if 2 <= len(excess_bytes) < _MAX_LINEAR_TRIES:
        if largest_fit and smallest_failure:
            x, y = largest_fit, smallest_failure
        else:
            x, y = sorted(excess_bytes, key=lambda multiple: abs(excess_bytes[multiple]))[:2]
        slope = (excess_bytes[y] - excess_bytes[x]) / (y - x)
        if slope > 0:
            if smallest_failure is None:
                highest = _MAX_EXTRAPOLATION * largest_fit
            else:
                highest = smallest_failure - _search_step(largest_fit)
            multiple = min(math.floor(x - excess_bytes[x] / slope), highest)
    return max(largest_fit + _search_step(largest_fit), multiple)


def _search_step(largest_fit: int) -> int:
    """Return the resolution of the search, one percent."""
    return max(1, largest_fit // 100)
