"""``gantrymq dev up``: the plan of a local cluster, how it is shown, and one with real processes from start to end."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gantrymq.sync
from gantrymq import Message
from gantrymq.cli.dev import plan as devplan
from gantrymq.cli.dev.plan import ClusterSpec, Member, Plan, held, make_plan
from gantrymq.cli.dev.view import Lines, LiveTable
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.loading import ConfigFlags, load
from support.hapair import read_all
from support.processes import Child, free_ports, gantrymq_child, wait_for

ROW = {
    "server": "broker-a", "id": 1, "role": "slave", "address": "127.0.0.1:1", "pid": 77, "state": "ready",
    "offset": 1_234_567, "lag_bytes": 1024, "lag_seconds": 0.25,
}  # fmt: skip


# ---- the plan


def enabled(member: Member) -> list[str]:
    """The plugins that its flags add."""
    pairs = zip(member.arguments, member.arguments[1:], strict=False)
    return [value for flag, value in pairs if flag == "--enable"]


def test_members_are_listed_in_start_order_with_names_and_numbers(tmp_path: Path) -> None:
    plan = make_plan(ClusterSpec(brokers=2, slaves=1, nameservers=2), tmp_path)
    assert [member.label for member in plan.members] == [
        "nameserver-0", "nameserver-1", "broker-a-0", "broker-b-0", "broker-a-1", "broker-b-1",
    ]  # fmt: skip
    assert plan.nameservers == ";".join(member.address for member in plan.members[:2])
    slave = plan.members[-1]
    assert slave.arguments[:3] == ["broker", "--nameserver", plan.nameservers]
    settings = set(slave.arguments[slave.arguments.index("--set") + 1 :: 2])
    assert {"broker.name=broker-b", "broker.cluster=DevCluster"} <= settings
    assert enabled(slave) == ["ha"]
    file = Path(slave.arguments[slave.arguments.index("--config") + 1])
    assert file.read_text() == "[broker]\nid = 1\n", "no flag: it may change while the broker runs"


def test_masters_wait_for_slaves_on_request_and_user_settings_come_last(tmp_path: Path) -> None:
    spec = ClusterSpec(slaves=1, sync=True, settings=("plugin.flush.mode=async",))
    _, master, slave = make_plan(spec, tmp_path).members
    assert "plugin.ha.role=sync_master" in master.arguments
    assert "plugin.ha.role=sync_master" in slave.arguments, "it may be promoted"
    assert master.arguments[-1] == slave.arguments[-1] == "plugin.flush.mode=async"


def test_brokers_without_slaves_do_not_replicate(tmp_path: Path) -> None:
    assert enabled(make_plan(ClusterSpec(), tmp_path).members[1]) == []


def test_each_broker_has_its_own_metrics_port(tmp_path: Path) -> None:
    spec = ClusterSpec(brokers=2, slaves=1, enable=("metrics", "ha"))
    brokers = [member for member in make_plan(spec, tmp_path).members if member.number is not None]
    assert [enabled(member) for member in brokers] == [["ha", "metrics"]] * 4
    for member in brokers:
        assert f"plugin.metrics.listen=127.0.0.1:{member.port + 2}" in member.arguments
        assert f"plugin.http.listen=127.0.0.1:{member.port + 3}" in member.arguments
    ports = [member.port + distance for member in brokers for distance in devplan.BROKER_PORTS]
    assert len(set(ports)) == 20


def test_one_broker_serves_the_dashboard_of_all(tmp_path: Path) -> None:
    spec = ClusterSpec(brokers=2, slaves=1, enable=("dashboard",), settings=("plugin.dashboard.listen=127.0.0.1:0",))
    brokers = [member for member in make_plan(spec, tmp_path).members if member.number is not None]
    loaded = {}
    for member in brokers:
        words = member.arguments
        values = {
            option: [words[at + 1] for at, word in enumerate(words) if word == option]
            for option in ("--enable", "--disable", "--set")
        }
        flags = ConfigFlags(
            data=str(tmp_path / member.label), sets=values["--set"], enable=values["--enable"],
            disable=values["--disable"],
        )  # fmt: skip
        loaded[member.label] = [info.name for info in load(flags).manager.plugins]
    assert [label for label, plugins in loaded.items() if "dashboard" in plugins] == ["broker-a-0"]
    assert len(loaded) == 4


def promoted(folder: Path, label: str, number: int, at: int, other: str = "") -> Path:
    """The broker in that folder was given another number at that moment, as ``gantrymq cluster promote`` does it."""
    file = folder / label / "config" / "overrides.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[broker]\nid = {number}\n{other}")
    os.utime(file, (at, at))
    return file


def numbers(spec: ClusterSpec, folder: Path) -> dict[str, int | None]:
    return {member.label: member.number for member in make_plan(spec, folder).members if member.number is not None}


def test_a_promoted_broker_remains_master_and_the_old_one_gets_its_number(tmp_path: Path) -> None:
    spec = ClusterSpec(slaves=2, sync=True)
    assert numbers(spec, tmp_path) == {"broker-a-0": 0, "broker-a-1": 1, "broker-a-2": 2}
    file = promoted(tmp_path, "broker-a-1", 0, at=100, other="\n[plugin.consume]\nmemory_percent = 30\n")
    for _ in range(3):
        plan = make_plan(spec, tmp_path)
        assert [member.label for member in plan.members] == ["nameserver-0", "broker-a-1", "broker-a-0", "broker-a-2"]
        assert [member.number for member in plan.members] == [None, 0, 1, 2]
        assert all("plugin.ha.role=sync_master" in member.arguments for member in plan.members[1:])
        assert (tmp_path / "broker-a-0.toml").read_text() == "[broker]\nid = 1\n"
        assert "id" not in file.read_text()
        assert "memory_percent = 30" in file.read_text(), "what else was changed stays"


def test_the_last_promoted_of_two_brokers_is_the_master(tmp_path: Path) -> None:
    spec = ClusterSpec(slaves=2)
    numbers(spec, tmp_path)
    promoted(tmp_path, "broker-a-1", 0, at=100)
    promoted(tmp_path, "broker-a-2", 0, at=200)
    assert numbers(spec, tmp_path) == {"broker-a-2": 0, "broker-a-0": 2, "broker-a-1": 1}
    promoted(tmp_path, "broker-a-0", 0, at=50)
    assert numbers(spec, tmp_path) == {"broker-a-0": 0, "broker-a-1": 1, "broker-a-2": 2}


def test_a_cluster_without_its_master_is_not_started(tmp_path: Path) -> None:
    numbers(ClusterSpec(slaves=1), tmp_path)
    promoted(tmp_path, "broker-a-1", 0, at=100)
    with pytest.raises(CommandFailed, match=r"the master of broker-a is broker-a-1 since .* start with --slaves 1"):
        make_plan(ClusterSpec(slaves=0), tmp_path)
    assert numbers(ClusterSpec(slaves=1), tmp_path)["broker-a-1"] == 0, "nothing was forgotten"


def test_a_store_with_an_unreadable_settings_file_is_named(tmp_path: Path) -> None:
    promoted(tmp_path, "broker-a-0", 0, at=100).write_text("[broker\n")
    with pytest.raises(CommandFailed, match=r"overrides\.toml"):
        make_plan(ClusterSpec(), tmp_path)


def test_ports_from_a_base_leave_gaps_for_a_brokers_other_ports(tmp_path: Path) -> None:
    (base,) = free_ports(around=(*range(5), *(10 * number + near for number in (1, 2, 3, 4) for near in (-2, 0, 1, 3))))
    plan = make_plan(ClusterSpec(brokers=2, slaves=1, base_port=base), tmp_path)
    assert [member.port - base for member in plan.members] == [0, 10, 20, 30, 40]


def test_the_next_start_uses_the_same_ports_also_for_a_larger_cluster(tmp_path: Path) -> None:
    def ports(spec: ClusterSpec) -> dict[str, int]:
        return {member.label: member.port for member in make_plan(spec, tmp_path).members}

    first = ports(ClusterSpec(brokers=2))
    larger = ports(ClusterSpec(brokers=2, slaves=1))
    assert first.items() < larger.items()
    assert ports(ClusterSpec(brokers=1)).items() < first.items()
    assert ports(ClusterSpec(brokers=2, slaves=1)) == larger


@pytest.mark.parametrize("distance", [-2, 0, 1])
def test_a_port_in_use_is_named(tmp_path: Path, distance: int) -> None:
    (base,) = free_ports(around=(0, 8, 10, 11))
    with socket.create_server(("127.0.0.1", base + 10 + distance)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandFailed, match=f"port {port}, which broker-a-0 needs, is in use: .* --base-port"):
            make_plan(ClusterSpec(base_port=base), tmp_path)


def test_a_base_port_that_is_too_high_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="would need the port 65536; choose another --base-port"):
        make_plan(ClusterSpec(nameservers=1, base_port=65525), tmp_path)


def test_no_free_port_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devplan, "_free", lambda port: False)
    with pytest.raises(CommandFailed, match="no free port found"):
        make_plan(ClusterSpec(), tmp_path)


def test_the_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    make_plan(ClusterSpec(cluster="one"), tmp_path)
    with pytest.raises(CommandFailed, match="has the data of the cluster 'one', not 'two'"):
        make_plan(ClusterSpec(cluster="two"), tmp_path)


def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[]")
    with pytest.raises(CommandFailed, match=r"cluster.json: .* name another folder"):
        make_plan(ClusterSpec(), tmp_path)


def test_a_folder_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CommandFailed, match=r"holds something else \(thesis.tex\)"), held(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_is_for_one_cluster_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path / "new"), pytest.raises(CommandFailed, match="another `gantrymq dev up` runs"):
        with held(tmp_path / "new"):
            pass
    with held(tmp_path / "new"):
        pass


def test_waiting_for_slaves_without_any_is_wrong_usage(cli: Callable[..., Any]) -> None:
    outcome = cli("dev", "up", "--sync")
    assert outcome.code == 2
    assert "--sync waits for slaves: give --slaves as well" in outcome.err


# ---- how it is shown


def test_only_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines(as_json=False)
    view.ready(Plan("c", Path("/data"), []), [ROW])
    view.show([ROW | {"offset": 2, "lag_bytes": 0}])
    view.show([ROW | {"state": "ended (-9)", "role": None}])
    view.close()
    assert capsys.readouterr().out.splitlines() == [
        "server=broker-a id=1 role=slave address=127.0.0.1:1 pid=77 state=ready",
        "ready nameserver= data=/data",
        "server=broker-a id=1 address=127.0.0.1:1 pid=77 state=ended (-9)",
        "stopped",
    ]


def test_a_terminal_shows_a_table_with_lags_and_the_nameserver_address() -> None:
    out = io.StringIO()
    view = LiveTable(Console(file=out, width=100, force_terminal=True))
    view.ready(Plan("c", Path("/data"), []), [ROW])
    view.show([ROW | {"state": "ended (1)", "lag_bytes": None}])
    view.close()
    text = out.getvalue()
    for expected in ("1,234,567", "1,024 B, 0.2 s", "/data", "Ctrl-C stops all", "ended (1)", "\x1b[31m"):
        assert expected in text


# ---- with processes


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[[], Child]]:
    """Start a master and its slave; stopped at the end."""
    children = []

    def start() -> Child:
        arguments = ("dev", "up", "--slaves", "1", "--json", "--data", str(tmp_path / "data"))
        children.append(gantrymq_child(arguments, tmp_path / "log"))
        return children[-1]

    yield start
    for child in children:
        child.stop()


def until_ready(child: Child) -> tuple[str, dict[str, int]]:
    """The nameserver, and the process of each server by its name and id."""
    pids: dict[str, int] = {}
    for event in child.events():
        if event["event"] == "ready":
            return str(event["nameserver"]), pids
        pids[f"{event['server']} {event['id']}"] = int(str(event["pid"]))
    raise AssertionError("it ended")


class Bodies:
    """What was read."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        self.bodies.append(body)


