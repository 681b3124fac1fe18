"""``gantrymq cluster watch`` as a command; with a real etcd in ``tests/crash/test_watch.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.cli import watch
from gantrymq.failover.watcher import WatchRules
from support.memorylock import MemoryLock, MemoryStore
from support.processes import gantrymq_child, wait_for
from support.rotation import run_rotation

NOBODY = "127.0.0.1:1"
WATCH = ("cluster", "watch", "broker-a", "--nameserver", NOBODY)


def test_an_invalid_etcd_address_is_a_usage_error(cli: Callable[..., Any]) -> None:
    refused = cli(*WATCH, "--etcd", "10.0.0.5:2379")
    assert refused.code == 2
    assert "'10.0.0.5:2379' is not an address of etcd" in " ".join(refused.err.split())


def test_an_unreadable_file_is_a_usage_error(cli: Callable[..., Any]) -> None:
    refused = cli(*WATCH, "--etcd", "https://127.0.0.1:1", "--etcd-ca", "/absent.pem")
    assert refused.code == 2
    assert "/absent.pem cannot be read" in " ".join(refused.err.split())


def test_a_missing_extra_is_reported_with_its_package(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd3gw.client", None)
    refused = cli(*WATCH, "--etcd", f"http://{NOBODY}")
    assert refused.code == 1
    assert "pip install 'gantrymq[etcd]'" in refused.err


@pytest.mark.trio
async def test_the_watcher_follows_a_replaced_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher must not treat a master with a new certificate as lost."""
    rules = WatchRules(interval=0.05, master_timeout=0.2)
    async with run_rotation(tmp_path, monkeypatch) as rotation, trio.open_nursery() as nursery:
        monkeypatch.setenv("GANTRYMQ_TLS_CA", str(rotation.trusted))
        locks = {"broker-a": MemoryLock(MemoryStore(), "w")}
        nursery.start_soon(watch._watch, locks, rules, rotation.nameserver)
        await rotation.seen("master_found")
        await rotation.replace_authority()
        await trio.sleep(5 * rules.master_timeout)
        nursery.cancel_scope.cancel()
    events = {each["event"] for each in rotation.logs}
    assert not events & {"master_silent", "master_refuses", "master_lost", "nameserver_unavailable"}, events


def test_the_watcher_reports_missing_etcd_and_nameserver_and_stops_on_sigterm(tmp_path: Path) -> None:
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed (gantrymq[etcd])")
    log = tmp_path / "watch.log"
    with gantrymq_child([*WATCH, "broker-b", "--etcd", f"http://{NOBODY}", "--lease", "2"], log) as watch:
        assert watch.wait_line(lambda line: line.startswith("ready")) == "ready watching=broker-a,broker-b"
        for event in ("lock_store_unavailable", "nameserver_unavailable"):
            wait_for(lambda event=event: log.read_text().count(event) == 2)
        assert watch.terminate() == 0
    assert "Traceback" not in log.read_text()
