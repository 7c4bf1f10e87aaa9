"""Checks that every request passes first: is it for us, and has its sender access?

Also adds the headers that every answer has.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.access import Access, Hosts

OPEN_PATHS = ("/login", "/static/")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI application that wraps ours."""

    def __init__(self, app: ASGIApp, *, hosts: Hosts, access: Access, cookie: str) -> None:
        """Keep the application and its checks; see `Interface`."""
        self._app = app
        self._hosts = hosts
        self._access = access
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refuse(scope)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if not self._hosts.takes(headers.get("host", "")):
            # A browser that used a foreign name for us must not see our pages.
            return PlainTextResponse(
                "this is penstock, but not under this name: allow it with --allow-host",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        if path.startswith(OPEN_PATHS):
            return None
        session = Request(scope).cookies.get(self._cookie, "")
        if self._access.lets_in(headers, session):
            return None
        if path.startswith("/api/") or path == "/metrics" or scope["method"] != "GET":
            shown = {
                "code": "401",
                "error": "a token is needed",
                "hint": "Send it as the header: Authorization: Bearer TOKEN",
            }
            return Response(
                msgspec.json.encode(shown),
                HTTPStatus.UNAUTHORIZED,
                media_type="application/json",
                headers={"www-authenticate": "Bearer"},
            )
        return RedirectResponse("/login", HTTPStatus.SEE_OTHER)
