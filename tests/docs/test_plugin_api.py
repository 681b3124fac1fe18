"""The page of the plugin API has the protocols of the broker's objects, and its example runs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.api import LogReader, QueueReader, QueuesReader
from gantrymq.kernel.store.log.commitlog import CommitLog
from gantrymq.kernel.store.queues.consume_queue import ConsumeQueue
from gantrymq.kernel.store.queues.table import ConsumeQueues
from gantrymq.testing.fixtures import StartPluginBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "plugin-api.md"


def readers(log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue) -> tuple[LogReader, QueuesReader, QueueReader]:
    """mypy holds the classes to the protocols."""
    return log, queues, queue


def example(name: str) -> Any:
    """The class ``name`` of an example on the page."""
    sources = re.findall(r"^<!-- plugin -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (source,) = (each for each in sources if f"class {name}:" in each)
    place: dict[str, Any] = {"hookimpl": hookimpl}
    exec(compile(source, str(PAGE), "exec", dont_inherit=True), place)
    return place[name]


def test_the_example_appends_a_receipt_for_each_order_also_after_a_kill(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(example("Receipts"), settings={"plugin.flush.mode": "async"})
    for number, killed in enumerate((True, False)):
        with running.client.producer() as producer:
            producer.send("orders", b"%d" % number)
            producer.send("others", b"pears")
        with running.client.consumer("receipts", "readers", start="first") as consumer:
            receipts = [next(consumer).body for _ in range(number + 1)]
        read = running.cluster.broker.log.read_record
        assert [read(int(receipt)).body for receipt in receipts] == [b"%d" % each for each in range(number + 1)]
        assert running.plugin.refused == []
        running.restart(killed=killed)


def test_the_example_reads_each_message_once_also_after_a_restart(plugin_broker: StartPluginBroker) -> None:
    running = plugin_broker(example("Mirror"))

    def send_and_wait(*bodies: bytes) -> list[bytes]:
        with running.client.producer() as producer:
            for body in bodies:
                producer.send("orders", body)
        end = time.monotonic() + 20
        while len(running.plugin.bodies) < len(bodies) and time.monotonic() < end:
            time.sleep(0.01)
        return sorted(running.plugin.bodies)

    assert send_and_wait(b"1", b"2", b"3") == [b"1", b"2", b"3"]
    running.restart()
    assert send_and_wait(b"4") == [b"4"]
