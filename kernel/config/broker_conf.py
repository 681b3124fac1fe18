"""RocketMQ's ``broker.conf``: Java properties, and what its keys are called here.

Meanings and units of the keys: ``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

CONSUME_QUEUE_UNIT_BYTES = 20

Translation = dict[tuple[str, str], str]


def translate(properties: Mapping[str, str]) -> tuple[Translation, list[str]]:
    """Our ``(section, key)`` and value as text of every key that has a counterpart, and the keys that have none.

    A value that does not fit its meaning is passed on as it is: the typed section refuses it with our key's name.
    :class:`ValueError` where two values contradict each other.
    """
    ours: Translation = {}
    unmapped: list[str] = []
    for key, value in properties.items():
        if key in _KEYS:
            section, name, convert = _KEYS[key]
            ours[section, name] = convert(value.strip())
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
    return {"6": "read-write", "4": "read-only", "2": "write-only"}.get(value, value)


_TRANSIENT_POOL = "transientStorePoolEnable"
_FLUSH_MODE = ("plugin.flush", "mode")
_ROLE = "brokerRole"
_COPIES = "plugin.ha"
_EXPORTER = "metricsExporterType"
_METRICS_KEYS = frozenset({_EXPORTER, "metricsPromExporterHost", "metricsPromExporterPort"})
_ADDRESS_KEYS = frozenset({"listenPort", "bindAddress", "brokerIP1", "haListenPort"})
_KEYS: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "brokerName": ("broker", "name", _same),
    "brokerClusterName": ("broker", "cluster", _same),
    "brokerId": ("broker", "id", _same),
    "namesrvAddr": ("broker", "nameservers", _same),
    "storePathRootDir": ("broker", "data", _same),
    "flushConsumerOffsetInterval": ("broker", "persist_interval", _milliseconds),
    "mappedFileSizeCommitLog": ("store", "commit_log_file_bytes", _same),
    "mapedFileSizeCommitLog": ("store", "commit_log_file_bytes", _same),
    "mappedFileSizeConsumeQueue": ("store", "queue_file_units", _units),
    "mapedFileSizeConsumeQueue": ("store", "queue_file_units", _units),
    "enableConsumeQueueExt": ("store", "queue_extension", _same),
    "mappedFileSizeConsumeQueueExt": ("store", "queue_extension_file_bytes", _same),
    "maxMessageSize": ("store", "max_message_bytes", _same),
    "flushDiskType": ("plugin.flush", "mode", _flush_mode),
    "autoCreateTopicEnable": ("plugin.topics", "auto_create", _same),
    "autoCreateSubscriptionGroup": ("plugin.topics", "auto_create_groups", _same),
    "defaultTopicQueueNums": ("plugin.topics", "default_queues", _same),
    "traceTopicEnable": ("plugin.topics", "trace_topic", _same),
    "msgTraceTopicName": ("plugin.topics", "trace_topic_name", _same),
    "traceOn": ("plugin.produce", "trace", _same),
    "brokerPermission": ("plugin.topics", "broker_permission", _permission),
    "slaveReadEnable": ("plugin.consume", "slave_read_enable", _same),
    "maxTransferCountOnMessageInMemory": ("plugin.consume", "memory_messages", _same),
    "maxTransferBytesOnMessageInMemory": ("plugin.consume", "memory_bytes", _same),
    "maxTransferCountOnMessageInDisk": ("plugin.consume", "disk_messages", _same),
    "maxTransferBytesOnMessageInDisk": ("plugin.consume", "disk_bytes", _same),
    "accessMessageInMemoryMaxRatio": ("plugin.consume", "memory_percent", _same),
    "notifyConsumerIdsChangedEnable": ("plugin.clients", "notify", _same),
    "storeReplyMessageEnable": ("plugin.reply", "store", _same),
    "replyThreadPoolQueueCapacity": ("plugin.reply", "max_waiting", _same),
    "messageDelayLevel": ("plugin.delay", "levels", _same),
    "transactionCheckInterval": ("plugin.transaction", "check_interval", _milliseconds),
    "transactionTimeOut": ("plugin.transaction", "timeout", _milliseconds),
    "transactionCheckMax": ("plugin.transaction", "check_max", _same),
    "rejectTransactionMessage": ("plugin.transaction", "reject", _same),
    "enablePropertyFilter": ("plugin.filter", "sql92", _same),
    "maxHashSlotNum": ("plugin.index", "slots", _same),
    "maxIndexNum": ("plugin.index", "entries", _same),
    "fileReservedTime": ("plugin.retention", "keep", _hours),
    "deleteWhen": ("plugin.retention", "at", _same),
    "diskMaxUsedSpaceRatio": ("plugin.retention", "disk_reclaim", _same),
    "haMasterAddress": (_COPIES, "master", _same),
    "haSendHeartbeatInterval": (_COPIES, "heartbeat", _milliseconds),
    "haHousekeepingInterval": (_COPIES, "housekeeping", _milliseconds),
    "haTransferBatchSize": (_COPIES, "transfer_batch", _same),
    "haSlaveFallbehindMax": (_COPIES, "fall_behind_max", _same),
    "slaveTimeout": (_COPIES, "sync_timeout", _milliseconds),
    "osPageCacheBusyTimeOutMills": ("plugin.flowcontrol", "busy_after", _milliseconds),
}
