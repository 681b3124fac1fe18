"""Finds messages by key: RocketMQ's index files, built while messages are dispatched.

Slot: index.
Hooks: config_section, configure, dispatch, persist, register_tasks, stopping.
Config ``[plugin.index]``: ``slots``, ``entries`` (the shape of a file; an index of another shape is rebuilt),
``flush_interval``, ``sync_interval``, ``catch_up_bytes``.
Files: ``index/<yyyyMMddHHmmssSSS>`` as RocketMQ has them, sparse; ``gantrymq.index``, the flushed part of the index.
Provides: MessageIndex.
Replaces RocketMQ's ``IndexService`` and ``CommitLogDispatcherBuildIndex``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gantrymq.kernel import hookimpl
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.index.config import IndexConfig
from gantrymq.plugins.index.files import IndexFiles
from gantrymq.plugins.index.follower import Follower
from gantrymq.plugins.index.layout import Shape
from gantrymq.plugins.interfaces import MessageIndex

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import DispatchBatch
    from gantrymq.kernel.config.sections import Config


class IndexPlugin:
    """Holds the slot ``index`` and provides ``MessageIndex``."""

    name = "index"
    slot = "index"

    def __init__(self) -> None:
        self._index: IndexFiles | None = None
        self._follower: Follower | None = None
        self._stopping = False

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """Return the section's name and class: ``[plugin.index]``."""
        return "index", IndexConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Create the index. It reads nothing yet, because the log's start and end are known only after recovery."""
        section = config.section(IndexConfig)
        self._index = IndexFiles(broker.env, broker.root, Shape(section.slots, section.entries))
        self._follower = Follower(broker, self._index, section)
        broker.registry.provide(MessageIndex, self)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return two tasks: one follows the log, one writes the files."""
        assert self._follower is not None  # configure has run
        return [BackgroundTask("index", self._follower.follow), BackgroundTask("index files", self._follower.keep)]

    @hookimpl
    def dispatch(self, batch: DispatchBatch) -> None:
        """Add the keys of the batch; if it does not follow the last one, the catch-up adds them later."""
        if self._follower is not None:
            self._follower.take(batch)

    @hookimpl
    def stopping(self) -> None:
        """From now on, keep the files in a state that a start can use directly."""
        self._stopping = True

    @hookimpl
    def persist(self) -> None:
        """When the broker stops: write the whole index, including slots. Before that, the plugin's task writes it."""
        if self._stopping and self._follower is not None:
            self._follower.settle()

    # --------------------------------------------------------------------------------------- as MessageIndex

    def find(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """See :class:`MessageIndex`."""
        return iter(()) if self._index is None else self._index.find(topic, key, begin, end)

    def last(self) -> tuple[int, int]:
        """See :class:`MessageIndex`."""
        return (0, 0) if self._index is None else self._index.last

    async def wait_caught_up(self) -> None:
        """See :class:`MessageIndex`."""
        if self._follower is not None:
            await self._follower.caught_up.wait()
