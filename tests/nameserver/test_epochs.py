"""What the nameserver does with epochs: a deposed master is not registered, also by the nameserver's next run."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

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
        """What the answer says of epochs."""
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


async def test_a_deposed_master_is_refused_with_the_reason_also_after_a_restart(tmp_path: Path) -> None:
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
    assert nameserver.master() == "h:1", "RocketMQ's rule: no state version here, whoever comes last"


async def test_the_higher_of_two_simultaneous_epochs_wins(tmp_path: Path) -> None:
    nameserver = Nameserver(tmp_path / "kv.json")
    async with trio.open_nursery() as nursery:
        for number in (3, 1, 4, 2):
            nursery.start_soon(nameserver.register, f"h:{number}", Epoch(number, "x"))
    assert nameserver.master() == "h:4"
    assert nameserver.kv.get(EPOCHS_NAMESPACE, "a@C") == "4-x"
