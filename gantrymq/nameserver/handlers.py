"""The types and helpers that all handlers of requests share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gantrymq.remoting.bodies.body import Body
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.header import Header

Handler = Callable[[Command, object], Awaitable[Command]]
"""Answers a request; the object identifies the connection. Raises :class:`RemoteFault` to refuse."""


def success(request: Command, header: Header | None = None, body: Body | None = None) -> Command:
    """The response with code SUCCESS."""
    ext = None if header is None else header.to_ext()
    return request.answer(ResponseCode.SUCCESS, ext=ext, body=b"" if body is None else body.to_bytes())
