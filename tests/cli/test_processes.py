"""``--processes N``: the configuration of each broker, the merged metrics, and one unit of real processes."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import attrs
import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

import gantrymq.sync
from gantrymq import Message
from gantrymq.cli import server_process, servers
from gantrymq.cli.end_deadline import EndDeadline
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.loading import ConfigFlags, load
from gantrymq.cli.own_nameserver import NameserverTls
from gantrymq.cli.processes import unit as units
from gantrymq.cli.processes.encryption import PagesEncryption, encryption_of
from gantrymq.cli.processes.exposition import merge
from gantrymq.cli.processes.layout import Layout, Member, make_layout, refuse_unit
from gantrymq.cli.processes.link import PACKET_MAX_BYTES, Link, Packet, make_pair, serve_link, share_topics
from gantrymq.cli.processes.pages import health_pages, serve_pages
from gantrymq.cli.processes.unit import BrokerProcess
from gantrymq.cli.processes.users import warn_of_other_users
from gantrymq.cli.servers import tls_of
from gantrymq.kernel.config.sources import ConfigError
from gantrymq.plugins.acl.users import UserDocument
from gantrymq.plugins.interfaces import Health, TopicTable
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.descriptors import DESCRIPTORS_WANTED
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.tls import ServerTls
from support.attempts import shared_or_new
from support.certificates import FOLDER as CERTIFICATES
from support.certificates import client_context
from support.processes import GANTRYMQ, Child, free_ports, gantrymq_child, wait_for

Cli = Callable[..., Any]
SMALL = ["--set", "store.commit_log_file_bytes=4 MiB"]


# ---- the layout


def layout_of(tmp_path: Path, count: int = 2, *sets: str, pin: bool = False, **more: Any) -> Layout:
    flags = ConfigFlags(**{"data": str(tmp_path / "data"), "sets": list(sets), **more})
    return make_layout(load(flags).config, flags, count, pin=pin, logs=["--log-level", "error"])


def decoded(member: Member) -> dict[str, Any]:
    """The values with which the broker starts, by section and key."""
    words = list(member.arguments[1:])
    options: dict[str, list[str]] = {}
    while words:
        option = words.pop(0)
        options.setdefault(option, []).append("" if option == "--insecure" else words.pop(0))
    config = load(
        ConfigFlags(
            config=options.get("--config", [None])[-1],
            sets=options.get("--set", ()),
            derived=options["--derived"],
            number=int(options["--number"][-1]),
            enable=options.get("--enable", ()),
            disable=options.get("--disable", ()),
            insecure="--insecure" in options,
        )
    ).config
    return {f"{row.section}.{row.key}": row.value for row in config.explain()}


def test_each_broker_has_its_own_name_ports_and_store(tmp_path: Path) -> None:
    layout = layout_of(
        tmp_path, 2, "broker.name=east", "broker.advertise=10.0.0.7:10911", "plugin.ha.listen=127.0.0.1:10912",
        "plugin.topics.default_queues=3", enable=["ha", "metrics"],
    )  # fmt: skip
    first, second = map(decoded, layout.members)
    differing = {key: (first[key], second[key]) for key in first if first[key] != second[key]}
    data = tmp_path / "data"
    assert differing == {
        "broker.name": ("east-0", "east-1"),
        "broker.listen": ("127.0.0.1:10911", "127.0.0.1:10921"),
        "broker.advertise": ("10.0.0.7:10911", "10.0.0.7:10921"),
        "broker.data": (str(data / "east-0"), str(data / "east-1")),
        "plugin.ha.listen": ("127.0.0.1:10912", "127.0.0.1:10922"),
        "plugin.http.listen": ("127.0.0.1:8568", "127.0.0.1:8578"),
    }
    assert second["plugin.topics.default_queues"] == 3
    assert (layout.pages, layout.metrics) == ("127.0.0.1:8558", "127.0.0.1:5557")


def test_a_configuration_file_is_shared_and_health_pages_of_brokers_stay_on_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[broker]\nlisten = "127.0.0.1:0"\nid = 1\n[plugin.http]\nlisten = "0.0.0.0:9000"\n')
    layout = layout_of(tmp_path, 2, config=str(file))
    second = decoded(layout.members[1])
    assert (second["broker.id"], second["broker.listen"]) == (1, "127.0.0.1:0")
    assert (layout.pages, second["plugin.http.listen"]) == ("0.0.0.0:9000", "127.0.0.1:9020")


def test_each_broker_has_its_own_file_of_users_and_audit(tmp_path: Path) -> None:
    sets = ("plugin.acl.users=/etc/users.json", "plugin.audit.file=/var/log/audit.log")
    layout = layout_of(tmp_path, 2, *sets, enable=["acl", "audit"])
    for number, values in enumerate(map(decoded, layout.members)):
        assert values["plugin.acl.users"] == f"/etc/users-{number}.json"
        assert values["plugin.audit.file"] == f"/var/log/audit-{number}.log"


@pytest.mark.parametrize(
    ("kind", "to", "expected"),
    [("parquet", "/exports/", ("/exports/broker-a-0", "/exports/broker-a-1")),
     ("parquet", "/exports/{broker}/all", ("/exports/broker-a-0/all", "/exports/broker-a-1/all")),
     ("delta", "/tables/messages", ("/tables/messages",) * 2),
     ("iceberg", "default.logs.messages", ("default.logs.messages",) * 2)],
)  # fmt: skip
def test_each_broker_exports_to_its_own_folder_or_all_to_one_table(
    tmp_path: Path, kind: str, to: str, expected: tuple[str, str]
) -> None:
    sets = ("plugin.exporter.topics=orders", f"plugin.exporter.format={kind}", f"plugin.exporter.to={to}")
    members = layout_of(tmp_path, 2, *sets, enable=["exporter"]).members
    found = [str(decoded(member)["plugin.exporter.to"]).replace("{broker}", member.name) for member in members]
    assert tuple(found) == expected


def test_a_restart_has_the_present_plugins_and_the_name_addresses_and_store_of_the_start(tmp_path: Path) -> None:
    file = tmp_path / "gantrymq.toml"
    flags = ConfigFlags(config=str(file))

    def configure(broker: str, listen: str, *enable: str) -> None:
        file.write_text(
            f'[broker]\nname = "{broker}"\nlisten = "{listen}"\ndata = "{tmp_path / broker}"\n'
            f"[plugins]\nenable = {json.dumps(enable)}\n[plugin.topics]\ndefault_queues = {1 + len(enable)}\n"
        )

    configure("east", "127.0.0.1:4000", "ha", "exporter")
    member = make_layout(load(flags).config, flags, 2, pin=False, logs=[]).members[1]
    before = decoded(member)
    configure("west", "127.0.0.1:5000", "ha", "metrics", "dashboard")
    after = decoded(member)
    derived = ("broker.name", "broker.listen", "broker.data", "plugin.http.listen", "plugin.ha.listen")
    assert {key: after.get(key) for key in derived} == {key: before.get(key) for key in derived}
    assert (after["plugin.metrics.listen"], after["plugin.topics.default_queues"]) == ("127.0.0.1:0", 4)
    assert after["plugin.dashboard.listen"] == "", "broker 0 has it"
    member = make_layout(load(flags).config, flags, 2, pin=False, logs=[]).members[1]
    configure("west", "127.0.0.1:5000")
    assert "plugin.metrics.listen" not in decoded(member)


def test_a_file_that_is_configured_after_the_start_differs_between_the_brokers(tmp_path: Path) -> None:
    file = tmp_path / "gantrymq.toml"
    text = f'[broker]\ndata = "{tmp_path / "data"}"\n[plugins]\nenable = ["audit"]\n'
    file.write_text(text)
    flags = ConfigFlags(config=str(file))
    members = make_layout(load(flags).config, flags, 2, pin=False, logs=[]).members
    file.write_text(f'{text}[plugin.audit]\nfile = "audit.log"\n')
    assert [decoded(member)["plugin.audit.file"] for member in members] == ["audit-0.log", "audit-1.log"]


def test_a_broker_loads_a_configuration_without_plugins_that_it_was_started_with(tmp_path: Path) -> None:
    file = tmp_path / "gantrymq.toml"
    data = f'[broker]\ndata = "{tmp_path / "data"}"\n'
    file.write_text(
        f'{data}[plugins]\nenable = ["audit", "dashboard", "exporter", "ha", "metrics"]\n'
        '[plugin.audit]\nfile = "audit.log"\n[plugin.exporter]\nto = "exports"\n'
        '[plugin.ha]\nlisten = "127.0.0.1:4000"\n'
    )
    flags = ConfigFlags(config=str(file))
    member = make_layout(load(flags).config, flags, 2, pin=False, logs=[]).members[1]
    before = decoded(member)
    assert (before["plugin.ha.listen"], before["plugin.audit.file"]) == ("127.0.0.1:4010", "audit-1.log")
    file.write_text(data)
    after = decoded(member)
    assert after == {key: value for key, value in before.items() if key in after} | {"plugins.enable": []}
    assert after["broker.name"] == "broker-a-1"
    with pytest.raises(ConfigError, match=r"\[plugin.ha\] \(flag --set\): there is no such section"):
        load(attrs.evolve(flags, sets=["plugin.ha.listen=127.0.0.1:4000"]))


def test_a_broker_refuses_a_section_of_a_plugin_that_was_removed_like_a_start_of_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "gantrymq.toml"
    rest = f'[broker]\ndata = "{tmp_path / "data"}"\n[plugin.audit]\nfile = "audit.log"\n'
    file.write_text(f'{rest}[plugins]\nenable = ["audit"]\n')
    flags = ConfigFlags(config=str(file))
    member = make_layout(load(flags).config, flags, 2, pin=False, logs=[]).members[1]
    file.write_text(rest)
    for start in (lambda: load(flags), lambda: decoded(member)):
        with pytest.raises(ConfigError, match=r"\[plugin.audit\] \(file .*\): there is no such section"):
            start()


def test_without_health_pages_each_broker_serves_its_own_metrics(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, 2, "plugin.http.listen=", enable=["metrics"])
    assert [decoded(member)["plugin.metrics.listen"] for member in layout.members] == [
        "127.0.0.1:5557", "127.0.0.1:5567",
    ]  # fmt: skip
    assert (layout.pages, layout.metrics) == ("", "")


def test_pinned_brokers_take_the_processors_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2})
    assert [member.cpu for member in layout_of(tmp_path, 3, pin=True).members] == [2, 5, 2]
    assert [member.cpu for member in layout_of(tmp_path, 1).members] == [None]


def test_a_port_beyond_the_last_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="process 1 would need the port 65540"):
        layout_of(tmp_path, 2, "broker.listen=127.0.0.1:65530")


def test_stores_of_a_larger_unit_are_reported(tmp_path: Path) -> None:
    assert layout_of(tmp_path, 3).left_out == []
    (tmp_path / "data" / "broker-a-2" / "commitlog").mkdir(parents=True)
    assert layout_of(tmp_path, 2).left_out == ["broker-a-2"]
    assert layout_of(tmp_path, 3).left_out == []
    assert layout_of(tmp_path, 3, "broker.name=orders").left_out == ["broker-a-2"], "of another name"


def write_users(file: Path, **passwords: str) -> None:
    document = UserDocument({name: UserInfo(name, password) for name, password in passwords.items()})
    file.write_bytes(document.encode())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, []),
        ({"users.json": {"root": "a"}},
         [("broker-a-0", "users.json", ["root"]), ("broker-a-1", "users.json", ["root"])]),
        ({"users.json": {"root": "a"}, "users-0.json": {"root": "b"}, "users-1.json": {"root": "b"}}, []),
        ({"users.json": {"root": "a", "ann": "b"}, "users-0.json": {"root": "c"}, "users-1.json": {"root": "c"}},
         [("broker-a-0", "users.json", ["ann"]), ("broker-a-1", "users.json", ["ann"])]),
        ({"users.json": {"root": "a"}, "users-0.json": {"root": "a", "ann": "b"}},
         [("broker-a-1", "users-0.json", ["ann", "root"])]),
        ({"users-0.json": {"root": "a", "ann": "b"}, "users-1.json": {"root": "a"}},
         [("broker-a-1", "users-0.json", ["ann"])]),
        ({"users-0.json": {"root": "a"}, "users-1.json": {"root": "a", "ann": "b"}},
         [("broker-a-1", "users-0.json", ["ann"])]),
        ({"users-0.json": {"root": "a", "ann": "b"}, "users-1.json": {"root": "a", "ann": "c"}},
         [("broker-a-1", "users-0.json", ["ann"])]),
        ({"users-0.json": {"root": "a"}}, [("broker-a-1", "users-0.json", ["root"])]),
    ],
)  # fmt: skip
def test_users_that_not_all_brokers_have_are_reported(
    tmp_path: Path, written: dict[str, dict[str, str]], expected: list[tuple[str, str, list[str]]]
) -> None:
    for name, passwords in written.items():
        write_users(tmp_path / name, **passwords)
    flags = ConfigFlags(
        data=str(tmp_path / "data"), sets=[f"plugin.acl.users={tmp_path / 'users.json'}"], enable=["acl"]
    )
    loaded = load(flags)
    layout = make_layout(loaded.config, flags, 2, pin=False, logs=[])
    with capture_logs() as logs:
        warn_of_other_users(loaded, layout)
    assert [(each["process"], Path(each["source"]).name, each["users"]) for each in logs] == expected
    assert all(each["event"] == "users_not_copied" for each in logs)


def test_policies_that_not_all_brokers_have_are_reported_whatever_their_order(tmp_path: Path) -> None:
    entries = [PolicyEntryInfo(f"Topic:{name}", ["Pub"], None, "Allow") for name in ("orders", "days")]
    flags = ConfigFlags(
        data=str(tmp_path / "data"), sets=[f"plugin.acl.users={tmp_path / 'users.json'}"], enable=["acl"]
    )
    loaded = load(flags)
    layout = make_layout(loaded.config, flags, 3, pin=False, logs=[])
    for number, policies in enumerate((entries, entries[::-1], entries[:1])):
        document = UserDocument(
            {"ann": UserInfo("ann", "secret")}, {"User:ann": AclInfo("User:ann", [PolicyInfo("Custom", policies)])}
        )
        (tmp_path / f"users-{number}.json").write_bytes(document.encode())
    with capture_logs() as logs:
        warn_of_other_users(loaded, layout)
    assert [(each["process"], each["users"]) for each in logs] == [("broker-a-2", ["ann"])]


def test_single_brokers_and_units_refuse_each_others_folders(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refuse_unit(data)
    layout_of(tmp_path, 2)
    with pytest.raises(CommandFailed, match="several brokers: start them with --processes 2"):
        refuse_unit(data)
    (data / "commitlog").mkdir()
    with pytest.raises(CommandFailed, match=r"the store of a single broker: .* move the files of .* into .*broker-a-0"):
        layout_of(tmp_path, 2)


def test_pinning_needs_processes(cli: Cli) -> None:
    outcome = cli("serve", "--pin")
    assert (outcome.code, "--pin needs --processes" in outcome.err) == (2, True)


# ---- metrics


def test_merged_metrics_have_each_family_once() -> None:
    one = b'# HELP a_total Sum\n# TYPE a_total counter\na_total{node_id="x"} 1.0\n'
    one += b'# HELP b B\n# TYPE b gauge\nb{node_id="x"} 2\n'
    other = b'# HELP a_total Sum\n# TYPE a_total counter\na_total{node_id="y"} 3.0\n'
    lines = merge([one, other], {"x": (True, 0), "y": (False, 2)}, "c").decode().splitlines()
    assert lines[:4] == [
        "# HELP a_total Sum", "# TYPE a_total counter", 'a_total{node_id="x"} 1.0', 'a_total{node_id="y"} 3.0',
    ]  # fmt: skip
    assert 'gantrymq_process_ready{cluster="c",node_type="broker",node_id="y"} 0' in lines
    assert 'gantrymq_process_restarts_total{cluster="c",node_type="broker",node_id="y"} 2' in lines
    assert "# EOF" not in lines


def test_merged_openmetrics_end_once() -> None:
    text = b'# HELP a Sum\n# TYPE a counter\na_total{node_id="x"} 1.0\n# EOF\n'
    lines = merge([text, text.replace(b'"x"', b'"y"')], {"x": (True, 0)}, "c").decode().splitlines()
    assert (lines.count("# EOF"), lines[-1]) == (1, "# EOF")
    assert lines.count("# TYPE a counter") == 1
    assert "# TYPE gantrymq_process_restarts counter" in lines


# ---- TLS


class NoProcesses:
    """A unit without brokers."""

    def not_alive(self) -> dict[str, str]:
        return {}

    not_ready = degraded = not_alive

    def rows(self) -> list[dict[str, Any]]:
        return []


@pytest.mark.parametrize("pages", ["auto", "plain"])
def test_the_pages_of_a_unit_speak_tls_as_its_brokers_are_configured(tmp_path: Path, pages: str) -> None:
    flags = ConfigFlags(
        data=str(tmp_path / "data"), enable=["tls"],
        sets=[f"plugin.tls.certificate={CERTIFICATES / 'server.pem'}", "plugin.http.listen=127.0.0.1:0",
              f"plugin.tls.pages={pages}"],
    )  # fmt: skip
    loaded = load(flags)
    layout = make_layout(loaded.config, flags, 1, pin=False, logs=["--log-level", "error"])
    assert decoded(layout.members[0])["plugin.tls.pages"] == "plain", "the parent reads it on the loopback address"

    async def fetch(address: str, context: ssl.SSLContext | None) -> bytes:
        stream: trio.abc.Stream = await trio.open_tcp_stream(*parse_address(address))
        if context is not None:
            stream = trio.SSLStream(stream, context, server_hostname="127.0.0.1", https_compatible=True)  # type: ignore[arg-type]
        answer = b""
        with trio.fail_after(20), suppress(trio.BrokenResourceError):
            async with stream:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                while data := await stream.receive_some(65536):
                    answer += bytes(data)
        return answer

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            encryption = encryption_of(loaded, tls_of(loaded))
            url = await nursery.start(serve_pages, NoProcesses(), loaded, layout, encryption)
            scheme, _, address = url.partition("://")
            assert scheme == ("https" if pages == "auto" else "http")
            if pages == "auto":
                assert (await fetch(address, client_context())).startswith(b"HTTP/1.1 200 OK")
                assert b"200 OK" not in await fetch(address, None), "no plain text"
            else:
                assert (await fetch(address, None)).startswith(b"HTTP/1.1 200 OK")
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_pages_keep_their_certificate_while_the_files_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    encryption = PagesEncryption(NameserverTls(ServerTls(str(file))))
    before = encryption._current()
    with capture_logs() as logs:
        file.rename(tmp_path / "away.pem")
        for _ in range(2):
            assert encryption._current() is before
        file.write_bytes(b"nonsense")
        for _ in range(2):
            assert encryption._current() is before
    assert [each["event"] for each in logs] == ["tls_files_refused", "tls_files_refused"]
    file.write_bytes((tmp_path / "away.pem").read_bytes() + b"\n")
    assert encryption._current() is not before


# ---- restarts, without processes


class ScriptedBroker(BrokerProcess):
    """A process that ends with the next of ``ends``, or cannot start if that is an error; it runs on with the last."""

    def __init__(self, *ends: int | OSError) -> None:
        super().__init__(Member("broker-a-0", []))
        self.ends = list(ends)
        self.spawned_at: list[float] = []

    def spawn(self, arguments: Sequence[str], **options: Any) -> None:
        self.spawned_at.append(trio.current_time())
        if isinstance(self.ends[0], OSError):
            raise self.ends.pop(0)
        self.state = "ready"
        self.ready.set()

    async def wait(self) -> int:
        if len(self.ends) == 1:
            await trio.sleep_forever()
        self.state = "ended"
        return cast("int", self.ends.pop(0))


def keep_for(seconds: float, broker: BrokerProcess) -> units.Unit:
    """The unit of that broker after the time."""
    unit = units.Unit(Layout(Path(), [], "", "", []), [])
    unit.brokers.append(broker)

    async def keep() -> None:
        with trio.move_on_after(seconds):
            await unit.keep(broker)

    trio.run(keep, clock=trio.testing.MockClock(autojump_threshold=0))
    return unit


def no_process() -> OSError:
    return BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_broker_whose_restart_cannot_fork_is_tried_again_and_the_unit_goes_on() -> None:
    broker = ScriptedBroker(-9, no_process(), no_process(), 0)
    with capture_logs() as logs:
        unit = keep_for(30, broker)
    began = broker.spawned_at[0]
    assert [at - began for at in broker.spawned_at] == [0, 1, 3, 7]
    assert (broker.state, broker.restarts, unit.not_alive()) == ("ready", 1, {})
    failed = [(each["restart_in"], each["reason"]) for each in logs if each["event"] == "process_not_started"]
    assert failed == [(2, "[Errno 11] Resource temporarily unavailable"), (4, failed[0][1])]


@pytest.mark.parametrize(("seconds", "failing"), [(14, False), (16, True)])
def test_restarts_that_cannot_fork_count_as_failures_for_healthz(seconds: float, failing: bool) -> None:
    broker = ScriptedBroker(-9, *(no_process() for _ in range(4)), 0)
    unit = keep_for(seconds, broker)
    assert (broker.state, unit.not_ready()) == ("ended", {"broker-a-0: process": "the broker has ended"})
    assert ("could not be restarted 5 times in a row" in "".join(unit.not_alive().values())) == failing


def test_a_broker_is_restarted_after_any_number_of_failures() -> None:
    broker = ScriptedBroker(-9, *(no_process() for _ in range(1100)), 0)
    unit = keep_for(1110 * units.RESTART_MAX_SECONDS, broker)
    assert (len(broker.spawned_at), broker.state) == (1102, "ready")
    assert broker.spawned_at[-1] - broker.spawned_at[-2] == units.RESTART_MAX_SECONDS
    assert unit.not_alive()


def test_a_first_start_that_cannot_fork_ends_the_unit() -> None:
    with pytest.raises(CommandFailed, match=r"broker-a-0 did not start: .*Resource temporarily unavailable"):
        keep_for(30, ScriptedBroker(no_process(), 0))


# ---- a restart within a process, without processes


class LinkedBroker(BrokerProcess):
    """A broker process that this test plays, with the child's end of the link in ``child``."""

    def __init__(self) -> None:
        super().__init__(Member("broker-a-0", []))
        self.signals: list[int] = []
        self.child: Link
        self.end = trio.Event()
        self.restarted = trio.Event()

    def spawn(self, arguments: Sequence[str], *, descriptors: Sequence[int] = (), **options: Any) -> None:
        if self.end.is_set():
            self.end = trio.Event()
            self.restarted.set()
        self.child = Link(socket.socket(fileno=os.dup(descriptors[0])))
        self.state = "starting"

    async def wait(self) -> int:
        await self.end.wait()
        self.state = "ended"
        return -9

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    async def report(self, packet: Packet) -> None:
        await self.child.send_now(packet)
        await trio.testing.wait_all_tasks_blocked()


