"""Programs of handlers: bodies by annotation, hooks, the stop by a signal, and lookup by name."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import msgspec
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.client.app_loading import load_app

Cluster = Callable[..., Any]


@dataclass
class Order:
    number: int


class Refund(msgspec.Struct):
    number: int


def end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.anyio
async def test_handlers_get_bodies_of_their_annotated_type(fake_cluster: Cluster) -> None:
    names = ("orders", "typed", "refunds", "texts", "raw", "whole", "packed", "listed")
    async with fake_cluster(**dict.fromkeys(names, 1)) as cluster:
        app = gantrymq.App(cluster.address)
        got: dict[str, Any] = {}

        def note(name: str, value: Any) -> None:
            got[name] = value
            if len(got) == len(names):
                end()

        @app.on("orders", group="g-orders", start="first")
        async def orders(order: Order, message: gantrymq.ReceivedMessage) -> None:
            note("orders", (order, message.body))

        @app.on("typed", group="g-typed", start="first")
        async def typed(message: gantrymq.ReceivedMessage[Order]) -> None:
            note("typed", (message.value.number, message.topic))

        @app.on("refunds", group="g-refunds", start="first", concurrency=1)
        def refunds(message: gantrymq.ReceivedMessage, refund: Refund) -> None:
            assert threading.current_thread() is not threading.main_thread()
            note("refunds", (refund, message.topic))

        @app.on("texts", group="g-texts", start="first")
        async def texts(text: str) -> None:
            note("texts", text)

        @app.on("raw", group="g-raw", start="first")
        async def raw(body: bytes) -> None:
            note("raw", body)

        @app.on("whole", group="g-whole", start="first")
        async def whole(message) -> None:  # type: ignore[no-untyped-def]
            note("whole", message.body)

        @app.on("packed", group="g-packed", start="first", deserializer="msgpack")
        async def packed(value) -> None:  # type: ignore[no-untyped-def]
            note("packed", value)

        @app.on((name for name in ["listed"]), group="g-listed", start="first")
        async def listed(value: list[int], message) -> None:  # type: ignore[no-untyped-def]
            note("listed", (value, message.queue_offset))

        for topic in ("orders", "typed", "refunds"):
            cluster.broker.store(topic, 0, b'{"number": 7}')
        for topic in ("texts", "raw", "whole"):
            cluster.broker.store(topic, 0, "größe".encode())
        cluster.broker.store("packed", 0, msgspec.msgpack.encode({"a": 1}))
        cluster.broker.store("listed", 0, b"[1, 2]")
        with anyio.fail_after(20):
            await app.run()
        assert got == {
            "orders": (Order(7), b'{"number": 7}'),
            "typed": (7, "typed"),
            "refunds": (Refund(7), "refunds"),
            "texts": "größe",
            "raw": "größe".encode(),
            "whole": "größe".encode(),
            "packed": {"a": 1},
            "listed": ([1, 2], 0),
        }
        assert {cluster.broker.offsets[f"g-{name}", name, 0] for name in names} == {1}


@pytest.mark.anyio
async def test_a_model_of_pydantic_is_a_body(fake_cluster: Cluster) -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", number=(int, ...))
    async with fake_cluster(T=1) as cluster:
        app = gantrymq.App(cluster.address)
        got: list[Any] = []

        @app.on("T", group="g", start="first", deserializer=model)
        async def handle(order: Any) -> None:
            got.append(order)
            end()

        cluster.broker.store("T", 0, b'{"number": "7"}')
        with anyio.fail_after(20):
            await app.run()
        assert got == [model(number=7)]


@pytest.mark.anyio
async def test_a_body_that_cannot_be_read_is_a_dead_letter_and_the_next_message_is_handled(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        app = gantrymq.App(cluster.address)
        got: list[Order] = []

        @app.on("T", group="g", start="first", concurrency=1)
        async def handle(order: Order) -> None:
            got.append(order)
            await cluster.broker.wait_for(36)
            end()

        cluster.broker.store("T", 0, b'{"number": "seven"}')
        cluster.broker.store("T", 0, b'{"number": 8}')
        with anyio.fail_after(20):
            await app.run()
        assert got == [Order(8)]
        assert [back.ext["delayLevel"] for back in cluster.broker.seen(36)] == ["-1"]
    assert "message_body_unreadable" in caplog.text
    assert "Expected `int`, got `str`" in caplog.text


@pytest.mark.anyio
async def test_startup_and_shutdown_hooks_run_around_the_handlers_with_the_client(
    fake_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(T=1, U=1) as cluster:
        app = gantrymq.App(cluster.address)
        events: list[str] = []
        producers: list[gantrymq.Producer] = []

        @app.on_startup
        async def open_producer() -> None:
            events.append("start")
            producers.append(await app.client.producer().start())

        @app.on_shutdown
        def last() -> None:
            events.append("last")

        @app.on_shutdown
        async def fail() -> None:
            events.append("fail")
            raise ZeroDivisionError

        @app.on("T", group="g", start="first")
        async def handle(text: str) -> None:
            events.append(text)
            await producers[0].send("U", b"done")
            app.stop()

        cluster.broker.store("T", 0, b"x")
        for _ in range(2):  # an app may run again
            with anyio.fail_after(20):
                await app.run(signals=False)
            cluster.broker.store("T", 0, b"x")
            producers.clear()
        assert events == ["start", "x", "fail", "last"] * 2
        with pytest.raises(gantrymq.ClientClosed, match="does not run"):
            _ = app.client
        assert len(cluster.broker.queues["U", 0]) == 2
    assert "shutdown_hook_failed" in caplog.text


@pytest.mark.anyio
async def test_a_hook_that_fails_at_the_start_ends_the_app_before_any_message(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        app = gantrymq.App(cluster.address)
        ended: list[bool] = []
        app.on("T", group="g")(print)
        app.on_shutdown(partial(ended.append, True))

        @app.on_startup
        def fail() -> None:
            raise ZeroDivisionError

        with anyio.fail_after(20), pytest.raises(ZeroDivisionError):
            await app.run()
        assert ended == [True]
        assert cluster.broker.seen(11) == []


@pytest.mark.anyio
async def test_a_signal_during_the_start_ends_the_app_before_any_message(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        app = gantrymq.App(cluster.address)
        app.on("T", group="g")(print)

        @app.on_startup
        async def slow() -> None:
            end()
            while not app._stopped:  # noqa: ASYNC110 - the signal comes when it comes
                await anyio.sleep(0.01)

        with anyio.fail_after(20):
            await app.run()
        assert cluster.broker.seen(11) == []


@pytest.mark.anyio
async def test_a_plain_handler_sends_its_message_back_and_another_one_out(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, U=1) as cluster:
        cluster.broker.answers[36] = lambda request: request.answer(0)
        app = gantrymq.App(cluster.address)
        producers: list[gantrymq.Producer] = []

        @app.on_startup
        async def open_producer() -> None:
            producers.append(await app.client.producer().start())

        @app.on("T", group="g", start="first")
        def handle(text: str, message: gantrymq.sync.ReceivedMessage) -> None:
            assert isinstance(message, gantrymq.ReceivedMessage)
            assert isinstance(message, gantrymq.sync.ReceivedMessage)
            message.retry(3)
            anyio.from_thread.run(producers[0].send, "U", text.encode())
            app.stop()

        cluster.broker.store("T", 0, b"x")
        with anyio.fail_after(20):
            await app.run(signals=False)
        assert [back.ext["delayLevel"] for back in cluster.broker.seen(36)] == ["3"]
        assert len(cluster.broker.queues["U", 0]) == 1


@pytest.mark.anyio
async def test_a_plain_handler_stops_the_app_from_its_thread(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        app = gantrymq.App(cluster.address)

        @app.on("T", group="g", start="first", concurrency=4)
        def handle(text: str) -> None:
            assert threading.current_thread() is not threading.main_thread()
            app.stop()

        cluster.broker.store("T", 0, b"x")
        with anyio.fail_after(20):
            await app.run(signals=False)
        assert cluster.broker.seen(36) == []
        assert cluster.broker.offsets["g", "T", 0] == 1


@pytest.mark.anyio
async def test_a_thread_of_the_users_own_stops_the_app(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1) as cluster:
        app = gantrymq.App(cluster.address)
        app.on("T", group="g")(print)
        app.on_startup(lambda: threading.Timer(0.1, app.stop).start())
        with anyio.fail_after(20):
            await app.run(signals=False)
        app.stop()  # without effect


@pytest.mark.anyio
async def test_a_refused_handler_ends_the_app_and_the_others_drain(fake_cluster: Cluster) -> None:
    async with fake_cluster(T=1, U=1) as cluster:
        app = gantrymq.App(cluster.address)
        handled = anyio.Event()
        pull = cluster.broker.on_pull_message

        async def refuse(request: Any) -> Any:
            if request.ext["topic"] != "U":
                return await pull(request)
            await handled.wait()
            return request.answer(1, "org.apache.rocketmq.acl.common.AclException: No default permission for U, org")

        cluster.broker.answers[11] = refuse
        cluster.broker.store("T", 0, b"x")
        app.on("U", group="refused", start="first")(print)

        @app.on("T", group="g", start="first")
        async def handle(text: str) -> None:
            handled.set()
            await anyio.wait_all_tasks_blocked()

        with anyio.fail_after(20), pytest.raises(gantrymq.AccessDenied):
            await app.run()
        assert cluster.broker.offsets["g", "T", 0] == 1


@pytest.mark.anyio
async def test_an_app_without_handlers_or_nameserver_raises(
    fake_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(gantrymq.GantryError, match="no handlers"):
        await gantrymq.App("127.0.0.1:1").run()
    app = gantrymq.App()
    app.on("T", group="g")(print)
    with pytest.raises(ValueError, match="no nameserver given"):
        await app.run()
    app = gantrymq.App("127.0.0.1:1")
    app.on("T", group="g")(print)
    with pytest.raises(gantrymq.ConnectFailed, match="no nameserver can be reached"):
        await app.run()
    async with fake_cluster(T=1) as cluster, anyio.create_task_group() as tasks:
        app = gantrymq.App(cluster.address)
        app.on("T", group="g")(print)
        tasks.start_soon(app.run)
        await cluster.broker.wait_for(11)
        with pytest.raises(gantrymq.GantryError, match="runs already"):
            await app.run()
        app.stop()


def no_parameter() -> None: ...
def three(a: str, b: str, c: str) -> None: ...
def message_alone(message: gantrymq.ReceivedMessage) -> None: ...
def twice(one: gantrymq.ReceivedMessage, two: gantrymq.ReceivedMessage) -> None: ...
def of_two_types(body: Refund, message: gantrymq.ReceivedMessage[Order]) -> None: ...
def with_keyword(body: str, *, message: gantrymq.ReceivedMessage, wait: float = 0) -> None: ...
def of_no_json(body: list[threading.Thread]) -> None: ...


@pytest.mark.parametrize(
    ("topics", "options", "function", "error", "text"),
    [
        ("T", {"group": "g"}, no_parameter, TypeError, "no_parameter has 0 parameters"),
        ("T", {"group": "g"}, three, TypeError, "three has 3 parameters"),
        (
            "T",
            {"group": "g"},
            with_keyword,
            TypeError,
            "with_keyword needs the keyword argument 'message', which a handler does not get: make it positional",
        ),
        ("T", {"group": "g"}, twice, TypeError, "takes the message twice"),
        (
            "T",
            {"group": "g"},
            of_two_types,
            TypeError,
            "of_two_types has two types of the body, .*Refund.* and .*Order",
        ),
        ("T", {"group": "g", "bad_bodies": "skip"}, print, ValueError, "bad_bodies 'skip'"),
        ("T", {"group": "g"}, of_no_json, TypeError, "of_no_json: .*Thread"),
        ("T", {"group": "g", "deserializer": "xml"}, print, ValueError, "'xml'"),
        ("T", {"group": "g"}, "handler", TypeError, "a handler is a function, not 'handler'"),
        ("T", {"group": "g", "workers": 3}, print, TypeError, "no option 'workers': allocation, bad_bodies, broadcast"),
        ("T", {"group": "g", "concurrency": 0}, print, ValueError, "concurrency 0"),
        ("T", {"group": "g", "ordered": "all"}, print, ValueError, "ordered 'all'"),
        ("T", {"group": "g", "start": "now"}, print, ValueError, "start 'now'"),
        ("T", {"group": "g", "tags": 3}, print, ValueError, "tags of topic T"),
        ("T", {"group": "a b"}, print, ValueError, "a b"),
        ([], {"group": "g"}, print, ValueError, "at least one topic"),
        ("U", {"group": "taken"}, print, ValueError, "group taken has the handler message_alone"),
    ],
)
def test_invalid_handlers_are_rejected_at_once(
    topics: Any, options: dict[str, Any], function: Any, error: type[Exception], text: str
) -> None:
    app = gantrymq.App("127.0.0.1:9876")
    app.on("T", group="taken")(message_alone)
    with pytest.raises(error, match=text):
        app.on(topics, **options)(function)


def test_a_second_topic_of_a_group_on_top_of_the_first_is_rejected() -> None:
    app = gantrymq.App("127.0.0.1:9876")
    with pytest.raises(ValueError, match="group g has the handler message_alone"):
        app.on("orders", group="g")(app.on("refunds", group="g")(message_alone))

    @app.on("orders", group="other")
    @app.on("refunds", group="third")
    async def handle(message: gantrymq.ReceivedMessage) -> None: ...

    with pytest.raises(ValueError, match="group other has the handler handle"):
        app.on("T", group="other")


def test_a_type_that_is_not_at_the_top_of_the_module_can_be_given_as_an_option() -> None:
    @dataclass
    class Local:
        number: int

    def handle(body: Local) -> None: ...

    app = gantrymq.App("127.0.0.1:9876")
    with pytest.raises(TypeError, match="define the type at the top of the module"):
        app.on("T", group="g")(handle)
    app.on("T", group="g", deserializer=Local)(handle)


if TYPE_CHECKING:
    from decimal import Decimal as Hidden

    from gantrymq import ReceivedMessage

Received = gantrymq.ReceivedMessage


def message_first(message: gantrymq.ReceivedMessage, body: Hidden) -> Any:
    return message, body


def message_last(body: Hidden, message: gantrymq.ReceivedMessage) -> Any:
    return message, body


def hidden_message_first(message: ReceivedMessage, body: dict[str, int]) -> Any:
    return message, body


def message_of_hidden_first(message: gantrymq.ReceivedMessage[Hidden], body: Hidden) -> Any:
    return message, body


def quoted_message_first(message: "ReceivedMessage[Hidden]", body: "Hidden") -> Any:  # noqa: UP037
    return message, body


def hidden_message_last(body: dict[str, int], message: Hidden) -> Any:
    return message, body


def message_without_annotation(body: Hidden, message) -> Any:  # type: ignore[no-untyped-def]
    return message, body


def hidden_result(message: Received, body: dict[str, int]) -> Hidden:
    return message, body  # type: ignore[return-value]


def hidden_message_alone(message: ReceivedMessage[Hidden]) -> Any:
    return message, message.value


def hidden_body_alone(body: Hidden) -> Any:
    return MESSAGE, body


def hidden_twice(one: Hidden, two: Hidden) -> None: ...
def hidden_first(one: Hidden, two: dict[str, int]) -> None: ...
def hidden_last(one, two: Hidden) -> None: ...  # type: ignore[no-untyped-def]


MESSAGE: Any = SimpleNamespace(body=b"7", value=7)


@pytest.mark.parametrize(
    "function",
    [
        message_first, message_last, hidden_message_first, message_of_hidden_first, quoted_message_first,
        hidden_message_last, message_without_annotation, hidden_result, hidden_message_alone, hidden_body_alone,
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_evaluated_does_not_swap_the_arguments(function: Callable[..., Any]) -> None:
    app = gantrymq.App("127.0.0.1:9876")
    app.on("T", group="g", deserializer="json")(function)
    assert app._registered["g"].handler(MESSAGE) == (MESSAGE, 7)


@pytest.mark.parametrize("deserializer", [None, "json"])
def test_the_parameter_without_annotation_is_the_message(deserializer: Any) -> None:
    def first(message, body: int) -> Any:  # type: ignore[no-untyped-def]
        return message, body

    def second(body: int, message) -> Any:  # type: ignore[no-untyped-def]
        return message, body

    def neither(body, message):  # type: ignore[no-untyped-def]
        return message, body

    for function in (first, second, neither):
        app = gantrymq.App("127.0.0.1:9876")
        app.on("T", group="g", deserializer=deserializer)(function)
        body = b"7" if function is neither and deserializer is None else 7
        assert app._registered["g"].handler(MESSAGE) == (MESSAGE, body)


@pytest.mark.parametrize("function", [hidden_twice, hidden_first, hidden_last])
def test_two_parameters_of_which_none_is_known_to_be_the_message_are_rejected(function: Callable[..., Any]) -> None:
    app = gantrymq.App("127.0.0.1:9876")
    with pytest.raises(TypeError, match=r"hidden_.*'Hidden' is not defined.*annotate the message with Received"):
        app.on("T", group="g", deserializer="json")(function)


def test_an_app_has_the_arguments_of_connect_and_the_options_of_run() -> None:
    def of(function: Callable[..., Any]) -> dict[str, Any]:
        return {key: each.default for key, each in inspect.signature(function).parameters.items() if key != "self"}

    assert of(gantrymq.App) == of(gantrymq.connect)
    own = {"handler", "topics", "group", "signals"}
    options = {key: default for key, default in of(gantrymq.Client.run).items() if key not in own}
    assert options == {key: default for key, default in of(gantrymq.App.on).items() if key not in own}
    of_worker = {"concurrency": 16, "drain_timeout": 30.0}
    consumer = {key: default for key, default in of(gantrymq.Client.consumer).items() if key not in own}
    assert options == {**consumer, **of_worker}
    assert {"ordered": False, "pull_batch": 512, "start": "last", "deserializer": None}.items() <= consumer.items()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("shop", "'shop' does not name an app: give module:name"),
        ("a-b:app", "does not name an app"),
        ("no_such_shop:app", "there is no module 'no_such_shop' in"),
        ("shop.no_such:app", "there is no module 'shop"),
        ("broken:app", r"the import of broken failed: NameError: name 'oops' is not defined \(.*broken.py, line 2\)"),
        ("lacking:app", "the import of lacking failed: ModuleNotFoundError: No module named 'no_such_library'"),
        ("shop:orders", "shop has no name 'orders': did you mean shop:app?"),
        ("shop:number", "shop has int, not gantrymq.App, as 'number': did you mean shop:app?"),
        ("empty:app", "make one with"),
    ],
)
def test_an_app_that_cannot_be_imported_is_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str
) -> None:
    (tmp_path / "shop.py").write_text("import gantrymq\napp = gantrymq.App('127.0.0.1:9876')\nnumber = 7\n")
    (tmp_path / "broken.py").write_text("import gantrymq\noops\n")
    (tmp_path / "lacking.py").write_text("import no_such_library\n")
    (tmp_path / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("shop", "broken", "lacking", "empty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(gantrymq.GantryError, match=text.replace("?", r"\?")):
        load_app(place)
    for name in ("shop", "broken", "lacking", "empty"):
        sys.modules.pop(name, None)
