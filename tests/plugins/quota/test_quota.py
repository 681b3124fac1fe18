"""Quotas in a running broker, by access key and by address, and how clients handle refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

import gantrymq
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import make_broker, run_broker, run_cluster
from gantrymq.testing.requests import send
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER

pytestmark = pytest.mark.trio

QUOTA = "gantrymq.plugins.quota:QuotaPlugin"


def limited(folder: Path, enable: tuple[str, ...] = (QUOTA,), **settings: str) -> Any:
    return make_broker(
        folder / "store", settings={name.replace("__", "."): value for name, value in settings.items()}, enable=enable
    )


async def test_an_identity_beyond_its_quota_gets_system_busy_and_others_are_served(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    broker = limited(
        tmp_path, (ACL, QUOTA), plugin__acl__file=str(tmp_path / "plain_acl.yml"),
        plugin__quota__identities="the-worker=requests=1", plugin__quota__burst="1s", plugin__quota__pause="0s",
    )  # fmt: skip
    beat = HeartbeatData("client", [ProducerData("p")], [])
    async with run_broker(broker), open_channel(broker.address) as channel:
        answer = await channel.call(WORKER.sign(send("T", b"x")), 10.0)
        assert answer.code == 0
        with anyio.fail_after(60):
            while answer.code == 0:  # on a slow machine a second may have passed
                answer = await channel.call(WORKER.sign(send("T", b"x")), 10.0)
        assert answer.code == 2
        assert "the-worker has used up its quota of 1 requests/s; next in" in (answer.remark or "")
        assert (await channel.call(WORKER.sign(Command(RequestCode.HEART_BEAT, None, beat.to_bytes())), 10.0)).code == 0
        async with open_channel(broker.address) as other:
            assert (await other.call(ADMIN.sign(send("T", b"x")), 10.0)).code == 0
        assert set(counted(broker, "gantrymq_quota_refused_requests_total")) == {("the-worker", "requests")}


async def test_without_accounts_a_quota_counts_by_address(tmp_path: Path) -> None:
    broker = limited(tmp_path, plugin__quota__connections="1")
    async with run_broker(broker):
        async with open_channel(broker.address) as first, open_channel(broker.address) as second:
            assert (await first.call(send("T", b"x"), 10.0)).code == 0
            answer = await second.call(send("T", b"x"), 10.0)
            assert (answer.code, "[127.0.0.1] has used up its quota of 1 connections" in (answer.remark or "")) == (
                2, True,
            )  # fmt: skip
        async with open_channel(broker.address) as third:
            with anyio.fail_after(30):
                while (await third.call(send("T", b"x"), 10.0)).code:  # noqa: ASYNC110 - until the ends are seen
                    await anyio.sleep(0.02)


async def test_beyond_the_quota_of_connections_offsets_are_served_and_no_consumer_joins_its_group(
    tmp_path: Path,
) -> None:
    """A 4.9.7 client takes a refused query for "never committed", and a member that cannot pull delays its queues."""
    offset = {"consumerGroup": "shop", "topic": "T", "queueId": "0"}
    broker = limited(tmp_path, plugin__quota__connections="1")
    async with run_broker(broker), open_channel(broker.address) as first, open_channel(broker.address) as second:
        assert (await first.call(send("T", b"x"), 10.0)).code == 0
        commit = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "1"})
        assert (await second.call(commit, 10.0)).code == 0
        answer = await second.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, offset), 10.0)
        assert (answer.code, answer.ext) == (0, {"offset": "1"})
        beat = HeartbeatData("client", [], [ConsumerData("shop")]).to_bytes()
        assert (await second.call(Command(RequestCode.HEART_BEAT, None, beat), 10.0)).code == 2
        assert (await second.call(send("T", b"x"), 10.0)).code == 2


async def test_a_connection_at_its_rate_is_read_more_slowly_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    broker = limited(
        tmp_path, (ACL, QUOTA), plugin__acl__file=str(tmp_path / "plain_acl.yml"), plugin__flush__mode="async",
        plugin__quota__identities="the-worker=requests=20", plugin__quota__burst="100ms",
    )  # fmt: skip
    async with run_broker(broker), open_channel(broker.address) as channel, open_channel(broker.address) as other:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def administrate() -> None:
                while True:
                    assert (await other.call(ADMIN.sign(send("T", b"x")), 10.0)).code == 0

            nursery.start_soon(administrate)
            sent = 0
            with anyio.fail_after(60):
                # no pause comes before a request for which a slow machine needed a 20th of a second
                while sent < 12 or "gantrymq_quota_pauses_total" not in families(broker):
                    assert (await channel.call(WORKER.sign(send("T", b"x")), 10.0)).code == 0
                    sent += 1
            nursery.cancel_scope.cancel()
        assert trio.current_time() - begun >= (sent - 3) / 20, (
            "the burst is 2 requests, and the last one leaves its pause to others"
        )
        pauses = counted(broker, "gantrymq_quota_pauses_total")
        assert set(pauses) == {("the-worker",)}
        assert 1 <= pauses["the-worker",] < sent
        assert "gantrymq_quota_refused_requests_total" not in families(broker)


async def test_requests_that_need_longer_than_the_pause_are_refused_and_the_rest_is_read_later(tmp_path: Path) -> None:
    broker = limited(tmp_path, plugin__quota__requests_per_second="10", plugin__quota__burst="100ms")
    async with run_broker(broker), open_channel(broker.address) as channel:
        codes: list[int] = []
        async with trio.open_nursery() as nursery:

            async def send_one() -> None:
                codes.append((await channel.call(send("T", b"x"), 10.0)).code)

            for _ in range(40):
                nursery.start_soon(send_one)
        assert {code: codes.count(code) > 5 for code in set(codes)} == {0: True, 2: True}
        assert (await channel.call(send("T", b"x"), 10.0)).code == 0, "the connection is read again"


def families(broker: Any) -> Any:
    metrics = Metrics(1000)
    for _, collect in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
        collect()
    return metrics.families


def counted(broker: Any, name: str) -> dict[Any, Any]:
    return dict(families(broker)[name].series)


async def test_the_python_client_backs_off_until_its_message_is_taken(tmp_path: Path) -> None:
    settings = {"plugin.quota.requests_per_second": "4", "plugin.quota.burst": "500ms",
                "plugin.quota.pause": "0s", "plugin.flush.mode": "async"}  # fmt: skip
    async with run_cluster(tmp_path, settings=settings, enable=[QUOTA]) as cluster:
        async with gantrymq.connect(cluster.nameserver) as client, client.producer(timeout=60) as producer:
            plugin = next(info.plugin for info in cluster.broker.manager.plugins if info.name == "quota")
            with anyio.fail_after(60):
                while ("[127.0.0.1]", "requests") not in plugin._usages.refused:
                    await producer.send("T", b"x")
        assert cluster.broker.log.end > 0


async def test_the_python_client_reports_the_refusal_at_its_deadline(tmp_path: Path) -> None:
    settings = {"plugin.quota.bytes_per_second": "1000", "plugin.quota.burst": "10s", "plugin.quota.pause": "0s"}
    async with run_cluster(tmp_path, settings=settings, enable=[QUOTA]) as cluster:
        async with gantrymq.connect(cluster.nameserver) as client, client.producer(timeout=1) as producer:
            await producer.send("T", os.urandom(1_000_000), timeout=60)
            with pytest.raises(gantrymq.BrokerError, match="used up its quota of 1000 bytes/s") as failed:
                await producer.send("T", b"x")
            assert failed.value.code == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "no quota is set"),
        ({"plugin__quota__identities": "someone=many"}, r"someone = 'many': expected requests=NUMBER"),
        ({"plugin__quota__identities": "someone=bytes=-1"}, "expected requests=NUMBER"),
    ],
)
async def test_wrong_quotas_refuse_the_start(tmp_path: Path, settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with run_broker(limited(tmp_path, **settings)):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)
