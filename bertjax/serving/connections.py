"""Connections that are closed when they are idle."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def idle_timeout_protocol(seconds: float) -> type[H11Protocol]:
    """Return a protocol that closes connections which are idle for this long.

    Uvicorn alone waits without limit for the head of a request.
    """

    class Connection(H11Protocol):
        _idle_timer: asyncio.TimerHandle | None = None
        _unread = 0  # bytes that the client had not read at the last check

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._idle_timer:
                self._idle_timer.cancel()

        def _wait(self) -> None:
            if self._idle_timer:
                self._idle_timer.cancel()
            self._idle_timer = self.loop.call_later(seconds, self._close_if_idle)

        def _close_if_idle(self) -> None:
            before, self._unread = self._unread, self.transport.get_write_buffer_size()
            if 0 < self._unread != before:  # the client is still reading
                self._wait()
            elif self.cycle is None or self.cycle.response_complete:
                self.transport.abort()  # closing would wait for a client that does not read

    return Connection
