"""Flush strategies: group commit (the default), by interval, or by interval from a buffer.

Slot: flush.
Hooks: config_section, configure, make_flush_strategy, register_ack_gates.
Config ``[plugin.flush]``: ``mode`` ("sync": a response waits for fdatasync, and everything that arrives during one
shares the next; "async": responses do not wait, a power cut may lose the last ``interval`` plus ``least_bytes``;
"buffered": as async, but a thread writes in large steps, and a response waits until the message is written;
``limits.unacknowledged_bytes`` bounds the memory), ``direct`` (sync: flush without the thread for a lone sender while
the disk is fast), ``interval``, ``least_bytes``, ``thorough_interval``, ``timeout`` (sync and buffered: after it the
sender gets FLUSH_DISK_TIMEOUT).
Files: none.
Replaces RocketMQ's ``GroupCommitService``, ``FlushRealTimeService`` and ``TransientStorePool`` with
``CommitRealTimeService``, which acknowledges messages that are lost when the process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.acks import DurableGate
from gantrymq.kernel.config.fields import duration, plain, size
from gantrymq.kernel.config.rocketmq_keys import KeyGroup, RocketmqKey, SettingKey, write_plain
from gantrymq.plugins.flush.buffered import BufferedFlush, WrittenGate
from gantrymq.plugins.flush.interval import IntervalFlush
from gantrymq.plugins.flush.sync import DirectFlush, GroupCommit

if TYPE_CHECKING:
    from gantrymq.kernel.acks import AckGate, FlushStrategy
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.store.log.commitlog import CommitLog

log = structlog.get_logger("gantrymq.flush")


def _read_mode(value: str) -> str:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}.get(value.upper(), value)


def _write_mode(mode: str) -> str:
    return "SYNC_FLUSH" if mode == "sync" else "ASYNC_FLUSH"


def _read_pool(properties: Mapping[str, str]) -> dict[SettingKey, str]:
    # as in RocketMQ the pool is only used with asynchronous flush, its default
    is_late = _read_mode(properties.get("flushDiskType", "ASYNC_FLUSH")) == "async"
    is_pooled = properties["transientStorePoolEnable"] == "true"
    return {("plugin.flush", "mode"): "buffered"} if is_pooled and is_late else {}


def _write_pool(section: FlushConfig) -> dict[str, str]:
    return {"transientStorePoolEnable": write_plain(section.mode == "buffered")}


@attrs.frozen
class FlushConfig:
    """Section ``[plugin.flush]``."""

    broker_conf_groups: ClassVar = (KeyGroup(("transientStorePoolEnable",), _read_pool, _write_pool),)

    mode: Literal["sync", "async", "buffered"] = plain(
        "sync", rocketmq=RocketmqKey("flushDiskType", read=_read_mode, write=_write_mode)
    )
    direct: bool = plain(True)
    interval: float = duration(default="500ms")
    least_bytes: int = size(default="16 KiB")
    thorough_interval: float = duration(default="10s")
    timeout: float = duration(default="5s")


class FlushPlugin:
    """Holds the slot ``flush``."""

    name = "flush"
    slot = "flush"

    @hookimpl
    def config_section(self) -> tuple[str, type[FlushConfig]]:
        return "flush", FlushConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._broker = broker
        self._config = config.section(FlushConfig)

    @hookimpl
    def make_flush_strategy(self, log: CommitLog) -> FlushStrategy:
        if self._config.mode == "sync":
            broker = self._broker
            direct = DirectFlush(log, self._is_alone) if self._config.direct else None
            return GroupCommit(log, broker.waker, direct)
        _warn(self._config)
        steps = (self._config.interval, self._config.least_bytes, self._config.thorough_interval)
        if self._config.mode == "buffered":
            return BufferedFlush(log, self._broker.waker, *steps)
        return IntervalFlush(log, *steps)

    @hookimpl
    def register_ack_gates(self, broker: Broker) -> list[AckGate]:
        if self._config.mode == "sync":
            return [DurableGate(broker.log, self._config.timeout)]
        return [WrittenGate(broker.log, self._config.timeout)] if self._config.mode == "buffered" else []

    def _is_alone(self) -> bool:
        return self._broker.serves_one_client


def _warn(config: FlushConfig) -> None:
    log.warning(
        "flush_not_synchronous",
        mode=config.mode,
        window_s=config.interval,
    )