def while_it_runs(check: Callable[[LinkedBroker, units.Unit], Awaitable[None]]) -> None:
    """Call ``check`` with a broker and its unit while the unit keeps it; time passes at once."""
    broker = LinkedBroker()
    unit = units.Unit(Layout(Path(), [], "", "", []), [])
    unit.brokers.append(broker)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(unit.keep, broker)
            await trio.testing.wait_all_tasks_blocked()
            await check(broker, unit)
            broker.child.close()
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_broker_that_restarts_in_its_process_is_not_ready_and_is_not_killed() -> None:
    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        await broker.report(Packet(ready="127.0.0.1:1"))
        await broker.report(Packet(not_alive={}, not_ready={"disk": "full"}))
        assert unit.not_ready() == {"broker-a-0: disk": "full"}
        await broker.report(Packet(restarting=True))
        assert unit.not_ready() == {"broker-a-0: process": "the broker starts"}
        await trio.sleep(10 * units.SILENCE_SECONDS)
        assert broker.signals == []
        await broker.report(Packet(ready="127.0.0.1:2"))
        assert (broker.state, broker.address, unit.not_ready()) == ("ready", "127.0.0.1:2", {})
        await trio.sleep(10 * units.SILENCE_SECONDS)
        assert broker.signals == [signal.SIGKILL], "silence of a ready broker"

    while_it_runs(check)


