"""Filter messages for a subscription by tag, or by an SQL92 expression on the properties.

A tag is compared by the hash in the consume queue entry; for SQL92 each record is read.

Slot: none.
Hooks: config_section, configure, register_filters, register_processors, register_tasks, groups_changed, stopping,
persist, check_files.
Config ``[plugin.filter]``: ``sql92`` (true; RocketMQ's ``enablePropertyFilter``, which is off there).
Files: ``config/consumerFilter.json``, every ``broker.persist_interval`` if it changed (``.bak``: the one before).
Replaces RocketMQ's ``FilterAPI``, ``ExpressionMessageFilter``, ``SqlFilter`` and ``ConsumerFilterManager``, and
answers CHECK_CLIENT_CONFIG (46).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import plain
from gantrymq.kernel.filters import compile_steps
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.filter import tags
from gantrymq.plugins.filter.check import check_client
from gantrymq.plugins.filter.consumers import PATH, ConsumerFilterFile, ConsumerFilters
from gantrymq.plugins.interfaces import ConsumerGroups
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.steps import run_steps

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.filters import FilterCompiler, FilterSteps, MessageFilter
    from gantrymq.kernel.processors import Processor
    from gantrymq.kernel.stopped_store import StoppedStore

LOOK_EVERY_S: Final = 60.0
"""How often entries are checked, in seconds, to delete those of groups that left long ago."""


@attrs.frozen
class FilterConfig:
    """Section ``[plugin.filter]``."""

    sql92: bool = plain(True, rocketmq="enablePropertyFilter")


class FilterPlugin:
    """Register the compilers of tag and SQL92 expressions."""

    name = "filter"

    def __init__(self) -> None:
        self._is_changed = True
        self._look_at = 0.0
        self._ready: dict[str, bytes | bytearray] | None = None
        self._is_stopping = False

    @hookimpl
    def config_section(self) -> tuple[str, type[FilterConfig]]:
        return "filter", FilterConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._config = config.section(FilterConfig)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)

        def check(expression_type: str, expression: str) -> object:
            compile_expression = broker.filters.get(expression_type)
            if compile_expression is None:
                raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"no filter of type {expression_type}")
            return compile_steps(compile_expression, expression)

        self._consumers = ConsumerFilters(broker.env, f"{folder}/consumerFilter.json", check)

    @hookimpl
    def register_filters(self, broker: Broker) -> dict[str, FilterCompiler]:
        return {"TAG": tags.compile_in_steps, **({"SQL92": _compile_sql92} if self._config.sql92 else {})}

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        return {RequestCode.CHECK_CLIENT_CONFIG: check_client(broker.filters, broker.pace)}

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """Return the task that tracks subscriptions other than by tag."""
        return [BackgroundTask("filter.consumers", partial(self._follow, broker))]

    @hookimpl
    def groups_changed(self) -> None:
        """Subscriptions may have changed."""
        self._is_changed = True

    @hookimpl
    def stopping(self) -> None:
        """Stop the work on long expressions."""
        self._is_stopping = True

    @hookimpl
    def check_files(self, store: StoppedStore) -> None:
        """Check that the file can be read."""
        store.read_table(PATH, ConsumerFilterFile.from_bytes, "the SQL92 subscriptions, which clients send again")

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes | bytearray] | None:
        """Return the file, if a subscription other than by tag was added, changed or removed."""
        if self._is_stopping:
            run_steps(self._update(broker))
        ready, self._ready = self._ready, None
        return ready

    async def _follow(self, broker: Broker) -> None:
        while True:
            await trio.sleep(broker.config.broker.persist_interval)
            groups = broker.registry.find(ConsumerGroups)
            if groups is None or not self._is_due(broker.env.monotonic()):
                continue
            pace = broker.pace()
            for _ in self._update(broker):
                await pace.checkpoint()

    def _is_due(self, now: float) -> bool:
        """Return whether subscriptions changed, expressions are unread, or entries may be old enough to delete."""
        return self._is_changed or self._consumers.is_behind or now >= self._look_at

    def _update(self, broker: Broker) -> Generator[None, None, None]:
        groups = broker.registry.find(ConsumerGroups)
        if groups is None:
            return
        self._is_changed = False
        self._look_at = broker.env.monotonic() + LOOK_EVERY_S
        live = ((group, wish) for group in groups.groups() for wish in groups.subscriptions_of(group).values())
        yield from self._consumers.update_in_steps(live)
        self._ready = (yield from self._consumers.changes_in_steps()) or self._ready


def _compile_sql92(expression: str) -> MessageFilter | FilterSteps:
    # The parser is loaded only when it is used.
    from gantrymq.plugins.filter.sql92 import compile_in_steps

    return compile_in_steps(expression)
