"""The page of the plugin API: its protocols are those of the broker's objects, and its example runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

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


def test_the_example_reads_each_message_once_also_after_a_restart(plugin_broker: StartPluginBroker) -> None:
    (source,) = re.findall(r"^<!-- plugin -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    place = {"hookimpl": hookimpl}
    exec(compile(source, str(PAGE), "exec", dont_inherit=True), place)
    running = plugin_broker(place["Mirror"])

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
