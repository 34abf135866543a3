"""Agreement of processes on what they will compute, before a disagreement can hang them.

The facts are exchanged through the key-value store of JAX's coordinator, never by the devices:
processes that disagree may compile different programs.
"""

import hashlib
import itertools
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import data_pipelines
from bertjax.errors import CommandError
from data_pipelines.errors import InputError

_MAX_NAMED_FACTS = 4
_MAX_VALUE_CHARACTERS = 40
_MARGIN_SECONDS = 2.0  # for the answer of process 0, after its time limit for the others
_stage_ids = itertools.count()


def check_agreement(facts: Mapping[str, Any], timeout: float) -> None:
    """Check that all processes pass the same facts; does nothing for a single process.

    Every process must call it the same number of times.

    Args:
      facts: JSON values by the name of a field, an option or a digest.
      timeout: seconds between the first and the last process.

    Raises:
      InputError: processes disagree; every process names the fields and values of two.
      CommandError: a process did not arrive in time.
    """
    from jax._src.distributed import global_state  # the store has no public name

    client, index, count = global_state.client, global_state.process_id, global_state.num_processes
    if client is None or count == 1:
        return
    prefix = f"bertjax/agreement/{next(_stage_ids)}"
    client.key_value_set(f"{prefix}/{index}", json.dumps(facts))
    if index:
        fault = _get(client, f"{prefix}/fault", timeout + _MARGIN_SECONDS, 0)
        client.wait_at_barrier(f"{prefix}/read", int(1000 * timeout))
    else:
        end, others = time.monotonic() + timeout, []
        for other in range(1, count):
            seconds = max(end - time.monotonic(), 1.0)
            others.append(json.loads(_get(client, f"{prefix}/{other}", seconds, other)))
        fault = describe_disagreement([json.loads(json.dumps(facts)), *others])
        client.key_value_set(f"{prefix}/fault", fault)
        client.wait_at_barrier(f"{prefix}/read", int(1000 * timeout))
    if fault:
        raise InputError(fault)


def code_digest() -> str:
    """Return a hex digest of the source files of bertjax and data_pipelines."""
    digest = hashlib.blake2b(digest_size=8)
    for package in (
        pathlib.Path(__file__).parent.parent,
        *map(pathlib.Path, data_pipelines.__path__),
    ):
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def describe_disagreement(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return how the facts of the first process that differs differ from those of process 0.

    The text is "" if all agree.
    """
    first = facts[0]
    for index, other in enumerate(facts):
        names = [n for n in {**first, **other} if first.get(n) != other.get(n)]
        if names:
            more = len(names) - _MAX_NAMED_FACTS
            differences = "; ".join(
                f"{name}={_show(first.get(name))}: process {index} has {_show(other.get(name))}"
                for name in names[:_MAX_NAMED_FACTS]
            )
            return (
                f"{differences}{f'; {more} more differ' if more > 0 else ''}. Start the same "
                "command, with the same data and packages, in all processes."
            )
    return ""


def _get(client: Any, key: str, seconds: float, process: int) -> str:
    import jax

    try:
        value: str = client.blocking_key_value_get(key, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise CommandError(
            f"process {process} is not ready after {seconds:.0f} s: see its log. Start the same "
            "command in all processes."
        ) from None
    return value


def _show(value: Any) -> str:
    text = repr(value)
    short = text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}..."
    return " ".join(short.split())
