"""The calling side of one connection: many callers share a socket; responses are matched by their opaque number.

Runs on trio and, through anyio, on asyncio. The peer may send requests on the same connection, such as
NOTIFY_CONSUMER_IDS_CHANGED; the channel's handler answers them. Frames of concurrent callers are sent in one write.
Only the writer task uses the socket, so the cancellation of a caller cannot leave an incomplete frame.

Source: RocketMQ 4.9.7 ``NettyRemotingAbstract`` (matching, error responses).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import Final

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus

from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, ConnectFailed, FatalRemoteFault, RemoteFault, TlsFailed
from gantrymq.remoting.frame import FRAME_MAX_BYTES, cut_frames
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.tasks import LATE_SECONDS, background_tasks
from gantrymq.remoting.waiting import Waiter, clock_of_loop, waiter_kind

Handler = Callable[[Command], Command | Awaitable[Command | None] | None]
"""Answers a request of the peer: returns a response (see ``Command.answer``), None for none, or an awaitable of
either."""

Sign = Callable[[Command], Command]
"""Returns the request to send, for example signed (see :class:`gantrymq.remoting.signing.Credentials`)."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
CALL_TIMEOUT_SECONDS: Final = 3.0
UNWRITTEN_MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes that wait for the socket; beyond it, callers wait before they add more."""
PEER_REQUESTS_MAX: Final = 256
"""The most requests of the peer that are processed at the same time; more are answered with SYSTEM_BUSY."""
_RECEIVE_BYTES: Final = 256 * 1024
_CLOSE_GRACE_SECONDS: Final = 1.0
_OPAQUE_MASK: Final = 0x7FFFFFFF

log: LibraryLog = LibraryLog()


class _Call:
    __slots__ = ("answer", "deadline", "done")

    def __init__(self, done: Waiter, deadline: float) -> None:
        self.done = done
        self.deadline = deadline
        self.answer: Command | None = None


@attrs.frozen
class Outgoing:
    """How a server or a command connects to others: ``tls`` encrypts, ``sign`` is called with each request."""

    tls: ssl.SSLContext | None = None
    sign: Sign | None = None


OUTGOING: ContextVar[Outgoing] = ContextVar("gantrymq_outgoing", default=Outgoing())  # noqa: B039 - frozen
"""What :func:`open_channel` uses in this task and in those that it starts: a broker's plugins set it before any task of
the broker begins, so every request of that broker to others is made so."""


class Channel:
    """One connection to ``address``. Use :func:`open_channel`, or start :meth:`run` in a task group of your own."""

    def __init__(
        self,
        address: str,
        handler: Handler | None = None,
        *,
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``sign`` is called with each request; with ``tls`` the connection is encrypted by this context."""
        self.address = address
        self._tls = tls
        self._answered = False
        self._handler = handler
        self._sign = sign
        self._calls: dict[int, _Call] = {}
        self._make_waiter: Callable[[], Waiter] | None = None
        self._now: Callable[[], float] = anyio.current_time
        self._next_deadline = math.inf
        """The time of the next check for calls whose time is over."""
        self._earlier = anyio.Event()
        self._opaque = 0
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._writing = False
        self._work = anyio.Event()
        self._drained = anyio.Event()
        self._ended = anyio.Event()
        self._lost: str | None = None
        self._tasks: TaskGroup | None = None
        self._peer_requests = 0
        self.peer: tuple[str, int] | None = None
        """The language and version that the peer announces, if they were requested."""
        self.local_host: str = "127.0.0.1"
        """The local address of the connection, once it is established."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a response."""
        return len(self._calls)

    async def wait_closed(self) -> None:
        """Return when the connection has ended."""
        await self._ended.wait()

    async def while_open(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await ``wait()``, no longer than until the connection has ended."""
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self.wait_closed()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await wait()
            tasks.cancel_scope.cancel()

    async def call(self, command: Command, timeout: float = CALL_TIMEOUT_SECONDS) -> Command:
        """Send ``command`` (this method sets its opaque) and return the response, whatever its code.

        Raises :class:`ChannelClosed` if the connection has ended or ends, :class:`CallTimeout` after ``timeout``
        seconds. A response that arrives later is dropped.
        """
        if self._lost is not None:
            raise ChannelClosed(self.address, self._lost)
        self._opaque = opaque = self._opaque + 1 & _OPAQUE_MASK
        command.opaque = opaque
        if self._make_waiter is None:
            self._make_waiter = waiter_kind()
            self._now = clock_of_loop()
        deadline = self._now() + max(0.0, timeout)
        call = _Call(self._make_waiter(), deadline)
        self._calls[opaque] = call
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self._earlier.set()
        try:
            frame = self._encode(command)
            if self._unwritten_bytes > UNWRITTEN_MAX_BYTES:
                with anyio.move_on_after(timeout) as scope:
                    await self._put(frame)
                if scope.cancelled_caught:
                    raise CallTimeout(self.address, f"no room to send {_name(command.code)} within {timeout:g} s")
            else:
                self._put_nowait(frame)
            await call.done.wait()
        finally:
            self._calls.pop(opaque, None)
        if call.answer is not None:
            return call.answer
        if self._lost is not None:
            raise ChannelClosed(self.address, self._lost)
        raise CallTimeout(self.address, f"no answer to request {_name(command.code)} within {timeout:g} s")

    async def send_oneway(self, command: Command) -> None:
        """Queue ``command`` as a oneway request; returns when it is queued, not when it has arrived."""
        if self._lost is not None:
            raise ChannelClosed(self.address, self._lost)
        self._opaque = self._opaque + 1 & _OPAQUE_MASK
        command.opaque = self._opaque
        command.flag |= ONEWAY_FLAG
        await self._put(self._encode(command))

    async def aclose(self) -> None:
        """Close the connection after queued frames are written (at most one second). Waiting calls fail."""
        with anyio.move_on_after(_CLOSE_GRACE_SECONDS, shield=True):
            while self._lost is None and (self._unwritten or self._writing):
                await self._drained.wait()
        self._lose("closed by this side")

    def abandon(self, reason: str) -> None:
        """Close the connection at once; queued frames are lost. Waiting calls fail."""
        self._lose(reason)

    async def run(
        self,
        *,
        stream: ByteStream | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        shield: bool = False,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Connect (unless ``stream`` is given) and serve the connection until it ends.

        With ``shield`` an established connection survives the cancellation of the task, for last requests, until
        :meth:`aclose`. Reports that it has started when the connection is established. Raises :class:`ConnectFailed`
        before that, and nothing afterwards: callers get an error when the connection ends.
        """
        if stream is None:
            stream = await self._connect(connect_timeout)
        local = stream.extra(SocketAttribute.local_address, None)  # noqa: S610  (anyio's, not Django's)
        if isinstance(local, tuple):
            self.local_host = str(local[0])
        try:
            async with stream, anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.cancel_scope.shield = shield
                tasks.start_soon(self._write, stream)
                tasks.start_soon(self._end_calls)
                task_status.started()
                await self._read(stream)
        finally:
            self._lose("the task that served the connection was cancelled")

    async def _connect(self, timeout: float) -> ByteStream:
        kind = ConnectFailed
        try:
            host, port = parse_address(self.address)
            with anyio.fail_after(timeout):
                if self._tls is None:
                    return await anyio.connect_tcp(host, port)
                return await anyio.connect_tcp(host, port, ssl_context=self._tls, tls_standard_compatible=False)
        except TimeoutError:
            reason = f"no connection within {timeout:g} s"
        except ssl.SSLError as error:
            kind, reason = TlsFailed, _tls_reason(error)
        except ValueError as error:
            reason = str(error)
        except OSError as error:
            reason = _connect_reason(error)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            kind, reason = TlsFailed, "the peer closed the connection in the TLS handshake: does this port speak TLS?"
        self._lose(reason)
        raise kind(self.address, reason)

    def _encode(self, request: Command) -> bytes:
        return encode(request if self._sign is None else self._sign(request))

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._unwritten.clear()
        for call in self._calls.values():
            call.done.set()
        self._drained.set()
        self._ended.set()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def _end_calls(self) -> None:
        """Fail calls whose time is over. One task serves all, because a timer for each would cost as much as the
        call."""
        while True:
            if self._next_deadline == math.inf:
                self._earlier = anyio.Event()
                await self._earlier.wait()
            wake = self._next_deadline
            self._earlier = anyio.Event()
            with anyio.move_on_after(wake - anyio.current_time()):
                await self._earlier.wait()
                continue  # a call with an earlier deadline was added
            now = anyio.current_time()
            late = now - wake
            if late >= LATE_SECONDS:
                # the event loop was blocked: unread responses may have arrived
                self._next_deadline = now + late
                continue
            self._next_deadline = math.inf
            for call in self._calls.values():
                if call.deadline <= now:
                    call.done.set()
                elif call.deadline < self._next_deadline:
                    self._next_deadline = call.deadline

    async def _put(self, frame: bytes) -> None:
        while self._unwritten_bytes > UNWRITTEN_MAX_BYTES:
            await self._drained.wait()
            if self._lost is not None:
                raise ChannelClosed(self.address, self._lost)
        self._put_nowait(frame)

    def _put_nowait(self, frame: bytes) -> None:
        if len(frame) > FRAME_MAX_BYTES:
            raise ValueError(f"a frame of {len(frame)} bytes, {FRAME_MAX_BYTES} is the limit")
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        self._work.set()

    async def _write(self, stream: ByteStream) -> None:
        try:
            while True:
                await self._work.wait()
                self._work = anyio.Event()
                data = b"".join(self._unwritten)
                self._unwritten.clear()
                self._unwritten_bytes = 0
                self._writing = True
                if data:
                    await stream.send(data)
                self._writing = False
                drained, self._drained = self._drained, anyio.Event()
                drained.set()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._lose(_reason(error, "the connection broke while writing") + self._tls_hint())
        except (ssl.SSLError, anyio.BusyResourceError) as error:
            self._lose(_broken_tls(error))

    async def _read(self, stream: ByteStream) -> None:
        buffer = bytearray()
        try:
            while True:
                buffer += await stream.receive(_RECEIVE_BYTES)
                self._answered = True
                frames, used = cut_frames(buffer)
                if used:
                    del buffer[:used]
                for frame in frames:
                    self._take(decode(frame))
        except anyio.EndOfStream:
            self._lose("the peer closed the connection" + self._tls_hint())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._lose(_reason(error, "the connection broke while reading") + self._tls_hint())
        except (ssl.SSLError, anyio.BusyResourceError) as error:
            self._lose(_broken_tls(error))
        except FatalRemoteFault as error:
            log.warning("channel_bad_frame", address=self.address, reason=str(error))
            self._lose(f"the peer sent what is no frame of this protocol: {error}")

    def _tls_hint(self) -> str:
        if self._answered or self._tls is not None:
            return ""
        return " before it answered anything: if it speaks TLS only, connect with tls=True"

    def _take(self, command: Command) -> None:
        if not command.flag & RESPONSE_FLAG:
            self._serve(command)
            return
        call = self._calls.pop(command.opaque, None)
        if call is not None:
            call.answer = command
            call.done.set()

    def _serve(self, request: Command) -> None:
        if self._handler is None:
            self._reply(request, _unsupported(request))
            return
        if self._peer_requests >= PEER_REQUESTS_MAX:
            self._reply(request, request.answer(ResponseCode.SYSTEM_BUSY, "too many requests in work on this channel"))
            return
        try:
            answer = self._handler(request)
        except Exception as error:
            self._reply(request, self._failed(request, error))
            return
        if isawaitable(answer):
            assert self._tasks is not None  # a request was read, so the tasks run
            self._peer_requests += 1
            self._tasks.start_soon(self._serve_later, request, answer)
        else:
            self._reply(request, answer)

    async def _serve_later(self, request: Command, pending: Awaitable[Command | None]) -> None:
        try:
            answer = await pending
        except Exception as error:
            answer = self._failed(request, error)
        finally:
            self._peer_requests -= 1
        self._reply(request, answer)

    def _failed(self, request: Command, error: Exception) -> Command:
        if isinstance(error, RemoteFault):
            return request.answer(error.code, error.remark)
        log.exception("channel_handler_failed", address=self.address, code=_name(request.code))
        return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _reply(self, request: Command, answer: Command | None) -> None:
        if answer is None or request.is_oneway or self._lost is not None:
            return
        frame = encode(answer)
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        self._work.set()


@asynccontextmanager
async def open_channel(
    address: str,
    handler: Handler | None = None,
    *,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    stream: ByteStream | None = None,
    sign: Sign | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Channel]:
    """A connected :class:`Channel` for the duration of the block; errors of the block are raised unchanged.

    ``sign`` and ``tls`` are those of :class:`Channel`; by default those of :data:`OUTGOING`. ``stream`` replaces the
    TCP connection (for tests). Raises :class:`ConnectFailed`.
    """
    ours = OUTGOING.get()
    channel = Channel(address, handler, sign=sign or ours.sign, tls=tls or ours.tls)

    async def serve(*, task_status: TaskStatus[None]) -> None:
        await channel.run(stream=stream, connect_timeout=connect_timeout, task_status=task_status)

    async with background_tasks() as tasks:
        try:
            await tasks.start(serve)
            yield channel
        finally:
            await channel.aclose()


def _unsupported(request: Command) -> Command:
    return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")


def _name(code: int) -> str:
    try:
        return f"{code} {RequestCode(code).name}"
    except ValueError:
        return str(code)


def _connect_reason(error: OSError) -> str:
    # asyncio and trio try every address of a host, and wrap the errors in causes and groups
    failures: list[BaseException] = [error]
    for failure in failures:
        if isinstance(failure, ConnectionRefusedError):
            return "connection refused: nothing listens there"
        if isinstance(failure, BaseExceptionGroup):
            failures += failure.exceptions
        elif failure.__cause__ is not None:
            failures.append(failure.__cause__)
    return str(failures[-1])


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _CERTIFICATE_ADVICE.get(error.verify_code, "tls= takes an ssl.SSLContext that trusts its authority")
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')} ({advice})"
    if error.reason in _NO_TLS:
        return "what answers there does not speak TLS: connect without tls=, or to its TLS port"
    return f"the TLS handshake failed: {error.reason or error}"


_CERTIFICATE_ADVICE: Final = {
    10: "renew it on the server",  # X509_V_ERR_CERT_HAS_EXPIRED
    62: "use the name in its certificate, or tls= with an ssl.SSLContext whose check_hostname is False",  # HOSTNAME
    64: "its certificate must name its IP address, or tls= be an ssl.SSLContext whose check_hostname is False",  # IP
}
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
)


def _broken_tls(error: Exception) -> str:
    # A peer refuses this side's certificate with its first response. The stream is busy if a new key is
    # agreed on while both directions are in use
    return f"TLS failed: {getattr(error, 'reason', None) or error}"


def _reason(error: Exception, otherwise: str) -> str:
    cause = error.__cause__
    return str(cause) if isinstance(cause, OSError) else otherwise
