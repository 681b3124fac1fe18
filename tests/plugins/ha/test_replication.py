"""Master and slave as whole brokers: the same log, durable acknowledgments, and unknown peers at the port."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.kernel.errors import NoRoom, StartError
from gantrymq.kernel.expiry import drop_before
from gantrymq.plugins.ha import master as master_module
from gantrymq.plugins.ha import slave as slave_module
from gantrymq.plugins.ha.frames import HEADER, REPORT, Pieces
from gantrymq.plugins.ha.master_address import MasterAddress
from gantrymq.plugins.interfaces import ConsumerOffsets, GroupTable, Replication, TopicTable
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_FIELD, LOG_LACKS_FIELD, LOG_LACKS_KEY
from gantrymq.testing.harness import make_broker
from support.processes import free_ports

pytestmark = pytest.mark.trio

OK = [0]


@asynccontextmanager
async def stranger(master: Any) -> AsyncIterator[trio.SocketStream]:
    """A connection to the master's port for slaves."""
    address = parse_address(master.registry.get(Replication).ha_address)
    async with await trio.open_tcp_stream(*address) as stream:
        yield stream


async def test_a_slave_has_the_masters_bytes_and_catches_up_after_a_restart(pair: Any) -> None:
    async with pair.master() as master:
        await pair.send(master, *[b"%d" % number for number in range(500)])
        async with pair.slave(master) as slave:
            await pair.send(master, *[b"x" * 3000] * 500)
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            assert slave.queues.get("T", 0).max_offset == 1000
        for _ in range(20):
            await pair.send(master, *[b"y" * 100_000] * 10)
        assert len(master.log.segments) > 1
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert pair.bytes_of(slave) == pair.bytes_of(master)
            queues = [(queue.topic, queue.queue_id, queue.max_offset) for queue in master.queues if queue.topic == "T"]
            assert queues == [(q.topic, q.queue_id, q.max_offset) for q in slave.queues if q.topic == "T"]


@pytest.mark.parametrize("full_copy", ["true", "false"])
async def test_a_new_slave_starts_with_the_last_file_unless_all_is_requested(pair: Any, full_copy: str) -> None:
    async with pair.master(full_copy=full_copy) as master:
        for _ in range(11):
            await pair.send(master, *[b"y" * 100_000] * 10)
        last = list(master.log.segments)[-1].base
        assert last > 0
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert slave.log.min_offset == (0 if full_copy == "true" else last)
            assert pair.bytes_of(slave) == pair.bytes_of(master)[slave.log.min_offset :]
            lacks = None if full_copy == "true" else str(last)
            assert await lacks_before(slave) == (lacks, lacks)
        async with pair.slave("127.0.0.1:1") as slave:
            assert await lacks_before(slave) == (lacks, lacks), "the note is durable"


async def test_a_slave_is_complete_once_its_master_has_deleted_what_the_slave_lacks(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "COMPLETE_S", 0.05)
    async with pair.master() as master:
        for _ in range(11):
            await pair.send(master, *[b"y" * 100_000] * 10)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert await lacks_before(slave) == (str(slave.log.min_offset),) * 2
            await drop_before(master, slave.log.min_offset)
            assert master.log.min_offset == slave.log.min_offset
            with trio.fail_after(10):
                while await lacks_before(slave) != (None, None):
                    pass
        async with pair.slave(master, home="new") as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert slave.log.min_offset > 0
            assert await lacks_before(slave) == (None, None), "the master has no more"


async def lacks_before(slave: Any) -> tuple[str | None, str | None]:
    """The offset before which the slave lacks what its master had: in its runtime information, and in its answer to an
    epoch."""
    async with open_channel(slave.address) as channel:
        info = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        answer = await channel.call(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, {EPOCH_FIELD: "0-"}))
    assert answer.code == ResponseCode.SUCCESS
    reported = KVTable.from_bytes(info.body or b"{}").table.get(LOG_LACKS_KEY)
    return reported, (answer.ext or {}).get(LOG_LACKS_FIELD)


