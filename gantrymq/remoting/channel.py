"""The calling side of one connection: many callers share a socket; responses are matched by their opaque number.

Runs on trio and on asyncio. The peer may send requests on the same connection, such as NOTIFY_CONSUMER_IDS_CHANGED;
the channel's handler answers them. Frames of concurrent callers are sent in one write. Callers do not use the socket
themselves, so the cancellation of one cannot leave an incomplete frame.

On asyncio a connection is read and written in callbacks (:mod:`gantrymq.remoting.direct`): answers wake their callers
at once, and a call that is alone is written at once. On trio, which has no callbacks of sockets, a reader and a writer
task use a stream. With many concurrent calls the difference is small, because one read brings many answers.

Source: RocketMQ 4.9.7 ``NettyRemotingAbstract`` (matching, error responses).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import Final, Protocol, TypeVar

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus

from gantrymq.remoting import direct
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.advice import ADVICE
from gantrymq.remoting.codes import ONEWAY_FLAG, RESPONSE_FLAG, RequestCode, ResponseCode
from gantrymq.remoting.command import Command, decode, encode
from gantrymq.remoting.errors import (
    CallTimeout,
    ChannelClosed,
    ConnectFailed,
    FatalRemoteFault,
    FrameTooLong,
    RemoteFault,
    TlsFailed,
)
from gantrymq.remoting.frame import FRAME_MAX_BYTES, Frame, cut_frames
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.tasks import LATE_SECONDS, background_tasks
from gantrymq.remoting.waiting import Waiter, clock_of_loop, is_trio, waiter_kind

Handler = Callable[[Command], Command | Awaitable[Command | None] | None]
"""Answers a request of the peer: returns a response (see ``Command.answer``), None for none, or an awaitable of
either."""

Sign = Callable[[Command], Command]
"""Returns the request to send, for example signed (see :class:`gantrymq.remoting.signing.Credentials`)."""

CONNECT_TIMEOUT_SECONDS: Final = 3.0
CALL_TIMEOUT_SECONDS: Final = 3.0
UNWRITTEN_MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes that wait for the socket; beyond it, callers wait before they add more."""
UNREAD_MAX_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of answers to requests of the peer that wait for the socket, not counting the last one; beyond it, the
connection is closed."""
PEER_REQUESTS_MAX: Final = 256
"""The most requests of the peer that are processed at the same time; more are answered with SYSTEM_BUSY."""
_RECEIVE_BYTES: Final = 256 * 1024
_CLOSE_GRACE_SECONDS: Final = 1.0
_OPAQUE_MASK: Final = 0x7FFFFFFF

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""How connections are encrypted; a function is called for each new connection, for files that change."""
T = TypeVar("T")

log: LibraryLog = LibraryLog()


class Request(Protocol):
    """A request that encodes itself, for those of which there are many."""

    @property
    def code(self) -> int:
        """Its request code."""

    def encode(self, opaque: int) -> bytes:
        """Its whole frame, with this opaque number."""


