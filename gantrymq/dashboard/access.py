"""Who may use the dashboard: tokens and roles, and the checks of each request before the API gets it.

A browser sends cookies and reaches loopback addresses for any page that its user visits. Therefore a request must name
this server by an address or a configured name (DNS rebinding), and a change must have a header of ours, which no page
of another origin can send without our consent (cross-site request forgery).
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

import attrs
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

Role = Literal["viewer", "admin"]
COOKIE: Final = "gantrymq_session"
CHANGE_HEADER: Final = "x-gantrymq-change"
SESSIONS_MAX: Final = 256
TOKEN_MIN_CHARACTERS: Final = 16
TOKENS_MAX: Final = 100
REQUESTS_AT_ONCE: Final = 64
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST: Final = re.compile(r"(?:\[(?P<address>[^\]/?#@\\\s]+)\]|(?P<name>[^\[\]:/?#@\\\s]+))(?::[0-9]*)?")
"""The header ``Host``: a name or an address, and a port. Nothing else, so that no URL made of it has another path."""
OPEN_PATHS: Final = frozenset({"/api/v1/session", "/api/v1/openapi.json"})
"""Paths of the API that need no token."""


def read_tokens(path: str) -> dict[str, Role]:
    """The tokens of a file: each line is ``viewer TOKEN`` or ``admin TOKEN``; ``#`` begins a comment.

    ``ValueError`` names the line that cannot be used; OSError.
    """
    tokens: dict[str, Role] = {}
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in ("viewer", "admin") or len(words[1]) < TOKEN_MIN_CHARACTERS:
            raise ValueError(
                f"{path}, line {number}: a line is 'viewer TOKEN' or 'admin TOKEN', the token at least"
                f" {TOKEN_MIN_CHARACTERS} characters long"
            )
        tokens[words[1]] = "admin" if words[0] == "admin" else "viewer"
    if not 0 < len(tokens) <= TOKENS_MAX:
        raise ValueError(f"{path} has {len(tokens)} tokens; it must have 1 to {TOKENS_MAX}")
    return tokens


@attrs.define
class Access:
    """``tokens``: the role of each; without any, everybody has the role ``anonymous``. ``hosts``: further names of this
    server in the header ``Host``."""

    tokens: Mapping[str, Role] = attrs.field(factory=dict, repr=False)
    anonymous: Role = "admin"
    hosts: Iterable[str] = ()
    _sessions: dict[str, Role] = attrs.field(factory=dict, init=False, repr=False)

    def role_of(self, request: Request) -> Role | None:
        """The role of the request's sender; None if it must show a token first."""
        if not self.tokens:
            return self.anonymous
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._role_of_token(token.strip())
        return self._sessions.get(request.cookies.get(COOKIE, ""))

    def begin_session(self, token: str) -> tuple[str, Role] | None:
        """A new session's cookie and role; None for a token that is not known."""
        role = self._role_of_token(token)
        if role is None:
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = role
        return cookie, role

    def end_session(self, request: Request) -> None:
        """Forget the session of the request's sender."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def _role_of_token(self, given: str) -> Role | None:
        found: Role | None = None
        for token, role in self.tokens.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                found = role
        return found

    def refusal(self, request: Request) -> Response | None:
        """Why the request is not answered, or None."""
        host = request.headers.get("host", "")
        if not self._is_own_name(host):
            return refuse(421, "host", f"this server does not have the name {host!r}: use its address, or add the name")
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            if origin is not None and origin.partition("://")[2] != host:
                return refuse(403, "origin", "the request comes from a page of another origin")
            if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return refuse(403, "origin", "the request comes from a page of another site")
            if CHANGE_HEADER not in request.headers:
                return refuse(403, "change_header", f"a change needs the header {CHANGE_HEADER}: 1")
        path: str = request.scope["path"]  # as routing uses it; the path of request.url depends on the header Host
        if path.startswith("/api/") and path not in OPEN_PATHS:
            role = self.role_of(request)
            if role is None:
                return refuse(401, "token", "a token is needed: Authorization: Bearer TOKEN")
            if role != "admin" and request.method not in ("GET", "HEAD"):
                return refuse(403, "role", "the role 'viewer' may change nothing")
        return None

    def _is_own_name(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"] or match["address"]
        if name.lower() in ("localhost", *(each.lower() for each in self.hosts)):
            return True
        try:
            ip_address(name)  # a page that rebinds a name cannot send an address in its place
        except ValueError:
            return False
        return True


class Guard:
    """The middleware that asks ``access`` about each request, and gives each response its headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; other kinds of connections are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if self._open >= REQUESTS_AT_ONCE:
            refusal = refuse(503, "busy", f"{REQUESTS_AT_ONCE} requests are being answered; try again")
            await refusal(scope, receive, send_with_headers)
            return
        app: ASGIApp = self._access.refusal(Request(scope)) or self._app
        self._open += 1
        try:
            await app(scope, receive, send_with_headers)
        finally:
            self._open -= 1


class ApiResponse(JSONResponse):
    """A response of the API. RuntimeError if JSON cannot express it."""

    def render(self, content: Any) -> bytes:
        """In ASCII: half of a surrogate pair, which a peer can send in JSON, has no other form."""
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except ValueError as error:  # which would be a fault of the request
            raise RuntimeError(f"the response is not JSON: {error}") from error


def refuse(status: int, code: str, text: str) -> JSONResponse:
    """An error of the API: ``{"error": {"code": ..., "message": ...}}``."""
    return ApiResponse({"error": {"code": code, "message": text}}, status)