def send(nameserver: str, body: bytes) -> None:
    with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
        producer.send(Message("Orders", body))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_cluster_starts_stops_and_starts_again(up: Callable[[], Child]) -> None:
    first = up()
    nameserver, pids = until_ready(first)
    assert set(pids) == {"nameserver-0 None", "broker-a 0", "broker-a 1"}
    for event in first.events():
        if event.get("role") == "slave":
            break
    with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
        producer.send(Message("Orders", b"kept"))
    os.kill(pids["broker-a 0"], signal.SIGKILL)
    assert any((event["id"], event["state"]) == (0, "ended (-9)") for event in first.events() if "state" in event)
    assert alive(pids["broker-a 1"]), "the others live on"
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 0
    assert first.wait_line(lambda line: json.loads(line)["event"] == "stopped")
    assert not any(map(alive, pids.values()))

    second = up()
    again, pids = until_ready(second)
    assert again == nameserver
    with gantrymq.sync.connect(again) as client:
        assert "Orders" in client.admin.topics()
    second.kill()
    wait_for(lambda: not any(map(alive, pids.values())))


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_the_next_start_after_a_promotion_has_one_master_with_all_messages(
    up: Callable[[], Child], cli: Callable[..., Any], tmp_path: Path
) -> None:
    def level(nameserver: str) -> list[dict[str, Any]]:
        """The master and its slave, once they have the same log."""
        rows: list[dict[str, Any]] = []

        def same() -> bool:
            rows[:] = json.loads(cli("cluster", "status", "--json", "--nameserver", nameserver).out)
            offsets = [row["offset"] for row in rows]
            return [row["role"] for row in rows] == ["async_master", "slave"] and offsets[0] == offsets[1] > 0

        wait_for(same, 30)
        return rows

    first = up()
    nameserver, pids = until_ready(first)
    send(nameserver, b"before")
    level(nameserver)
    os.kill(pids["broker-a 0"], signal.SIGKILL)
    assert any(event.get("state") == "ended (-9)" for event in first.events())
    outcome = cli("cluster", "promote", "broker-a", "--nameserver", nameserver)
    assert outcome.code == 0, outcome.err
    send(nameserver, b"after")
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 0

    again, new = until_ready(up())
    assert set(new) == {"nameserver-0 None", "broker-a 0", "broker-a 1"}
    ports = json.loads((tmp_path / "data" / "cluster.json").read_text())["ports"]
    assert level(again)[0]["address"] == f"127.0.0.1:{ports['broker-a-1']}"
    ledger = Bodies()
    read_all(f"127.0.0.1:{ports['broker-a-1']}", "Orders", 4, ledger)
    assert sorted(ledger.bodies) == [b"after", b"before"]


