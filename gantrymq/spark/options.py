"""The options of ``spark.read.format("gantrymq")``, checked before the read.

Names and meaning follow Spark's Kafka source. Offsets are nested by broker, ``{"topic": {"broker-a": {"0": 23}}}``, as
in rocketmq-spark, because a queue id of RocketMQ identifies a queue of one broker.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import attrs
import msgspec

from gantrymq.remoting.address import parse_address
from gantrymq.spark.errors import WrongOption

EARLIEST = -2
LATEST = -1
BODY_MAX_BYTES = 32 * 1024 * 1024
"""Default of ``maxMessageBytes``, the most bytes of a decompressed body."""

Address = tuple[str, int]
Offsets = dict[str, dict[str, dict[int, int]]]
"""Topic to broker name to queue id to offset."""

OPTION_NAMES = (
    "nameserver", "topic", "startingOffsets", "endingOffsets", "failOnDataLoss", "minPartitions", "maxMessageBytes",
)  # fmt: skip


@attrs.frozen
class SourceOptions:
    """The checked options. ``starting`` and ``ending`` are EARLIEST, LATEST, or offsets of single queues."""

    nameservers: tuple[Address, ...]
    topics: tuple[str, ...]
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    body_max_bytes: int = BODY_MAX_BYTES


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark passes them (names in any case). Raises :class:`WrongOption`."""
    known = {name.lower(): name for name in OPTION_NAMES}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; known are {', '.join(OPTION_NAMES)}"
            raise WrongOption(f"unknown option {name!r}{hint}")
        values[known[name.lower()]] = value.strip()
    topics = tuple(dict.fromkeys(name.strip() for name in values.get("topic", "").split(",") if name.strip()))
    if not topics:
        raise WrongOption('option topic is missing: .option("topic", "orders") or a comma list')
    if "nameserver" not in values:
        raise WrongOption('option nameserver is missing: .option("nameserver", "127.0.0.1:9876")')
    starting = _read_offsets("startingOffsets", values.get("startingOffsets", "earliest"), topics)
    ending = _read_offsets("endingOffsets", values.get("endingOffsets", "latest"), topics)
    if LATEST in _flat(starting):
        raise WrongOption("startingOffsets: a batch read cannot start at latest (-1), it would read nothing")
    if EARLIEST in _flat(ending):
        raise WrongOption("endingOffsets: a batch read cannot end at earliest (-2), it would read nothing")
    return SourceOptions(
        read_addresses(values["nameserver"]),
        topics,
        starting,
        ending,
        _read_flag("failOnDataLoss", values.get("failOnDataLoss", "true")),
        _read_number("minPartitions", values.get("minPartitions", "1"), 1_000_000),
        _read_number("maxMessageBytes", values.get("maxMessageBytes", str(BODY_MAX_BYTES)), 2**31 - 1),
    )


def read_addresses(text: str) -> tuple[Address, ...]:
    """The addresses in ``host:port;host:port``; an IPv6 host is in brackets. Raises :class:`WrongOption`."""
    try:
        addresses = tuple(parse_address(part) for part in text.split(";") if part.strip())
    except ValueError as error:
        raise WrongOption(f"option nameserver: {error}") from None
    if not addresses:
        raise WrongOption("option nameserver is empty, write host:port or host:port;host:port")
    return addresses


def _read_offsets(name: str, text: str, topics: tuple[str, ...]) -> int | Offsets:
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    example = '{"topic": {"broker-a": {"0": 23}}}'
    try:
        offsets = msgspec.json.decode(text, type=Offsets)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WrongOption(f"{name}: neither earliest, latest nor JSON like {example} ({error})") from None
    for topic, brokers in offsets.items():
        if topic not in topics:
            raise WrongOption(f"{name}: topic {topic!r} is not among the topics to read ({', '.join(topics)})")
        for broker, queues in brokers.items():
            for queue_id, offset in queues.items():
                if queue_id < 0 or not EARLIEST <= offset < 2**63:
                    raise WrongOption(f"{name}: {topic} {broker} queue {queue_id} cannot have offset {offset}")
    return offsets


def _flat(offsets: int | Offsets) -> set[int]:
    if isinstance(offsets, int):
        return {offsets}
    return {offset for brokers in offsets.values() for queues in brokers.values() for offset in queues.values()}


def _read_flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise WrongOption(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _read_number(name: str, text: str, limit: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not 1 <= int(text) <= limit:
        raise WrongOption(f"{name} is a number from 1 to {limit}, not {text!r}")
    return int(text)
