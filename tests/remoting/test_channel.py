"""The client side of a connection: matching, timeouts, loss, both directions; on asyncio and on trio."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from gantrymq.remoting.channel import (
    PEER_REQUESTS_MAX,
    UNREAD_MAX_BYTES,
    UNWRITTEN_MAX_BYTES,
    Channel,
    open_channel,
)
from gantrymq.remoting.codes import ONEWAY_FLAG
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.direct import DirectConnection
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, ConnectFailed, FatalRemoteFault, RemoteFault
from gantrymq.remoting.waiting import clock_of_loop
from support.peer import PeerConnection, run_peer

pytestmark = pytest.mark.anyio

FOREVER = 60.0


async def echo(connection: PeerConnection) -> None:
    while True:
        request = await connection.read()
        await connection.write(request.answer(0, ext=request.ext, body=request.body))


async def silence(connection: PeerConnection) -> None:
    await connection.wait_closed()


async def test_a_call_returns_its_response() -> None:
    async with run_peer(echo) as address, open_channel(address) as channel:
        answer = await channel.call(Command(10, {"a": "b"}, b"body"))
        assert (answer.code, answer.ext, answer.body, answer.is_response) == (0, {"a": "b"}, b"body", True)
        assert channel.local_host == "127.0.0.1"


async def test_responses_in_any_order_reach_their_callers() -> None:
    async def reversed_answers(connection: PeerConnection) -> None:
        requests = [await connection.read() for _ in range(20)]
        for request in reversed(requests):
            await connection.write(request.answer(0, body=request.body))
        await connection.wait_closed()

    got: dict[int, bytes] = {}
    async with run_peer(reversed_answers) as address, open_channel(address) as channel:

        async def ask(number: int) -> None:
            got[number] = (await channel.call(Command(10, body=b"%d" % number))).body

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, number)
        assert channel.waiting == 0
    assert got == {number: b"%d" % number for number in range(20)}


async def test_a_response_received_byte_by_byte_is_complete() -> None:
    async def trickle(connection: PeerConnection) -> None:
        request = await connection.read()
        for byte in encode(request.answer(0, body=b"slow")):
            await connection.stream.send(bytes([byte]))
        await connection.wait_closed()

    async with run_peer(trickle) as address, open_channel(address) as channel:
        assert (await channel.call(Command(10))).body == b"slow"


async def test_a_large_frame_is_sent_and_received() -> None:
    body = bytes(range(256)) * 4 * 4096
    async with run_peer(echo) as address, open_channel(address) as channel:
        assert (await channel.call(Command(10, body=body), FOREVER)).body == body


async def test_responses_of_all_sizes_arrive_whole_however_they_are_cut() -> None:
    """The connection's buffer grows for the large ones and is used again after them."""
    sizes = [10, 3_000_000, 1, 700_000, 300, 262_144, 5, 4_500_000, 20, 100]
    chance = random.Random(5)

    async def answer_all(connection: PeerConnection) -> None:
        while True:
            requests = [await connection.read() for _ in sizes]
            data = b"".join(
                encode(request.answer(0, body=request.body * sizes[request.body[0]])) for request in requests
            )
            while data:
                part = chance.choice([1, 7, 1000, 200_000, 900_000])
                await connection.stream.send(data[:part])
                data = data[part:]

    async with run_peer(answer_all) as address, open_channel(address) as channel:

        async def call(place: int) -> None:
            answer = await channel.call(Command(10, body=bytes([place])), FOREVER)
            assert answer.body == bytes([place]) * sizes[place]

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for place in range(len(sizes)):
                    tasks.start_soon(call, place)
                    await anyio.lowlevel.checkpoint()


async def test_a_call_without_a_response_times_out_and_names_request_and_address() -> None:
    async with run_peer(silence) as address, open_channel(address) as channel:
        with pytest.raises(
            CallTimeout, match=f"{address}: no answer to request 105 GET_ROUTEINFO_BY_TOPIC within 0.01"
        ):
            await channel.call(Command(105), timeout=0.01)
        assert channel.waiting == 0
        assert not channel.closed


