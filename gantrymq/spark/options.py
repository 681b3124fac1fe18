"""The options of the format ``gantrymq``, checked before a read or a stream begins.

Names and meaning follow Spark's Kafka source. Offsets are nested by broker, ``{"topic": {"broker-a": {"0": 23}}}``, as
in rocketmq-spark, because a queue id of RocketMQ identifies a queue of one broker.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping

import attrs
import msgspec

from gantrymq.client.addresses import is_discovery_url, parse_nameservers
from gantrymq.client.errors import ConnectFailed
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.bodies.clients import SubscriptionData
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import validate_group
from gantrymq.spark.errors import Unreachable, WrongOption
from gantrymq.spark.security import NO_SECURITY, SECURITY_OPTIONS, Security, read_security

EARLIEST = -2
LATEST = -1
BODY_MAX_BYTES = 32 * 1024 * 1024
"""Default of ``maxMessageBytes``, the most bytes of a decompressed body."""

Address = tuple[str, int]
Offsets = dict[str, dict[str, dict[int, int]]]
"""Topic to broker name to queue id to offset."""
Assignment = dict[str, dict[str, list[int]]]
"""Topic to broker name to queue ids."""
EXPRESSION_MAX_CHARACTERS = 65_536
"""The longest ``subExpression``; brokers accept at most as many."""

_BOTH = (
    "nameserver", "topic", "topicPattern", "assign", "subExpression", "expressionType", "includeProperties",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition",
    "maxMessageBytes", "badBodies", "groupId", "retrySeconds", *SECURITY_OPTIONS,
)  # fmt: skip
BATCH_OPTIONS = (*_BOTH, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "storeTimeTolerance")
STREAM_OPTIONS = (
    *_BOTH, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
)  # fmt: skip
SINK_OPTIONS = ("nameserver", "topic", "dedupKeys", "lingerMillis", "producerGroup", *SECURITY_OPTIONS)
SINK_GROUP = "GANTRYMQ_SPARK_SINK"
"""Default of ``producerGroup``."""
LINGER_MILLIS = 5
"""Default of ``lingerMillis``, how long a batch of messages waits for more."""
RETRY_SECONDS = 60
"""Default of ``retrySeconds``, how long reading waits for a broker that does not answer."""
TRIGGER_DELAY_SECONDS = 15 * 60.0
"""Default of ``maxTriggerDelay``."""
TIME_TOLERANCE_SECONDS = 10 * 60.0
"""Default of ``storeTimeTolerance``."""
_OF_SPARK = ("path", "checkpointlocation", "queryname")
"""Options of a write that Spark passes on, in lower case."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@attrs.frozen
class SourceOptions:
    """The checked options. ``starting`` and ``ending`` are EARLIEST, LATEST, or offsets of single queues.

    ``starting_millis`` takes the place of ``starting`` where it has a time: for all queues, or for those that it names.
    Where a queue has no message since then, the read starts at the queue's end if ``latest_without_match``, else it is
    an error. ``ending_millis`` ends the read before the first message that was stored then or later.
    ``retry_seconds`` is how long reading waits for a broker that does not answer.

    ``topics`` is empty if ``topic_pattern`` selects the topics by their whole names; ``assigned`` limits a read to some
    queues of ``topics``. ``subscription`` is what the broker filters by, None without a filter.
    ``time_tolerance_seconds`` is how far brokers' clocks may have been set back for filters by store time to leave out
    queue ranges; None: by any time, so that they leave out none. With ``null_bad_bodies`` a body that cannot be
    decompressed is null.
    """

    nameservers: tuple[Address, ...]
    topics: tuple[str, ...]
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    body_max_bytes: int = BODY_MAX_BYTES
    starting_millis: int | Offsets | None = None
    latest_without_match: bool = True
    group: str | None = None
    retry_seconds: float = 0
    security: Security = NO_SECURITY
    ending_millis: int | Offsets | None = None
    max_partition_rows: int | None = None
    max_partition_bytes: int | None = None
    topic_pattern: str | None = None
    assigned: Assignment | None = None
    subscription: SubscriptionData | None = None
    include_properties: bool = True
    time_tolerance_seconds: float | None = TIME_TOLERANCE_SECONDS
    null_bad_bodies: bool = False


