"""Requests about the broker itself: its state (28), its configuration (25, 26), deletion of expired log files (329).

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor.prepareRuntimeInfo``, ``DefaultMessageStore.getRuntimeInfo``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gantrymq.kernel.config.rocketmq_keys import write_plain
from gantrymq.kernel.processors import Handler, Request
from gantrymq.kernel.store.reading import first_stored_at
from gantrymq.plugins.admin.settings import ChangeableSettings
from gantrymq.plugins.interfaces import Replication, Retention
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import VERSION, Command
from gantrymq.remoting.headers.brokers import ConfigVersionResponse

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

VERSION_NAME = "V4_9_7"
"""The RocketMQ release whose behavior clients see: the name of ``VERSION``."""
BINARY_PREFIXES = "KMGTPE"

log = structlog.get_logger("gantrymq.admin")


class BrokerAdmin:
    """Handlers of the four codes."""

    def __init__(self, broker: Broker, settings: ChangeableSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._retention = broker.registry.find(Retention)

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    async def update_config(self, request: Request) -> Command:
        """Answer 25. Keys that are not on the allow list are refused; RocketMQ ignores unknown keys."""
        await self._settings.check(request.command.body)
        self._settings.update(request.command.body)
        return request.command.answer(ResponseCode.SUCCESS)

    def config(self, request: Request) -> Command:
        """Answer 26."""
        ext = ConfigVersionResponse(version=self._settings.version.to_bytes().decode()).to_ext()
        return request.command.answer(ResponseCode.SUCCESS, ext=ext, body=self._settings.text())

    def runtime_info(self, request: Request) -> Command:
        """Answer 28: the kernel's values, and those of plugins (hook ``runtime_info``)."""
        table = self._own_info()
        for info, call in self._broker.manager.calls("runtime_info", broker=self._broker):
            try:
                table.update(call() or {})
            except Exception as error:  # if a plugin fails, only its part is missing
                self._broker.manager.activity.failed(info.name, "runtime_info", error)
                log.exception("plugin_failed", plugin=info.name, hook="runtime_info")
        return request.command.answer(ResponseCode.SUCCESS, body=KVTable(dict(sorted(table.items()))).to_bytes())

    def delete_expired(self, request: Request) -> Command:
        """Answer 329. Without a retention plugin nothing expires."""
        if self._retention is not None:
            self._retention.delete_expired()
        return request.command.answer(ResponseCode.SUCCESS)

    def _own_info(self) -> dict[str, str]:
        broker = self._broker
        commit_log, usage = broker.log, broker.env.disk_usage(broker.root)
        ratio = str(_used_ratio(usage.total, usage.free))
        earliest = first_stored_at(commit_log)
        replication = broker.registry.find(Replication)
        is_active = not broker.broker_id and (replication is None or not replication.fenced)
        info = {
            "brokerActive": write_plain(is_active),  # RocketMQ 5: whether it acts as a master
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "commitLogDirCapacity": f"Total : {human_bytes(usage.total)}, Free : {human_bytes(usage.free)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{broker.root}/commitlog": ratio,
            "commitLogMaxOffset": str(commit_log.end),
            "commitLogMinOffset": str(commit_log.min_offset),
            "consumeQueueDiskRatio": ratio,
            "dispatchBehindBytes": str(commit_log.end - broker.store.dispatched),
            "earliestMessageTimeStamp": str(-1 if earliest is None else earliest),
            "pageCacheLockTimeMills": "0",
            "remainHowManyDataToFlush": human_bytes(commit_log.end - commit_log.durable),
            "remainTransientStoreBufferNumbs": str(2**31 - 1),  # RocketMQ's value without such a pool
            "startAcceptSendRequestTimeStamp": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(broker.config.limits.sweep_rows),
        }
        for pool in ("send", "pull", "query"):  # requests are taken in turns, and none waits between two
            info[f"{pool}ThreadPoolQueueSize"] = "0"
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
            info[f"{pool}ThreadPoolQueueCapacity"] = str(broker.config.limits.sweep_rows)
        return info


def human_bytes(size: int) -> str:
    """Return ``size`` with a binary unit and one decimal: "512 B", "1.0 KiB" (``MixAll.humanReadableByteCount``)."""
    if size < 1024:
        return f"{size} B"
    exponent = min((size.bit_length() - 1) // 10, len(BINARY_PREFIXES))
    return f"{size / 1024**exponent:.1f} {BINARY_PREFIXES[exponent - 1]}iB"


def _used_ratio(total: int, free: int) -> float:
    # hundredths, rounded up as UtilAll.getDiskPartitionSpaceUsedPercent does
    return 0.0 if total <= 0 else -(-(total - free) * 100 // total) / 100
