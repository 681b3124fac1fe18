"""RocketMQ's names of settings: what they are called here, and their values both ways.

``broker.conf`` is read by them, and administrators see and change settings by them: there is one table of both.

Meanings and units of the keys: ``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

CONSUME_QUEUE_UNIT_BYTES = 20

Translation = dict[tuple[str, str], str]


class Form(NamedTuple):
    """How RocketMQ writes a value. ``read``: its text as ours has it; ``write``: our typed value as its text."""

    read: Callable[[str], str]
    write: Callable[[Any], str]


def write_plain(value: Any) -> str:
    """A value as RocketMQ writes one of its type: ``true``, lists with ``;``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ";".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def written_names() -> dict[tuple[str, str], tuple[str, Callable[[Any], str]]]:
    """By our section and key: RocketMQ's name, and what writes the typed value as RocketMQ does."""
    names: dict[tuple[str, str], tuple[str, Callable[[Any], str]]] = {(_COPIES, "role"): (_ROLE, str.upper)}
    for name, (section, key, form) in _KEYS.items():
        names.setdefault((section, key), (name, form.write))  # the first one where there is an older spelling
    return names


def translate(properties: Mapping[str, str]) -> tuple[Translation, list[str]]:
    """Our ``(section, key)`` and value as text of every key that has a counterpart, and the keys that have none.

    A value that does not fit its meaning is passed on as it is: the typed section refuses it with our key's name.
    :class:`ValueError` where two values contradict each other.
    """
    ours: Translation = {}
    unmapped: list[str] = []
    for key, value in properties.items():
        if key in _KEYS:
            section, name, form = _KEYS[key]
            ours[section, name] = form.read(value.strip())
        elif key not in _ADDRESS_KEYS | _METRICS_KEYS and key not in (_TRANSIENT_POOL, _ROLE):
            unmapped.append(key)
    # as in RocketMQ the pool counts where the disk is flushed later, which is its default
    if properties.get(_TRANSIENT_POOL, "").strip() == "true" and ours.get(_FLUSH_MODE, "async") == "async":
        ours[_FLUSH_MODE] = "buffered"
    ours.update(_addresses({key: value.strip() for key, value in properties.items() if key in _ADDRESS_KEYS}))
    ours.update(_role(properties, ours.get(("broker", "id"), "")))
    enabled = []
    if any(section == _COPIES for section, _ in ours) or _ROLE in properties:
        enabled.append("ha")  # RocketMQ's brokers copy without being told to
    kind = properties.get(_EXPORTER, "DISABLE").strip()
    if kind == "PROM":
        enabled.append("metrics")
        ours["plugin.metrics", "listen"] = _metrics_address(properties)
    elif kind != "DISABLE":
        unmapped.append(_EXPORTER)
    if enabled:
        ours["plugins", "enable"] = ",".join(enabled)
    return ours, unmapped


def _metrics_address(properties: Mapping[str, str]) -> str:
    """Where RocketMQ 5 tells its metrics; without a host on loopback here, and not at the broker's own address."""
    host = properties.get("metricsPromExporterHost", "").strip() or "127.0.0.1"
    return f"{host}:{properties.get('metricsPromExporterPort', '5557').strip()}"


def _role(properties: Mapping[str, str], number: str) -> Translation:
    """As in RocketMQ a master's number is 0 whatever is written, and a slave's must be another."""
    role = properties.get(_ROLE, "").strip()
    if role == "SLAVE":
        if not number.strip("0"):
            raise ValueError(f"{_ROLE}=SLAVE needs a brokerId above 0")
        return {}
    if role in ("ASYNC_MASTER", "SYNC_MASTER"):
        return {("broker", "id"): "0", (_COPIES, "role"): role.lower()}
    return {(_COPIES, "role"): role} if role else {}


def _addresses(given: Mapping[str, str]) -> Translation:
    """``listen`` and ``advertise``: RocketMQ keeps host and port apart, and binds to every interface.

    Here the bind stays on loopback until the file names an address that others are to use.
    """
    ours: Translation = {}
    port = given.get("listenPort", "10911")
    everywhere = "0.0.0.0" if "brokerIP1" in given else "127.0.0.1"  # noqa: S104 - asked for by the file
    if given.keys() & {"listenPort", "bindAddress", "brokerIP1"}:
        ours["broker", "listen"] = f"{given.get('bindAddress', everywhere)}:{port}"
    if "brokerIP1" in given:
        ours["broker", "advertise"] = f"{given['brokerIP1']}:{port}"
    if "haListenPort" in given:
        ours[_COPIES, "listen"] = f"{given.get('bindAddress', everywhere)}:{given['haListenPort']}"
    return ours


def _same(value: str) -> str:
    return value


def _milliseconds(value: str) -> str:
    return f"{value}ms"


def _hours(value: str) -> str:
    return f"{value}h"


def _flush_mode(value: str) -> str:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}.get(value.upper(), value)


