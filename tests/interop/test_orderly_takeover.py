"""Another member gets the queues of an orderly consumer that stops or crashes without waiting for expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clients import ForeignClient, wait_until
from support.processes import free_ports, gantrymq_child

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(180)]

ORDERLY: dict[str, Any] = {"kind": "retry-push", "orderly": "true"}
SETTINGS = ("plugin.locks.expire_after=1h", "plugin.locks.free_after_disconnect=1s")
"""A lock that was not freed stays for longer than the test."""


@pytest.fixture(scope="module")
def nameserver(homes: Callable[[str], Path]) -> Iterator[str]:
    """The nameserver of our broker, whose locks do not expire."""
    home = homes("orderly")
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ["serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver]
    for setting in SETTINGS:
        serve += ["--set", setting]
    with gantrymq_child(serve, home / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield nameserver


@pytest.mark.soak(1, of="java_client")
@pytest.mark.parametrize("leaves", ["in order", "with its queues locked", "killed"])
def test_a_java_member_takes_over_the_queues_of_an_orderly_group(
    leaves: str, java_client: ForeignClient, nameserver: str, names: Callable[[str], str]
) -> None:
    topic, group = names("t"), names("g")
    java_client.produce(nameserver, topic, 8)
    client = java_client.alone if leaves == "killed" else java_client
    with client.consumer(nameserver, topic, group, **ORDERLY) as first:
        assert {message.queue_id for message in first.wait(8)} == {0, 1, 2, 3}
        if leaves == "in order":
            first.close()
        elif leaves == "killed":
            first.child.kill()
        else:
            first.child.say("unregister")
            first.child.wait_event("unregistered")
        java_client.produce(nameserver, topic, 8, first=8)
        with java_client.consumer(nameserver, topic, group, **ORDERLY) as second:
            # Where nothing was committed, messages come again.
            wait_until(lambda: {message.index for message in second.messages} >= set(range(8, 16)), [second])
            assert {message.queue_id for message in second.messages} == {0, 1, 2, 3}
            second.close()
