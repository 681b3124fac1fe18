"""``cluster status`` against a master and its slave."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import gantrymq.sync
from gantrymq import Message
from gantrymq.failover.brokers import COLUMNS, REFUSING, UNREACHABLE, add_lags_of_silent_slaves
from support.foreign import wait_registered
from support.processes import Child, free_ports, gantrymq_child, wait_for

pytestmark = pytest.mark.timeout(60)

HA = "gantrymq.plugins.ha:HaPlugin"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[str, Child, Child]]:
    """The nameserver of a master and its slave, the master, and the slave."""
    with ExitStack() as stack:

        def start(home: str, *arguments: str) -> Child:
            return stack.enter_context(gantrymq_child(arguments, tmp_path / f"{home}.log"))

        first, second = free_ports(2, around=(0, 1, -2))
        names = start("names", "nameserver", "--listen", "127.0.0.1:0")
        address = names.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]
        brokers = []
        for number, port in enumerate((first, second)):
            child = start(
                f"broker-{number}", "broker", "--nameserver", address, "--listen", f"127.0.0.1:{port}",
                "--data", str(tmp_path / f"data-{number}"), "--set", "store.commit_log_file_bytes=16 MiB",
                "--set", f"broker.id={number}", "--set", f"plugins.enable={HA}",
            )  # fmt: skip
            child.wait_line(lambda line: line.startswith("ready"))
            brokers.append(child)
        wait_registered(address, "broker-a")
        yield address, *brokers


def test_roles_and_lags_are_shown_and_a_lost_master_is_few_warnings(
    pair: tuple[str, Child, Child], cli: Callable[..., Any]
) -> None:
    nameserver, master, slave = pair

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(cli("cluster", "status", "--nameserver", nameserver, "--json").out)
        return found

    with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
        for number in range(20):
            producer.send(Message("Orders", b"%d" % number))
    wait_for(lambda: len(rows()) == 2 and rows()[0]["offset"] == rows()[1]["offset"] != 0)
    first, second = rows()
    assert (first["id"], first["role"], first["broker"]) == (0, "async_master", "broker-a")
    assert (second["id"], second["role"], second["lag_bytes"], second["lag_seconds"]) == (1, "slave", 0, 0.0)
    assert first["ha_address"] == second["ha_address"] != ""
    table = cli("cluster", "status", "--nameserver", nameserver).out.splitlines()
    assert table[0].split()[:4] == ["cluster", "broker", "id", "role"]
    assert len(table) == 3
    slave.process.send_signal(signal.SIGSTOP)
    try:
        with gantrymq.sync.connect(nameserver) as client, client.producer("p") as producer:
            producer.send(Message("Orders", b"not copied"))
        wait_for(lambda: rows()[1]["lag_seconds"])  # in the beginning it is rounded to none
        hanging = rows()[1]
    finally:
        slave.process.send_signal(signal.SIGCONT)
    assert (hanging["id"], hanging["role"], hanging["offset"]) == (1, "unreachable", None)
    assert hanging["lag_bytes"] > 100, "as its master reports"
    assert hanging["lag_seconds"] > 0

    with (
        gantrymq.sync.connect(nameserver) as client,
        client.producer("p") as producer,
        client.consumer("Orders", "g", start="first") as consumer,
        capture_logs() as logs,
    ):
        next(consumer).ack()
        master.process.kill()
        slave.process.kill()
        for _ in range(8):
            with pytest.raises(gantrymq.GantryError):
                producer.send(Message("Orders", b"lost"), timeout=0.3)
    events = [line["event"] for line in logs if line["log_level"] in ("warning", "error")]
    assert "send_failed" in events
    assert len(events) <= 8, "one line per outage, not per failure"


def test_the_lag_of_a_silent_slave_is_not_guessed() -> None:
    def row(number: int, address: str, **more: Any) -> dict[str, Any]:
        return {"cluster": "c", "broker": "b", "id": number, "address": address, "role": "slave", "copies": [],
                "lag_bytes": None, "lag_seconds": None, **more}  # fmt: skip

    def copy(address: str) -> str:
        return f"address={address}, acknowledged=5, lagBytes=7, lagSeconds=1.5, sent=12, start=0"

    def lags(copies: list[str], *others: dict[str, Any]) -> tuple[int | None, float | None]:
        silent = row(1, "h1:10911", role=UNREACHABLE)
        add_lags_of_silent_slaves([row(0, "h0:10911", copies=copies), silent, *others])
        return silent["lag_bytes"], silent["lag_seconds"]

    assert lags([copy("h1:4000"), copy("h2:4000")], row(2, "h2:10911")) == (7, 1.5)
    assert lags([copy("h2:4000")]) == (None, None), "it is not connected"
    assert lags([copy("h1:4000"), copy("h1:4001")], row(2, "h1:10921")) == (None, None), "two on one host"
    assert lags([copy("h1:4000")], row(2, "h1:10921")) == (None, None), "it may be the other one's"


def test_the_reason_of_a_broker_that_refuses_is_shown(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(COLUMNS) | {
        "broker": "broker-a",
        "id": 0,
        "role": REFUSING,
        "refusal": "certificate has expired",
    }
    monkeypatch.setattr("gantrymq.cli.cluster.with_client", lambda *_: [row])
    (shown,) = json.loads(cli("cluster", "status", "--json").out)
    assert (shown["role"], shown["not_ready"]) == ("refusing", "certificate has expired")


def test_the_reason_of_a_slave_that_cannot_be_promoted_is_shown(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = dict.fromkeys(COLUMNS) | {"broker": "broker-a", "id": 1, "role": "slave", "refusal": ""}
    rows = [row | {"not_promotable": "broker.id is set by flag --set"}, row | {"id": 2, "not_promotable": ""}]
    monkeypatch.setattr("gantrymq.cli.cluster.with_client", lambda *_: rows)
    _, fixed, other = json.loads(cli("cluster", "status", "--json").out)
    assert (fixed["not_promotable"], other["not_promotable"]) == ("broker.id is set by flag --set", None)


def test_an_unregistered_master_has_a_row(tmp_path: Path, cli: Callable[..., Any]) -> None:
    with ExitStack() as stack:
        nameserver = stack.enter_context(
            gantrymq_child(["nameserver", "--listen", "127.0.0.1:0"], tmp_path / "nameserver.log")
        )
        address = nameserver.wait_line(lambda line: line.startswith("ready")).partition("nameserver=")[2]
        slave = stack.enter_context(
            gantrymq_child(
                [
                    "broker",
                    "--nameserver",
                    address,
                    "--listen",
                    "127.0.0.1:0",
                    "--data",
                    str(tmp_path / "data"),
                    "--set",
                    "store.commit_log_file_bytes=16 MiB",
                    "--set",
                    "broker.id=1",
                ],
                tmp_path / "slave.log",
            )
        )
        slave.wait_line(lambda line: line.startswith("ready"))
        wait_registered(address, "broker-a")
        rows = json.loads(cli("cluster", "status", "--nameserver", address, "--json").out)
        assert [(row["broker"], row["id"], row["role"]) for row in rows] == [
            ("broker-a", 0, "missing"), ("broker-a", 1, "slave"),
        ]  # fmt: skip
        assert "missing" in cli("cluster", "status", "--nameserver", address).out