def test_the_unit_is_alive_while_it_kills_and_restarts_a_broker_with_a_poisoned_log() -> None:
    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        await broker.report(Packet(ready="127.0.0.1:1"))
        poisoned = Packet(not_alive={"log": "poisoned"}, not_ready={"log": "poisoned"})
        await broker.report(poisoned)
        assert (unit.not_alive(), unit.not_ready()) == ({}, {"broker-a-0: log": "poisoned"})
        await trio.sleep(units.SILENCE_SECONDS + units.CHECK_SECONDS)
        assert (broker.signals, unit.not_alive()) == ([signal.SIGKILL], {})

    while_it_runs(check)


def test_a_failed_task_of_a_skipped_plugin_is_named_and_leaves_the_unit_ready() -> None:
    health = SimpleNamespace(not_alive=dict, not_ready=dict, degraded=lambda: {"task:archive": "failed"})
    reporting: Any = SimpleNamespace(registry=SimpleNamespace(find=lambda kind: health if kind is Health else None))

    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        await broker.report(Packet(ready="127.0.0.1:1"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_link, broker.child, reporting)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        pages = health_pages(unit)
        assert (await pages["/readyz"](""))[::2] == (200, b"ok\nbroker-a-0: task:archive: failed\n")
        state = json.loads((await pages["/status.json"](""))[2])
        assert (state["alive"], state["ready"], state["reasons"]) == (True, True, {})
        assert state["degraded"] == {"broker-a-0: task:archive": "failed"}
        await broker.report(Packet(restarting=True))
        assert (await pages["/readyz"](""))[::2] == (503, b"broker-a-0: process: the broker starts\n")

    while_it_runs(check)


def test_signals_reach_a_broker_that_restarts_in_its_process_and_a_new_process_once_it_is_ready() -> None:
    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        unit.reload()
        unit.reopen_logs()
        assert broker.signals == [], "a process without handlers would end"
        await broker.report(Packet(ready="127.0.0.1:1"))
        assert sorted(broker.signals) == [signal.SIGHUP, signal.SIGUSR1]
        await broker.report(Packet(restarting=True))
        unit.reload()
        unit.reopen_logs()
        assert broker.signals[2:] == [signal.SIGHUP, signal.SIGUSR1]
        await broker.report(Packet(ready="127.0.0.1:1"))
        assert len(broker.signals) == 4

    while_it_runs(check)


def test_failures_count_until_the_broker_was_ready_for_a_minute_without_a_restart() -> None:
    state = Packet(not_alive={}, not_ready={})

    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        broker.failures = units.FAILURES_MAX
        for packet in (Packet(ready="127.0.0.1:1"), Packet(restarting=True), Packet(ready="127.0.0.1:1")):
            await trio.sleep(units.STEADY_SECONDS - 1)  # of recovery, or of work
            await broker.report(packet)
            await broker.report(state)
            await trio.sleep(2)
            await broker.report(state)
            assert unit.not_alive()
        await trio.sleep(units.STEADY_SECONDS)
        await broker.report(state)
        assert not unit.not_alive()

    while_it_runs(check)


def topic_named(name: str) -> str:
    return TopicConfig(topic_name=name).to_bytes().decode()


def test_a_topic_that_was_created_while_a_broker_was_down_reaches_it_when_it_is_ready_again() -> None:
    first, second = map(topic_named, ("First", "Second"))

    async def received(broker: LinkedBroker) -> list[str]:
        found = []
        with trio.move_on_after(1):
            while (packet := await broker.child.receive()) is not None:
                found.append(packet.topic)
        return found

    async def check(broker: LinkedBroker, unit: units.Unit) -> None:
        creator = LinkedBroker()
        unit.brokers.append(creator)
        unit.share(creator, first)
        assert await received(broker) == [], "it starts"
        await broker.report(Packet(ready="127.0.0.1:1"))
        assert await received(broker) == [first]
        broker.child.close()
        broker.end.set()
        await trio.testing.wait_all_tasks_blocked()
        unit.share(creator, second)
        await broker.restarted.wait()
        await broker.report(Packet(ready="127.0.0.1:1"))
        assert await received(broker) == [first, second], "it ended before it confirmed the first one"
        await broker.report(Packet(confirmed=first))
        await broker.report(Packet(restarting=True))
        await broker.report(Packet(ready="127.0.0.1:1"))
        assert await received(broker) == [second]

    while_it_runs(check)


def test_a_bounded_number_of_topics_waits_for_a_broker_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "TOPICS_MAX", 2)
    broker = LinkedBroker()
    with capture_logs() as logs:
        for name in ("A", "B", "B", "C"):
            broker.send_topic(topic_named(name))
    assert [each["event"] for each in logs] == ["topic_not_shared"]


