"""Requests and their processors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Protocol

import attrs
import structlog

from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import H, read_header
from gantrymq.remoting.headers.send import topic_in

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection

log = structlog.get_logger("gantrymq.requests")

Observer = Callable[[int, str | None], None]
"""Takes code and remark of a response."""


class Request:
    """One request with its code and the connection that waits for the response.

    Other classes have the same attributes and decode ``command`` on first use: avoid it if the other attributes are
    sufficient.
    """

    __slots__ = ("answered", "code", "command", "connection")

    def __init__(self, connection: Connection, command: Command) -> None:
        self.connection = connection
        self.command = command
        self.code = command.code
        self.answered = False

    @property
    def is_oneway(self) -> bool:
        """See :attr:`Command.is_oneway`."""
        return bool(self.command.flag & ONEWAY_FLAG)

    @property
    def size(self) -> int:
        """The bytes of its header and body, roughly."""
        command = self.command
        return len(command.body) + sum(len(name) + len(value) for name, value in (command.ext or {}).items())

    def header(self, kind: type[H]) -> H:
        """Return the typed header; ``RemoteFault`` as :func:`read_header`."""
        return read_header(kind, self.command.ext)

    @property
    def ext(self) -> Mapping[str, str]:
        """The header's fields as received, including ``AccessKey`` and ``Signature`` of a signed request.

        For hot requests, each access reads the header again, without creating a ``Command``: keep the result.
        """
        return self.command.ext or {}

    @property
    def body(self) -> bytes:
        """The bytes behind the header."""
        return self.command.body

    @property
    def topic(self) -> str | None:
        """The topic in the header, read as the processor reads it; None if there is none."""
        return topic_in(self.code, self.ext)

    def forget(self) -> None:
        """Keep only what a response needs: drop header fields and body."""
        self.command.ext, self.command.body = None, b""

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send the response. Only the first call counts; a oneway request and a closed connection get none."""
        command = self.command
        if not (self.answered or command.flag & ONEWAY_FLAG):
            self.answered = True
            self.connection.send(command.answer(code, remark, ext, body))


class ObservedRequest(Request):
    """A request whose response is observed: :meth:`RequestBatch.observe`."""

    __slots__ = ("observers",)

    def __init__(self, connection: Connection, command: Command) -> None:
        super().__init__(connection, command)
        self.observers: list[Observer] = []

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """As :meth:`Request.answer`; calls the observers."""
        self.responded(code, remark)
        super().answer(code, remark, ext, body)

    def responded(self, code: int, remark: str | None) -> None:
        """Call the observers, once; an observer's error is logged."""
        observers, self.observers = self.observers, []
        for observer in observers:
            try:
                observer(code, remark)
            except Exception:
                log.exception("response_observer_failed", code=self.code)


@attrs.define
class RequestBatch:
    """The requests of one turn from all connections, before any processor gets them."""

    requests: list[Request]
    refusals: dict[int, tuple[int, str]] = attrs.field(factory=dict, init=False)
    """By row: code and remark."""
    _observers: list[tuple[int, Observer]] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self.requests)

    def refuse(self, row: int, code: int, remark: str) -> None:
        """Answer ``row`` with ``code`` and ``remark`` instead of calling its processor. The first refusal counts.

        :class:`ValueError` for code 0, which means success; :class:`IndexError` for a row that does not exist.
        """
        if code == ResponseCode.SUCCESS:
            raise ValueError("a request cannot be refused with code 0, which means success")
        if not 0 <= row < len(self.requests):
            raise IndexError(f"there is no row {row}, the batch has {len(self.requests)}")
        self.refusals.setdefault(row, (int(code), str(remark)))

    def observe(self, row: int, observer: Observer) -> None:
        """Call ``observer`` with the code and the remark of the row's response, also for a oneway request.

        It is not called if the connection or the broker ends before the response. An observed request is processed more
        slowly: do not observe requests that send or pull messages.
        """
        self._observers.append((row, observer))

    @property
    def live(self) -> range | list[int]:
        """The row numbers that were not refused, in order."""
        rows = range(len(self.requests))
        return [row for row in rows if row not in self.refusals] if self.refusals else rows


def attach_observers(batch: RequestBatch, *, keep: bool) -> None:
    """Attach the observers that a plugin added in its call, or drop them with ``keep=False``, if the plugin failed."""
    for row, observer in batch._observers if keep else ():
        request = batch.requests[row]
        if not isinstance(request, ObservedRequest):
            request = batch.requests[row] = ObservedRequest(request.connection, request.command)
        request.observers.append(observer)
    batch._observers.clear()


class BatchProcessor(Protocol):
    """Answers frequent request codes: one call per turn with all requests of its codes, in order of arrival.

    It may have ``readers``: by request code, the function that parses a header of the form that clients write, in place
    of the decoder (``kernel/fast``, and for the compiled twin ``_requests.pxd`` there).
    """

    def handle(self, requests: list[Request]) -> list[Request] | int | None:
        """Answer each request, now or later, with ``request.answer``. Invalid input in one row is answered only to that
        row.

        Returns how many were processed, at least one; the time of the turn is then used up, and the others come again
        in a later turn, connection by connection. None means all. A list has the requests that were not processed,
        those of each connection in order of arrival.
        """


def take_each(requests: list[Request], take: Callable[[Request], None]) -> None:
    """Call ``take`` for each request. A ``RemoteFault`` becomes the response to that request and does not affect the
    others."""
    for request in requests:
        try:
            take(request)
        except RemoteFault as fault:
            request.answer(fault.code, fault.remark)


AnswerSteps = Generator[None, None, Command | None]
Handler = (
    Callable[[Request], Command | None]
    | Callable[[Request], AnswerSteps]
    | Callable[[Request], Awaitable[Command | None]]
)
"""Answers one request: returns the response (``request.command.answer(...)``) or None when there is none to send.
``RemoteFault`` becomes a response with its code. An async handler runs as a task of its own.

A generator function answers in steps and yields at least once a millisecond. Of requests of more than 16 KiB, only one
runs at a time among all connections; later requests of its connection wait until it ends."""


@attrs.frozen
class Heavy:
    """Marks an async handler whose response takes much time or memory.

    At most ``limits.heavy_requests`` run at a time, one per connection, and none while its peer has to read much of
    earlier responses. A oneway request for such a handler is ignored, because it has no response.
    ``prepare`` is awaited before the request counts as one of these: for what it has to wait for without any work.
    """

    handler: Callable[[Request], Awaitable[Command | None]]
    prepare: Callable[[Request], Awaitable[None]] | None = None


Processor = BatchProcessor | Handler | Heavy