@pytest.mark.slow
def test_a_member_that_does_not_start_is_reported_with_its_last_output(tmp_path: Path, cli: Callable[..., Any]) -> None:
    outcome = cli("dev", "up", "--data", str(tmp_path / "d"), "--set", "plugin.flush.mode=sometimes")
    assert outcome.code == 1
    assert "broker-a-0 did not start; its log: " in outcome.err
    assert "sometimes" in outcome.err


@pytest.mark.slow
def test_the_log_of_a_member_that_does_not_start_is_kept(cli: Callable[..., Any]) -> None:
    outcome = cli("dev", "up", "--set", "plugin.flush.mode=sometimes")
    assert outcome.code == 1
    log = Path(outcome.err.partition("did not start; its log: ")[2].splitlines()[0])
    assert "sometimes" in log.read_text()
    shutil.rmtree(log.parent)


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_two_brokers_serve_their_metrics_side_by_side(tmp_path: Path) -> None:
    arguments = ["dev", "up", "--brokers", "2", "--enable", "metrics", "--json"]
    with gantrymq_child(arguments, tmp_path / "log") as child:
        addresses = []
        for event in child.events():
            if event["event"] == "ready":
                break
            addresses.append(str(event["address"]))
        for address in addresses[1:]:
            host, _, port = address.partition(":")
            with urllib.request.urlopen(f"http://{host}:{int(port) + 2}/metrics", timeout=10) as answer:
                assert b"gantrymq_" in answer.read()
        assert len(addresses) == 3
