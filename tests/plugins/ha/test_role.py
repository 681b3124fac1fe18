"""Roles and broker ids that change at run time; ``tests/cli/test_promote.py`` changes those of real processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

import gantrymq
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.sources import OVERRIDES_PATH
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.admin.overrides import Overrides
from gantrymq.plugins.ha import HaPlugin, compare
from gantrymq.plugins.ha import slave as ha_slave
from gantrymq.plugins.ha.epochs import Epochs
from gantrymq.plugins.ha.streams import secured
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, Epoch, read_epoch
from gantrymq.remoting.javaproperties import read_properties
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio


async def test_a_broker_id_set_by_a_flag_is_not_changed(pair: Any) -> None:
    async with pair.slave("127.0.0.1:1") as slave, open_channel(slave.address) as channel:
        answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0"))
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith("broker.id is set by flag --set, which overrides changes at run time")
        answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=1"))
        assert answer.code == 0, "it is so already"
        assert not slave.restarting


def ha_of(broker: Broker) -> HaPlugin:
    return next(info.plugin for info in broker.manager.plugins if isinstance(info.plugin, HaPlugin))


async def settings_told(broker: Broker) -> dict[str, str]:
    """The broker's role as administrators and slaves see it."""
    async with open_channel(broker.address) as channel:
        answer = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
        said = read_properties(bytes(answer.body or b""))
        return {name: said[name] for name in ("brokerRole", "brokerId", "plugin.ha.role", "broker.id")}


@pytest.mark.parametrize("of_master", ["sync_master", "async_master"])
async def test_a_promoted_slave_has_its_masters_guarantees(pair: Any, of_master: str) -> None:
    """A SEND_OK that no slave has could be lost with the next master."""
    code = ResponseCode.SLAVE_NOT_AVAILABLE if of_master == "sync_master" else ResponseCode.SUCCESS
    async with pair.master(role=of_master) as master, pair.slave(master):
        await pair.connected(master)
        assert await pair.send(master, b"a") == [0]
    async with pair.slave("127.0.0.1:1"):  # the change persists over a restart
        pass
    for _ in range(2):
        async with pair.master(home="slave") as promoted:
            assert await pair.send(promoted, b"b") == [code]
            assert await settings_told(promoted) == {
                "brokerRole": of_master.upper(), "brokerId": "0", "plugin.ha.role": of_master, "broker.id": "0",
            }  # fmt: skip
            async with pair.slave(promoted, home="next") as slave:
                await pair.connected(promoted)
                assert await pair.send(promoted, b"c") == [0]
                assert ha_of(slave)._epochs.master_role == of_master


async def test_the_configured_role_takes_precedence(pair: Any) -> None:
    async with pair.master(role="sync_master") as master, pair.slave(master):
        await pair.connected(master)
    async with pair.master(home="slave", role="async_master") as promoted:
        assert await pair.send(promoted, b"b") == [0]


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (b"[broker]\nid = 0\n", r"; a promotion stored id = 0 in .*/overrides\.toml: write an unused broker id"),
        (b"", r"0\);"),
    ],
)
async def test_a_fenced_broker_names_the_file_with_its_former_id(tmp_path: Path, overrides: bytes, hint: str) -> None:
    settings = {"plugin.ha.listen": "127.0.0.1:0"}
    broker = make_broker(tmp_path, settings=settings, enable=["ha"])
    async with run_broker(broker):
        pass
    Epochs(broker.env, broker.root).learn(read_epoch("7-00000001"), "a test", is_master=False)
    (tmp_path / OVERRIDES_PATH).write_bytes(overrides)
    number = b"" if overrides else b"[broker]\nid = 0\n"
    with pytest.raises(ExceptionGroup) as failure:
        async with run_broker(make_broker(tmp_path, settings=settings, enable=["ha"], file=number)):
            pass
    assert failure.group_contains(StartError, match=hint)