def test_a_broker_confirms_each_topic_that_it_gets_and_sends_those_that_clients_create_from_the_first_one_on() -> None:
    ensured: list[str] = []
    watching: list[Callable[[TopicConfig], None]] = []

    def ensure(config: TopicConfig) -> TopicConfig:
        ensured.append(config.topic_name)
        if config.topic_name == "Refused":
            raise RemoteFault(1, "the limit")
        return config

    topics = SimpleNamespace(ensure=ensure, watch_created=watching.append)
    registry = SimpleNamespace(find=lambda kind: topics if kind is TopicTable else None)
    broker: Any = SimpleNamespace(registry=registry, before_listening=[])
    sent = [topic_named("Refused"), topic_named("Taken")]

    async def run() -> None:
        parent, sock = make_pair()
        child = Link(sock)
        share_topics(child, broker)
        for wait in broker.before_listening:  # as the broker before it listens
            await wait()
        created = TopicConfig(topic_name="Created")
        watching[0](created)
        for topic in sent:
            await parent.send_now(Packet(topic=topic))
        found: dict[str, list[str]] = {"topic": [], "confirmed": []}
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_link, child, broker)
                while len(found["confirmed"]) < len(sent):
                    packet = await parent.receive()
                    assert packet is not None
                    for name, values in found.items():
                        values += filter(None, [getattr(packet, name)])
                nursery.cancel_scope.cancel()
        assert (found["topic"], found["confirmed"]) == ([created.to_bytes().decode()], sent)
        child.close()
        parent.close()

    trio.run(run)
    assert ensured == ["Refused", "Taken"]


