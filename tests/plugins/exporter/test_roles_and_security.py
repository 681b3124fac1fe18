"""The plugin ``exporter`` on a slave and after its promotion, and on a broker with access control and TLS."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.broker import Broker
from gantrymq.plugins.interfaces import Replication
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.channel import open_channel
from gantrymq.spark import Refused
from gantrymq.spark.security import read_security
from gantrymq.spark.wire import Wire
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.plugin_broker import PluginBroker
from gantrymq.testing.requests import send
from support.accounts import ACCOUNTS, ACL, ADMIN
from support.certificates import CA, FOLDER
from support.exporting import PATIENCE_S, bodies, control, export_now, until
from support.processes import wait_for

pytest.importorskip("pyarrow", reason="exports are Parquet files: pip install 'gantrymq[spark]'")

pytestmark = pytest.mark.once

HA = "gantrymq.plugins.ha:HaPlugin"
TLS = "gantrymq.plugins.tls:TlsPlugin"
EXPORTER_ACCOUNT = """\
- accessKey: the-exporter
  secretKey: exporter-secret
  defaultTopicPerm: DENY
  topicPerms: [orders=SUB]
  groupPerms: [CID_GANTRYMQ_SPARK=SUB]
"""


@pytest.mark.trio
@pytest.mark.slow
@pytest.mark.parametrize("loses_a_message", [False, True])
async def test_only_the_master_exports_and_a_promoted_slave_goes_on_with_its_folder_unless_it_lacks_messages(
    tmp_path: Path, loses_a_message: bool
) -> None:
    to = tmp_path / "out"
    given = {"plugin.exporter.topics": "orders", "plugin.exporter.to": str(to), "plugin.exporter.every": "1h",
             "plugin.exporter.nice": "0", "plugin.ha.listen": "127.0.0.1:0"}  # fmt: skip

    def make(home: str, **more: str) -> Broker:
        return make_broker(tmp_path / home, settings=given | more, enable=[HA, "exporter"])

    async def fill(broker: Broker, *texts: bytes) -> None:
        async with open_channel(broker.address) as channel:
            for text in texts:
                assert (await channel.call(send("orders", text))).code == 0

    async with run_broker(make("master")) as master:
        ha_address = master.registry.get(Replication).ha_address
        following = {"broker.id": "1", "plugin.ha.master": ha_address, "plugin.ha.master_broker": master.address,
                     "plugin.ha.sync_tables": "100ms"}  # fmt: skip
        async with run_broker(make("slave", **following)) as slave:
            await fill(master, b"one", b"two")
            await until(lambda: slave.log.end == master.log.end and slave.queues.get("orders", 0) is not None)
            refused = await control(slave, "run")
            assert (refused.code, refused.remark) == (1, "this broker is a slave; its master exports")
            floors = {info.name: call() for info, call in slave.manager.calls("retention_floor", broker=slave)}
            assert floors["exporter"] == slave.log.end, "a slave holds nothing for its master's export"
            status = await export_now(master)
            assert (status["last_run"]["error"], status["last_run"]["rows"]) == ("", 2)
            await fill(master, b"three")
            await until(lambda: slave.log.end == master.log.end)
        if loses_a_message:
            await fill(master, b"four")
            assert (await export_now(master))["last_run"]["rows"] == 2
    async with run_broker(make("slave")) as promoted:
        await fill(promoted, *([b"four again", b"five"] if loses_a_message else [b"four"]))
        status = await export_now(promoted)
        if loses_a_message:
            assert "the broker lost messages" in status["last_run"]["error"]
        else:
            assert (status["last_run"]["error"], status["lag"]) == ("", {"orders": 0})
    assert bodies(to) == Counter([b"one", b"two", b"three", b"four"])


@pytest.mark.slow
def test_a_run_signs_its_requests_and_connects_with_tls(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS + EXPORTER_ACCOUNT)
    settings = {
        "plugin.acl.file": str(tmp_path / "plain_acl.yml"), "plugin.tls.certificate": str(FOLDER / "server.pem"),
        "plugin.tls.outgoing": "plain", "plugin.exporter.topics": "orders", "plugin.exporter.to": str(tmp_path / "out"),
        "plugin.exporter.every": "1h", "plugin.exporter.nice": "0", "plugin.exporter.tls": "true",
        "plugin.exporter.tls_ca_file": str(CA), "plugin.exporter.access_key": "the-exporter",
        "plugin.exporter.secret_key": "wrong",
    }  # fmt: skip
    running = PluginBroker(tmp_path / "broker", [ACL, TLS, "exporter"], settings=settings)
    try:
        _check_secured(running, tmp_path / "out")
    finally:
        running.stop()


def _check_secured(running: PluginBroker, to: Path) -> None:
    from gantrymq.plugins.spark.exporter_status import ask_exporter

    encrypted = {"tls": "true", "tlsCaFile": str(CA)}
    admin = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key} | encrypted

    def runs() -> Any:
        return ask_exporter(running.address, "status", admin)["last_run"]

    with Wire(security=read_security(admin)) as wire:
        assert wire.call(parse_address(running.address), send("orders", b"one")).code == 0
    with pytest.raises(Refused):
        ask_exporter(running.address, "run", {"accessKey": "the-worker", "secretKey": "worker-secret"} | encrypted)
    ask_exporter(running.address, "run", admin)
    wait_for(lambda: runs() is not None, PATIENCE_S)
    assert "check access_key and secret_key" in runs()["error"] or "signature" in runs()["error"].lower()
    assert not list(to.glob("topic=*"))
    running.restart(settings={"plugin.exporter.secret_key": "exporter-secret"})
    ask_exporter(running.address, "run", admin)
    wait_for(lambda: runs()["error"] == "" and runs()["rows"] == 1, PATIENCE_S)
    assert bodies(to) == Counter([b"one"])