async def test_a_channel_reports_calls_that_time_out_and_whether_anything_was_received() -> None:
    timeouts: list[bool] = []
    async with run_peer(echo) as address, open_channel(address) as channel:
        assert not channel.take_heard()
        await channel.call(Command(10))
        assert channel.take_heard()
        assert not channel.take_heard()
        await channel.call(Command(10))
    async with run_peer(silence) as address, open_channel(address) as channel:
        channel.on_timeout = lambda: timeouts.append(channel.take_heard())
        with pytest.raises(CallTimeout):
            await channel.call(Command(10), 0.01)
    assert timeouts == [False]


async def test_a_late_response_is_dropped_and_the_next_call_works() -> None:
    async def late(connection: PeerConnection) -> None:
        first = await connection.read()
        second = await connection.read()
        await connection.write(first.answer(0, body=b"late"))
        await connection.write(second.answer(0, body=b"right"))
        await connection.wait_closed()

    async with run_peer(late) as address, open_channel(address) as channel:
        with pytest.raises(CallTimeout):
            await channel.call(Command(10), timeout=0)
        assert (await channel.call(Command(10))).body == b"right"


async def test_a_cancelled_caller_does_not_break_the_connection() -> None:
    async with run_peer(echo) as address, open_channel(address) as channel:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await channel.call(Command(10, body=b"never mind"))
        assert channel.waiting == 0
        assert (await channel.call(Command(10, body=b"next"))).body == b"next"


async def test_a_oneway_request_is_flagged_and_waits_for_no_response() -> None:
    async def check(connection: PeerConnection) -> None:
        request = await connection.read()
        marked = request.is_oneway
        question = await connection.read()
        await connection.write(question.answer(0, body=b"%d" % marked))
        await connection.wait_closed()

    async with run_peer(check) as address, open_channel(address) as channel:
        await channel.send_oneway(Command(15))
        assert (await channel.call(Command(10))).body == b"1"


async def test_queued_requests_are_written_before_the_connection_closes() -> None:
    got: list[int] = []
    all_read = anyio.Event()

    async def count(connection: PeerConnection) -> None:
        while len(got) < 100:
            got.append((await connection.read()).code)
        all_read.set()

    async with run_peer(count) as address:
        async with open_channel(address) as channel:
            for _ in range(100):
                await channel.send_oneway(Command(15))
        with anyio.fail_after(FOREVER):
            await all_read.wait()
    assert got == [15] * 100


async def test_the_loss_of_the_connection_fails_every_waiting_call_at_once() -> None:
    async def hang_up(connection: PeerConnection) -> None:
        for _ in range(10):
            await connection.read()

    failures: list[ChannelClosed] = []
    async with run_peer(hang_up) as address, open_channel(address) as channel:

        async def ask() -> None:
            try:
                await channel.call(Command(10), FOREVER)
            except ChannelClosed as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)
        await channel.wait_closed()
        assert channel.closed
        assert [failure.address for failure in failures] == [address] * 10
        assert str(failures[0]).startswith(f"{address}: the peer closed the connection")
        with pytest.raises(ChannelClosed, match="the peer closed the connection"):
            await channel.call(Command(10))
        with pytest.raises(ChannelClosed):
            await channel.send_oneway(Command(10))


async def test_waits_end_when_the_connection_ends() -> None:
    async def answer_one(connection: PeerConnection) -> None:
        request = await connection.read()
        await connection.write(request.answer(0))

    async with run_peer(answer_one) as address, open_channel(address) as channel:
        came = anyio.Event()
        came.set()
        await channel.while_open(came.wait)
        assert not channel.closed
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.call, Command(10), FOREVER)
            with anyio.fail_after(FOREVER):
                await channel.while_open(anyio.Event().wait)
        assert channel.closed


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(8), b"\xff" * 8, b"\0\0\0\x06\0\0\0\x02{]", b"\0\0\0\x04\x07\0\0\0"],
)
async def test_invalid_bytes_close_the_connection_with_an_error(garbage: bytes) -> None:
    async def babble(connection: PeerConnection) -> None:
        await connection.read()
        await connection.stream.send(garbage)
        await connection.wait_closed()

    async with run_peer(babble) as address, open_channel(address) as channel:
        with pytest.raises(ChannelClosed, match="the peer sent bytes that are not a frame of this protocol"):
            await channel.call(Command(10), FOREVER)