def test_a_broker_reports_a_restart_in_its_process_before_its_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ConfigFlags(
        data=str(tmp_path / "data"), listen="127.0.0.1:0", disable=["register"], sets=[SMALL[1], "plugin.http.listen="]
    )
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent.setblocking(False)
    packets: list[Packet] = []
    lives: list[Any] = []

    def load_again() -> Any:
        with suppress(BlockingIOError):
            while True:
                packets.append(msgspec.json.decode(parent.recv(PACKET_MAX_BYTES), type=Packet))
        return load(flags)

    async def serve(link: Link, broker: Any) -> None:
        lives.append(broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_link, link, broker)
            await trio.lowlevel.wait_readable(parent)
            if len(lives) == 1:
                broker.restart()
            else:
                nursery.cancel_scope.cancel()
        if len(lives) == 2:
            link.close()
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setenv("GANTRYMQ_PROCESS_LINK", str(child.detach()))
    monkeypatch.setattr(servers, "serve_link", serve)
    for name in ("raise_descriptor_limit", "end_where_memory_ends", "settle_collector"):
        monkeypatch.setattr(servers, name, lambda: None)
    with parent:
        trio.run(servers.run_broker, load(flags), load_again, EndDeadline(60))
    assert len(lives) == 2
    assert packets[0].ready == lives[0].address
    assert [each.restarting for each in packets] == [False] * (len(packets) - 1) + [True]


