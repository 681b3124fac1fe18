"""RocketMQ's TransactionMQProducer, 4.9.7 and 5.3.3, on a broker with the transaction store of RocketMQ 3.x."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path

import pytest

import gantrymq.sync
from support.clients import ForeignClient, wait_until
from support.content import content
from support.processes import free_ports, gantrymq_child
from support.transactions import Transactor

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = (
    "transaction.strategy=state_table", "transaction.check_interval=1s", "transaction.timeout=500ms",
    "transaction.file_rows=1000", "flush.mode=async",
)  # fmt: skip
ORDERS = {0: ("commit", "commit"), 1: ("rollback", "rollback"), 2: ("unknown", "commit"), 3: ("unknown", "rollback")}
"""For each message, the outcome of its local branch and the producer's response to a check-back."""


def holds_two(received: Sized) -> bool:
    return len(received) >= 2


def wait_quiet(transactor: Transactor) -> None:
    """Wait until an interval has passed without a check-back: the broker repeats one without a response by then."""
    known, deadline = -1, time.monotonic() + 30
    while known != len(transactor.checks):
        assert time.monotonic() < deadline, "the broker checks ended transactions"
        known = len(transactor.checks)
        transactor.listen(1.3)


def test_java_producers_end_transactions_and_answer_check_backs(
    java4_client: ForeignClient, java5_client: ForeignClient, homes: Callable[[str], Path]
) -> None:
    home = homes("ours")
    address, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ["serve", "--data", str(home / "store"), "--listen", address, "--nameserver-listen", nameserver]
    for setting in SETTINGS:
        serve += ["--set", f"plugin.{setting}"]
    with gantrymq_child(serve, home / "serve.err") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        for client in (java4_client, java5_client):
            topic = f"StateTable-{client.name.replace('.', '-')}"
            with gantrymq.sync.connect(nameserver) as admin:
                admin.admin.create_topic(topic, queues=2)
            with (
                Transactor.start(client, nameserver, topic, f"p-{topic}") as transactor,
                client.consumer(nameserver, topic, f"c-{topic}") as consumer,
            ):
                sent = {index: transactor.send(index, *order) for index, order in ORDERS.items()}
                assert {half.status for half in sent.values()} == {"SEND_OK"}
                transactor.wait_checks(2)
                received = consumer.messages
                wait_until(partial(holds_two, received), [consumer])
                wait_quiet(transactor)
                consumer.poll(0)
                assert Counter(message.index for message in consumer.messages) == {0: 1, 2: 1}
                for message in consumer.messages:
                    assert message.sha256 == content(1, message.index).sha256
                    assert message.msg_id == sent[message.index].msg_id
                asked = {checked.transaction_id for checked in transactor.checks}
                assert asked == {sent[2].msg_id, sent[3].msg_id}
    names = sorted(path.name for path in (home / "store/transaction/statetable").iterdir())
    states = (home / "store/transaction/statetable" / names[0]).read_bytes()[23 : 8 * 24 : 24]
    assert (names, list(states)) == (["0" * 20], [8, 12, 8, 12] * 2)
