"""A web server for small pages that are read with GET or HEAD: HTTP/1.1, one request for each connection.

It needs no package, so that the health of every broker can be read. The head of a request has at most 8 KiB; a body is
not read. Slow and excess connections are closed. If it listens at a loopback address, it answers only requests for
a name or address of this machine: a web page elsewhere cannot have a browser read the broker's state (DNS rebinding).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.network.listening import serve_connections
from gantrymq.plugins.http.pages import TEXT
from gantrymq.remoting.address import format_address
from gantrymq.remoting.peers import is_loopback, names_loopback
from gantrymq.remoting.tls import HANDSHAKE_BYTE

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.plugins.http.pages import Pages
    from gantrymq.plugins.interfaces import EncryptedStream, Encryption

log = structlog.get_logger("gantrymq.http")

HEAD_MAX_BYTES: Final = 8 * 1024
BACKLOG: Final = 64
_RECEIVE_BYTES: Final = 4096
_REQUEST: Final = re.compile(rb"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_PHRASES: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 421: "Misdirected Request",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

Response = tuple[int, str, bytes]


class HttpServer:
    """Listens from its creation on, and serves ``pages`` while :meth:`run` runs."""

    def __init__(self, env: Env, host: str, port: int, pages: Pages, connections_max: int, timeout: float) -> None:
        """``timeout`` in seconds. ``OSError`` if the address cannot be used."""
        self._pages = pages
        self.encryption: Encryption | None = None
        self._connections_max = connections_max
        self._timeout = timeout
        self._listener = env.bind(host, port)
        try:
            self._listener.listen(BACKLOG)  # not later: two may take one address until one of them listens there
        except OSError:
            self._listener.close()
            raise
        self._is_local = is_loopback(self._listener.address[0])
        self.address = format_address(*self._listener.address)

    @property
    def url(self) -> str:
        """Where browsers find it: with ``https`` if it serves TLS."""
        is_encrypted = self.encryption is not None and self.encryption.encrypts("http")
        return f"{'https' if is_encrypted else 'http'}://{self.address}"

    async def run(self) -> None:
        """Serve until cancelled, then release the address."""
        log.info("http_listening", url=self.url)
        await serve_connections(self._listener, "a reader of the health pages", self._connections_max, self._serve)

    async def _serve(self, connected: trio.SocketStream) -> None:
        try:
            async with connected:
                stream = (None if self.encryption is None else self.encryption.wrap(connected, "http")) or connected
                with trio.fail_after(self._timeout):
                    head = await _read_head(stream)
                    if head is None:
                        return
                    is_head, answer = await self._answer(head)
                    await stream.send_all(_encoded(answer, without_body=is_head))
                    await stream.send_eof()
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            log.debug("http_reader_gone", reason=str(error) or "too slow")

    async def _answer(self, head: bytes) -> tuple[bool, Response]:
        """Whether the response must not have its body, and the response."""
        if len(head) > HEAD_MAX_BYTES:
            return False, _text(431, f"The head of a request may have {HEAD_MAX_BYTES} bytes.")
        first, *lines = head.split(b"\r\n")
        request = _REQUEST.fullmatch(first)
        fields = [_FIELD.fullmatch(line) for line in lines]
        if request is None or not all(fields):
            return False, _text(400, "This is no HTTP request that can be read.")
        method, path = request[1], request[2].partition(b"?")[0].decode()
        values: dict[str, str] = {}
        for field in fields:
            assert field is not None
            name, value = field[1].decode().lower(), field[2].decode("latin-1").strip()
            if name == "host" and name in values:
                return False, _text(400, "A request has one header 'Host'.")
            values[name] = f"{values[name]}, {value}" if name in values else value
        if method not in (b"GET", b"HEAD"):
            return False, _text(405, "The pages can be read, with GET or HEAD, and nothing else.")
        if self._is_local and not names_loopback(values.get("host", "")):
            return method == b"HEAD", _text(421, "Use the name 'localhost': this address is for this machine.")
        page = self._pages.get(path)
        if page is None:
            there = "".join(f"{each}\n" for each in self._pages.paths())
            return method == b"HEAD", _text(200 if path == "/" else 404, f"The pages are:\n{there}".rstrip())
        try:
            return method == b"HEAD", await page(values.get("accept", ""))
        except Exception:
            log.exception("http_page_failed", path=path)
            return method == b"HEAD", _text(500, "The page could not be made; the broker's log has the reason.")


async def _read_head(stream: trio.SocketStream | EncryptedStream) -> bytes | None:
    """The head without its last empty line; more than :data:`HEAD_MAX_BYTES` if it is too long; None if it ends
    early."""
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        if len(head) > HEAD_MAX_BYTES:
            return head
        piece = await stream.receive_some(_RECEIVE_BYTES)
        if not piece:
            return None
        head += piece
        if head[0] == HANDSHAKE_BYTE:  # no HTTP, and a TLS client would wait for more
            return head
    return head[:end]


def _text(status: int, text: str) -> Response:
    return status, TEXT, f"{text}\n".encode()


def _encoded(answer: Response, *, without_body: bool) -> bytes:
    status, content_type, body = answer
    allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Answer')}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{allow}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if without_body else body)
