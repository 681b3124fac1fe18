"""The readers of ledgers while producers may still send."""

from __future__ import annotations

from pathlib import Path

import attrs

from gantrymq.testing.harness import cluster_in_thread
from gantrymq.testing.ledger import Ledger
from gantrymq.testing.requests import send
from support.foreign import ask
from support.hapair import read_all

TOPIC = "T"
MESSAGES = 40
"""A number of messages above the limit of one pull."""


@attrs.define
class SendingReader:
    """A ledger's reader that sends one more message when it sees the first one."""

    address: str
    ledger: Ledger
    is_done: bool = False

    def observe(self, body: bytes, queue_id: int, offset: int) -> None:
        if not self.is_done:
            self.is_done = True
            produce(self.address, self.ledger)
        self.ledger.observe(body, queue_id, offset)


def produce(address: str, ledger: Ledger) -> None:
    assert ask(address, send(TOPIC, ledger.next_body(0))).code == 0


def test_a_message_that_arrives_during_a_read_is_not_beyond_the_queues_end(tmp_path: Path) -> None:
    ledger = Ledger("run")
    with cluster_in_thread(tmp_path) as cluster:
        for _ in range(MESSAGES):
            produce(cluster.address, ledger)
        ends = read_all(cluster.address, TOPIC, 1, SendingReader(cluster.address, ledger))
    assert ends == {0: MESSAGES + 1}
    ledger.check(ends)
