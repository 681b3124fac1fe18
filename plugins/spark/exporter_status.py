"""Asks a broker's plugin ``exporter`` for what it does, and prints that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gantrymq.remoting.address import parse_address
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.brokers import ControlExporterHeader
from gantrymq.spark.errors import Refused, SparkError, WrongOption
from gantrymq.spark.security import read_security
from gantrymq.spark.wire import Wire


def ask_exporter(broker: str, action: str, security: Mapping[str, str]) -> dict[str, Any]:
    """The exporter's status after ``action`` (``status``, ``run``, ``pause`` or ``resume``).

    Raises :class:`SparkError` if the broker does not answer, has no exporter, or refuses.
    """
    try:
        address = parse_address(broker)
    except ValueError as error:
        raise WrongOption(f"--broker: {error}") from None
    header = ControlExporterHeader(action=action)
    with Wire(security=read_security(security)) as wire:
        answer = wire.call(address, Command(RequestCode.CONTROL_EXPORTER, header.to_ext()))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise SparkError(f"{broker} has no exporter: start it with --enable exporter")
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(broker, f"to {action} its exporter", answer.code, answer.remark)
    status: dict[str, Any] = json.loads(answer.body)
    return status


def status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """The status as text."""
    due = "" if status["next_start"] is None or status["pid"] else f", next run at {_time(status['next_start'])}"
    how = f"{status['format']}, engine {status['engine']}"
    yield f"{status['broker']} exports to {status['to']} ({how}): {status['state']}{due}"
    progress = status["progress"]
    if progress is not None:
        yield f"running: {progress['topic']}, {progress['rows']:,} of {progress['rows_total']:,} messages"
    last = status["last_run"]
    if last is not None:
        took = last["ended"] - last["started"]
        lost = f", {last['lost']:,} lost" if last["lost"] else ""
        yield (
            f"last run: {_time(last['started'])}, {took:.1f} s, {last['rows']:,} messages in {last['files']} files, "
            f"{last['bytes']:,} bytes{lost}"
        )
        if last["error"]:
            yield f"failed, {status['failures']} times in a row: {last['error']}"
    for topic, lag in sorted(status["lag"].items()):
        yield f"{topic}: lag {lag:,}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
