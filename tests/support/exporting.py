"""The plugin ``exporter`` of a broker in the test's process: runs at request, and what they wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from gantrymq.kernel.broker import Broker
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.brokers import ControlExporterHeader
from gantrymq.spark import export_files

PATIENCE_S: Final = 120.0
"""A run starts a Python process, which takes many seconds on a busy machine."""


def bodies(folder: Path) -> Counter[bytes]:
    """Of the messages in an export."""
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