# ---- a stop


def test_a_unit_whose_brokers_do_not_stop_cleanly_fails_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = {"broker-a-0": "exit 1", "broker-a-1": "", "broker-a-2": "exit 0"}

    class ShellBroker(BrokerProcess):
        """A shell with its action for SIGTERM; without one it ignores the signal."""

        def spawn(self, arguments: Sequence[str], **options: Any) -> None:
            script = f"trap '{actions.pop(self.label)}' TERM; echo; while :; do sleep 0.05; done"
            self._process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
            assert self.stdout is not None
            self.stdout.readline()
            self.ready.set()
            if not actions:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(units, "BrokerProcess", ShellBroker)
    monkeypatch.setattr(units, "raise_descriptor_limit", lambda: None)
    monkeypatch.setattr(server_process, "STOP_SECONDS", 2.0)
    sets = ("plugin.http.listen=",)
    layout = layout_of(tmp_path, 3, *sets)
    loaded = load(ConfigFlags(data=str(tmp_path / "data"), sets=sets))
    with capture_logs() as logs, pytest.raises(CommandFailed) as failure:
        trio.run(units.run_unit, loaded, layout, EndDeadline(60))
    assert str(failure.value) == "did not stop cleanly: broker-a-0 (exit code 1), broker-a-1 (exit code -9)"
    assert [each["process"] for each in logs if each["event"] == "process_not_stopped"] == ["broker-a-1"]