@attrs.frozen
class StreamOptions:
    """The checked options of a stream; the limits of a batch are None where there are none."""

    source: SourceOptions
    max_rows: int | None = None
    min_rows: int | None = None
    max_delay_seconds: float = TRIGGER_DELAY_SECONDS
    max_bytes: int | None = None


@attrs.frozen
class SinkOptions:
    """The checked options of a write. ``topic`` is for rows that name none."""

    nameservers: str
    topic: str | None
    security: Security = NO_SECURITY
    derive_dedup_keys: bool = False
    linger_seconds: float = LINGER_MILLIS / 1000
    group: str = SINK_GROUP


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write, as Spark passes them (names in any case). Raises :class:`WrongOption`."""
    given = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    values = _read_names(given, SINK_OPTIONS, STREAM_OPTIONS, "reading")
    if "nameserver" not in values:
        raise WrongOption('option nameserver is missing: .option("nameserver", "127.0.0.1:9876")')
    read_addresses(values["nameserver"])
    return SinkOptions(
        values["nameserver"],
        values.get("topic") or None,
        read_security(values),
        read_flag("dedupKeys", values.get("dedupKeys", "false")),
        _read_number("lingerMillis", values.get("lingerMillis", str(LINGER_MILLIS)), 60_000, least=0) / 1000,
        _read_group(values.get("producerGroup", SINK_GROUP), "producerGroup"),
    )


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a batch read, as Spark passes them (names in any case). Raises :class:`WrongOption`."""
    values = _read_names(given, BATCH_OPTIONS, STREAM_OPTIONS, "a stream")
    options = _read_source(values, "earliest")
    if LATEST in _flat(options.starting):
        raise WrongOption("startingOffsets: a batch read cannot start at latest (-1), it would read nothing")
    if EARLIEST in _flat(options.ending):
        raise WrongOption("endingOffsets: a batch read cannot end at earliest (-2), it would read nothing")
    return options