async def test_a_promoted_broker_restarts_as_a_slave_after_it_was_fenced(
    tmp_path: Path,
) -> None:
    """Its configuration file says that it is a slave."""
    settings, file = {"plugin.ha.listen": "127.0.0.1:0"}, b"[broker]\nid = 5\n"

    def make() -> Broker:
        return make_broker(tmp_path, settings=settings, enable=["ha"], file=file)

    async with run_broker(make()) as slave, open_channel(slave.address) as channel:
        assert (await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0"))).code == 0
    async with run_broker(make()) as promoted:
        assert promoted.broker_id == 0
    Epochs(promoted.env, promoted.root).learn(read_epoch("7-00000001"), "a test", is_master=False)
    fenced = make()
    async with run_broker(fenced):
        assert fenced.restarting
        with pytest.raises(gantrymq.ConnectError):  # its readers are served once it is a slave
            async with open_channel(fenced.address):
                pass
    async with run_broker(make()) as again:
        assert again.broker_id == 5
        assert not again.restarting
        assert (await settings_told(again))["brokerRole"] == "SLAVE"


async def test_a_fenced_broker_that_cannot_store_its_id_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / OVERRIDES_PATH).write_text("[broker]\nid = 0\n")
    broker = make_broker(tmp_path, settings={"plugin.ha.listen": "127.0.0.1:0"}, enable=["ha"])
    epochs = Epochs(broker.env, broker.root)
    epochs.begin(read_epoch("3-00000001"), 1)
    epochs.learn(read_epoch("7-00000001"), "a test", is_master=False)

    def full(_self: object, _values: object, _changes: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Overrides, "keep", full)
    with pytest.raises(ExceptionGroup) as failure:
        async with run_broker(broker):
            pass
    assert failure.group_contains(StartError, match=r"start again as a slave: .*overrides\.toml")


async def test_a_fenced_master_becomes_a_slave_with_another_id(tmp_path: Path) -> None:
    """Its configuration makes it the master, so it waits for somebody to say so."""
    settings = {"plugin.ha.listen": "127.0.0.1:0"}
    async with run_broker(make_broker(tmp_path, settings=settings, enable=["ha"])) as master:
        ha_of(master).learn_epoch(read_epoch("7-00000001"), "a test")
        assert ha_of(master).fenced
        assert not ha_of(master).returns_as_slave
        async with open_channel(master.address) as channel:
            answer = await channel.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=1\n"))
        assert answer.code == 0
        assert master.restarting
    async with run_broker(make_broker(tmp_path, settings=settings, enable=["ha"])) as slave:
        assert slave.broker_id == 1


async def test_only_a_master_that_is_not_fenced_is_active(pair: Any) -> None:
    async def active(broker: Broker) -> str:
        async with open_channel(broker.address) as channel:
            answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        return KVTable.from_bytes(answer.body or b"{}").table["brokerActive"]

    async with pair.master() as master, pair.slave(master) as slave:
        assert (await active(master), await active(slave)) == ("true", "false")
        ha_of(master).learn_epoch(read_epoch("7-00000001"), "a test")
        assert await active(master) == "false"


async def test_a_slave_that_learns_an_epoch_while_it_connects_acknowledges_nothing_to_the_old_master(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promotion counts on the end of the log with which the slave has answered it."""
    answers: list[Command] = []

    async def promotion_before_handshake(*arguments: Any) -> Any:
        if not answers:
            async with open_channel(slave.address) as channel:
                fence = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {EPOCH_FIELD: "5-abc"})
                answers.append(await channel.call(fence))
        return await secured(*arguments)

    monkeypatch.setattr(ha_slave, "secured", promotion_before_handshake)
    async with pair.master(role="sync_master", sync_timeout="200ms") as master:
        slave = pair.make_slave(master)
        with structlog.testing.capture_logs() as logs:
            async with run_broker(slave):
                await pair.until(lambda: bool(answers) and ha_of(master).fenced)
                assert 0 not in await pair.send(master, b"1", b"2")
        assert answers[0].code == 0
        assert slave.log.end == int((answers[0].ext or {})["logEnd"])
        assert "following_master" not in [entry["event"] for entry in logs]


async def test_a_fenced_master_that_does_not_answer_the_epoch_stops_no_slave(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master hangs, as during a failover."""
    unanswered: list[str] = []

    async def hang(address: str, epoch: Epoch) -> None:
        unanswered.append(address)
        raise trio.TooSlowError

    monkeypatch.setattr(compare, "send_epoch", hang)
    async with pair.master() as master, pair.slave(master) as slave:
        await pair.connected(master)
        ha_of(slave).learn_epoch(read_epoch("7-00000001"), "a test")
        await pair.until(lambda: len(unanswered) > 1)
        assert set(unanswered) == {master.address}
