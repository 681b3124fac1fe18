"""The nameserver refuses the registration of a fenced master by its epoch, also after a restart."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.nameserver import epochs, kv
from gantrymq.nameserver.epochs import EPOCHS_NAMESPACE
from gantrymq.nameserver.kv import KVConfig
from gantrymq.nameserver.requests import Requests
from gantrymq.nameserver.routes import Routes
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, Epoch, epoch_in
from gantrymq.remoting.headers.header import Header
from gantrymq.remoting.headers.nameserver import BrokerHeader, RegisterBrokerHeader

pytestmark = pytest.mark.trio


class Nameserver:
    """Its requests, without sockets; ``path`` outlives it."""

    def __init__(self, path: Path) -> None:
        self.kv = KVConfig(path)
        self.routes = Routes(trio.current_time)
        self.requests = Requests(self.routes, self.kv)

    async def register(self, address: str, epoch: Epoch | None, broker_id: int = 0) -> Epoch | None:
        """The epoch fields of the response."""
        header = RegisterBrokerHeader(
            broker_name="a", broker_addr=address, cluster_name="C", ha_server_addr=address, broker_id=broker_id
        )
        return await self._ask(RequestCode.REGISTER_BROKER, header, epoch, RegisterBrokerBody().encode())

    async def beat(self, address: str, epoch: Epoch) -> Epoch | None:
        header = BrokerHeader(broker_name="a", broker_addr=address, cluster_name="C", broker_id=0)
        return await self._ask(RequestCode.QUERY_DATA_VERSION, header, epoch, b"{}")

    async def _ask(self, code: RequestCode, header: Header, epoch: Epoch | None, body: bytes) -> Epoch | None:
        ext = header.to_ext() | ({} if epoch is None else {EPOCH_FIELD: str(epoch)})
        answer = await self.requests.answer(Command(code, ext, body), object())
        assert answer.code == 0, answer.remark
        return epoch_in(answer.ext)

    def master(self) -> str:
        return self.routes.member_group("a").get(0, "")


OLD, NEW = Epoch(), Epoch(1, "aa")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The path of a KV file that cannot be written until its folder, which is a file, is removed."""
    folder = tmp_path / "folder"
    folder.write_text("a file stands for a full disk")
    return folder / "kv.json"


async def test_a_fenced_master_is_refused_with_the_reason_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    first = Nameserver(path)
    assert await first.register("h:1", OLD) == OLD
    assert await first.register("h:2", NEW) == NEW
    assert await first.register("h:1", OLD) == NEW
    assert await first.beat("h:1", OLD) == NEW
    assert first.master() == "h:2"

    again = Nameserver(path)
    assert await again.register("h:1", OLD) == NEW
    assert again.master() == ""
    assert await again.register("h:9", Epoch(1, "bb")) == NEW, "the number's other promotion"
    assert again.master() == ""
    assert await again.register("h:3", NEW) == NEW, "the same broker at another address"
    assert again.master() == "h:3"
    again.kv.delete(EPOCHS_NAMESPACE, "a@C")
    assert await again.register("h:1", OLD) == OLD


async def test_a_slave_reports_its_epoch_and_gets_the_current_one(tmp_path: Path) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    assert await nameserver.register("h:1", OLD) == OLD
    assert await nameserver.register("h:2", NEW, broker_id=1) == NEW
    assert await nameserver.beat("h:1", OLD) == NEW
    assert await nameserver.register("h:3", OLD, broker_id=2) == NEW
    assert nameserver.routes.member_group("a").keys() >= {1, 2}


async def test_a_rocketmq_broker_sends_and_gets_no_epoch(tmp_path: Path) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    assert await nameserver.register("h:2", NEW) == NEW
    assert await nameserver.register("h:1", None) is None
    assert nameserver.master() == "h:1", "RocketMQ's rule without a state version: the last one registered"