# ---- processes


class Running(NamedTuple):
    """A unit of two, with metrics, whose ports are from ``base`` on."""

    child: Child
    base: int
    data: Path
    nameserver: str

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.base + 3}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def processes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.page("/status.json")[1])["processes"]
        return rows

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for path in self.data.parent.glob("unit.log*") for line in path.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["event"] == name]


def start(folder: Path, base: int) -> Running:
    config = folder / "gantrymq.toml"
    config.write_text("[plugin.topics]\ndefault_queues = 4\n")
    arguments = [
        "serve", "--processes", "2", "--config", str(config), "--data", str(folder / "data"), *SMALL,
        "--listen", f"127.0.0.1:{base}", "--nameserver-listen", f"127.0.0.1:{base + 4}", "--enable", "metrics",
        "--log-file", str(folder / "unit.log"),
        "--set", f"plugin.http.listen=127.0.0.1:{base + 3}", "--set", "plugin.metrics.listen=127.0.0.1:0",
    ]  # fmt: skip
    child = gantrymq_child(arguments, folder / "log")
    line = child.wait_line(lambda text: text.startswith("ready"), 120)
    found = dict(word.partition("=")[::2] for word in line.split()[1:])
    assert found["broker"] == f"127.0.0.1:{base};127.0.0.1:{base + 10}"
    return Running(child, base, folder / "data", found["nameserver"])


@contextmanager
def started(folder: Path) -> Iterator[Running]:
    (base,) = free_ports(around=(-2, 0, 1, 3, 4, 8, 10, 11, 13, 23))
    unit = start(folder, base)
    yield unit
    unit.child.stop()


@pytest.fixture(scope="module")
def shared_unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("unit")) as unit:
        yield unit


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The module's unit, and a new one for the second attempt of a test."""
    yield from shared_or_new(request, "shared_unit", lambda: started(tmp_path_factory.mktemp("unit")))


def brokers_of(unit: Running, topic: str) -> set[str]:
    """The brokers that have the topic, by the nameserver."""
    with gantrymq.sync.connect(unit.nameserver) as client:
        if topic not in client.admin.topics():
            return set()
        return {queue.broker_name for queue in client.admin.queues(topic)}


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_topic_of_one_message_is_at_all_brokers_and_messages_are_spread(running: Running, cli: Cli) -> None:
    with gantrymq.sync.connect(running.nameserver) as client, client.producer("p") as producer:
        producer.send(Message("Spread", b"first"))
    wait_for(lambda: brokers_of(running, "Spread") == {"broker-a-0", "broker-a-1"}, 60)
    with gantrymq.sync.connect(running.nameserver) as client, client.producer("p") as producer:
        receipts = [producer.send(Message("Spread", b"%d" % number)) for number in range(16)]
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a-0", "broker-a-1"}
        with client.consumer("Spread", "readers", start="first") as consumer:
            bodies = {next(consumer).body for _ in range(17)}
    assert bodies == {b"first", *(b"%d" % number for number in range(16))}
    status = cli("cluster", "status", "--json", "--nameserver", running.nameserver)
    assert {row["broker"] for row in json.loads(status.out)} == {"broker-a-0", "broker-a-1"}


@pytest.mark.timeout(300)
def test_one_address_shows_the_state_and_the_metrics_of_all(running: Running) -> None:
    rows = running.processes()
    assert [(row["name"], row["state"], row["address"]) for row in rows] == [
        ("broker-a-0", "ready", f"127.0.0.1:{running.base}"),
        ("broker-a-1", "ready", f"127.0.0.1:{running.base + 10}"),
    ]
    assert [row["status"]["broker"]["name"] for row in rows] == ["broker-a-0", "broker-a-1"]
    assert running.page("/healthz") == (200, "ok\n")
    wait_for(lambda: running.page("/readyz") == (200, "ok\n"), 30)
    metrics = running.page("/metrics")[1].splitlines()
    numbers = [line for line in metrics if line.startswith("rocketmq_topic_number{")]
    assert [f'node_id="broker-a-{number}"' in line for number, line in enumerate(numbers)] == [True, True]
    assert metrics.count("# TYPE rocketmq_topic_number gauge") == 1
    assert any(line.startswith("gantrymq_nameserver_brokers{") and line.endswith(" 2.0") for line in metrics)
    (url,) = {event["url"] for event in running.events("metrics_listening") if "process" not in event}
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read().count(b"rocketmq_topic_number{") == 2


