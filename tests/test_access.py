"""Hosts that requests may name, by the address at which they arrive."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bertjax.serving.access import AccessCheck
from bertjax.serving.options import Access


def status_of(address: str, host: str, hosts: Sequence[str] = ()) -> int:
    """Return the status of a request that arrives at an address of this machine."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "headers": [(b"host", host.encode())], "server": (address, 8000)}
    check = AccessCheck(answer, Access(hosts))
    asyncio.run(check(scope, None, send))  # type: ignore[arg-type]
    status: int = messages[0]["status"]
    return status


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7:8000", 200),
        ("192.0.2.7", "192.0.2.7", 200),
        ("2001:db8::7", "[2001:db8::7]:8000", 200),
        ("::ffff:192.0.2.7", "models.example", 200),
        ("::ffff:192.0.2.7", "192.0.2.8", 403),
        ("192.0.2.7", "evil.example", 403),
    ],
)
def test_allowed_hosts_include_the_address_of_this_machine(address, host, status) -> None:
    assert status_of(address, host, ["models.example"]) == status


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_requests_over_loopback_name_this_machine_or_an_allowed_host(address: str) -> None:
    """A page of another server could send them to a name that resolves to this machine."""
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert status_of(address, host) == 200
    assert status_of(address, "models.example") == 403
    assert status_of(address, "models.example", ["models.example"]) == 200


def test_requests_over_a_network_name_any_host_by_default() -> None:
    for address in ("192.0.2.7", "::ffff:192.0.2.7"):
        assert status_of(address, "models.example") == 200