async def test_a_sync_master_waits_for_a_slave_and_reports_when_there_is_none(pair: Any) -> None:
    async with pair.master(role="sync_master", sync_timeout="10s") as master:
        assert await pair.send(master, b"alone") == [ResponseCode.SLAVE_NOT_AVAILABLE]
        await pair.until(lambda: master.store.dispatched == master.log.end)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            assert await pair.send(master, b"together") == OK
            assert slave.log.durable == master.log.end


async def test_a_silent_slave_causes_a_timeout_and_the_message_is_readable(pair: Any) -> None:
    async with pair.master(role="sync_master", sync_timeout="100ms") as master:
        await pair.send(master, b"first")
        async with stranger(master) as mute:
            await mute.send_all(REPORT.pack(master.log.end))
            await pair.connected(master)
            assert await pair.send(master, b"second") == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
            await pair.until(lambda: master.store.dispatched == master.log.end)


@pytest.mark.parametrize("said", [b"\xff" * 8, REPORT.pack(2**40), REPORT.pack(-5), random.Random(3).randbytes(64)])
@pytest.mark.slow
async def test_invalid_bytes_of_a_slave_close_that_connection_only(pair: Any, said: bytes) -> None:
    async with pair.master(role="sync_master") as master, pair.slave(master):
        await pair.connected(master)
        assert await pair.send(master, b"before") == OK
        async with stranger(master) as bad:
            await bad.send_all(said)
            with trio.fail_after(30):
                assert not await bad.receive_some(100)
            assert await pair.send(master, b"after") == OK


async def test_a_forged_acknowledgment_is_ignored_and_closes_the_connection(pair: Any) -> None:
    async with pair.master(role="sync_master", sync_timeout="100ms") as master:
        await pair.send(master, b"first")
        end = master.log.end
        async with stranger(master) as liar:
            await liar.send_all(REPORT.pack(end) + REPORT.pack(end + 1))
            with trio.fail_after(30):
                assert not await liar.receive_some(100)
            assert await pair.send(master, b"second") == [ResponseCode.SLAVE_NOT_AVAILABLE]


async def test_a_partial_report_times_out_at_housekeeping(pair: Any) -> None:
    async with pair.master(housekeeping="100ms") as master:
        async with stranger(master) as slow:
            await slow.send_all(b"\0\0\0")
            with trio.fail_after(5):
                assert not await slow.receive_some(100)


async def test_unlisted_addresses_are_disconnected_and_logged_once(pair: Any) -> None:
    async with pair.master(peers="10.1.2.3") as master:
        with capture_logs() as logs:
            for _ in range(3):
                async with stranger(master) as other:
                    with trio.fail_after(30):
                        assert not await other.receive_some(100)
        assert [each["peer"] for each in logs if each["event"] == "slave_refused"] == ["127.0.0.1"]


