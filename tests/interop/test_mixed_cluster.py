"""RocketMQ's servers and ours in one cluster: each broker registers at each nameserver, clients use any."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import anyio
import attrs
import pytest

import gantrymq
import gantrymq.sync
from gantrymq import Message
from gantrymq.remoting.bodies.routes import BrokerMemberGroupBody
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.clients import ForeignClient, Producer, check_complete
from support.foreign import Java, JavaServer, ask, is_routed, start_broker, start_nameserver, wait_registered
from support.processes import Child, free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

Homes = Callable[[str], Path]
OURS, THEIRS, THEIRS5 = "gantry-broker", "java-broker-b", "java5-broker-b"
NAMES = (THEIRS, THEIRS5)
STOPPED_SECONDS = 5.0
SENDERS = 8
ATTEMPT_SECONDS = 1.0
"""A send's wait for a silent broker: a third of its timeout, since it has three attempts."""


@attrs.frozen
class Mixed:
    """Where RocketMQ's nameservers are, 4.9.7 and 5.3.3, and ours; the three brokers are registered at each. The
    process numbers of RocketMQ's brokers by name."""

    theirs: str
    theirs5: str
    ours: str
    pids: Mapping[str, int]


def our_nameserver(address: str, home: Path) -> Child:
    """Ours as a process."""
    return gantrymq_child(("nameserver", "--listen", address), home / "nameserver.err")


def our_broker(nameservers: str, home: Path, name: str = OURS) -> Child:
    """Ours as a process, at these nameservers."""
    (port,) = free_ports(around=(0, 1))
    words = ("broker", "--nameserver", nameservers, "--listen", f"127.0.0.1:{port}", "--data", str(home / "data"))
    flush = ("--set", "plugin.flush.mode=async")  # as RocketMQ's brokers
    return gantrymq_child((*words, *flush, "--set", f"broker.name={name}"), home / "broker.err")


def is_ready(line: str) -> bool:
    """Whether a server of ours reports that it is ready for clients."""
    return line.startswith("ready")


@pytest.fixture(scope="module")
def mixed(java: Java, java5: Java, own_nameserver: str, homes: Homes) -> Iterator[Mixed]:
    home = homes("mixed")
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:

        def discarded(server: JavaServer) -> JavaServer:
            stack.callback(server.discard)
            return server

        address = f"127.0.0.1:{free_ports()[0]}"
        stack.enter_context(our_nameserver(address, home)).wait_line(is_ready)
        nameserver5 = discarded(start_nameserver(java5, home / "nameserver5"))
        every = f"{own_nameserver};{nameserver5.address};{address}"
        stack.enter_context(our_broker(every, home)).wait_line(is_ready)
        # RocketMQ's brokers take seconds to start: both start at the same time
        starting = [
            threads.submit(start_broker, each, home / name, every, name=name)
            for each, name in zip((java, java5), NAMES, strict=True)
        ]
        pids = {
            name: discarded(future.result()).child.process.pid for future, name in zip(starting, NAMES, strict=True)
        }
        for nameserver in every.split(";"):
            wait_registered(nameserver, OURS)
        yield Mixed(own_nameserver, nameserver5.address, address, pids)


@pytest.mark.parametrize("nameserver", ["theirs", "ours"])
def test_java_clients_use_all_brokers_of_the_cluster(
    mixed: Mixed, nameserver: str, java_client: ForeignClient, names: Callable[[str], str]
) -> None:
    topic = names("t")
    address = mixed.ours if nameserver == "ours" else mixed.theirs5 if "5.3" in java_client.name else mixed.theirs
    with java_client.run("create-topic", f"namesrv={address}", f"topic={topic}", "queues=2") as child:
        made = [event["broker"] for event in child.events() if event["event"] == "created"]
    assert {OURS, THEIRS, THEIRS5} <= set(made)
    wait_for(lambda: is_routed(address, topic, (OURS, THEIRS, THEIRS5)))  # a producer asks again after 30 s only
    sent = java_client.produce(address, topic, 150, seed=31, modes="sync,async")
    used = {(answer.broker, answer.queue_id) for answer in sent}
    assert used >= {(broker, queue) for broker in (OURS, THEIRS, THEIRS5) for queue in (0, 1)}
    check_complete(java_client.consume_all(address, topic, names("g"), 300), 31, range(300))


