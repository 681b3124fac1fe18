"""Plugins that raise, return nonsense or hang are logged, others keep working, and the store stays intact."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.errors import PluginError, StartError, TaskFailed
from gantrymq.kernel.expiry import drop_before
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import pull, send


class Bug(Exception):
    """The exception of a bad plugin."""


def plugin(hook_name: str, arguments: tuple[str, ...], body: Callable[..., Any]) -> type:
    """A plugin class ``Bad`` with one hook that calls ``body`` with its arguments."""
    source = f"def {hook_name}(self, {', '.join(arguments)}):\n    return body({', '.join(arguments)})"
    space: dict[str, Any] = {"body": body}
    exec(source, space)
    return type("Bad", (), {"name": "bad", hook_name: hookimpl(space[hook_name])})


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Install a plugin with one hook; returns the name under which it is enabled."""

    def install(hook_name: str, arguments: tuple[str, ...], body: Callable[..., Any]) -> str:
        module = types.ModuleType("gantrymq_bad_plugin")
        module.Bad = plugin(hook_name, arguments, body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return "gantrymq_bad_plugin:Bad"

    return install


def fail(*arguments: Any) -> Any:
    raise Bug("a bug")


PLACE = r"Bug\('a bug'\) at .*/test_bad_plugins\.py:\d+; --disable bad starts the broker without it"


async def call(channel: Channel, command: Command) -> Command:
    return await channel.call(command, 5.0)


async def bodies(broker: Broker) -> list[bytes]:
    async with open_channel(broker.address) as channel:
        answer = await call(channel, pull("T"))
    return [record.body for record in decode_records(answer.body)]


async def store_works(folder: Path, expected: list[bytes]) -> None:
    """Without the plugin the broker starts on the same store, and holds what was acknowledged."""
    async with run_broker(make_broker(folder)) as broker:
        async with open_channel(broker.address) as channel:
            assert (await call(channel, send("T", b"last"))).code == 0
        found = await bodies(broker)
    assert found[: len(expected)] == expected
    assert found[-1] == b"last"


ONCE = {
    "configure": ("broker", "config"),
    "make_flush_strategy": ("log", "config"),
    "register_ack_gates": ("broker",),
    "register_processors": ("broker",),
    "register_filters": ("broker",),
    "register_tasks": ("broker",),
    "started": ("broker",),
}


@pytest.mark.trio
@pytest.mark.parametrize("hook_name", ONCE)
async def test_a_plugin_that_raises_at_the_start_is_named_and_the_store_is_unharmed(
    hook_name: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    disable = ["flush"] if hook_name == "make_flush_strategy" else []
    broker = make_broker(tmp_path, enable=[bad(hook_name, ONCE[hook_name], fail)], disable=disable)
    with pytest.RaisesGroup(
        pytest.RaisesExc(StartError, match=f"plugin 'bad': {hook_name} failed: Bug"), allow_unwrapped=True,
        flatten_subgroups=True,
    ):  # fmt: skip
        await broker.run()
    await store_works(tmp_path, [])


NONSENSE: dict[str, Any] = {
    "make_flush_strategy": "soon",
    "register_ack_gates": 5,
    "register_processors": ["not a table"],
    "register_filters": "TAG",
    "register_tasks": [None],
}


@pytest.mark.trio
@pytest.mark.parametrize("hook_name", NONSENSE)
async def test_a_plugin_that_returns_a_wrong_type_at_the_start_is_named(
    hook_name: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad(hook_name, ONCE[hook_name], lambda *arguments: NONSENSE[hook_name])
    disable = ["flush"] if hook_name == "make_flush_strategy" else []
    with pytest.raises(StartError, match="plugin 'bad'"):
        await make_broker(tmp_path, enable=[enable], disable=disable).run()
    await store_works(tmp_path, [])


@pytest.mark.parametrize("answer", [None, "section", ("a", int), ("flush", dict), 7])
def test_an_invalid_configuration_section_stops_the_start_and_names_the_plugin(
    answer: Any, bad: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="bad"):
        make_broker(tmp_path, enable=[bad("config_section", (), lambda: answer)])


def test_a_configuration_section_that_raises_stops_the_start_and_names_the_plugin(
    bad: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="plugin 'bad': config_section failed: Bug"):
        make_broker(tmp_path, enable=[bad("config_section", (), fail)])


@pytest.mark.trio
@pytest.mark.parametrize("hook_name", ["before_append", "dispatch"])
async def test_a_plugin_that_raises_on_the_write_path_stops_the_broker_and_is_named(
    hook_name: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    def fail_late(batch: Any) -> None:
        if b"poison" in getattr(batch, "bodies", [b"poison"]) and (hook_name == "before_append" or batch.start > 0):
            raise Bug("a bug")

    broker = make_broker(tmp_path, enable=[bad(hook_name, ("batch",), fail_late)])
    answers: list[int] = []

    async def life() -> None:
        async with run_broker(broker), open_channel(broker.address) as channel:
            answers.append((await call(channel, send("T", b"good"))).code)
            answers.append((await call(channel, send("T", b"poison"))).code)

    with pytest.RaisesGroup(
        pytest.RaisesExc(PluginError, match=f"plugin 'bad': {hook_name} failed: {PLACE}"), flatten_subgroups=True
    ):
        with structlog.testing.capture_logs() as lines:
            await life()
    logged = [(line["plugin"], line["hook"]) for line in lines if line["event"] == "plugin_failed"]
    assert logged[0] == ("bad", hook_name)
    assert isinstance(next(line["exc_info"] for line in lines if line["event"] == "plugin_failed"), Bug)
    # ``dispatch`` runs behind the response: the message is stored, and the next start dispatches it again
    stored = {"before_append": [b"good"], "dispatch": [b"good", b"poison"]}[hook_name]
    assert answers == [0] * len(stored)
    await store_works(tmp_path, stored)


@pytest.mark.trio
async def test_a_start_that_fails_in_dispatch_explains_how_to_disable_the_plugin(
    bad: Callable[..., str], tmp_path: Path
) -> None:
    """A bug that the log brings back at each start."""
    enable = bad("dispatch", ("batch",), fail)
    for _ in range(2):
        with pytest.RaisesGroup(
            pytest.RaisesExc(PluginError, match=f"plugin 'bad': dispatch failed: {PLACE}"),
            allow_unwrapped=True,
            flatten_subgroups=True,
        ):
            async with run_broker(make_broker(tmp_path, enable=[enable])) as broker:
                async with open_channel(broker.address) as channel:
                    await call(channel, send("T", b"x"))
    async with run_broker(make_broker(tmp_path, enable=[enable], disable=["bad"])) as broker:
        async with open_channel(broker.address) as channel:
            assert (await call(channel, send("T", b"y"))).code == 0


@pytest.mark.trio
@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT])
async def test_a_refusal_with_a_success_code_is_an_error_of_the_plugin(
    code: int, bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad("before_append", ("batch",), lambda batch: batch.refuse(0, code, "have it already"))
    with pytest.RaisesGroup(
        pytest.RaisesExc(PluginError, match=f"plugin 'bad': before_append failed: .*refused with code {int(code)}, "),
        flatten_subgroups=True,
    ):
        async with run_broker(make_broker(tmp_path, enable=[enable])) as broker:
            async with open_channel(broker.address) as channel:
                await call(channel, send("T", b"x"))
    await store_works(tmp_path, [])


@pytest.mark.trio
@pytest.mark.parametrize("hook_name", ["before_append", "dispatch"])
@pytest.mark.parametrize(("key", "calls"), [("skip_errors", 3), ("disable_on_error", 1)])
async def test_plugins_with_policy_skip_or_disable_do_not_stop_the_broker(
    key: str, calls: int, hook_name: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    called = []

    def count(batch: Any) -> None:
        called.append(len(batch))
        raise Bug("a bug")

    enable = bad(hook_name, ("batch",), count)
    with structlog.testing.capture_logs() as lines:
        async with (
            run_broker(make_broker(tmp_path, enable=[enable], settings={f"plugins.{key}": "bad"})) as broker,
            open_channel(broker.address) as channel,
        ):
            for number in range(3):
                assert (await call(channel, send("T", b"%d" % number))).code == 0
            assert await bodies(broker) == [b"0", b"1", b"2"]
    assert len(called) == calls
    logged = [(line["plugin"], line["hook"], line["disabled"]) for line in lines if line["event"] == "plugin_failed"]
    assert logged == [("bad", hook_name, calls == 1)] * calls


def a_second_plugin(hook_name: str, hook: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a plugin ``second`` with the hook; returns the name under which it is enabled."""
    module = types.ModuleType("gantrymq_second_plugin")
    module.Second = type("Second", (), {"name": "second", hook_name: hook})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return "gantrymq_second_plugin:Second"


@pytest.mark.trio
@pytest.mark.parametrize("hook_name", ["before_append", "dispatch"])
async def test_errors_are_skipped_beside_a_plugin_that_does_not_take_the_batch(
    hook_name: str, bad: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def count(self: Any) -> None:
        called.append("second")

    def count_and_fail(batch: Any) -> None:
        called.append("bad")
        raise Bug("a bug")

    enable = [bad(hook_name, ("batch",), count_and_fail), a_second_plugin(hook_name, hookimpl(count), monkeypatch)]
    sys.modules["gantrymq_bad_plugin"].Bad.on_error = "skip"
    async with run_broker(make_broker(tmp_path, enable=enable)) as broker, open_channel(broker.address) as channel:
        assert (await call(channel, send("T", b"x"))).code == 0
        assert await bodies(broker) == [b"x"]
    assert called == ["bad", "second"]


@pytest.mark.parametrize("hook_name", ["before_append", "dispatch"])
def test_errors_that_a_wrapper_prevents_from_being_skipped_stop_the_start_with_advice(
    hook_name: str, bad: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrap(self: Any) -> Any:
        return (yield)

    enable = [bad(hook_name, ("batch",), fail), a_second_plugin(hook_name, hookimpl(wrapper=True)(wrap), monkeypatch)]
    sys.modules["gantrymq_bad_plugin"].Bad.on_error = "skip"
    error = f"plugin 'second' wraps {hook_name}, so errors of 'bad' cannot be skipped there .*; --disable one of them"
    with pytest.raises(StartError, match=error):
        make_broker(tmp_path, enable=enable)


TASK_ERRORS = pytest.mark.parametrize(
    "error", [Bug("a bug"), ConnectionRefusedError(111, "refused"), ExceptionGroup("of a nursery", [OSError(111, "x")])]
)


@pytest.mark.trio
@TASK_ERRORS
async def test_a_failed_background_task_with_policy_skip_ends_alone(
    error: Exception, bad: Callable[..., str], tmp_path: Path
) -> None:
    async def run() -> None:
        raise error

    enable = bad("register_tasks", ("broker",), lambda broker: [BackgroundTask("bad.work", run)])
    with structlog.testing.capture_logs() as lines:
        async with (
            run_broker(make_broker(tmp_path, enable=[enable], settings={"plugins.skip_errors": "bad"})) as broker,
            open_channel(broker.address) as channel,
        ):
            assert (await call(channel, send("T", b"x"))).code == 0
    assert [(line["plugin"], line["task"]) for line in lines if line["event"] == "plugin_failed"] == [
        ("bad", "bad.work")
    ]


@pytest.mark.trio
@TASK_ERRORS
async def test_errors_of_background_tasks_are_logged_with_their_plugin(
    error: Exception, bad: Callable[..., str], tmp_path: Path
) -> None:
    async def run() -> None:
        raise error

    enable = bad("register_tasks", ("broker",), lambda broker: [BackgroundTask("bad.work", run)])
    with structlog.testing.capture_logs() as lines, pytest.raises(ExceptionGroup):
        async with run_broker(make_broker(tmp_path, enable=[enable])):
            await trio.sleep_forever()
    logged = [(line["plugin"], line["task"]) for line in lines if line["event"] == "task_failed"]
    assert logged == [("bad", "bad.work")]


@pytest.mark.trio
async def test_a_stop_logs_the_background_tasks_that_do_not_end(
    bad: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gantrymq.kernel.broker.LATE_TASKS_S", 0.01)
    release = threading.Event()

    async def blocking() -> None:
        await trio.to_thread.run_sync(release.wait, 20)

    tasks = [BackgroundTask("bad.blocking", blocking), BackgroundTask("bad.waiting", trio.sleep_forever)]
    enable = bad("register_tasks", ("broker",), lambda broker: tasks)

    async def release_when_logged() -> None:
        while not any(line["event"] == "tasks_do_not_end" for line in lines):  # noqa: ASYNC110 - a list has no event
            await trio.sleep(0.01)
        release.set()

    with structlog.testing.capture_logs() as lines, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with run_broker(make_broker(tmp_path, enable=[enable])) as broker:
                assert broker.manager.activity.tasks["bad"] == {"bad.blocking": "running", "bad.waiting": "running"}
                nursery.start_soon(release_when_logged)
    named = [line["tasks"] for line in lines if line["event"] == "tasks_do_not_end"]
    assert [each["bad"] for each in named] == [["bad.blocking"]]
    assert broker.manager.activity.tasks["bad"] == {"bad.blocking": "ended", "bad.waiting": "ended"}


@pytest.mark.trio
@pytest.mark.parametrize(
    ("own", "setting", "goes_on"), [("skip", None, True), ("stop", "bad", True), (None, None, False)]
)
async def test_the_users_error_policy_overrides_that_of_the_plugin(
    own: str | None, setting: str | None, goes_on: bool, bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad("before_append", ("batch",), fail)
    if own is not None:
        sys.modules["gantrymq_bad_plugin"].Bad.on_error = own
    settings = {} if setting is None else {"plugins.skip_errors": setting}
    stopped = False
    try:
        async with run_broker(make_broker(tmp_path, enable=[enable], settings=settings)) as broker:
            async with open_channel(broker.address) as channel:
                await call(channel, send("T", b"x"))
    except* PluginError:
        stopped = True
    assert stopped is not goes_on
    await store_works(tmp_path, [b"x"] if goes_on else [])


@pytest.mark.parametrize(
    ("settings", "own", "reported"),
    [
        ({"plugins.skip_errors": "produce"}, None, "plugins.skip_errors: 'produce' is essential"),
        ({"plugins.disable_on_error": "bda"}, None, "no plugin 'bda' is loaded; did you mean 'bad'"),
        ({}, "ignore", "on_error = 'ignore' must be 'stop', 'skip' or 'disable'"),
    ],
)
def test_an_invalid_error_policy_stops_the_start(
    settings: dict[str, str], own: str | None, reported: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad("before_append", ("batch",), fail)
    if own is not None:
        sys.modules["gantrymq_bad_plugin"].Bad.on_error = own
    with pytest.raises(StartError, match=reported):
        make_broker(tmp_path, enable=[enable], settings=settings)


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("batch", "extra"), r"the hook before_append has no argument 'extra'; write before_append\(self, batch\)"),
        (("bach",), r"the hook before_append has no argument 'bach'; did you mean 'batch'\?; write before_append"),
    ],
)
def test_a_hook_with_a_wrong_argument_gets_an_error_with_the_valid_ones(
    arguments: tuple[str, ...], reported: str, bad: Callable[..., str], tmp_path: Path
) -> None:
    with pytest.raises(StartError, match=rf"plugin 'bad' \(gantrymq_bad_plugin:Bad\): {reported}"):
        make_broker(tmp_path, enable=[bad("before_append", arguments, fail)])


@pytest.mark.trio
@pytest.mark.parametrize(
    ("hook_name", "arguments"),
    [
        ("appended", ("batch",)),
        ("acked", ("batch",)),
        ("connections_changed", ("batch",)),
        ("hold_pulls", ("batch",)),
        ("persist", ("broker",)),
        ("stopping", ("broker",)),
    ],
)
async def test_an_error_outside_the_write_path_affects_that_plugin_only(
    hook_name: str, arguments: tuple[str, ...], bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad(hook_name, arguments, fail)
    settings = {"broker.persist_interval": "20ms"}
    with structlog.testing.capture_logs() as lines:
        disable = ["longpoll"] if hook_name == "hold_pulls" else []
        async with run_broker(make_broker(tmp_path, enable=[enable], disable=disable, settings=settings)) as broker:
            for number in range(3):
                async with open_channel(broker.address) as channel:
                    assert (await call(channel, send("T", b"%d" % number))).code == 0
                    answer = await call(channel, pull("T", 0, number + 1, suspend_ms=100))
                    assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert await bodies(broker) == [b"0", b"1", b"2"]
    logged = [line for line in lines if line["log_level"] == "error"]
    assert logged
    assert all(line.get("plugin") == "bad" for line in logged), logged
    assert not (tmp_path / "abort").exists(), "it stops in order"
    await store_works(tmp_path, [b"0", b"1", b"2"])


@pytest.mark.trio
async def test_errors_of_hold_pulls_are_all_counted_and_logged_once(bad: Callable[..., str], tmp_path: Path) -> None:
    def resume_and_fail(batch: Any) -> None:
        batch.resume(batch.rows)
        raise Bug("a bug")

    enable = bad("hold_pulls", ("batch",), resume_and_fail)
    with structlog.testing.capture_logs() as lines:
        async with (
            run_broker(make_broker(tmp_path, enable=[enable], disable=["longpoll"])) as broker,
            open_channel(broker.address) as channel,
        ):
            assert (await call(channel, send("T", b"x"))).code == 0
            for _ in range(5):
                answer = await call(channel, pull("T", 0, 1, suspend_ms=60_000))
                assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert broker.manager.activity.errors["bad"]["hold_pulls"].count == 5
    logged = [line for line in lines if line["log_level"] == "error"]
    assert [(line["event"], line["plugin"], line["hook"]) for line in logged] == [
        ("plugin_failed", "bad", "hold_pulls")
    ]


@pytest.mark.trio
@pytest.mark.parametrize(
    "files",
    [lambda path: {path: "text"}, lambda path: {f"{path}\0": b"x"}, lambda path: {1: b"x"}, lambda path: [path]],
    ids=["text", "NUL in the path", "a descriptor as path", "a list"],
)
async def test_wrong_results_of_persist_are_logged_and_the_broker_stops_in_order(
    files: Callable[[str], Any], bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad("persist", ("broker",), lambda broker: files(f"{broker.root}/config/x"))
    settings = {"broker.persist_interval": "20ms"}
    with structlog.testing.capture_logs() as lines:
        async with (
            run_broker(make_broker(tmp_path, enable=[enable], settings=settings)) as broker,
            open_channel(broker.address) as channel,
        ):
            for number in range(3):
                assert (await call(channel, send("T", b"%d" % number))).code == 0
                await trio.sleep(0.03)
    logged = [(line["event"], line["plugin"]) for line in lines if line["log_level"] == "error"]
    assert set(logged) == {("persist_failed", "bad")}
    assert not (tmp_path / "abort").exists(), "it stops in order"
    await store_works(tmp_path, [b"0", b"1", b"2"])


@pytest.mark.trio
async def test_no_file_expires_if_retention_floor_returns_no_offset(bad: Callable[..., str], tmp_path: Path) -> None:
    enable = bad("retention_floor", ("broker",), lambda broker: None)
    settings = {"store.commit_log_file_bytes": "64 KiB", "store.max_message_bytes": "32 KiB"}
    with structlog.testing.capture_logs() as lines:
        async with (
            run_broker(make_broker(tmp_path, enable=[enable], settings=settings)) as broker,
            open_channel(broker.address) as channel,
        ):
            for _ in range(4):
                assert (await call(channel, send("T", bytes(30_000)))).code == 0
            expired = await drop_before(broker, broker.log.segments.file_bytes)
            assert (expired.files, expired.holder, broker.log.min_offset) == (0, "bad", 0)
            expired = await drop_before(broker, 0, broker.log.segments.file_bytes)
            assert expired.holder == "bad", "it is counted every few seconds, and not logged again"
            assert (await call(channel, send("T", b"last"))).code == 0
    logged = [(line["event"], line["plugin"]) for line in lines if line["log_level"] == "error"]
    assert logged == [("retention_floor_failed", "bad")]


@pytest.mark.trio
async def test_an_error_while_registering_affects_the_registration_and_not_the_broker(
    bad: Callable[..., str], tmp_path: Path
) -> None:
    enable = bad("advertise", ("broker",), fail)
    with structlog.testing.capture_logs() as lines:
        async with run_cluster(tmp_path, enable=[enable]) as cluster, open_channel(cluster.address) as channel:
            assert (await call(channel, send("T", b"x"))).code == 0
    assert {line["plugin"] for line in lines if line.get("hook") == "advertise"} == {"bad"}


@pytest.mark.trio
async def test_a_background_task_that_raises_stops_the_broker_and_is_named(
    bad: Callable[..., str], tmp_path: Path
) -> None:
    due = trio.Event()

    async def run() -> None:
        await due.wait()
        raise Bug("a bug")

    enable = bad("register_tasks", ("broker",), lambda broker: [BackgroundTask("bad.work", run)])

    async def life() -> None:
        async with run_broker(make_broker(tmp_path, enable=[enable])) as broker:
            async with open_channel(broker.address) as channel:
                assert (await call(channel, send("T", b"x"))).code == 0
            due.set()
            await trio.sleep_forever()

    with (
        structlog.testing.capture_logs() as lines,
        pytest.RaisesGroup(
            pytest.RaisesExc(TaskFailed, match=f"plugin 'bad': its background task 'bad.work' failed: {PLACE}"),
            flatten_subgroups=True,
        ),
    ):
        await life()
    logged = [(line["plugin"], line["task"]) for line in lines if line["event"] == "task_failed"]
    assert logged == [("bad", "bad.work")]
    assert not (tmp_path / "abort").exists()
    await store_works(tmp_path, [b"x"])


@pytest.mark.trio
@pytest.mark.parametrize("answer", [7, "text", b"bytes", object()])
async def test_a_processor_that_returns_a_wrong_type_fails_its_request_only(
    answer: object, bad: Callable[..., str], tmp_path: Path, logged: list[Any]
) -> None:
    async def later(request: Any) -> Any:
        return answer

    table = {1234: lambda request: answer, 1235: later}
    enable = bad("register_processors", ("broker",), lambda broker: table)
    async with run_broker(make_broker(tmp_path, enable=[enable])) as broker, open_channel(broker.address) as channel:
        assert (await call(channel, Command(1234))).code == 1
        assert (await call(channel, Command(1235))).code == 1
        assert (await call(channel, send("T", b"x"))).code == 0
    assert [line["code"] for line in logged if line["event"] == "processor_failed"] == [1234, 1235]
    logged.clear()


@pytest.mark.trio
async def test_a_hanging_processor_delays_neither_other_requests_nor_the_stop(
    bad: Callable[..., str], tmp_path: Path
) -> None:
    async def hang(request: Any) -> None:
        await trio.sleep_forever()

    enable = bad("register_processors", ("broker",), lambda broker: {1234: hang})
    with trio.fail_after(60):
        async with run_broker(make_broker(tmp_path, enable=[enable])) as broker:
            async with open_channel(broker.address) as channel:
                await channel.send_oneway(Command(1234))
                for _ in range(50):
                    assert (await call(channel, Command(RequestCode.GET_ALL_TOPIC_CONFIG))).code == 0
                assert (await call(channel, send("T", b"x"))).code == 0
    await store_works(tmp_path, [b"x"])


@pytest.mark.trio
async def test_a_plugin_that_blocks_the_event_loop_is_named_in_the_log(bad: Callable[..., str], tmp_path: Path) -> None:
    blocking, seen = threading.Event(), threading.Event()

    def block(batch: object) -> None:
        blocking.wait(3)

    def watch(logger: object, method: str, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] == "loop_blocked" and event["plugin"] == "bad":  # a busy machine holds up others too
            logged.append(event)
            blocking.set()
        if event["event"] == "loop_resumed" and blocking.is_set():
            seen.set()
        raise structlog.DropEvent

    logged: list[dict[str, Any]] = []
    enable = [bad("before_append", ("batch",), block)]
    structlog.configure(processors=[watch])
    async with run_broker(make_broker(tmp_path, enable=enable, settings={"broker.watchdog": "20ms"})) as broker:
        async with open_channel(broker.address) as channel:
            for _ in range(5):  # one that another plugin's block delays is not reported
                assert (await call(channel, send("T", b"x"))).code == 0
                if blocking.is_set():
                    break
        assert await trio.to_thread.run_sync(seen.wait, 10)
    assert any("test_bad_plugins" in place for place in logged[0]["where"])


@pytest.mark.trio
@pytest.mark.slow
async def test_the_watchdog_of_the_event_loop_can_be_disabled(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # a shared broker of other tests may run in this process

    def watched() -> bool:
        return any(thread.name == "gantrymq-watchdog" for thread in set(threading.enumerate()) - others)

    async with run_broker(make_broker(tmp_path / "on")):
        assert watched()
    with trio.fail_after(10):
        while watched():  # noqa: ASYNC110 - a thread ends without a word
            await trio.sleep(0.01)
    async with run_broker(make_broker(tmp_path / "off", settings={"broker.watchdog": "0s"})):
        assert not watched()
