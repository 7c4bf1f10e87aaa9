"""Access to the web interface: host names, tokens, sessions, forged requests, checked first.

On a loopback address every user of this machine has access; on any other a token is needed. In
both cases a page of another site must not reach us through a visitor's browser: the Host header
is checked against DNS rebinding, and every request that changes something needs a secret from our
own pages. Pure except for secrets and the clock; not here: routes and answers (`app.py`).

Also adds the headers that every answer has.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections import OrderedDict
from collections.abc import Collection, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.listen import is_loopback
from penstock.model import PenstockError

TOKEN_VARIABLE = "PENSTOCK_WEB_TOKEN"  # noqa: S105 - a name, not a secret
TOKEN_LENGTH_MIN = 16
SESSIONS_MAX = 1000
SESSION_S = 12 * 3600.0


class TokenTooShort(PenstockError):
    """The token for the web interface could be guessed."""

    code = "WB02"


def host_name(header: str) -> str:
    """Return a Host header's host without port, in lower case; an empty text if it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class Hosts:
    """Names under which the interface may be called.

    A name that an attacker's DNS points here is not among them. An address needs no DNS, so every
    address is accepted if we listen beyond loopback.
    """

    def __init__(self, listening: str, more: Collection[str] = ()) -> None:
        """Collect the names.

        Args:
            listening: The address at which we listen.
            more: Names that the operator allows.
        """
        self._names = {"localhost", listening.lower(), *(name.lower() for name in more)}
        self._local_only = is_loopback(listening)
        if not self._local_only:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def takes(self, header: str) -> bool:
        """Return whether a request with this Host header is for us."""
        name = host_name(header)
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local_only


class Access:
    """Token, sessions and the secret of our forms. One event loop uses it."""

    def __init__(self, token: str | None, *, clock: Clock = REAL_CLOCK) -> None:
        """Keep a digest of the token, and make the key of the forms. Raises TokenTooShort.

        Args:
            token: The token to ask for; None admits every visitor (loopback).
            clock: The clock that ages sessions.
        """
        if token is not None and len(token) < TOKEN_LENGTH_MIN:
            raise TokenTooShort(
                f"the token has {len(token)} characters, at least {TOKEN_LENGTH_MIN} are needed",
                hint=f"Set a longer one in {TOKEN_VARIABLE}, or unset it: penstock then makes one.",
            )
        self._digest = None if token is None else _digest(token)
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[bytes, float] = OrderedDict()

    @property
    def needs_token(self) -> bool:
        """Return whether visitors have to show the token."""
        return self._digest is not None

    def right_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the given text."""
        return self._digest is not None and hmac.compare_digest(self._digest, _digest(given))

    def begin_session(self) -> str:
        """Begin a session and return its name, for a cookie; the oldest may end for it."""
        name = secrets.token_urlsafe(32)
        self._sessions[_digest(name)] = self._clock.monotonic_s()
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return name

    def end_session(self, name: str) -> None:
        """Forget a session."""
        self._sessions.pop(_digest(name), None)

    def in_session(self, name: str) -> bool:
        """Return whether the cookie names a session that is not too old."""
        begun_s = self._sessions.get(_digest(name))
        return begun_s is not None and self._clock.monotonic_s() - begun_s < SESSION_S

    def lets_in(self, headers: Mapping[str, str], session: str) -> bool:
        """Return whether a request may read: on loopback, by a session, or by the bearer token."""
        if self._digest is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.right_token(given.strip()):
            return True
        return bool(session) and self.in_session(session)

    def form_secret(self, session: str) -> str:
        """Return the secret in a form of our pages, valid for this session alone."""
        text = session.encode() if self.needs_token else b"loopback"
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def right_form(self, session: str, given: str) -> bool:
        """Return whether a form comes from one of our pages."""
        return hmac.compare_digest(self.form_secret(session).encode(), given.encode())


def same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether one of our pages made a request, as far as the browser says."""
    site = headers.get("sec-fetch-site", "")
    if site and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


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
