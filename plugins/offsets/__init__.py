"""Offsets of consumer groups, and the lowest and highest offset of queues.

Slot: none; essential.
Hooks: config_section, configure, recovered, register_processors, register_tasks, collect_metrics, persist,
check_files.
Config ``[plugin.offsets]``: max_entries, from_start_within.
Files: ``config/consumerOffset.json``, every ``broker.persist_interval`` (``.bak``: the previous one, ``.bad``: a
damaged one).
Provides: ConsumerOffsets. Calls the hook ``offsets_committed``.
Replaces RocketMQ's ConsumerOffsetManager, the offsets of ConsumerManageProcessor and of AdminBrokerProcessor: codes
14, 15, 29 to 32, 43, 308, 314, 343.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.observers import observe
from gantrymq.kernel.processors import Processor
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.interfaces import ConsumerOffsets, Replication
from gantrymq.plugins.offsets.admin import OffsetAdmin
from gantrymq.plugins.offsets.changes import OffsetChanges
from gantrymq.plugins.offsets.config import OffsetsConfig
from gantrymq.plugins.offsets.file_check import check_offsets
from gantrymq.plugins.offsets.lag import LagAges, report_lag
from gantrymq.plugins.offsets.requests import OffsetRequests, end_of_queue
from gantrymq.plugins.offsets.table import Offsets

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.stopped_store import StoppedStore


class OffsetsPlugin:
    """Keeps the table, provides it to other plugins and writes it."""

    name = "offsets"
    essential = True

    def __init__(self) -> None:
        self._offsets: Offsets | None = None
        self._config = OffsetsConfig()
        self._ages = LagAges()

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the name and the class of the section ``[plugin.offsets]``."""
        return "offsets", OffsetsConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the file; a damaged one without a good ``.bak`` stops the start."""
        self._config = config.section(OffsetsConfig)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)
        path = f"{folder}/consumerOffset.json"
        self._offsets = Offsets(broker.env, path, self._config.max_entries, partial(end_of_queue, broker))
        broker.registry.provide(ConsumerOffsets, self._offsets)

    @hookimpl
    def recovered(self, broker: Broker) -> None:
        """Set offsets beyond the end of a queue back to the end, so that groups do not skip the next messages."""
        if self._offsets is not None:
            self._offsets.clamp()

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 14 and 15 from consumers, 29 to 31 from any client, the others from administrators."""
        assert self._offsets is not None  # configure has run
        requests = OffsetRequests(broker, self._offsets, self._config)
        return requests.processors() | OffsetAdmin(broker, self._offsets).processors()

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return what calls the hook ``offsets_committed``, if a plugin has it."""
        assert self._offsets is not None  # configure has run
        observers = observe(broker.manager, "offsets_committed")
        if observers is None:
            return []
        return [BackgroundTask("offsets.changes", OffsetChanges(self._offsets, observers).run)]

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Report the lag of groups, on the master that serves them.

        A slave has copies of the master's offsets, and groups commit no more to a fenced master.
        """
        replication = broker.registry.find(Replication)
        is_fenced = replication is not None and bool(replication.fenced)
        if self._offsets is not None and not broker.broker_id and not is_fenced:
            report_lag(broker, self._offsets, self._ages, metrics)

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        """Check that the offsets are in their queues."""
        check_offsets(store)

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """Return the file, if anything changed."""
        return None if self._offsets is None else self._offsets.changes()