@pytest.mark.parametrize("stopped", NAMES, ids=["4.9.7", "5.3.3"])
def test_python_senders_go_on_through_others_while_a_java_broker_is_stopped(
    mixed: Mixed, stopped: str, names: Callable[[str], str]
) -> None:
    topic, pid = names("t"), mixed.pids[stopped]
    sent: set[str] = set()
    waited: list[float] = []
    """Durations of sends while the broker was stopped, in seconds."""

    async def wait_for_all(client: gantrymq.Client) -> None:
        with anyio.fail_after(60):
            wanted = {OURS, THEIRS, THEIRS5}
            while {queue.broker_name for queue in await client.admin.queues(topic)} != wanted:  # noqa: ASYNC110
                await anyio.sleep(0.2)

    async def run() -> None:
        async with gantrymq.connect(mixed.ours) as client, client.producer() as producer:
            await client.admin.create_topic(topic, queues=2)
            await wait_for_all(client)
            used_again = is_stopped = is_resumed = False

            async def send() -> None:
                nonlocal used_again
                while not used_again:
                    before, at_stopped = anyio.current_time(), is_stopped
                    result = await producer.send(topic, b"x")  # an error would end the test
                    sent.add(result.message_id)
                    if at_stopped:
                        waited.append(anyio.current_time() - before)
                    used_again = is_resumed and result.queue.broker_name == stopped
                    await anyio.sleep(0.02)

            with anyio.fail_after(90):
                async with anyio.create_task_group() as tasks:
                    for _ in range(SENDERS):
                        tasks.start_soon(send)
                    await anyio.sleep(1)
                    os.kill(pid, signal.SIGSTOP)
                    is_stopped = True
                    try:
                        await anyio.sleep(STOPPED_SECONDS)
                    finally:
                        os.kill(pid, signal.SIGCONT)
                    is_stopped = False
                    is_resumed = True
            # It closes its connection to a nameserver if a request in it has timed out, and then registers again.
            await wait_for_all(client)

    anyio.run(run)
    slow = [seconds for seconds in waited if seconds >= ATTEMPT_SECONDS]
    assert len(slow) <= 3 * SENDERS, "the stopped broker is avoided after one attempt of each sender, but for probes"
    with gantrymq.sync.connect(mixed.ours) as client:

        def has_all() -> bool:
            with client.reader(topic, until="end") as reader:
                return sent <= {message.message_id for message in reader}

        wait_for(has_all)  # RocketMQ acknowledges a message before its queue has it


@pytest.mark.parametrize("nameserver", ["theirs5", "ours"])
@pytest.mark.parametrize("broker", [OURS, THEIRS, THEIRS5])
def test_both_nameservers_return_the_same_member_groups(mixed: Mixed, nameserver: str, broker: str) -> None:
    ext = {"clusterName": "DefaultCluster", "brokerName": broker}
    answer = ask(getattr(mixed, nameserver), Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext))
    group = BrokerMemberGroupBody.from_bytes(answer.body).broker_member_group
    assert group is not None
    assert list(group.broker_addrs) == [0]


def test_clients_continue_when_either_nameserver_is_lost(
    java: Java, homes: Homes, java4_client: ForeignClient, names: Callable[[str], str]
) -> None:
    """Neither who runs nor who comes later needs more than one of them."""
    home, topic, name = homes("lost"), names("t"), "lost-broker"
    our_address = f"127.0.0.1:{free_ports()[0]}"
    with ExitStack() as stack:
        theirs = start_nameserver(java, home / "theirs")
        stack.callback(theirs.discard)
        ours = stack.enter_context(our_nameserver(our_address, home))
        ours.wait_line(is_ready)
        both = f"{our_address};{theirs.address}"
        stack.enter_context(our_broker(both, home, name)).wait_line(is_ready)
        words = (f"namesrv={both}", f"topic={topic}", "seed=37", "count=0", "orders=true")
        producer = Producer(stack.enter_context(java4_client.run("produce", *words)))
        client = stack.enter_context(gantrymq.sync.connect(both))
        ours_too = stack.enter_context(client.producer("p"))

        def go_on(part: str) -> None:
            assert {answer.status for answer in producer.send(50)} == {"SEND_OK"}
            ours_too.send(Message(f"{topic}-{part}-1", b"a topic that asks for a route"))
            java4_client.produce(both, f"{topic}-{part}-2", 5)

        assert {answer.status for answer in producer.send(50)} == {"SEND_OK"}
        # a consumer that begins before its topic looks for it half a minute later
        consumer = stack.enter_context(java4_client.consumer(both, topic, names("g")))
        ours.kill()
        go_on("without-ours")
        again = stack.enter_context(our_nameserver(our_address, home))
        again.wait_line(is_ready)
        wait_registered(our_address, name, 60)  # the broker tries each 30 s in the end
        theirs.discard()
        go_on("without-theirs")
        consumer.wait(150)
        check_complete(consumer.close(), 37, range(150))
