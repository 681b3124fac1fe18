"""``topic create`` for topics that some brokers already have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.plugins.interfaces import TopicTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import PERM_READ, RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.topics import CreateTopicHeader
from gantrymq.testing.harness import make_broker, run_broker

pytestmark = pytest.mark.trio


async def test_a_broker_that_lacks_a_topic_gets_it_with_its_settings_by_topic_create(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        nameserver = NameServer(NameServerConfig(port=0))
        await nursery.start(nameserver.serve)

        async def create(*options: str) -> Any:
            words = ("topic", "create", "T", *options, "--nameserver", nameserver.address)
            return await trio.to_thread.run_sync(lambda: cli(*words))

        brokers = {
            name: make_broker(tmp_path / name, [nameserver.address], settings={"broker.name": name})
            for name in ("one", "two")
        }
        first, second = brokers.values()
        async with run_broker(first), run_broker(second), open_channel(first.address) as channel:
            header = CreateTopicHeader(
                topic="T", default_topic="TBW102", read_queue_nums=3, write_queue_nums=3, perm=PERM_READ,
                topic_filter_type="SINGLE_TAG", attributes="+message.type=FIFO",
            )  # fmt: skip
            answer = await channel.call(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()))
            assert answer.code == ResponseCode.SUCCESS
            with trio.fail_after(60):
                while (  # noqa: ASYNC110 - it has no event
                    "T" not in nameserver.routes.topics().topic_list or nameserver.routes.count_brokers() < 2
                ):
                    await trio.sleep(0.01)

            refused = await create("--queues", "4")
            assert (refused.code, refused.err) == (
                1,
                "gantrymq: topic T exists with 3 queues on one; --queues 3 creates it on two, --update changes it\n",
            )
            tables: list[TopicTable] = [broker.registry.get(TopicTable) for broker in (first, second)]
            assert tables[1].get("T") is None
            created = await create("--queues", "3")
            assert (created.code, created.err) == (0, "")
            wanted = TopicConfig("T", 3, 3, PERM_READ, attributes={"message.type": "FIFO"})
            assert [table.get("T") for table in tables] == [wanted, wanted]

            refused = await create("--queues", "3")
            assert (refused.code, refused.err) == (
                1, "gantrymq: topic T exists with 3 queues on one, 3 queues on two; --update changes it\n",
            )  # fmt: skip
        nursery.cancel_scope.cancel()


async def test_topic_update_does_not_create_a_topic_in_a_cluster_that_lacks_it(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        nameserver = NameServer(NameServerConfig(port=0))
        await nursery.start(nameserver.serve)

        async def run(*words: str) -> tuple[int, str]:
            given = ("topic", *words, "--nameserver", nameserver.address)
            outcome = await trio.to_thread.run_sync(lambda: cli(*given))
            return outcome.code, outcome.err

        brokers = [
            make_broker(
                tmp_path / name, [nameserver.address], settings={"broker.name": name, "broker.cluster": name.upper()}
            )
            for name in ("one", "two")
        ]
        async with run_broker(brokers[0]), run_broker(brokers[1]):
            with trio.fail_after(60):
                while nameserver.routes.count_brokers() < 2:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.01)
            assert await run("create", "T", "--queues", "3", "--cluster", "ONE") == (0, "")
            text = "topic T does not exist in cluster TWO; gantrymq topic create --cluster TWO creates it there"
            assert await run("update", "T", "--queues", "4", "--cluster", "TWO") == (1, f"gantrymq: {text}\n")
            code, err = await run("update", "T", "--queues", "4", "--cluster", "THREE")
            assert (code, "no master broker in cluster THREE" in err) == (1, True)
            assert brokers[1].registry.get(TopicTable).get("T") is None
            assert await run("update", "U", "--queues", "4") == (
                1, "gantrymq: topic U does not exist; gantrymq topic create creates it\n",
            )  # fmt: skip
            assert await run("update", "T", "--queues", "4", "--cluster", "ONE") == (0, "")
        nursery.cancel_scope.cancel()
