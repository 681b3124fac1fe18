"""A program of handlers: functions that are called with the messages of topics, each for a group of its own."""

from __future__ import annotations

import inspect
import ssl
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

import anyio
import attrs

from gantrymq.client.checks import check_group
from gantrymq.client.client import Client, connect
from gantrymq.client.errors import ClientClosed, GantryError
from gantrymq.client.handlers import as_handler
from gantrymq.client.interceptors import Interceptor
from gantrymq.client.options import Topics, WorkerSettings, WorkOptions, lists_options, subscriptions
from gantrymq.client.serializers import DeserializerChoice
from gantrymq.client.termination import watch_signals
from gantrymq.client.worker import Handler, Worker, message_class
from gantrymq.message import ReceivedMessage
from gantrymq.remoting.logs import LibraryLog
from gantrymq.remoting.tasks import foreign_cancellation_as_error
from gantrymq.remoting.waiting import caller_in_loop

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[Any] | Any]

log: LibraryLog = LibraryLog()


@attrs.frozen(kw_only=True)
class _Registered:
    handler: Handler
    name: str
    topics: Topics
    group: str
    settings: WorkerSettings


@attrs.frozen
class StartupFailure:
    """What a function of :meth:`App.on_startup` has raised."""

    function: Hook
    error: Exception

    def __str__(self) -> str:
        """One line: the function, its error, and the place in the function's file."""
        name = getattr(self.function, "__name__", repr(self.function))
        frames = [
            each for each in traceback.extract_tb(self.error.__traceback__) if each.filename == _file_of(self.function)
        ]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        text = f"{type(self.error).__name__}: {self.error}".replace("\n", " ")
        return f"the startup function {name} failed: {text}{where}"