async def test_connecting_to_a_closed_port_fails_with_an_error() -> None:
    async with run_peer(silence) as address:
        pass
    with pytest.raises(ConnectFailed, match=f"{address}: connection refused: nothing listens there"):
        async with open_channel(address):
            pytest.fail("no connection can stand")


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", ":10911", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "h:1:x"]
)
async def test_an_invalid_address_is_rejected_before_connecting(address: str) -> None:
    with pytest.raises(ConnectFailed, match="address"):
        async with open_channel(address):
            pytest.fail("no connection can stand")


async def test_connecting_has_a_timeout() -> None:
    async with run_peer(silence) as address:
        with pytest.raises(ConnectFailed, match="no connection within 0 s"):
            async with open_channel(address, connect_timeout=0):
                pytest.fail("no connection can stand")


async def test_errors_raised_in_the_block_propagate_unchanged() -> None:
    async with run_peer(echo) as address:
        with pytest.raises(ZeroDivisionError):
            async with open_channel(address):
                raise ZeroDivisionError


async def test_a_closed_channel_refuses_calls_and_may_be_closed_again() -> None:
    async with run_peer(silence) as address, open_channel(address) as channel:
        await channel.aclose()
        await channel.aclose()
        with pytest.raises(ChannelClosed, match="closed by this side"):
            await channel.call(Command(10))


async def asked(
    handler: Callable[[Command], Command | Awaitable[Command | None] | None] | None, code: int = 40
) -> Command:
    """The response that a peer gets from a channel with ``handler``."""
    answers: list[Command] = []
    answered = anyio.Event()

    async def ask(connection: PeerConnection) -> None:
        await connection.write(Command(code, {"consumerGroup": "g"}, opaque=77))
        answers.append(await connection.read())
        answered.set()
        await connection.wait_closed()

    async with run_peer(ask) as address, open_channel(address, handler):
        with anyio.fail_after(FOREVER):
            await answered.wait()
    assert answers[0].opaque == 77
    assert answers[0].is_response
    return answers[0]


async def test_a_handler_answers_requests_of_the_peer() -> None:
    answer = await asked(lambda request: request.answer(0, body=str(request.ext).encode()))
    assert (answer.code, answer.body) == (0, b"{'consumerGroup': 'g'}")


async def test_an_async_handler_may_call_back_on_the_same_channel() -> None:
    async def conversation(connection: PeerConnection) -> None:
        await connection.write(Command(40, opaque=5))
        question = await connection.read()
        await connection.write(question.answer(0, body=b"inner"))
        answer = await connection.read()
        assert (answer.opaque, answer.body) == (5, b"inner")
        finished.set()
        await connection.wait_closed()

    async def handle(request: Command) -> Command:
        inner = await channels[0].call(Command(38))
        return request.answer(0, body=inner.body)

    finished = anyio.Event()
    async with run_peer(conversation) as address:
        channel = Channel(address, handle)
        channels = [channel]
        async with anyio.create_task_group() as tasks:
            await tasks.start(channel.run)
            with anyio.fail_after(FOREVER):
                await finished.wait()
            await channel.aclose()


async def test_without_a_handler_a_request_is_answered_not_supported() -> None:
    answer = await asked(None, code=999)
    assert (answer.code, answer.remark) == (3, " request type 999 not supported")


async def fail_later(request: Command) -> Command:
    raise RemoteFault(17, "no such topic")


def fail_now(request: Command) -> Command:
    raise RemoteFault(17, "no such topic")


