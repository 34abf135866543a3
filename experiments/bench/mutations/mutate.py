"""Mutations of the content of a file, by a seed."""

import json
import random
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 5, 10**9, 10**30, -(2**63), 1e308, 1e-400, 0.5, float("nan")),
    *(float("inf"), "", " ", "two", "../x", "/dev/zero", "a:b", "\0", "\x1b[31m", "é\u0301" * 50),
    *("x" * 10_000, [], {}, [[]], [None], {"": 1}, {"a": {"b": [1, "c"]}}, [1, "a", None]),
)
_BYTES = (b"\0", b"\xff", b"\n", b"\r", b'"', b"{", b"[", b",", b"\t", b"\x80", b"\xef\xbb\xbf")


def mutate(content: bytes, seed: int) -> bytes:
    """Return a mutation of a file: of its JSON values, its lines or its bytes."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if isinstance(value, dict | list) and value:
            for _ in range(draw.choice((1, 1, 1, 3))):
                _mutate_value(value, draw)
            return json.dumps(value).encode("utf-8", "surrogatepass")
    result = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        _mutate_bytes(result, draw)
    return bytes(result)


def _mutate_value(value: Any, draw: random.Random) -> None:
    """Replace, remove or add a value somewhere in a list or an object."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if not isinstance(value[key], dict | list) or not value[key] or draw.random() < 0.3:
            break
        value = value[key]
    action = draw.randrange(8)
    if action == 0:
        del value[key]
    elif action == 1 and isinstance(value, dict):
        value[str(draw.choice(_VALUES))[:50]] = value[key]
    elif action == 2 and isinstance(value, list):
        value.append(draw.choice(_VALUES))
    else:
        value[key] = draw.choice(_VALUES)


def _mutate_bytes(content: bytearray, draw: random.Random) -> None:
    size = len(content)
    at = draw.randrange(size + 1)
    length = min(draw.choice((1, 2, 8, 100, 5000)), size)
    action = draw.randrange(8)
    if action == 0 and at < size:
        content[at] ^= 1 << draw.randrange(8)
    elif action == 1:
        del content[at : at + length]
    elif action == 2:
        del content[at:]
    elif action == 3:
        content[at:at] = draw.choice(_BYTES) * length
    elif action == 4:
        content[at : at + 8] = draw.choice((b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f"))
    elif action == 5:
        content[at:at] = content[at : at + length] * 3
    elif action == 6:
        other = draw.randrange(size + 1)
        content[at : at + length] = content[other : other + length]
    else:
        content[at:at] = draw.randbytes(length)