def read_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream, as Spark passes them (names in any case). Raises :class:`WrongOption`."""
    values = _read_names(given, STREAM_OPTIONS, BATCH_OPTIONS, "a batch read")
    options = StreamOptions(
        _read_source(values, "latest"),
        _read_limit("maxOffsetsPerTrigger", values),
        _read_limit("minOffsetsPerTrigger", values),
        _read_duration("maxTriggerDelay", values["maxTriggerDelay"])
        if "maxTriggerDelay" in values
        else TRIGGER_DELAY_SECONDS,
        _read_limit("maxBytesPerTrigger", values),
    )
    if "maxTriggerDelay" in values and options.min_rows is None:
        raise WrongOption("maxTriggerDelay needs minOffsetsPerTrigger, which it limits")
    if options.min_rows and options.max_rows and options.min_rows > options.max_rows:
        raise WrongOption(
            f"minOffsetsPerTrigger ({options.min_rows}) is more than maxOffsetsPerTrigger ({options.max_rows})"
        )
    return options


def _read_names(
    given: Mapping[str, str], names: tuple[str, ...], others: tuple[str, ...], other_kind: str
) -> dict[str, str]:
    known = {name.lower(): name for name in names}
    elsewhere = {name.lower(): name for name in others if name not in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in elsewhere:
            raise WrongOption(f"option {elsewhere[name.lower()]} is for {other_kind} only")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; known are {', '.join(names)}"
            raise WrongOption(f"unknown option {name!r}{hint}")
        values[known[name.lower()]] = value.strip()
    return values


def _read_source(values: Mapping[str, str], start: str) -> SourceOptions:
    topics, pattern, assigned = _read_topics(values)
    if "nameserver" not in values:
        raise WrongOption('option nameserver is missing: .option("nameserver", "127.0.0.1:9876")')

    def is_read(topic: str) -> bool:
        return topic in topics if pattern is None else re.fullmatch(pattern, topic) is not None

    _check_one_of("start", values, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    _check_one_of("end", values, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    strategy = values.get("startingOffsetsByTimestampStrategy", "latest").lower()
    if strategy not in ("error", "latest"):
        raise WrongOption(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    return SourceOptions(
        read_addresses(values["nameserver"]),
        topics,
        _read_offsets("startingOffsets", values.get("startingOffsets", start), is_read),
        _read_offsets("endingOffsets", values.get("endingOffsets", "latest"), is_read),
        read_flag("failOnDataLoss", values.get("failOnDataLoss", "true")),
        _read_number("minPartitions", values.get("minPartitions", "1"), 1_000_000),
        _read_number("maxMessageBytes", values.get("maxMessageBytes", str(BODY_MAX_BYTES)), 2**31 - 1),
        _read_times("starting", values, is_read),
        strategy == "latest",
        _read_group(values["groupId"]) if "groupId" in values else None,
        _read_number("retrySeconds", values.get("retrySeconds", str(RETRY_SECONDS)), 86_400, least=0),
        read_security(values),
        _read_times("ending", values, is_read),
        _read_limit("maxRecordsPerPartition", values),
        _read_limit("maxBytesPerPartition", values),
        pattern,
        assigned,
        _read_subscription(values),
        read_flag("includeProperties", values.get("includeProperties", "true")),
        _read_tolerance(values.get("storeTimeTolerance")),
        _read_bad_bodies(values.get("badBodies", "fail")),
    )


def _read_topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, Assignment | None]:
    """The topics by name, the pattern of their names, and the queues to read of them."""
    given = [name for name in ("topic", "topicPattern", "assign") if values.get(name)]
    if len(given) > 1:
        raise WrongOption(f"{' and '.join(given)} both select topics: give one of them")
    topics = tuple(dict.fromkeys(name.strip() for name in values.get("topic", "").split(",") if name.strip()))
    if not values:
        raise WrongOption(
            "there is no option at all. Spark gives a Python data source none of a table's options: instead of CREATE "
            'TABLE use CREATE TEMPORARY VIEW, or spark.read.options(...).table("name")'
        )
    if not topics and (not given or given == ["topic"]):
        raise WrongOption(
            'option topic is missing: .option("topic", "orders") or a comma list; or give topicPattern or assign'
        )
    if pattern := values.get("topicPattern"):
        try:
            re.compile(pattern)
        except re.error as error:
            raise WrongOption(f"topicPattern {pattern!r} is not a regular expression: {error}") from None
        return (), pattern, None
    if text := values.get("assign"):
        assigned = _read_assignment(text)
        return tuple(assigned), None, assigned
    return topics, None, None


def _read_assignment(text: str) -> Assignment:
    try:
        assigned = msgspec.json.decode(text, type=Assignment)
    except (msgspec.MsgspecError, RecursionError) as error:
        example = '{"orders": {"broker-a": [0, 2]}}'
        raise WrongOption(f"assign is not a JSON object of queue ids like {example} ({error})") from None
    if not any(ids for brokers in assigned.values() for ids in brokers.values()):
        raise WrongOption("assign names no queue to read")
    return assigned


def _read_subscription(values: Mapping[str, str]) -> SubscriptionData | None:
    kind = values.get("expressionType", "TAG").upper()
    if kind not in ("TAG", "SQL92"):
        raise WrongOption(f"expressionType is TAG or SQL92, not {kind!r}")
    expression = values.get("subExpression", "")
    if not expression:
        if "expressionType" in values:
            raise WrongOption("expressionType is the type of subExpression, which is missing")
        return None
    if len(expression) > EXPRESSION_MAX_CHARACTERS:
        raise WrongOption(f"subExpression has {len(expression)} characters, more than {EXPRESSION_MAX_CHARACTERS}")
    if kind == "SQL92":
        return SubscriptionData.for_sql("", expression)
    try:
        subscription = SubscriptionData.for_tags("", expression)
    except ValueError as error:
        raise WrongOption(f"subExpression: {error}") from None
    return subscription if subscription.tags_set else None


def _check_one_of(what: str, values: Mapping[str, str], *names: str) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise WrongOption(f"{' and '.join(given)} both say where to {what}: give one of them")


def _read_times(which: str, values: Mapping[str, str], is_read: Callable[[str], bool]) -> int | Offsets | None:
    name = f"{which}Timestamp"
    if name in values:
        return _read_number(name, values[name], 2**53, least=0)
    name = f"{which}OffsetsByTimestamp"
    return _parse_offsets(name, values[name], is_read, least=0) if name in values else None


def read_addresses(text: str) -> tuple[Address, ...]:
    """The nameservers in ``text``, which is as for :func:`gantrymq.connect`: a URL with a path is asked for them, once.

    Raises :class:`WrongOption`, or :class:`Unreachable` if the URL does not name them.
    """
    try:
        addresses = _fetch_addresses(text) if is_discovery_url(text) else parse_nameservers(text)
    except ValueError as error:
        raise WrongOption(f"option nameserver: {error}") from None
    return tuple(map(parse_address, addresses))


def _fetch_addresses(url: str) -> tuple[str, ...]:
    from gantrymq.client.discovery import Discovery  # few reads need it

    try:
        return parse_nameservers(Discovery.of(url, None).fetch_blocking())
    except ConnectFailed as error:
        raise Unreachable(str(error)) from None
    except ValueError as error:
        raise Unreachable(f"the response of {url} has no nameservers: {error}") from None


def _read_offsets(name: str, text: str, is_read: Callable[[str], bool]) -> int | Offsets:
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    return _parse_offsets(name, text, is_read, otherwise="neither earliest, latest nor", least=EARLIEST)


def _parse_offsets(
    name: str, text: str, is_read: Callable[[str], bool], *, otherwise: str = "no", least: int
) -> Offsets:
    example = '{"topic": {"broker-a": {"0": 23}}}'
    try:
        offsets = msgspec.json.decode(text, type=Offsets)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WrongOption(f"{name}: {otherwise} JSON like {example} ({error})") from None
    what = "offset" if least < 0 else "time"
    for topic, brokers in offsets.items():
        if not is_read(topic):
            raise WrongOption(f"{name}: topic {topic!r} is not among the topics to read")
        for broker, queues in brokers.items():
            for queue_id, offset in queues.items():
                if queue_id < 0 or not least <= offset < 2**63:
                    raise WrongOption(f"{name}: {topic} {broker} queue {queue_id} cannot have {what} {offset}")
    return offsets


def _flat(offsets: int | Offsets) -> set[int]:
    if isinstance(offsets, int):
        return {offsets}
    return {offset for brokers in offsets.values() for queues in brokers.values() for offset in queues.values()}


def read_flag(name: str, text: str) -> bool:
    """The value of an option that is true or false. Raises :class:`WrongOption`."""
    if text.lower() not in ("true", "false"):
        raise WrongOption(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _read_number(name: str, text: str, limit: int, least: int = 1) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= limit:
        raise WrongOption(f"{name} is a number from {least} to {limit}, not {text!r}")
    return int(text)


def _read_limit(name: str, values: Mapping[str, str]) -> int | None:
    return _read_number(name, values[name], 2**62) if name in values else None


def _read_duration(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|min|h|d)", text.lower())
    if found is None:
        raise WrongOption(f"{name} is a number with ms, s, m, min, h or d, such as 15m; not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _read_tolerance(text: str | None) -> float | None:
    if text is None:
        return TIME_TOLERANCE_SECONDS
    return None if text.lower() == "none" else _read_duration("storeTimeTolerance", text)


def _read_bad_bodies(text: str) -> bool:
    if text.lower() not in ("fail", "null"):
        raise WrongOption(f"badBodies is fail or null, not {text!r}")
    return text.lower() == "null"


def _read_group(text: str, name: str = "groupId") -> str:
    try:
        validate_group(text)
    except RemoteFault as error:
        raise WrongOption(f"{name}: {error.remark}") from None
    return text