def _units(value: str) -> str:
    # RocketMQ's file size is in bytes and rounded up to whole units
    return str(-(-int(value) // CONSUME_QUEUE_UNIT_BYTES)) if value.isascii() and value.isdigit() else value


def _permission(value: str) -> str:
    return {number: name for name, number in _PERMISSIONS.items()}.get(value, value)


_PERMISSIONS = {"read-write": "6", "read-only": "4", "write-only": "2"}
_PLAIN = Form(_same, write_plain)
_MILLISECONDS = Form(_milliseconds, lambda seconds: str(round(seconds * 1000)))
_HOURS = Form(_hours, lambda seconds: str(round(seconds / 3600)))
_FLUSH = Form(_flush_mode, lambda mode: "SYNC_FLUSH" if mode == "sync" else "ASYNC_FLUSH")
_UNITS = Form(_units, lambda units: str(units * CONSUME_QUEUE_UNIT_BYTES))
_PERMISSION = Form(_permission, lambda name: _PERMISSIONS[name])


_TRANSIENT_POOL = "transientStorePoolEnable"
_FLUSH_MODE = ("plugin.flush", "mode")
_ROLE = "brokerRole"
_COPIES = "plugin.ha"
_EXPORTER = "metricsExporterType"
_METRICS_KEYS = frozenset({_EXPORTER, "metricsPromExporterHost", "metricsPromExporterPort"})
_ADDRESS_KEYS = frozenset({"listenPort", "bindAddress", "brokerIP1", "haListenPort"})
_KEYS: dict[str, tuple[str, str, Form]] = {
    "brokerName": ("broker", "name", _PLAIN),
    "brokerClusterName": ("broker", "cluster", _PLAIN),
    "brokerId": ("broker", "id", _PLAIN),
    "namesrvAddr": ("broker", "nameservers", _PLAIN),
    "storePathRootDir": ("broker", "data", _PLAIN),
    "flushConsumerOffsetInterval": ("broker", "persist_interval", _MILLISECONDS),
    "mappedFileSizeCommitLog": ("store", "commit_log_file_bytes", _PLAIN),
    "mapedFileSizeCommitLog": ("store", "commit_log_file_bytes", _PLAIN),
    "mappedFileSizeConsumeQueue": ("store", "queue_file_units", _UNITS),
    "mapedFileSizeConsumeQueue": ("store", "queue_file_units", _UNITS),
    "enableConsumeQueueExt": ("store", "queue_extension", _PLAIN),
    "mappedFileSizeConsumeQueueExt": ("store", "queue_extension_file_bytes", _PLAIN),
    "maxMessageSize": ("store", "max_message_bytes", _PLAIN),
    "flushDiskType": ("plugin.flush", "mode", _FLUSH),
    "autoCreateTopicEnable": ("plugin.topics", "auto_create", _PLAIN),
    "autoCreateSubscriptionGroup": ("plugin.topics", "auto_create_groups", _PLAIN),
    "defaultTopicQueueNums": ("plugin.topics", "default_queues", _PLAIN),
    "traceTopicEnable": ("plugin.topics", "trace_topic", _PLAIN),
    "msgTraceTopicName": ("plugin.topics", "trace_topic_name", _PLAIN),
    "traceOn": ("plugin.produce", "trace", _PLAIN),
    "brokerPermission": ("plugin.topics", "broker_permission", _PERMISSION),
    "slaveReadEnable": ("plugin.consume", "slave_read_enable", _PLAIN),
    "maxTransferCountOnMessageInMemory": ("plugin.consume", "memory_messages", _PLAIN),
    "maxTransferBytesOnMessageInMemory": ("plugin.consume", "memory_bytes", _PLAIN),
    "maxTransferCountOnMessageInDisk": ("plugin.consume", "disk_messages", _PLAIN),
    "maxTransferBytesOnMessageInDisk": ("plugin.consume", "disk_bytes", _PLAIN),
    "accessMessageInMemoryMaxRatio": ("plugin.consume", "memory_percent", _PLAIN),
    "notifyConsumerIdsChangedEnable": ("plugin.clients", "notify", _PLAIN),
    "storeReplyMessageEnable": ("plugin.reply", "store", _PLAIN),
    "replyThreadPoolQueueCapacity": ("plugin.reply", "max_waiting", _PLAIN),
    "messageDelayLevel": ("plugin.delay", "levels", _PLAIN),
    "transactionCheckInterval": ("plugin.transaction", "check_interval", _MILLISECONDS),
    "transactionTimeOut": ("plugin.transaction", "timeout", _MILLISECONDS),
    "transactionCheckMax": ("plugin.transaction", "check_max", _PLAIN),
    "rejectTransactionMessage": ("plugin.transaction", "reject", _PLAIN),
    "enablePropertyFilter": ("plugin.filter", "sql92", _PLAIN),
    "maxHashSlotNum": ("plugin.index", "slots", _PLAIN),
    "maxIndexNum": ("plugin.index", "entries", _PLAIN),
    "fileReservedTime": ("plugin.retention", "keep", _HOURS),
    "deleteWhen": ("plugin.retention", "at", _PLAIN),
    "diskMaxUsedSpaceRatio": ("plugin.retention", "disk_reclaim", _PLAIN),
    "haMasterAddress": (_COPIES, "master", _PLAIN),
    "haSendHeartbeatInterval": (_COPIES, "heartbeat", _MILLISECONDS),
    "haHousekeepingInterval": (_COPIES, "housekeeping", _MILLISECONDS),
    "haTransferBatchSize": (_COPIES, "transfer_batch", _PLAIN),
    "haSlaveFallbehindMax": (_COPIES, "fall_behind_max", _PLAIN),
    "slaveTimeout": (_COPIES, "sync_timeout", _MILLISECONDS),
    "osPageCacheBusyTimeOutMills": ("plugin.flowcontrol", "busy_after", _MILLISECONDS),
}