@pytest.mark.parametrize("handler", [fail_now, fail_later])
async def test_a_fault_that_a_handler_raises_becomes_its_code(
    handler: Callable[[Command], Command | Awaitable[Command | None] | None],
) -> None:
    answer = await asked(handler)
    assert (answer.code, answer.remark) == (17, "no such topic")


async def test_a_handler_that_raises_answers_code_1_and_the_channel_stays_open() -> None:
    def broken(request: Command) -> Command:
        raise KeyError("missing")

    answer = await asked(broken)
    assert (answer.code, answer.remark) == (1, "KeyError: 'missing'")


async def test_a_oneway_request_of_the_peer_gets_no_response() -> None:
    async def ask(connection: PeerConnection) -> None:
        await connection.write(Command(40, opaque=1, flag=ONEWAY_FLAG))
        await connection.write(Command(40, opaque=2))
        first.append((await connection.read()).opaque)
        answered.set()
        await connection.wait_closed()

    first: list[int] = []
    answered = anyio.Event()
    async with run_peer(ask) as address, open_channel(address, lambda request: request.answer(0)):
        with anyio.fail_after(FOREVER):
            await answered.wait()
    assert first == [2]


async def test_too_many_requests_of_the_peer_at_once_are_answered_busy() -> None:
    async def flood(connection: PeerConnection) -> None:
        for number in range(PEER_REQUESTS_MAX + 1):
            await connection.write(Command(40, opaque=number))
        answers.append(await connection.read())
        answered.set()
        await connection.wait_closed()

    async def hang(request: Command) -> Command:
        await anyio.sleep_forever()
        raise AssertionError("never reached")

    answers: list[Command] = []
    answered = anyio.Event()
    async with run_peer(flood) as address, open_channel(address, hang):
        with anyio.fail_after(FOREVER):
            await answered.wait()
    assert (answers[0].opaque, answers[0].code) == (PEER_REQUESTS_MAX, 2)


async def test_a_connection_ends_whose_peer_does_not_read_the_answers_to_its_requests() -> None:
    body = bytes(64 * 1024)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # anyio's sockets on asyncio read on their own
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with open_channel(address, lambda request: request.answer(0, body=body)) as channel:
            with listener.accept()[0] as peer:
                peer.sendall(b"".join(encode(Command(40, opaque=number)) for number in range(2000)))
                with anyio.fail_after(FOREVER):
                    await channel.wait_closed()
            assert channel._unread_bytes <= UNREAD_MAX_BYTES + len(body) + 1000
            with pytest.raises(ChannelClosed, match="the peer does not read the answers to its requests"):
                await channel.call(Command(10))


async def test_callers_wait_while_the_peer_does_not_read() -> None:
    async def stall(connection: PeerConnection) -> None:
        await released.wait()
        while True:
            await connection.read()

    released = anyio.Event()
    body = bytes(1024 * 1024)
    sent = 0
    async with run_peer(stall) as address, open_channel(address) as channel:
        with anyio.move_on_after(0.05):
            while True:
                await channel.send_oneway(Command(10, body=body))
                sent += 1
        # what waits here is bounded; the rest of it lies in the kernel's socket buffers
        assert channel._unwritten_bytes <= UNWRITTEN_MAX_BYTES + len(body) + 1000
        assert sent < 100
        released.set()
        await channel.send_oneway(Command(10, body=body))


async def test_a_frame_over_the_limit_is_refused_before_it_is_sent() -> None:
    async with run_peer(echo) as address, open_channel(address) as channel:
        with pytest.raises(ValueError, match="is the limit"):
            await channel.call(Command(10, body=bytes(16 * 1024 * 1024)))
        assert (await channel.call(Command(10, body=b"x"))).body == b"x"


def test_a_fatal_fault_is_not_a_channel_closed_error() -> None:
    assert not issubclass(FatalRemoteFault, ChannelClosed)


