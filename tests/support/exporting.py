"""The plugin ``exporter`` of a broker in the test's process or its own: runs on request, and their output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from gantrymq.kernel.broker import Broker
from gantrymq.message import Message
from gantrymq.plugins.spark.exporter_status import ask_exporter
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.brokers import ControlExporterHeader
from gantrymq.spark import SparkError, export_files
from gantrymq.spark.exports.object_store import Objects
from gantrymq.sync import connect
from support.processes import Child, gantrymq_child

PATIENCE_S: Final = 240.0
"""A run starts a Python process, which takes many seconds on a busy machine."""


def published_rows(objects: Objects, to: str) -> Counter[tuple[str, int, int]]:
    """Topic, queue id and offset of each message that the manifest of an export at the URL ``to`` has."""
    import pyarrow.parquet as pq

    found: Counter[tuple[str, int, int]] = Counter()
    for url in export_files(to):
        path = str(url).removeprefix(f"{to}/")
        topic = path.partition("/")[0].removeprefix("topic=")
        with objects.open(path) as file:
            table = pq.ParquetFile(file).read(columns=["queueId", "queueOffset"]).to_pylist()
        found.update((topic, row["queueId"], row["queueOffset"]) for row in table)
    return found


def bodies(folder: Path) -> Counter[bytes]:
    """The bodies of the messages in an export."""
    import pyarrow.parquet as pq

    found: Counter[bytes] = Counter()
    for file in export_files(folder):
        found.update(pq.ParquetFile(file).read(columns=["body"]).column(0).to_pylist())
    return found


async def control(broker: Broker, action: str) -> Command:
    """The answer to 47003."""
    async with open_channel(broker.address) as channel:
        return await channel.call(Command(RequestCode.CONTROL_EXPORTER, ControlExporterHeader(action=action).to_ext()))


async def until(true: Callable[[], bool], timeout: float = 20.0) -> None:
    """Return when it is so."""
    with trio.fail_after(timeout):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)


async def export_now(broker: Broker) -> dict[str, Any]:
    """The status after a run that was asked for."""
    began = broker.env.wall_ms() / 1000
    await control(broker, "run")
    with trio.fail_after(PATIENCE_S):
        while True:
            status: dict[str, Any] = json.loads((await control(broker, "status")).body or b"{}")
            last = status["last_run"]
            if status["pid"] is None and last is not None and last["ended"] >= began:
                return status
            await trio.sleep(0.05)


class ExportingBroker:
    """``gantrymq serve`` on one store, with the exporter; the nameserver is in it."""

    def __init__(self, place: Path, **settings: str) -> None:
        """``settings`` are names below ``plugin.exporter``, or with ``__`` for dots."""
        self.place, self.to, self.settings = place, place / "out", settings
        self.child: Child | None = None
        self.address = self.nameserver = ""

    def start(self) -> None:
        arguments = ["serve", "--data", str(self.place / "data"), "--listen", "127.0.0.1:0"]
        arguments += ["--nameserver-listen", "127.0.0.1:0", "--enable", "exporter"]
        settings = {
            "plugin.exporter.topics": "orders", "plugin.exporter.to": str(self.to), "plugin.exporter.nice": "0",
            "plugin.exporter.retry": "200ms", "broker.persist_interval": "50ms", "plugin.http.listen": "",
        }  # fmt: skip
        for name, value in self.settings.items():
            settings[name.replace("__", ".") if "__" in name else f"plugin.exporter.{name}"] = value
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        self.child = gantrymq_child(arguments, self.place / "log")
        ready = self.child.wait_line(lambda line: line.startswith("ready"))
        words = dict(word.partition("=")[::2] for word in ready.split()[1:])
        self.address, self.nameserver = words["broker"], words["nameserver"]

    def run_pid(self) -> int | None:
        with suppress(SparkError):
            pid: int | None = self.status()["pid"]
            return pid
        return None

    def kill(self) -> None:
        """SIGKILL; the process of a run ends because of it."""
        assert self.child is not None
        self.child.kill()
        self.child.stop()  # closes its pipes

    def send(self, count: int, body: bytes = b"") -> Counter[tuple[int, int]]:
        """Send messages, numbered unless they have a body; their queues and offsets."""
        messages = [Message("orders", body or b"%d" % at) for at in range(count)]
        with connect(self.nameserver) as client, client.producer("kills") as producer:
            return Counter((sent.queue.queue_id, sent.queue_offset) for sent in producer.send_batch(messages))

    def status(self) -> dict[str, Any]:
        """The output of ``gantrymq export status --broker``."""
        return ask_exporter(self.address, "status", {})
