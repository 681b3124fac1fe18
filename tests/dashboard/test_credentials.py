"""The dashboard uses the credentials that it is given, never those of the broker that serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

pytest.importorskip("starlette", reason="starlette is not installed (gantrymq[dashboard])")
pytest.importorskip("hypercorn", reason="hypercorn is not installed (gantrymq[dashboard])")

from gantrymq import Message
from gantrymq.cli.connecting import connect_settings
from gantrymq.client import connect
from gantrymq.dashboard import server
from gantrymq.dashboard.access import Access
from gantrymq.dashboard.api import PREFIX
from gantrymq.remoting.channel import OUTGOING, Outgoing
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import Cluster, run_cluster
from support.accounts import ACL
from support.certificates import client_context
from support.dashboard import PLUGIN, Site, address_of
from support.processes import wait_for
from support.rotation import run_rotation

pytestmark = [pytest.mark.timeout(120), pytest.mark.trio]

KEYS = {"access_key": "root", "secret_key": "root-password"}
RECALL = f"{PREFIX}/delayed/recall"


@asynccontextmanager
async def dashboard(cluster: Cluster, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Site]:
    """A dashboard outside of the broker, once it is connected."""
    access = Access()
    sock = server.listen("127.0.0.1:0", access)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, sock, cluster.nameserver, access, settings)
        yield await connected(Site(server.address_of(sock), cluster))
        nursery.cancel_scope.cancel()


async def connected(site: Site) -> Site:
    """The site, once its client has reached the nameserver."""
    await trio.to_thread.run_sync(wait_for, lambda: site.request("GET", f"{PREFIX}/topics")[0] != 502)
    return site


async def ask(site: Site, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status and body of an answer."""
    status, found, _ = await trio.to_thread.run_sync(site.request, method, path, body)
    return status, found


async def test_the_dashboard_does_not_inherit_the_signature_and_the_certificate_of_its_process(tmp_path: Path) -> None:
    signed: list[int] = []

    def sign(command: Command) -> Command:
        signed.append(command.code)
        return command

    async with run_cluster(tmp_path) as cluster, connect(cluster.nameserver) as client:
        async with client.producer("timer") as producer:
            await client.admin.create_topic("timed", 1)
            await producer.send(Message("timed", b"later", delay=600))
        OUTGOING.set(Outgoing(tls=client_context(), sign=sign))
        async with dashboard(cluster) as site:
            assert [one["role"] for one in (await ask(site, "GET", f"{PREFIX}/brokers"))[1]["brokers"]] == ["master"]
            (waiting,) = (await ask(site, "GET", f"{PREFIX}/delayed"))[1]["messages"]
            recall = {"topic": "timed", "handle": waiting["handle"], "confirm": "timed"}
            assert (await ask(site, "POST", RECALL, recall))[0] == 200
    assert signed == []


async def test_the_dashboard_follows_a_replaced_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_rotation(tmp_path, monkeypatch) as rotation, trio.open_nursery() as nursery:
        settings = connect_settings({"GANTRYMQ_TLS_CA": str(rotation.trusted)})
        sock = server.listen("127.0.0.1:0", Access())
        nursery.start_soon(server.run, sock, rotation.nameserver, Access(), settings)
        site = Site(server.address_of(sock), cast("Cluster", None))

        async def wait_role(role: str) -> None:
            with trio.fail_after(20):
                while True:
                    status, found = await ask(site, "GET", f"{PREFIX}/brokers")
                    if status == 200 and [one["role"] for one in found["brokers"]] == [role]:
                        return
                    await trio.sleep(0.05)

        await wait_role("async_master")
        await rotation.replace_authority()
        await wait_role("async_master")
        nursery.cancel_scope.cancel()


async def test_brokers_with_access_control_refuse_the_plugin_and_obey_a_dashboard_with_keys(tmp_path: Path) -> None:
    (tmp_path / "tools.yml").write_text("accessKey: root\nsecretKey: root-password\n")
    settings = {
        "plugin.acl.keys": f"{tmp_path}/tools.yml", "plugin.acl.users": f"{tmp_path}/users.json",
        "plugin.acl.file": f"{tmp_path}/plain_acl.yml", "plugin.dashboard.listen": "127.0.0.1:0",
    }  # fmt: skip
    async with run_cluster(tmp_path / "store", settings=settings, enable=[ACL, PLUGIN]) as cluster:
        async with connect(cluster.nameserver, **KEYS) as client, client.producer("timer") as producer:
            await client.admin.create_topic("timed", 1)
            sent = await producer.send(Message("timed", b"later", delay=600))
        plugin = await connected(Site(address_of(cluster), cluster))
        async with dashboard(cluster, KEYS) as site:
            (waiting,) = (await ask(site, "GET", f"{PREFIX}/delayed"))[1]["messages"]
            recall = {"topic": "timed", "handle": waiting["handle"], "confirm": "timed"}
            status, found = await ask(plugin, "GET", f"{PREFIX}/delayed")
            assert (status, found["error"]["code"]) == (409, "broker")
            status, found = await ask(plugin, "POST", RECALL, recall)
            assert (status, found["error"]["code"]) == (400, "bad_request")
            assert len((await ask(site, "GET", f"{PREFIX}/delayed"))[1]["messages"]) == 1
            assert (await ask(site, "POST", RECALL, recall)) == (200, {"id": sent.message_id})