async def test_calls_time_out_independently_of_their_order() -> None:
    """One task times out all calls, and a call with less time than earlier ones must wake it."""
    ended: list[float] = []
    async with run_peer(silence) as address, open_channel(address) as channel:

        async def ask(seconds: float) -> None:
            with pytest.raises(CallTimeout):
                await channel.call(Command(10), timeout=seconds)
            ended.append(seconds)

        async with anyio.create_task_group() as tasks:
            for seconds in (0.6, 60.0, 0.02, 0.3, 0.0, -5.0):
                tasks.start_soon(ask, seconds)
            with anyio.fail_after(20):
                while len(ended) < 5:  # noqa: ASYNC110 - several tasks
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert set(ended) == {0.0, -5.0, 0.02, 0.3, 0.6}
        assert channel.waiting == 0


async def test_a_cancelled_call_does_not_affect_other_calls() -> None:
    async with run_peer(echo) as address, open_channel(address) as channel:
        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                answers: list[bytes] = []

                async def ask(body: bytes, answers: list[bytes] = answers) -> None:
                    answers.append((await channel.call(Command(10, body=body), FOREVER)).body)

                async def give_up() -> None:
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        await channel.call(Command(10, body=b"nobody"), FOREVER)

                tasks.start_soon(ask, b"one")
                tasks.start_soon(give_up)
                tasks.start_soon(ask, b"two")
            assert sorted(answers) == [b"one", b"two"]
        assert channel.waiting == 0


async def test_the_clock_is_that_of_anyio() -> None:
    clock = clock_of_loop()
    before = anyio.current_time()
    assert before <= clock() <= anyio.current_time()


async def test_an_answer_of_several_parts_and_requests_between_answers_arrive() -> None:
    """Requests of the peer are answered beside the calls whose answers come in the same read."""

    async def mixed(connection: PeerConnection) -> None:
        first, second = await connection.read(), await connection.read()
        parts = [first.answer(0, body=b"1"), Command(40, opaque=9), second.answer(0, body=b"2"), Command(41, opaque=10)]
        await connection.stream.send(b"".join(encode(part) for part in parts))
        answered.extend([(await connection.read()).opaque, (await connection.read()).opaque])
        finished.set()
        await connection.wait_closed()

    answered: list[int] = []
    finished = anyio.Event()
    bodies: list[bytes] = []
    async with run_peer(mixed) as address, open_channel(address, lambda request: request.answer(0)) as channel:

        async def ask() -> None:
            bodies.append((await channel.call(Command(10), FOREVER)).body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
        with anyio.fail_after(FOREVER):
            await finished.wait()
    assert (sorted(bodies), answered) == ([b"1", b"2"], [9, 10])


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the writes of direct connections."""
    sizes: list[int] = []
    write = DirectConnection.write

    def count(connection: DirectConnection, data: bytes) -> None:
        sizes.append(len(data))
        write(connection, data)

    monkeypatch.setattr(DirectConnection, "write", count)
    return sizes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_calls_of_one_turn_share_a_write_and_one_that_is_alone_waits_for_no_turn(writes: list[int]) -> None:
    async with run_peer(echo) as address, open_channel(address) as channel:
        for _ in range(3):
            await channel.call(Command(10), FOREVER)
        assert len(writes) == 3
        writes.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(channel.call, Command(10), FOREVER)
        assert len(writes) == 2, "the first one alone, all others together"
        assert 95 * writes[0] < writes[1] < 100 * writes[0]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "broker.test"
        return [(2, 1, 6, "", (address, port)) for address in found]

    found = ["127.0.0.2", "127.0.0.2", "127.0.0.1"]
    async with run_peer(echo) as address:
        port = address.rpartition(":")[2]
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        async with open_channel(f"broker.test:{port}") as channel:
            assert (await channel.call(Command(10, body=b"x"))).body == b"x"
        found = ["127.0.0.2", "127.0.0.3"]
        with pytest.raises(ConnectFailed, match="connection refused: nothing listens there"):
            async with open_channel(f"broker.test:{port}"):
                pytest.fail("no connection can stand")
