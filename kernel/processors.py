"""Requests, and what may answer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Protocol

import attrs

from gantrymq.remoting.codes import ONEWAY_FLAG, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.header import H, read_header
from gantrymq.remoting.headers.send import topic_in

if TYPE_CHECKING:
    from gantrymq.kernel.network.connection import Connection


class Request:
    """One request, its code, and the connection that waits for its answer.

    There may be others with the same attributes, whose ``command`` is made when it is asked for: who wants no more than
    what is here does not ask for it.
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
        """The typed header; ``RemoteFault`` as :func:`read_header`."""
        return read_header(kind, self.command.ext)

    @property
    def ext(self) -> Mapping[str, str]:
        """The header's fields as they travel, ``AccessKey`` and ``Signature`` of a signed request among them.

        Of hot requests they are read anew with each access, without a ``Command``: keep what you look at twice.
        """
        return self.command.ext or {}

    @property
    def body(self) -> bytes:
        """What stands behind the header."""
        return self.command.body

    @property
    def topic(self) -> str | None:
        """The topic that the header names, the same that its processor reads; None where it names none."""
        return topic_in(self.code, self.ext)

    def forget(self) -> None:
        """Keep only what an answer needs: header fields and body go."""
        self.command.ext, self.command.body = None, b""

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send the response, the first one only; none to a oneway request or a connection that is gone."""
        command = self.command
        if not (self.answered or command.flag & ONEWAY_FLAG):
            self.answered = True
            self.connection.send(command.answer(code, remark, ext, body))


@attrs.define
class RequestBatch:
    """The requests of one sweep, of all its connections, before a processor has seen one of them."""

    requests: list[Request]
    refusals: dict[int, tuple[int, str]] = attrs.field(factory=dict, init=False)
    """By row: code and remark."""

    def __len__(self) -> int:
        return len(self.requests)

    def refuse(self, row: int, code: int, remark: str) -> None:
        """Answer ``row`` with ``code`` and ``remark`` in place of its processor. The first refusal stands.

        :class:`ValueError` for code 0, which says success; :class:`IndexError` for a row that there is not.
        """
        if code == ResponseCode.SUCCESS:
            raise ValueError("a request cannot be refused with code 0, which says success")
        if not 0 <= row < len(self.requests):
            raise IndexError(f"there is no row {row}, the batch has {len(self.requests)}")
        self.refusals.setdefault(row, (int(code), str(remark)))

    @property
    def live(self) -> range | list[int]:
        """The row numbers that nobody refused, in order."""
        rows = range(len(self.requests))
        return [row for row in rows if row not in self.refusals] if self.refusals else rows


class BatchProcessor(Protocol):
    """Answers hot codes: one call a sweep with all requests of its codes, in order of arrival.

    It may have ``readers``: by code, what makes its requests of their headers in place of the decoder, where those have
    the form that clients write (``kernel/fast``, and for the compiled twin ``_requests.pxd`` there).
    """

    def handle(self, requests: list[Request]) -> list[Request] | int | None:
        """Answer each request, now or later, by ``request.answer``. Bad input of one row is answered to that row.

        Returns how many were taken: the others have used up the turn's time, and come again in one of the next turns,
        connection by connection. One is taken at least. None: all of them. A list: those that were not taken, of each
        connection in the order in which they came.
        """


def take_each(requests: list[Request], take: Callable[[Request], None]) -> None:
    """``take`` each request; one at which it raises ``RemoteFault`` is answered with that, and harms no other."""
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

A generator function answers in steps: it yields where it may rest, at least once a millisecond. Of requests of more
than 16 KiB one is answered at a time, of all connections; the further requests of its connection wait for its end."""


@attrs.frozen
class Heavy:
    """Marks an async handler whose answer takes long or much memory.

    ``limits.heavy_requests`` of them are worked on at a time, one of each connection; who sent one as oneway wants
    nothing, and nothing is done.
    """

    handler: Callable[[Request], Awaitable[Command | None]]


Processor = BatchProcessor | Handler | Heavy