async def test_the_higher_of_two_simultaneous_epochs_wins(tmp_path: Path) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    async with trio.open_nursery() as nursery:
        for number in (3, 1, 4, 2):
            nursery.start_soon(nameserver.register, f"h:{number}", Epoch(number, "x"))
    assert nameserver.master() == "h:4"
    assert nameserver.kv.get(EPOCHS_NAMESPACE, "a@C") == "4-x"


async def test_a_nameserver_that_cannot_store_an_epoch_accepts_the_promoted_master_and_refuses_the_old_one(
    broken: Path,
) -> None:
    nameserver = Nameserver(broken)
    assert await nameserver.register("h:1", OLD) == OLD
    with capture_logs() as logs:
        assert await nameserver.register("h:2", NEW) == NEW
        assert await nameserver.beat("h:1", OLD) == NEW, "its lease is not renewed"
        assert await nameserver.register("h:1", OLD) == NEW
        assert await nameserver.register("h:3", NEW, broker_id=1) == NEW
    assert nameserver.master() == "h:2"
    [failed] = [each for each in logs if each["log_level"] == "error"]
    assert (failed["event"], failed["broker"], failed["epoch"]) == ("epoch_not_stored", "a", "1-aa")

    broken.parent.unlink()
    assert await nameserver.register("h:2", NEW) == NEW
    assert Nameserver(broken).kv.get(EPOCHS_NAMESPACE, "a@C") == "1-aa", "the next report stores it"


async def test_an_administrator_deletes_an_epoch_that_could_not_be_stored(broken: Path) -> None:
    nameserver = Nameserver(broken)
    assert await nameserver.register("h:2", NEW) == NEW
    delete = Command(RequestCode.DELETE_KV_CONFIG, {"namespace": EPOCHS_NAMESPACE, "key": "a@C"})
    assert (await nameserver.requests.answer(delete, object())).code == 0
    assert await nameserver.register("h:1", OLD) == OLD
    assert nameserver.master() == "h:1"


async def test_other_brokers_register_while_an_epoch_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    writing, released, write = trio.Event(), Event(), kv._write_atomically

    def wait_and_write(path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(writing.set)
        released.wait()
        write(path, data)

    monkeypatch.setattr(kv, "_write_atomically", wait_and_write)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nameserver.register, "h:2", NEW)
            try:
                await writing.wait()
                assert nameserver.master() == "h:2"
                assert await nameserver.register("h:1", OLD) == NEW
                assert await nameserver.register("h:2", NEW) == NEW, "only the first report waits"
            finally:
                released.set()
    assert nameserver.kv.get(EPOCHS_NAMESPACE, "a@C") == "1-aa"


async def test_a_higher_epoch_that_comes_during_the_write_is_stored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    writing, released, write = trio.Event(), Event(), kv._write_atomically

    def wait_and_write(path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(writing.set)
        released.wait()
        write(path, data)

    monkeypatch.setattr(kv, "_write_atomically", wait_and_write)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nameserver.register, "h:2", NEW)
            try:
                await writing.wait()
                assert await nameserver.register("h:3", Epoch(2, "cc")) == Epoch(2, "cc")
            finally:
                released.set()
    assert Nameserver(tmp_path / "kv.json").kv.get(EPOCHS_NAMESPACE, "a@C") == "2-cc"


async def test_epochs_that_cannot_be_stored_take_limited_memory(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "UNSTORED_MAX", 1)
    nameserver = Nameserver(broken)
    assert await nameserver.register("h:2", NEW) == NEW
    header = BrokerHeader(broker_name="b", broker_addr="h:9", cluster_name="C", broker_id=0)
    for name, remark in (("b", "1 epochs wait"), ("b" * 1000, "a name of 1000 characters")):
        ext = {**header.to_ext(), "brokerName": name, EPOCH_FIELD: str(NEW)}
        answer = await nameserver.requests.answer(Command(RequestCode.QUERY_DATA_VERSION, ext, b"{}"), object())
        assert answer.code == 1
        assert remark in (answer.remark or "")
    assert await nameserver.register("h:3", Epoch(2, "cc")) == Epoch(2, "cc"), "of a name that is known"