@attrs.frozen
class Outgoing:
    """How a server or a command connects to others: ``tls`` encrypts, ``sign`` is called with each request."""

    tls: Tls | None = None
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
        tls: Tls | None = None,
    ) -> None:
        """``sign`` is called with each request; with ``tls`` the connection is encrypted by this context."""
        self.address = address
        self._tls = tls
        self._answered = False
        """Whether anything was received, since the last :meth:`take_heard` if there was one."""
        self._answered_before = False
        self._handler = handler
        self._sign = sign
        self._calls: dict[int, tuple[Waiter[Command | None], float]] = {}
        """By their opaque numbers: who waits for the answer, or for None when there will be none, and until when."""
        self._make_waiter: Callable[[], Waiter[Command | None]] | None = None
        self._now: Callable[[], float] = anyio.current_time
        self._next_deadline = math.inf
        """The time of the next check for calls whose time is over."""
        self._earlier = anyio.Event()
        self._opaque = 0
        self._partial = bytearray()
        """What was read of a frame that is not whole yet."""
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = self._unread_bytes = 0
        self._writing = False
        self._direct: direct.DirectConnection | None = None
        self._write_is_due = False
        self._asked: list[Command] = []
        """Requests of the peer on a direct connection, which are answered in a task."""
        self._work = anyio.Event()
        """There is something to write or, on a direct connection, a request of the peer."""
        self._drained: anyio.Event | None = None
        self._ended_event = anyio.Event()
        self._lost: str | None = None
        self._tasks: TaskGroup | None = None
        self._peer_requests = 0
        self.peer: tuple[str, int] | None = None
        """The language and version that the peer announces, if they were requested."""
        self.on_timeout: Callable[[], None] | None = None
        """Called when a call has got no answer in time."""
        self.local_host: str = "127.0.0.1"
        """The local address of the connection, once it is established."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._lost is not None

    @property
    def signs(self) -> bool:
        """Whether requests are signed or changed in other ways on their way out, which takes a :class:`Command`."""
        return self._sign is not None

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a response."""
        return len(self._calls)

    def take_heard(self) -> bool:
        """Whether anything was received since the last call of this method, or since the beginning."""
        heard, self._answered = self._answered, False
        self._answered_before |= heard
        return heard

    async def wait_closed(self) -> None:
        """Return when the connection has ended."""
        await self._ended_event.wait()

    async def while_open(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await ``wait()``, no longer than until the connection has ended."""
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await self.wait_closed()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await wait()
            tasks.cancel_scope.cancel()

    async def call(self, command: Command | Request, timeout: float = CALL_TIMEOUT_SECONDS) -> Command:
        """Send ``command`` (this method sets its opaque) and return the response, whatever its code.

        Raises :class:`ChannelClosed` if the connection has ended or ends, :class:`CallTimeout` after ``timeout``
        seconds. A response that arrives later is dropped. Only a :class:`Command` is signed.
        """
        if self._lost is not None:
            raise ChannelClosed(self.address, self._lost)
        if self._make_waiter is None:
            self._make_waiter = waiter_kind()
            self._now = clock_of_loop()
        self._opaque = opaque = self._opaque + 1 & _OPAQUE_MASK
        if isinstance(command, Command):
            command.opaque = opaque
            frame = self._encode(command)
        else:
            frame = command.encode(opaque)
        waiter = self._make_waiter()
        deadline = self._now() + (timeout if timeout > 0.0 else 0.0)
        self._calls[opaque] = (waiter, deadline)
        if deadline < self._next_deadline:
            self._next_deadline = deadline
            self._earlier.set()
        try:
            if self._unwritten_bytes > UNWRITTEN_MAX_BYTES:
                with anyio.move_on_after(timeout) as scope:
                    await self._put(frame)
                if scope.cancelled_caught:
                    raise self._timed_out(f"no room to send {_name(command.code)} within {timeout:g} s")
            else:
                self._put_nowait(frame, at_once=len(self._calls) == 1)
            answer = await waiter
        finally:
            self._calls.pop(opaque, None)
        if answer is not None:
            return answer
        if self._lost is not None:
            raise ChannelClosed(self.address, self._lost)
        raise self._timed_out(f"no answer to request {_name(command.code)} within {timeout:g} s")

    def _timed_out(self, reason: str) -> CallTimeout:
        if self.on_timeout is not None:
            self.on_timeout()
        return CallTimeout(self.address, reason)

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
            self._write_directly()
            while self._lost is None and (self._unwritten or self._writing):
                await self._wait_drained()
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
            if not is_trio():
                await self._run_directly(connect_timeout, shield=shield, task_status=task_status)
                return
            stream = await self._connect(connect_timeout, self._open_stream)
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

    async def _run_directly(self, timeout: float, *, shield: bool, task_status: TaskStatus[None]) -> None:
        async def connect(host: str, port: int) -> direct.DirectConnection:
            return await direct.connect(host, port, self, timeout, self._context())

        connection = self._direct = await self._connect(timeout, connect)
        self.local_host = connection.local_host
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.cancel_scope.shield = shield
                tasks.start_soon(self._end_calls)
                task_status.started()
                while self._lost is None:
                    if not self._asked:
                        self._work = anyio.Event()
                        await self._work.wait()
                    asked, self._asked = self._asked, []
                    for request in asked:
                        self._serve(request)
                tasks.cancel_scope.cancel()
        finally:
            self._lose("the task that served the connection was cancelled")
            await connection.aclose()

    async def _open_stream(self, host: str, port: int) -> ByteStream:
        context = self._context()
        if context is None:
            return await anyio.connect_tcp(host, port)
        return await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)

    def _context(self) -> ssl.SSLContext | None:
        if not callable(self._tls):
            return self._tls
        try:
            return self._tls()
        except OSError as error:
            raise ValueError(f"the settings of TLS cannot be loaded: {error}") from None

    async def _connect(self, timeout: float, connect: Callable[[str, int], Awaitable[T]]) -> T:
        kind, cause = ConnectFailed, None
        try:
            host, port = parse_address(self.address)
            with anyio.fail_after(timeout):
                return await connect(host, port)
        except TimeoutError:
            reason = f"no connection within {timeout:g} s"
        except ssl.SSLError as error:
            kind, reason, cause = TlsFailed, tls_reason(error), error
        except ValueError as error:
            reason = str(error)
        except OSError as error:
            reason = _connect_reason(error)
            if self._tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
                kind, reason = TlsFailed, _CLOSED_IN_HANDSHAKE
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            kind, reason = TlsFailed, _CLOSED_IN_HANDSHAKE
        self._lose(reason)
        raise kind(self.address, reason) from cause

    def _encode(self, request: Command) -> bytes:
        return encode(request if self._sign is None else self._sign(request))

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._unwritten.clear()
        for waiter, _ in self._calls.values():
            _settle(waiter, None)
        self._work.set()
        self._set_drained()
        self._ended_event.set()
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
            for waiter, deadline in self._calls.values():
                if deadline <= now:
                    _settle(waiter, None)
                elif deadline < self._next_deadline:
                    self._next_deadline = deadline

    async def _put(self, frame: bytes) -> None:
        while self._unwritten_bytes > UNWRITTEN_MAX_BYTES:
            await self._wait_drained()
            if self._lost is not None:
                raise ChannelClosed(self.address, self._lost)
        self._put_nowait(frame, at_once=False)

    def _put_nowait(self, frame: bytes, *, at_once: bool) -> None:
        if len(frame) > FRAME_MAX_BYTES:
            raise FrameTooLong(f"a frame of {len(frame)} bytes, {FRAME_MAX_BYTES} is the limit")
        self._queue(frame, at_once=at_once)

    def _queue(self, frame: bytes, *, at_once: bool) -> None:
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        if self._direct is None:
            self._work.set()
        elif not self._write_is_due and not self._direct.blocked:
            if at_once:
                self._write_directly()
            else:  # whoever else sends in this turn of the event loop shares the write
                self._write_is_due = True
                self._direct.call_soon(self)

    def _write_directly(self) -> None:
        self._write_is_due = False
        connection = self._direct
        if connection is None or connection.blocked or self._lost is not None:
            return
        if self._unwritten:
            data = self._unwritten[0] if len(self._unwritten) == 1 else b"".join(self._unwritten)
            self._unwritten.clear()
            self._unwritten_bytes = self._unread_bytes = 0
            connection.write(data)
        self._writing = connection.blocked
        if not self._writing:
            self._set_drained()

    async def _wait_drained(self) -> None:
        if self._drained is None:
            self._drained = anyio.Event()
        await self._drained.wait()

    def _set_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    def writable(self) -> None:
        """As :class:`gantrymq.remoting.direct.User` has it, like the ones that follow."""
        self._write_directly()

    def received(self, data: memoryview) -> int:
        self._answered = True
        try:
            frames, used = cut_frames(data)
            self._take_frames(frames)
        except FatalRemoteFault as error:
            self._lose_by_fault(error)
            return len(data)
        return used

    def ended(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            self._lose(_broken_tls(error))
            return
        self._lose(("the peer closed the connection" if error is None else str(error)) + self._tls_hint())

    async def _write(self, stream: ByteStream) -> None:
        try:
            while True:
                if not self._unwritten:
                    self._work = anyio.Event()
                    await self._work.wait()
                data = b"".join(self._unwritten)
                self._unwritten.clear()
                self._unwritten_bytes = self._unread_bytes = 0
                self._writing = True
                if data:
                    await stream.send(data)
                self._writing = False
                self._set_drained()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._lose(_reason(error, "the connection broke while writing") + self._tls_hint())
        except (ssl.SSLError, anyio.BusyResourceError) as error:
            self._lose(_broken_tls(error))

    async def _read(self, stream: ByteStream) -> None:
        try:
            while True:
                self._take_bytes(await stream.receive(_RECEIVE_BYTES))
        except anyio.EndOfStream:
            self._lose("the peer closed the connection" + self._tls_hint())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._lose(_reason(error, "the connection broke while reading") + self._tls_hint())
        except (ssl.SSLError, anyio.BusyResourceError) as error:
            self._lose(_broken_tls(error))
        except FatalRemoteFault as error:
            self._lose_by_fault(error)

    def _take_bytes(self, data: bytes) -> None:
        self._answered = True
        buffer: bytes | bytearray = data
        if self._partial:
            self._partial += data
            buffer = self._partial
        frames, used = cut_frames(buffer)
        if buffer is data:
            self._partial += data[used:]
        elif used:
            del self._partial[:used]
        self._take_frames(frames)

    def _take_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            command = decode(frame)
            if command.flag & RESPONSE_FLAG:
                call = self._calls.pop(command.opaque, None)
                if call is not None:
                    _settle(call[0], command)
            elif self._direct is None:
                self._serve(command)
            else:
                self._asked.append(command)
                self._work.set()

    def _lose_by_fault(self, error: FatalRemoteFault) -> None:
        log.warning("channel_bad_frame", address=self.address, reason=str(error))
        self._lose(f"the peer sent bytes that are not a frame of this protocol: {error}")

    def _tls_hint(self) -> str:
        if self._answered or self._answered_before or self._tls is not None:
            return ""
        return f" before it answered anything: if it speaks TLS only, {ADVICE.get().encrypt}"

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
        if self._unread_bytes > UNREAD_MAX_BYTES:
            log.warning("responses_not_read", address=self.address, bytes=self._unread_bytes)
            self._lose("the peer does not read the answers to its requests")
            return
        frame = encode(answer)
        self._unread_bytes += len(frame)
        self._queue(frame, at_once=False)


@asynccontextmanager
async def open_channel(
    address: str,
    handler: Handler | None = None,
    *,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    stream: ByteStream | None = None,
    sign: Sign | None = None,
    tls: Tls | None = None,
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


def _settle(waiter: Waiter[Command | None], answer: Command | None) -> None:
    if not waiter.done():
        waiter.set_result(answer)


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


def tls_reason(error: ssl.SSLError) -> str:
    """Why a handshake failed, with advice."""
    words = ADVICE.get()
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = {
            _EXPIRED: "renew it on the server",
            _OTHER_HOST: f"it must have the name of the server, or {words.accept_name}",
            _OTHER_IP: f"its certificate must name its IP address, or {words.accept_name}",
        }.get(error.verify_code, words.trust)
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')} ({advice})"
    if error.reason in NO_TLS:
        return f"what answers there does not speak TLS: {words.do_not_encrypt}, or use its TLS port"
    if isinstance(error, ssl.SSLEOFError):
        return _CLOSED_IN_HANDSHAKE
    return f"the TLS handshake failed: {error.reason or error}"


_EXPIRED: Final = 10
"""``X509_V_ERR_CERT_HAS_EXPIRED``, as the two that follow a code of OpenSSL."""
_OTHER_HOST: Final = 62
_OTHER_IP: Final = 64
_CLOSED_IN_HANDSHAKE: Final = "the peer closed the connection in the TLS handshake: does this port speak TLS?"
NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
)
"""What OpenSSL says if the peer's first bytes are no TLS."""


def _broken_tls(error: Exception) -> str:
    # A peer refuses this side's certificate with its first response. The stream is busy if a new key is
    # agreed on while both directions are in use
    return f"TLS failed: {getattr(error, 'reason', None) or error}"


def _reason(error: Exception, otherwise: str) -> str:
    cause = error.__cause__
    return str(cause) if isinstance(cause, OSError) else otherwise