class App:
    """Handlers of messages, and the client that they share while :meth:`run` runs.

    The arguments are those of :func:`gantrymq.connect`, which is called, and raises its errors, at the start.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] | None = None,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: bool | ssl.SSLContext | Callable[[], ssl.SSLContext] = False,
        unit_name: str | None = None,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        interceptors: Sequence[Interceptor] = (),
        trace: bool | str = False,
    ) -> None:
        self._connect = partial(
            connect, nameservers, access_key=access_key, secret_key=secret_key, security_token=security_token,
            tls=tls, unit_name=unit_name, namespace=namespace, namespace_v2=namespace_v2,
            interceptors=interceptors, trace=trace,
        )  # fmt: skip
        self._registered: dict[str, _Registered] = {}
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._client: Client | None = None
        self._workers: list[Worker[ReceivedMessage]] = []
        self._stopped = False
        self._startup_failure: StartupFailure | None = None
        self._left_threads = False  # a handler in a thread still ran when run() had ended
        self._thread: int | None = None  # that of run()
        self._stop_from_thread: Callable[[], object] | None = None

    @property
    def client(self) -> Client:
        """The connected client, for handlers and hooks; :class:`ClientClosed` while the app does not run."""
        if self._client is None:
            raise ClientClosed("the app does not run: use app.client in handlers and in hooks of start and end")
        return self._client

    @lists_options
    def on(
        self,
        topics: Topics,
        *,
        group: str,
        deserializer: DeserializerChoice | None = None,
        **options: Unpack[WorkOptions],
    ) -> Callable[[F], F]:
        """A decorator: call the function with each message of ``topics``, as a member of the consumer group ``group``.

        The function takes the body, the :class:`ReceivedMessage` (a plain function, which runs in a thread, also a
        :class:`gantrymq.sync.ReceivedMessage`), or both. The annotation of the body says what it is:
        ``bytes``, ``str``, or a type that is read from JSON, such as a dataclass or a model of pydantic; where
        ``deserializer`` is given, that reads it. A body that cannot be read makes its message a dead letter, as
        ``bad_bodies`` says. The options are those of :meth:`gantrymq.Client.run`.

        Raises :class:`InvalidName` for a topic, the group or a subscription, ValueError for an invalid option and for a
        second function of the same group, TypeError for an unknown option and for a function with other parameters.
        """
        check_group(group)
        topics = topics if isinstance(topics, str | Mapping) else tuple(topics)  # a generator can be read once
        settings = WorkerSettings.checked(options, deserializer)
        subscriptions(topics, settings.consumer.tags, 0)
        self._check_free(group)

        def register(function: F) -> F:
            self._check_free(group)  # again: of stacked decorators all are made before the first is applied
            name = getattr(function, "__name__", repr(function))
            handler, choice = as_handler(function, name, deserializer)
            try:
                reading = WorkerSettings.checked(options, choice)
            except ValueError as error:
                raise TypeError(f"{name}: {error}") from None
            self._registered[group] = _Registered(
                handler=handler, name=name, topics=topics, group=group, settings=reading
            )
            return function

        return register

    def on_startup(self, function: F) -> F:
        """A decorator: call ``function``, plain or a coroutine function, after connecting and before the first message.

        What it raises ends the app.
        """
        self._startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """A decorator: call ``function``, plain or a coroutine function, when all handlers have ended.

        Functions that were decorated later are called earlier.

        What it raises is logged.
        """
        self._shutdown.append(function)
        return function

    async def run(self, *, signals: bool | None = None) -> None:
        """Connect and handle messages until SIGTERM, SIGINT or :meth:`stop`; then drain, commit and close.

        Only the main thread gets signals. Without ``signals`` the app leaves them to the application, or its server, if
        that has a handler of SIGTERM (``signals_left_to_application``); with False always, with True never.

        Raises :class:`GantryError` without handlers, and while it runs already; what :func:`gantrymq.connect` and
        :meth:`gantrymq.Client.run` raise; and what a function of :meth:`on_startup` raises.
        """
        if not self._registered:
            raise GantryError('the app has no handlers: add functions with @app.on("topic", group="...")')
        if self._client is not None:
            raise GantryError("the app runs already")
        self._stopped = self._left_threads = False
        self._startup_failure = None
        failure: Exception | None = None
        self._client = self._connect()
        stop_wanted = anyio.Event()
        self._thread, self._stop_from_thread = threading.get_ident(), partial(caller_in_loop(), stop_wanted.set)
        try:
            async with self._client as client:
                self._workers = [self._worker(client, each) for each in self._registered.values()]
                async with anyio.create_task_group() as watching:
                    watching.start_soon(self._stop_after, stop_wanted)
                    await watching.start(watch_signals, self._stop_at_signal, signals)
                    try:
                        failure = await self._run_all(client)
                    finally:
                        with anyio.CancelScope(shield=True):
                            await self._call_shutdown()
                    watching.cancel_scope.cancel()
        finally:
            self._left_threads = any(worker.left_threads for worker in self._workers)
            self._client, self._workers, self._stop_from_thread = None, [], None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End :meth:`run` as a signal does. Any thread may call it; without effect while the app does not run."""
        stop_from_thread = self._stop_from_thread
        if stop_from_thread is None:
            return
        if threading.get_ident() == self._thread:
            self._stop_all()
        else:
            with suppress(RuntimeError):  # the event loop ends meanwhile
                stop_from_thread()

    def main(self, *, backend: Literal["asyncio", "trio"] = "asyncio") -> None:
        """:meth:`run` in an event loop of its own, that of ``backend``: the last line of a program.

        It takes the signals, as with ``signals=True``.
        """
        anyio.run(partial(self.run, signals=True), backend=backend)

    def _check_free(self, group: str) -> None:
        if group in self._registered:
            raise ValueError(
                f"group {group} has the handler {self._registered[group].name}: give one function all topics of the"
                " group, or another group"
            )

    async def _run_all(self, client: Client) -> Exception | None:
        """What made the app end, other than a signal."""
        for hook in self._startup:
            try:
                await _call(hook)
            except Exception as error:
                self._startup_failure = StartupFailure(hook, error)
                return error
        if self._stopped:
            return None
        failures: list[Exception] = []

        async def run(worker: Worker[ReceivedMessage]) -> None:
            try:
                await client._run_worker(worker)
            except Exception as error:
                failures.append(error)
                self._stop_all()

        log.info("app_started", handlers=[each.name for each in self._registered.values()])
        async with anyio.create_task_group() as running:
            for worker in self._workers:
                running.start_soon(run, worker)
        return failures[0] if failures else None

    async def _stop_after(self, wanted: anyio.Event) -> None:
        await wanted.wait()
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopped = True
        for worker in self._workers:
            worker.stop()

    def _stop_at_signal(self, name: str) -> None:
        self._stopped = True
        for worker in self._workers:
            worker.stop_at_signal(name)

    async def _call_shutdown(self) -> None:
        for hook in reversed(self._shutdown):
            try:
                await _call(hook)
            except Exception:
                log.exception("shutdown_hook_failed", function=getattr(hook, "__name__", repr(hook)))

    @staticmethod
    def _worker(client: Client, each: _Registered) -> Worker[ReceivedMessage]:
        return client._worker_of(message_class(each.handler), each.handler, each.topics, each.group, each.settings)


def _file_of(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else str(code.co_filename)


async def _call(hook: Hook) -> None:
    with foreign_cancellation_as_error():
        result = hook()
        if inspect.isawaitable(result):
            await result
