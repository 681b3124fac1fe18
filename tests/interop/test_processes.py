"""RocketMQ's Java client works with the brokers of ``gantrymq serve --processes 2`` as with several masters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.clients import ForeignClient, check_complete
from support.foreign import is_routed
from support.processes import LATE_DISK, free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]


@pytest.fixture(scope="module")
def unit(homes: Callable[[str], Path]) -> Iterator[str]:
    """The nameserver of a unit of two brokers."""
    home = homes("unit")
    home.mkdir(parents=True, exist_ok=True)
    (base,) = free_ports(around=(-2, 0, 1, 4, 8, 10, 11))
    arguments = ["serve", "--processes", "2", "--data", str(home / "data"), "--listen", f"127.0.0.1:{base}"]
    arguments += ["--nameserver-listen", f"127.0.0.1:{base + 4}", "--set", "plugin.http.listen=", *LATE_DISK]
    with ExitStack() as stack:
        child = stack.enter_context(gantrymq_child(arguments, home / "log"))
        child.wait_line(lambda line: line.startswith("ready"), 120)
        yield f"127.0.0.1:{base + 4}"


def test_a_java_client_spreads_and_consumes_messages_of_all_processes(
    java5_client: ForeignClient, unit: str, request: pytest.FixtureRequest
) -> None:
    attempt = getattr(request.node, "execution_count", 1)
    topic, group = f"spread-{attempt}", f"readers-{attempt}"
    java5_client.produce(unit, topic, 1, seed=9)  # creates the topic at one broker, which shares it
    both = ["broker-a-0", "broker-a-1"]
    wait_for(lambda: is_routed(unit, topic, both))  # a client keeps a route to one of them for 30 seconds
    sent = java5_client.produce(unit, topic, 200, seed=9, first=1, modes="async")
    assert {answer.status for answer in sent} == {"SEND_OK"}
    brokers = [answer.broker for answer in sent]
    assert set(brokers) == set(both)
    assert 80 <= brokers.count("broker-a-1") <= 120, "round robin over the queues of both"
    messages = java5_client.consume_all(unit, topic, group, 201)
    check_complete(messages, 9, range(201))
    assert {message.place[0] for message in messages} == set(both)
