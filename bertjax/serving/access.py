"""Rejection of requests that pages of other servers send, or that name other hosts."""

import re
from ipaddress import ip_address

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from bertjax.serving.observation import MODEL_VERSION, REQUEST_ID
from bertjax.serving.options import Access
from bertjax.serving.responses import error_response

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class AccessCheck:
    """Application that answers requests of known hosts and origins only.

    A browser sends requests of any page, with the page's `Origin`. The check of `Host` rejects DNS
    rebinding: names of other servers that resolve to this machine.

    Args:
      app: the application that answers.
      access: allowed hosts and origins.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        if access.origins:  # browsers show the answers to pages of these origins
            self._app = CORSMiddleware(
                app,
                allow_origins=access.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Content-Type", REQUEST_ID],
                expose_headers=[REQUEST_ID, MODEL_VERSION],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the interface of ASGI."""
        app, request = self._app, Request(scope)
        if not self._is_known_host(request):
            app = error_response(
                403, "the request names another host. Add it with --allowed-host to the server."
            )
        elif not self._is_known_origin(request):
            app = error_response(
                403,
                "the request comes from a page of another server. Send it from this server's page, "
                "or add --allowed-origin to the server.",
            )
        await app(scope, receive, send)

    def _is_known_host(self, request: Request) -> bool:
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        scope = request.scope.get("server")
        # A socket of IPv6 maps addresses of IPv4, which requests name without this prefix.
        address = scope[0].removeprefix("::ffff:") if scope else ""
        is_local = bool(address) and ip_address(address).is_loopback
        if not (self._access.hosts or is_local):
            return True
        return name in (*_LOOPBACK, address, f"[{address}]", *self._access.hosts)

    def _is_known_origin(self, request: Request) -> bool:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if origin is None or origin in self._access.origins:
            return True
        return origin.partition("://")[2] == host