@pytest.mark.timeout(300)
def test_sighup_reaches_all_brokers_and_log_lines_name_the_process(running: Running) -> None:
    (running.data.parent / "gantrymq.toml").write_text("[plugin.topics]\ndefault_queues = 2\n")
    running.child.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(running.events("settings_reloaded")) == 2, 60)
    events = running.events("settings_reloaded")
    assert {event["process"] for event in events} == {"broker-a-0", "broker-a-1"}
    assert [event["changed"] for event in events] == [["plugin.topics.default_queues"]] * 2


@pytest.mark.timeout(300)
def test_sigusr1_lets_all_processes_open_the_log_file_again(running: Running) -> None:
    path = running.data.parent / "unit.log"
    path.rename(path.with_suffix(".log.1"))
    running.child.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: path.exists() and path.read_text().count("log_file_reopened") == 3, 60)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert {event.get("process") for event in events} == {None, "broker-a-0", "broker-a-1"}


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_killed_broker_restarts_alone_and_keeps_its_messages(running: Running) -> None:
    first, second = running.processes()
    with gantrymq.sync.connect(running.nameserver) as client, client.producer("p") as producer:
        acknowledged = {producer.send(Message("Kept", b"%d" % number)).message_id for number in range(8)}
        os.kill(second["pid"], signal.SIGKILL)
        wait_for(lambda: running.processes()[1]["state"] != "ready", 30)
        code, text = running.page("/readyz")
        assert (code, "broker-a-1: process: the broker" in text) == (503, True)
        assert running.page("/healthz")[0] == 200, "the unit restarts it"
        acknowledged |= {producer.send(Message("Kept", b"%d" % number)).message_id for number in range(8, 16)}
        wait_for(lambda: running.page("/readyz")[0] == 200, 90)
        after = running.processes()
        assert (after[0]["pid"], after[0]["restarts"]) == (first["pid"], 0), "the other one is left alone"
        assert (after[1]["restarts"], after[1]["address"]) == (1, second["address"])
        assert after[1]["pid"] != second["pid"]
        assert running.events("process_ended")[0]["code"] == -9
        with client.consumer("Kept", "readers", start="first") as consumer:
            found = set()
            while not acknowledged <= found:
                found.add(next(consumer).message_id)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_sigterm_stops_all_and_the_next_start_has_the_same_stores(running: Running, cli: Cli) -> None:
    pids = [row["pid"] for row in running.processes()]
    with gantrymq.sync.connect(running.nameserver) as client, client.producer("p") as producer:
        sent = [producer.send(Message("Lasting", b"%d" % number)) for number in range(8)]
    assert running.child.terminate() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not list(running.data.glob("*/abort")), "each broker stopped cleanly"
    alone = cli("serve", "--data", str(running.data), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0")
    assert (alone.code, "start them with --processes 2" in alone.err) == (1, True)

    again = start(running.data.parent, running.base)
    try:
        with gantrymq.sync.connect(again.nameserver) as client:
            with client.consumer("Lasting", "readers", start="first") as consumer:
                places = {(next(consumer).queue.broker_name) for _ in range(8)}
            assert places == {receipt.queue.broker_name for receipt in sent}
        pids = [row["pid"] for row in again.processes()]
        again.child.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    finally:
        again.child.stop()


@pytest.mark.timeout(120)
def test_a_broker_that_does_not_start_stops_the_unit(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "raise_descriptor_limit", lambda: None)  # of this process
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broker-a-1").write_text("no folder")
    outcome = cli(
        "broker", "--processes", "2", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *SMALL,
        "--set", "plugin.http.listen=", "--nameserver", "127.0.0.1:1",
    )  # fmt: skip
    assert outcome.code == 1
    assert "broker-a-1 did not start: exit code 1; the log above has the reason" in outcome.err


@pytest.mark.timeout(120)
def test_the_parent_raises_its_limit_of_descriptors_for_its_nameserver(tmp_path: Path) -> None:
    arguments = [
        *GANTRYMQ, "serve", "--processes", "1", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *SMALL,
        "--nameserver-listen", "127.0.0.1:0", "--set", "plugin.http.listen=",
    ]  # fmt: skip
    with Child(["sh", "-c", f"ulimit -S -n 256; exec {shlex.join(arguments)}"], tmp_path / "log") as child:
        child.wait_line(lambda text: text.startswith("ready"), 90)
        (limits,) = re.findall(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{child.pid}/limits").read_text())
        assert child.terminate() == 0
    assert limits == (str(min(int(limits[1]), DESCRIPTORS_WANTED)), limits[1])


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_silent_broker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "CHECK_SECONDS", 2.5)
    monkeypatch.setattr(units, "SILENCE_SECONDS", 5.0)
    layout = layout_of(tmp_path, 1, "broker.listen=127.0.0.1:0", "plugin.http.listen=", *SMALL[1:])
    broker = BrokerProcess(layout.members[0])

    async def run() -> int:
        codes: list[int] = []
        async with trio.open_nursery() as nursery:

            async def keep() -> None:
                codes.append(await broker.run(["127.0.0.1:1"], lambda _broker, _topic: None))

            nursery.start_soon(keep)
            await broker.ready.wait()
            await trio.sleep(6)
            assert broker.code is None, "one that reports its state lives"
            broker.send_signal(signal.SIGSTOP)
        return codes[0]

    assert trio.run(run) == -signal.SIGKILL
    assert attrs.asdict(layout)["left_out"] == []