async def test_a_slave_that_comes_and_goes_is_logged_once_until_it_stays(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair.master(heartbeat="100ms") as master:

        async def report(stream: trio.SocketStream) -> None:
            await stream.send_all(REPORT.pack(master.log.end))
            with trio.fail_after(10):
                assert await stream.receive_some(100), "a heartbeat"

        await pair.send(master, b"first")
        with capture_logs() as logs:
            for _ in range(3):
                async with stranger(master) as slave:
                    await report(slave)
            async with stranger(master) as slave:
                await report(slave)
                monkeypatch.setattr(master_module, "REPEAT_SECONDS", 0.0)
                await slave.send_all(REPORT.pack(master.log.end))
                await pair.until(lambda: any(each["event"] == "outage_ended" for each in logs))
            async with stranger(master):
                pass  # it never reported, as the probe of a monitor: nothing is lost
        names = ("slave_connected", "sending_log", "slave_disconnected", "outage_ended")
        assert tuple(each["event"] for each in logs if each["event"] in names)[:4] == names
        assert [each["failures"] for each in logs if each["event"] == "outage_ended"] == [3]


async def test_a_master_that_ends_each_connection_is_one_outage_of_its_slave(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(slave_module, "LAST_RETRY_S", 0.02)
    seen, stays = 0, False

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal seen
        seen += 1
        while stays:
            await stream.send_all(HEADER.pack(0, 0))
            await trio.sleep(0.05)

    def about(logs: Any) -> list[str]:
        names = ("master_not_connected", "following_master", "outage_ended")
        return [each["event"] for each in logs if each["event"] in names]

    async with trio.open_nursery() as nursery:
        listener = (await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1")))[0]
        host, port = listener.socket.getsockname()[:2]
        with capture_logs() as logs:
            async with pair.slave(f"{host}:{port}"):
                await pair.until(lambda: seen >= 6)
                assert about(logs) == ["following_master", "master_not_connected", "following_master"]
                monkeypatch.setattr(slave_module, "REPEAT_SECONDS", 0.3)
                stays = True
                await pair.until(lambda: "outage_ended" in about(logs))
        assert about(logs)[2:] == ["following_master", "outage_ended"]
        assert next(each["failures"] for each in logs if each["event"] == "outage_ended") >= 5
        nursery.cancel_scope.cancel()


async def test_an_idle_master_sends_heartbeats_with_its_log_end(pair: Any) -> None:
    async with pair.master(heartbeat="20ms") as master:
        await pair.send(master, b"first")
        async with stranger(master) as idle:
            await idle.send_all(REPORT.pack(master.log.end))
            with trio.fail_after(5):
                data = b""
                while len(data) < 2 * HEADER.size:
                    data += await idle.receive_some(100)
            assert data[: 2 * HEADER.size] == HEADER.pack(master.log.end, 0) * 2


async def test_a_slow_slave_delays_no_other_slave(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        async with stranger(master) as slow:
            await slow.send_all(REPORT.pack(0))
            for _ in range(20):
                await pair.send(master, *[b"y" * 100_000] * 10)
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            pieces, end = Pieces(), 0
            with trio.fail_after(10):
                while end < master.log.end:
                    for piece in pieces.feed(bytes(await slow.receive_some(65536))):
                        end = piece.offset + len(piece.data)


@pytest.mark.parametrize(("flipped", "room"), [(True, 2**19), (False, 2**19), (False, 256)])
@pytest.mark.slow
async def test_a_truncated_or_corrupt_stream_is_rejected_and_resumed(
    pair: Any, monkeypatch: pytest.MonkeyPatch, flipped: bool, room: int
) -> None:
    """A proxy ends each connection after a random number of bytes, or flips one on the way.

    In a small room more always waits to be received: what was taken is committed late, or because the stream ends.
    """
    monkeypatch.setattr(slave_module, "_RECEIVE_BYTES", room)
    rng = random.Random(5)
    async with pair.master() as master, trio.open_nursery() as nursery:
        await pair.send(master, *[b"%d" % number * 50 for number in range(300)])
        where = parse_address(master.registry.get(Replication).ha_address)
        connections = 0

        async def carry(near: trio.SocketStream) -> None:
            nonlocal connections
            connections += 1
            left = rng.randrange(1, 20_000) if connections < 12 else 10**9
            async with near, await trio.open_tcp_stream(*where) as far, trio.open_nursery() as both:

                async def up() -> None:
                    while data := await near.receive_some(4096):
                        await far.send_all(data)
                    both.cancel_scope.cancel()

                both.start_soon(up)
                while left > 0 and (data := bytes(await far.receive_some(min(left, 3000)))):
                    left -= len(data)
                    if flipped and left <= 0:
                        data = data[:-1] + bytes([data[-1] ^ 0xD5])
                    await near.send_all(data)
                both.cancel_scope.cancel()

        async def serve(near: trio.SocketStream) -> None:
            try:
                await carry(near)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with pair.slave(address, master_broker=master.address, housekeeping="300ms", heartbeat="100ms") as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end, 60)
            if not flipped:
                assert pair.bytes_of(slave) == pair.bytes_of(master)
        nursery.cancel_scope.cancel()


async def test_a_slave_has_its_masters_topics_groups_and_offsets(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        master.registry.get(TopicTable).ensure(TopicConfig("T", 3, 5))
        master.registry.get(GroupTable).find("G")
        await pair.send(master, b"a", b"b", b"c")
        await pair.until(lambda: master.store.dispatched == slave.store.dispatched == master.log.end)
        offsets = slave.registry.get(ConsumerOffsets)
        master.registry.get(ConsumerOffsets).commit("G", "T", 0, 2)
        await pair.until(lambda: offsets.query("G", "T", 0) == 2)
        assert slave.registry.get(TopicTable).get("T").write_queue_nums == 5
        assert "G" in slave.registry.get(GroupTable).names()
        offsets.commit("G", "T", 0, 3)
        await trio.sleep(0.3)
        assert offsets.query("G", "T", 0) == 3
        master.registry.get(ConsumerOffsets).commit("G", "T", 0, 1)
        await pair.until(lambda: offsets.query("G", "T", 0) == 1)


async def test_a_slave_appends_nothing_itself(pair: Any) -> None:
    async with pair.master() as master, pair.slave(master) as slave:
        await pair.send(master, b"a")
        await pair.until(lambda: slave.store.dispatched == master.log.end)
        assert await pair.send(slave, b"b") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        assert slave.log.end == master.log.end


async def test_a_promoted_slave_continues_and_its_old_master_follows(pair: Any) -> None:
    async with pair.master() as master:
        await pair.send(master, *[b"%d" % number for number in range(100)])
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
    async with pair.master(home="slave") as promoted:
        assert await pair.send(promoted, b"next") == OK
        assert promoted.queues.get("T", 0).max_offset == 101
        async with pair.slave(promoted, home="master") as follower:
            await pair.until(lambda: follower.store.dispatched == promoted.log.end)
            assert pair.bytes_of(follower) == pair.bytes_of(promoted)


async def test_a_slave_with_a_full_disk_waits_and_resumes(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "ROOM_PAUSE_S", 0.05)
    async with pair.master() as master:
        await pair.send(master, *[b"x" * 1000] * 100)
        async with pair.slave(master) as slave:
            await pair.until(lambda: slave.store.dispatched == master.log.end)
            append, full = slave.store.log.append_encoded, [True]

            def without_room(position: int, data: bytes) -> DispatchBatch:
                if full:
                    raise NoRoom("commitlog", OSError(errno.ENOSPC, "No space left on device"))
                taken: DispatchBatch = append(position, data)
                return taken

            monkeypatch.setattr(slave.store.log, "append_encoded", without_room)
            await pair.send(master, b"more")
            await trio.sleep(0.2)
            assert slave.log.end < master.log.end
            full.clear()
            await pair.until(lambda: slave.store.dispatched == master.log.end)


async def test_a_slave_configured_as_its_own_master_refuses_the_start(pair: Any) -> None:
    async with pair.slave("127.0.0.1:1") as slave:
        master_address = MasterAddress(slave.address, "", "")
        master_address.master_is(slave.address, "127.0.0.1:2")
        assert master_address.broker == ""
    (port,) = free_ports()
    settings = {"broker.listen": f"127.0.0.1:{port}", "broker.id": "1", "plugin.ha.master_broker": f"127.0.0.1:{port}"}
    broker = make_broker(pair.root / "self", settings=settings, enable=["gantrymq.plugins.ha:HaPlugin"])
    with pytest.raises(StartError, match="its own master"):
        await broker.run()


async def test_a_stopping_master_sends_its_slaves_everything_first(pair: Any) -> None:
    """The slave that replaces it then has every message, also those that no sender waited for."""
    async with pair.master(full_copy="true") as master, stranger(master) as slow:
        await slow.send_all(REPORT.pack(0))
        for _ in range(30):
            await pair.send(master, *[b"y" * 100_000] * 10)
        end, reached, pieces = master.log.end, 0, Pieces()
        master.stop()
        with trio.fail_after(20):
            while data := bytes(await slow.receive_some(2**20)):
                reached = max((piece.offset + len(piece.data) for piece in pieces.feed(data)), default=reached)
                if reached == end:
                    await slow.send_all(REPORT.pack(reached))
        assert reached == end


async def test_a_hanging_slave_delays_its_masters_stop_by_a_moment_only_and_is_logged(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "DRAIN_S", 0.2)
    with trio.fail_after(10), capture_logs() as logs:
        async with pair.master() as master, stranger(master) as mute:
            await mute.send_all(REPORT.pack(0))
            await pair.connected(master)
            await pair.send(master, *[b"y" * 100_000] * 10)
            master.stop()
            while await mute.receive_some(2**20):
                pass
        end = master.log.end
    assert [each["lacks_bytes"] for each in logs if each["event"] == "slave_left_behind"] == [end]
