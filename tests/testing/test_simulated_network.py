"""The simulated network and machines: effects of links on data, and repeatable runs by seed.

Broken on purpose, and seen failing: the delay, the clog, the cut, the flip, the resets of a system whose process was
killed, the silence of one that lost its power, and each of what a run replaces to be the same again.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio

from gantrymq.testing.simulated.cluster import SAFE, Cluster
from gantrymq.testing.simulated.env import START_MS
from gantrymq.testing.simulated.faults import NetworkFaults
from gantrymq.testing.simulated.load import TOPIC, Load
from gantrymq.testing.simulated.network import Network, on
from gantrymq.testing.simulated.run import simulate
from gantrymq.testing.simulated.seeds import COUNT_VARIABLE, ONE_VARIABLE, seeds

pytestmark = pytest.mark.once

A, B = "10.0.0.1", "10.0.0.2"
PORT = 7


def simulated(scenario: Callable[[Cluster], Awaitable[Any]]) -> Callable[[], None]:
    """A test of what the coroutine function finds out."""

    def test() -> None:
        simulate(scenario, 7)

    test.__name__ = getattr(scenario, "__name__", "test")
    return test


@asynccontextmanager
async def joined(network: Network) -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    """A connection from A to B: both ends of it."""
    with on(B):
        (listener,) = await trio.open_tcp_listeners(PORT, host=B)
    async with listener:
        with on(A):
            near = await trio.open_tcp_stream(B, PORT)
        far = await listener.accept()
        async with near, far:
            yield near, far


async def arrival(stream: trio.SocketStream) -> float:
    """The arrival of the next data, in simulated seconds from now on."""
    began = trio.current_time()
    assert await stream.receive_some()
    return trio.current_time() - began


@simulated
async def test_both_ends_have_addresses_and_data_arrives_at_once(cluster: Cluster) -> None:
    async with joined(cluster.network) as (near, far):
        assert near.socket.getpeername() == far.socket.getsockname() == (B, PORT)
        assert near.socket.getsockname() == far.socket.getpeername()
        assert near.socket.getsockname()[0] == A
        for source, sink in ((near, far), (far, near)):
            await source.send_all(b"some")
            assert await sink.receive_some() == b"some"
        assert trio.current_time() == 0.0
        await near.send_eof()
        assert await far.receive_some() == b""
        await far.send_all(b"still")
        assert await near.receive_some() == b"still"


@simulated
async def test_megabytes_arrive_completely_and_in_order(cluster: Cluster) -> None:
    data = secrets.token_bytes(3 << 20)
    cluster.network.link(A, B).delay_s = (0.0, 0.5)
    async with joined(cluster.network) as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(near.send_all, data)
        got = bytearray()
        while len(got) < len(data):
            got += await far.receive_some()
        assert got == data


@simulated
async def test_a_link_delays_data_in_the_configured_direction_only(cluster: Cluster) -> None:
    async with joined(cluster.network) as (near, far):
        cluster.network.link(A, B).delay_s = (10.0, 20.0)
        await near.send_all(b"x")
        assert 10.0 <= await arrival(far) <= 20.0
        await far.send_all(b"x")
        assert await arrival(near) == 0.0
        link = cluster.network.link(A, B)
        link.heal()
        link.bytes_per_s = 100.0
        await near.send_all(bytes(500))
        assert await arrival(far) == pytest.approx(5.0)


@simulated
async def test_data_on_a_stalled_link_arrives_later_and_senders_are_blocked(cluster: Cluster) -> None:
    async with joined(cluster.network) as (near, far):
        link = cluster.network.link(A, B)
        link.clog()
        with trio.move_on_after(3600) as patience:
            await near.send_all(bytes(10 << 20))
        assert patience.cancelled_caught, "there is room for some only"
        with trio.move_on_after(3600) as patience:
            await far.receive_some()
        assert patience.cancelled_caught
        await far.send_all(b"this way")
        assert await near.receive_some() == b"this way"
        link.clear()
        assert await arrival(far) == 0.0


@simulated
async def test_connecting_over_a_stalled_link_waits_for_it(cluster: Cluster) -> None:
    for link in cluster.network.between(A, B):
        async with trio.open_nursery() as nursery:
            link.clog()

            async def clear(link: Any = link) -> None:
                await trio.sleep(50)
                link.clear()

            nursery.start_soon(clear)
            began = trio.current_time()
            async with joined(cluster.network):
                assert trio.current_time() - began == 50.0


@simulated
async def test_closed_ports_refuse_connections_and_an_address_is_bound_once(cluster: Cluster) -> None:
    with on(A), pytest.raises(OSError, match="all attempts to connect") as error:
        await trio.open_tcp_stream(B, PORT)
    assert isinstance(error.value.__cause__, ExceptionGroup)
    assert error.value.__cause__.subgroup(ConnectionRefusedError)
    listener = cluster.network.bind(B, PORT)
    with pytest.raises(OSError, match="in use") as taken:
        cluster.network.bind(B, PORT)
    assert taken.value.errno == errno.EADDRINUSE
    listener.close()
    cluster.network.bind(B, PORT).close()


@simulated
async def test_a_link_that_cuts_ends_connections_for_both_sides(cluster: Cluster) -> None:
    for piece in range(5):
        async with joined(cluster.network) as (near, far):
            cluster.network.link(A, B).cut = 1.0
            await near.send_all(b"0123456789")
            got = bytearray()
            while data := await quietly(far.receive_some()):
                got += data
            assert b"0123456789".startswith(got), piece
            assert not await quietly(near.receive_some())
            with pytest.raises(trio.BrokenResourceError):
                await near.send_all(b"more")
        cluster.network.heal()


@simulated
async def test_a_cut_between_two_machines_ends_existing_connections_only(cluster: Cluster) -> None:
    async with joined(cluster.network) as (near, far):
        assert cluster.network.cut(B, A) == 1
        assert not await quietly(near.receive_some())
        assert not await quietly(far.receive_some())
    async with joined(cluster.network) as (near, far):
        await near.send_all(b"x")
        assert await far.receive_some() == b"x"


@simulated
async def test_a_flip_changes_one_byte_on_the_given_ports(cluster: Cluster) -> None:
    link = cluster.network.link(A, B)
    for ports, changed in ((frozenset({PORT}), 1), (frozenset({PORT + 1}), 0), (frozenset[int](), 1)):
        link.flip, link.flip_ports = 1.0, ports
        async with joined(cluster.network) as (near, far):
            await near.send_all(bytes(100))
            got = await far.receive_some()
            assert (len(got), sum(byte != 0 for byte in got)) == (100, changed)


@simulated
async def test_a_killed_process_closes_its_connections_and_a_power_cut_does_not(cluster: Cluster) -> None:
    network = cluster.network
    async with joined(network) as (near, _far):
        network.kill(B)
        assert not await quietly(near.receive_some())
    async with joined(network) as (near, far):
        network.switch_off(B)
        await far.send_all(b"from beyond")
        with trio.move_on_after(3600) as patience:
            await near.receive_some()
        assert patience.cancelled_caught
        await near.send_all(b"are you there?")
        with trio.move_on_after(3600) as patience, on(A):
            await trio.open_tcp_stream(B, PORT)
        assert patience.cancelled_caught
        network.switch_on(B)
        assert not await quietly(near.receive_some()), "the machine knows nothing of this connection"


async def quietly(receiving: Awaitable[bytes | bytearray]) -> bytes | bytearray:
    """The received bytes; none when the connection was reset."""
    try:
        return await receiving
    except trio.BrokenResourceError:
        return b""


@simulated
async def test_the_observer_is_unaffected_by_network_faults(cluster: Cluster) -> None:
    for link in cluster.network.between([A, B]):
        link.clog()
    assert {(link.source, link.target) for link in cluster.network.between([A, B])} == {(A, B), (B, A)}
    with on(B):
        (listener,) = await trio.open_tcp_listeners(PORT, host=B)
    async with listener, await trio.open_tcp_stream(B, PORT) as near, await listener.accept() as far:
        await near.send_all(b"x")
        assert await far.receive_some() == b"x"


# -------------------------------------------------------------------------------------------------- one seed, one run


async def busy(cluster: Cluster) -> tuple[int, list[str]]:
    """A pair under load with network faults, a power cut, and what came of it."""
    await cluster.start_nameserver(A)
    for number in (0, 1):
        await cluster.start_broker(f"10.0.0.1{number}", number, SAFE)
    await trio.sleep(5)
    async with cluster.client() as client:
        await client.admin.create_topic(TOPIC, queues=2)
    load = Load(cluster, ["10.0.1.1", "10.0.1.2"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        nursery.start_soon(NetworkFaults(cluster.network, ["10.0.0.10", "10.0.0.11", *load.acknowledged]).run)
        await trio.sleep(10)
        cluster.machine("10.0.0.10").power_cut(cluster.chance.randrange(100))
        await cluster.start_broker("10.0.0.10", 0, SAFE)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert load.guaranteed
    return cluster.network.fingerprint, sorted(body.hex() for body in load.guaranteed)


def test_random_numbers_of_programs_derive_from_the_seed() -> None:
    async def scenario(cluster: Cluster) -> tuple[object, ...]:
        secret = secrets.token_bytes(8), secrets.randbelow(1 << 60)
        numbers = random.uniform(0, 1), random.random(), random.getrandbits(64), random.gauss(0, 1)
        return *secret, *numbers, cluster.chance.random(), os.urandom(8), uuid.uuid4(), secrets.token_hex()

    assert simulate(scenario, 1) == simulate(scenario, 1)
    assert not set(simulate(scenario, 1)) & set(simulate(scenario, 2))


def test_retries_of_a_producer_derive_from_the_seed() -> None:
    async def scenario(cluster: Cluster) -> tuple[int, float]:
        await cluster.start_nameserver(A)
        await cluster.start_broker(B)
        await trio.sleep(5)
        async with cluster.client() as client, client.producer("p", timeout=60) as producer:
            await client.admin.create_topic(TOPIC, queues=2)
            await producer.send(TOPIC, b"x")
            cluster.machine(B).kill()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, TOPIC, b"y")
                await trio.sleep(5)
                await cluster.start_broker(B)
        return cluster.network.fingerprint, trio.current_time()

    assert simulate(scenario, 1) == simulate(scenario, 1)


@pytest.mark.slow
def test_a_run_depends_on_the_seed_alone() -> None:
    first = simulate(busy, 1)
    assert simulate(busy, 1) == first
    assert simulate(busy, 2) != first


def test_a_slow_processor_does_not_change_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    first = simulate(busy, 1)
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, itertools.count().__next__)
    assert simulate(busy, 1) == first


@pytest.mark.slow
def test_a_loop_in_another_thread_does_not_change_a_run() -> None:
    async def work() -> None:
        while not ended.is_set():
            secrets.token_bytes(4)
            await trio.sleep(0.0001)

    async def many() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(work)

    first = simulate(busy, 1)
    ended = threading.Event()
    thread = threading.Thread(target=trio.run, args=(many,))
    thread.start()
    try:
        assert simulate(busy, 1) == first
    finally:
        ended.set()
        thread.join()


def test_simulated_time_is_fast_and_machines_have_separate_clocks() -> None:
    async def scenario(cluster: Cluster) -> tuple[float, ...]:
        cluster.machine(B).env.clock_ms = -5000
        await cluster.start_broker(A, 0, {})
        await trio.sleep(600)
        walls = (cluster.machine(host).env.wall_ms() for host in (A, B))
        return (trio.current_time(), time.time(), time.time_ns() / 1e9, *walls)

    began = time.monotonic()
    now, seconds, nanoseconds, wall, behind = simulate(scenario, 0)
    assert time.monotonic() - began < 60
    assert now >= 600.0
    assert seconds == pytest.approx(START_MS / 1000 + now)
    assert nanoseconds == pytest.approx(seconds)
    assert (wall - START_MS, wall - behind) == (pytest.approx(now * 1000, abs=1), 5000)


def test_the_simulation_restores_everything_it_patched() -> None:
    def parts() -> tuple[object, ...]:
        threads = (trio.to_thread.run_sync, anyio.to_thread.run_sync)
        chance = (secrets.randbelow, secrets.token_bytes, os.urandom, random.uniform)
        return (time.time, time.time_ns, os.getpid, *chance, *threads)

    async def scenario(cluster: Cluster) -> None:
        meanwhile.extend(parts())
        raise RuntimeError("a test that fails")

    before, meanwhile = parts(), list[object]()
    with pytest.raises(ExceptionGroup) as error:
        simulate(scenario, 3)
    assert len(meanwhile) == len(before)
    assert not set(meanwhile) & set(before)
    assert parts() == before
    assert any("seed 3" in note for note in error.value.__notes__)

    async def connect() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            await (await trio.open_tcp_stream(*server.getsockname())).aclose()

    trio.run(connect)


def test_work_for_threads_of_anyio_runs_at_once_also_if_anyio_has_used_threads_before() -> None:
    """Simulated time would jump to the end of the 60 s during work in a real thread."""

    async def scenario(cluster: Cluster) -> tuple[int, float]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 60)
            await anyio.to_thread.run_sync(time.sleep, 0.1, abandon_on_cancel=True)
            worked_for = trio.current_time()
            limiter = anyio.CapacityLimiter(1)
            return await anyio.to_thread.run_sync(threading.get_ident, limiter=limiter), worked_for

    trio.run(anyio.to_thread.run_sync, threading.get_ident)
    assert simulate(scenario, 0) == (threading.get_ident(), 0.0)


THREADS_AFTER_A_SIMULATION = """
import threading, anyio, trio
from gantrymq.testing.simulated.run import simulate
async def scenario(cluster):
    return await anyio.to_thread.run_sync(threading.get_ident)
assert simulate(scenario, 0) == threading.get_ident(), "during the simulation"
assert trio.run(anyio.to_thread.run_sync, threading.get_ident) != threading.get_ident(), "after the simulation"
"""


def test_anyio_uses_threads_after_a_simulation_that_was_its_first_user() -> None:
    """The test needs another process, because anyio binds the function of trio once."""
    subprocess.run([sys.executable, "-c", THREADS_AFTER_A_SIMULATION], check=True)


def test_a_scenario_that_waits_for_ever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.testing.simulated.run.LIMIT_S", 60.0)

    async def scenario(cluster: Cluster) -> None:
        await cluster.start_broker(A, 0, {})
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as error:
        simulate(scenario, 0)
    assert error.group_contains(trio.TooSlowError)


def test_seeds_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (COUNT_VARIABLE, ONE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert list(seeds(3)) == [0, 1, 2]
    monkeypatch.setenv(COUNT_VARIABLE, "5")
    assert list(seeds(3)) == [0, 1, 2, 3, 4]
    monkeypatch.setenv(ONE_VARIABLE, "17")
    assert list(seeds(3)) == [17]
