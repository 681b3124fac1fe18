"""A web server for one page: GET or HEAD of ``/metrics``, HTTP/1.1 with h11, for few readers.

The head of a request has at most 16 KiB, and its body is not read. Slow, silent and excess connections are closed. At a
loopback address it answers only requests for a name or address of this machine, so that no web page can have a browser
read the metrics (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import attrs
import h11
import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.kernel.network.listening import serve_connections
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.outages import Outages
from gantrymq.remoting.peers import is_loopback, names_loopback

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env, Listener
    from gantrymq.plugins.interfaces import EncryptedStream, Encryption
    from gantrymq.plugins.metrics.config import MetricsConfig
    from gantrymq.plugins.metrics.exposition import Text

log = structlog.get_logger("gantrymq.metrics")

PATH: Final = "/metrics"
HEAD_MAX_BYTES: Final = 16 * 1024
BACKLOG: Final = 64
_RECEIVE_BYTES: Final = 16 * 1024
_PLAIN: Final = "text/plain; charset=utf-8"

Render = Callable[[str], Awaitable["Text"]]
"""Creates the page in a format that the reader accepts."""


@attrs.frozen
class _Response:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class MetricsServer:
    """Listens on ``address`` from its creation on, and serves while :meth:`run` runs."""

    def __init__(self, env: Env, config: MetricsConfig, render: Render) -> None:
        """:class:`StartError` if the address is in use."""
        self.encryption: Encryption | None = None
        self._config = config
        self._render = render
        self._outages = Outages(log, env.monotonic)
        self._listener = _listen(env, config.listen)
        self._is_local = is_loopback(self._listener.address[0])
        self.address = format_address(*self._listener.address)

    @property
    def url(self) -> str:
        """Where browsers find it: with ``https`` if it serves TLS."""
        is_encrypted = self.encryption is not None and self.encryption.encrypts("metrics")
        return f"{'https' if is_encrypted else 'http'}://{self.address}"

    async def run(self) -> None:
        """Serve until cancelled, then release the address."""
        log.info("metrics_listening", url=f"{self.url}{PATH}")
        await serve_connections(self._listener, "a reader of metrics", self._config.connections_max, self._serve)

    async def _serve(self, connected: trio.SocketStream) -> None:
        try:
            async with connected:
                stream = (None if self.encryption is None else self.encryption.wrap(connected, "metrics")) or connected
                reader = _Reader(stream, self._answer, self._config.timeout, is_local=self._is_local)
                while await reader.answer_one():
                    pass
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.debug("metrics_reader_gone", reason=str(error) or "too slow")

    async def _answer(self, accept: str) -> _Response:
        try:
            text = await self._render(accept)
        except Exception as error:
            self._outages.error("metrics_page_failed", error=repr(error), exc_info=True)
            return _text(500, "The page could not be made; the log has the reason.")
        return _Response(200, text.content_type, text.body)


class _Reader:
    """Serve one connection."""

    def __init__(
        self,
        stream: trio.SocketStream | EncryptedStream,
        page: Callable[[str], Awaitable[_Response]],
        timeout: float,
        *,
        is_local: bool,
    ) -> None:
        """``is_local``: the server is for this machine only."""
        self._is_local = is_local
        self._stream = stream
        self._page = page
        self._timeout = timeout
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)

    async def answer_one(self) -> bool:
        """Answer the next request; returns whether another one may follow on this connection."""
        try:
            with trio.fail_after(self._timeout):
                event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            # a request with a body ends the connection after the response
            has_body = not isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            await self._send(_text(error.error_status_hint, "This is no HTTP request that can be read."), last=True)
            return False
        with trio.fail_after(self._timeout):
            answer = await self._answer(event)
        await self._send(answer, last=has_body, head_only=event.method == b"HEAD")
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next_event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))

    async def _answer(self, request: h11.Request) -> _Response:
        host = b"".join(value for name, value in request.headers if name == b"host")  # h11 allows at most one
        if self._is_local and not names_loopback(host.decode("latin-1")):
            return _text(421, "Use the name 'localhost': this address is for this machine.")
        path, method = request.target.partition(b"?")[0], request.method
        if path != PATH.encode():
            return _text(404, f"There is nothing but {PATH}.")
        if method not in (b"GET", b"HEAD"):
            answer = _text(405, f"{PATH} can be read, with GET or HEAD, and nothing else.")
            return attrs.evolve(answer, headers=(("Allow", "GET, HEAD"),))
        accept = ", ".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
        return await self._page(accept)

    async def _send(self, answer: _Response, *, last: bool, head_only: bool = False) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            ("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), *answer.headers,
            *([("Connection", "close")] if last else []),
        ]  # fmt: skip
        reason = HTTPStatus(answer.status).phrase
        head = self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        body = b"" if head_only else self._http.send(h11.Data(data=answer.body))
        end = self._http.send(h11.EndOfMessage())
        with trio.fail_after(self._timeout):
            await self._stream.send_all(b"".join(part or b"" for part in (head, body, end)))


def _text(status: int, text: str) -> _Response:
    return _Response(status, _PLAIN, f"{text}\n".encode())


def _listen(env: Env, wanted: str) -> Listener:
    host, port = parse_address(wanted, any_port=True)
    listener = None
    try:
        listener = env.bind(host, port)
        listener.listen(BACKLOG)  # not later: two may take one address until one of them listens there
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or error
        raise StartError(
            f"metrics cannot be served on {host}:{port}: {reason}; set plugin.metrics.listen to another address"
        ) from None
    return listener
