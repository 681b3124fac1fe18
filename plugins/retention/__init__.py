"""Delete old messages, and refuse new ones when the disk is nearly full.

Slot: none.
Hooks: before_append, collect_metrics, config_section, configure, register_tasks.
Config ``[plugin.retention]``: ``keep`` (age of messages, 72 h), ``at`` (hours of the day at which older ones are
deleted, ``04``; several as ``04;16``), ``check_interval``; shares of the disk in percent: above ``disk_reclaim`` old
messages are deleted at any hour, above ``disk_force`` the oldest regardless of age unless a plugin needs them, above
``disk_full`` messages are refused until the disk is below both again; all three are ignored while ``enough_free`` is
free. A disk of which that is less than the rest above ``disk_force`` counts as smaller, so that deletion begins there,
and messages are refused later. ``files_at_once``: files per round. ``reserve``: the last bytes of the log, used when
there is no space for its next file. Rows that free space (due deliveries, ends of transactions) are accepted above
``disk_full`` and use the reserve. ``reserve_file``: disk space that is released while messages are refused, so that
tables can be written.
Files: ``gantrymq.reserve``; deletes whole files of ``commitlog/`` and their files of ``consumequeue/``,
but never the current file and nothing that a plugin needs (hook ``retention_floor``): the log names that plugin.
Replaces RocketMQ's ``CleanCommitLogService`` and ``CleanConsumeQueueService``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.config.fields import duration, number, plain, size
from gantrymq.kernel.config.rocketmq_keys import in_hours
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import Health, LiveSettings, Retention
from gantrymq.plugins.retention.clean import Cleaner
from gantrymq.plugins.retention.policy import Rules
from gantrymq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics


def _hours(text: str) -> frozenset[int]:
    return frozenset(int(hour) for hour in text.split(";") if hour.strip())


def _check_hours(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    try:
        hours = _hours(value)
    except ValueError:
        raise ValueError(f"must be hours of the day like '04' or '04;16', not {value!r}") from None
    if not all(0 <= hour < 24 for hour in hours):
        raise ValueError(f"an hour is 0 to 23, not {value!r}")


@attrs.frozen
class RetentionConfig:
    """Section ``[plugin.retention]``."""

    keep: float = duration("72h", rocketmq=in_hours("fileReservedTime"))
    at: str = plain("04", rocketmq="deleteWhen", validator=_check_hours)
    check_interval: float = duration(default="10s")
    disk_reclaim: int = number(75, 1, 100, rocketmq="diskMaxUsedSpaceRatio")
    disk_force: int = number(85, 1, 100)
    disk_full: int = number(90, 1, 100)
    enough_free: int = size(default="16 GiB")
    files_at_once: int = number(10, 1, 1000)
    reserve: int = size(default="64 MiB")
    reserve_file: int = size(default="16 MiB", maximum="1 GiB")

    @property
    def rules(self) -> Rules:
        """The settings in the policy's units."""
        return Rules(
            int(self.keep * 1000),
            _hours(self.at),
            self.disk_reclaim / 100,
            self.disk_force / 100,
            self.disk_full / 100,
            self.enough_free,
            self.files_at_once,
            self.reserve,
            self.reserve_file,
        )


LIVE_KEYS = (
    "keep",
    "at",
    "disk_reclaim",
    "disk_force",
    "disk_full",
    "enough_free",
    "files_at_once",
    "reserve",
    "reserve_file",
)
"""The settings that administrators can change while the broker runs."""


class RetentionPlugin:
    """Deletes old log files, and refuses messages while the disk is full."""

    name = "retention"
    sources = Source.ALL

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        return "retention", RetentionConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._config = section = config.section(RetentionConfig)
        self._cleaner = Cleaner(broker, section.rules, section.check_interval)
        broker.registry.provide(Retention, self._cleaner)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        live = broker.registry.find(LiveSettings)
        if live is not None:
            live.allow("plugin.retention", self._config, LIVE_KEYS, self._reconfigure)
        health = broker.registry.find(Health)
        if health is not None:
            health.add("disk", self._cleaner.refusal)
        return [BackgroundTask("retention", self._cleaner.run)]

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        if batch.traits & Trait.FREES_SPACE:
            return
        reason = self._cleaner.refusal()
        if reason:
            for row in batch.live:
                batch.refuse(row, ResponseCode.SERVICE_NOT_AVAILABLE, reason)

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report expired bytes of the log that a plugin still needs."""
        held = self._cleaner.held
        if held.holder:
            metrics.gauge(
                "gantrymq_log_held_bytes", "Expired bytes of the log that a plugin still needs", held.held_bytes,
                plugin=held.holder,
            )  # fmt: skip

    def _reconfigure(self, config: RetentionConfig) -> None:
        self._cleaner.set_rules(config.rules)
