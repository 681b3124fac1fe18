"""A program of handlers: functions that are called with the messages of topics, each for a group of its own."""

from __future__ import annotations

import inspect
import ssl
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, Unpack, get_args, get_origin, get_type_hints

import anyio
import attrs

from gantrymq.client.checks import check_group
from gantrymq.client.client import Client, connect
from gantrymq.client.errors import ClientClosed, GantryError
from gantrymq.client.interceptors import Interceptor
from gantrymq.client.options import Topics, WorkerSettings, WorkOptions, lists_options, subscriptions
from gantrymq.client.serializers import DeserializerChoice
from gantrymq.client.termination import gets_signals, watch_signals
from gantrymq.client.worker import Handler, Worker, is_async
from gantrymq.message import DeliveredRecord, ReceivedMessage
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
        tls: bool | ssl.SSLContext = False,
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

        The function takes the body, the :class:`ReceivedMessage`, or both. The annotation of the body says what it is:
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
            handler, choice = _as_handler(function, name, deserializer)
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

    async def run(self, *, signals: bool = True) -> None:
        """Connect and handle messages until SIGTERM, SIGINT or :meth:`stop`; then drain, commit and close.

        With ``signals=False``, and outside of the main thread, the app leaves the signals to others.

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
                    if signals and gets_signals():
                        await watching.start(watch_signals, self._stop_at_signal)
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
        """:meth:`run` in an event loop of its own, that of ``backend``: the last line of a program."""
        anyio.run(self.run, backend=backend)

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
        return client._worker_of(ReceivedMessage, each.handler, each.topics, each.group, each.settings)


def _file_of(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else str(code.co_filename)


async def _call(hook: Hook) -> None:
    with foreign_cancellation_as_error():
        result = hook()
        if inspect.isawaitable(result):
            await result


def _as_handler(
    function: Callable[..., Any], name: str, deserializer: DeserializerChoice | None
) -> tuple[Handler, DeserializerChoice | None]:
    """``function`` as a handler of messages, by the annotations of its parameters, and what reads their bodies."""
    if not callable(function):
        raise TypeError(f"a handler is a function, not {function!r}"[:200])
    parameters = inspect.signature(function).parameters.values()
    wanted = [
        each for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]  # fmt: skip
    if not wanted:
        wanted = [each for each in parameters if each.kind is each.VAR_POSITIONAL]
    if not 1 <= len(wanted) <= 2:
        raise TypeError(f"{name} has {len(wanted)} parameters: a handler takes the body, the message, or both")
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise TypeError(
                f"{name} needs the keyword argument {each.name!r}, which a handler does not get: make it positional"
            )
    kinds, unknown = _annotations(function, name, needed=deserializer is None)
    is_message = [_is_message(kinds.get(each.name)) for each in wanted]
    if is_message == [False, False]:
        first, second = (each.name for each in wanted)
        _check_order(name, first, second, kinds, unknown)
        is_first = first not in kinds and kinds.get(second, Any) is not Any  # the one without annotation
        is_message = [is_first, not is_first]
    if is_message == [False] and deserializer is None and wanted[0].name not in kinds:
        is_message = [True]
    if is_message == [True, True]:
        raise TypeError(f"{name} takes the message twice: annotate one parameter with the type of the body")
    choice = deserializer
    if choice is None:
        known = [kinds.get(each.name) for each in wanted]
        of_value = [_value_of(kind) for kind, each in zip(known, is_message, strict=True) if each]
        of_body = [bytes if kind is None else kind for kind, each in zip(known, is_message, strict=True) if not each]
        kinds_of_body = [kind for kind in (*of_body, *of_value) if kind is not None]
        if len(kinds_of_body) == 2 and kinds_of_body[0] != kinds_of_body[1]:
            raise TypeError(f"{name} has two types of the body, {kinds_of_body[0]!r} and {kinds_of_body[1]!r}")
        choice = kinds_of_body[0] if kinds_of_body else None
        if choice is bytes and not any(of_value):
            choice = None
    return _calling(function, is_message, has_value=choice is not None), choice


def _annotations(
    function: Callable[..., Any], name: str, *, needed: bool
) -> tuple[dict[str, Any], dict[str, NameError]]:
    """The annotations by parameter, and why the others, which have a name that is not defined, cannot be evaluated.

    Raises TypeError for the latter if all are ``needed``.
    """
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target), {}
    except NameError as error:
        if needed:
            raise TypeError(
                f"the annotations of {name} cannot be read ({error}): define the type at the top of the module, or give"
                " @app.on(..., deserializer=...)"
            ) from None
    kinds: dict[str, Any] = {}
    unknown: dict[str, NameError] = {}
    scope = getattr(inspect.unwrap(target), "__globals__", {})
    for parameter, given in _unevaluated_annotations(target).items():
        try:
            kinds |= get_type_hints(SimpleNamespace(__annotations__={parameter: given}), scope)
        except NameError as error:
            if _names_message(given):
                kinds[parameter] = ReceivedMessage
            else:
                unknown[parameter] = error
    return kinds, unknown


def _unevaluated_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):  # which evaluates them at the first access
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return function.__annotations__


def _names_message(given: Any) -> bool:
    """Whether an annotation that cannot be evaluated is a message, such as ``ReceivedMessage[Order]``, by its name."""
    text = given if isinstance(given, str) else getattr(given, "__forward_arg__", None)
    if text is None:
        return _is_message(given)  # ReceivedMessage["Order"]
    kind = text.strip("'\" ").partition("[")[0]
    return kind.rpartition(".")[2].strip() in (ReceivedMessage.__name__, DeliveredRecord.__name__)


def _check_order(name: str, first: str, second: str, kinds: dict[str, Any], unknown: dict[str, NameError]) -> None:
    """Raise TypeError if either parameter may be the message, because an annotation cannot be evaluated."""
    is_body = first in kinds or (second not in kinds and second not in unknown)
    if not is_body and (error := unknown.get(first) or unknown.get(second)):
        raise TypeError(
            f"{name} takes the body and the message, but the annotations do not say which is which ({error}):"
            " annotate the message with ReceivedMessage"
        )


def _is_message(kind: Any) -> bool:
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, DeliveredRecord)


def _value_of(kind: Any) -> Any:
    """The type of the value of ``ReceivedMessage[Order]``; None without one."""
    arguments = get_args(kind)
    return None if not arguments or arguments[0] is Any else arguments[0]


def _calling(function: Callable[..., Any], is_message: list[bool], *, has_value: bool) -> Handler:
    if is_message == [True]:
        return function

    def arguments(message: ReceivedMessage) -> list[Any]:
        body = message.value if has_value else message.body
        return [message if each else body for each in is_message]

    async def handle(message: ReceivedMessage) -> None:
        await function(*arguments(message))

    def handle_in_thread(message: ReceivedMessage) -> Any:
        return function(*arguments(message))

    return handle if is_async(function) else handle_in_thread
