"""Which messages a subscription wants: by tag, or by an SQL92 expression on the properties.

A tag is compared by the hash in the consume queue entry; for SQL92 each record is read.

Slot: none.
Hooks: config_section, configure, register_filters, register_processors, persist.
Config ``[plugin.filter]``: ``sql92`` (true; RocketMQ's ``enablePropertyFilter``, which is off there).
Files: ``config/consumerFilter.json``, every ``broker.persist_interval`` if it changed (``.bak``: the one before).
Answers for RocketMQ's ``FilterAPI``, ``ExpressionMessageFilter``, ``SqlFilter`` and ``ConsumerFilterManager``, and for
the request CHECK_CLIENT_CONFIG (46).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.filters import compile_steps, run_steps
from gantrymq.kernel.services import ConsumerGroups
from gantrymq.plugins.filter import tags
from gantrymq.plugins.filter.check import check_client
from gantrymq.plugins.filter.consumers import ConsumerFilters
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config import Config
    from gantrymq.kernel.filters import FilterCompiler, FilterSteps, MessageFilter
    from gantrymq.kernel.processors import Processor


@attrs.frozen
class FilterConfig:
    """``[plugin.filter]``."""

    sql92: bool = True


class FilterPlugin:
    """Compiles tag and SQL92 expressions."""

    name = "filter"

    @hookimpl
    def config_section(self) -> tuple[str, type[FilterConfig]]:
        return "filter", FilterConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._config = config.section(FilterConfig)
        folder = f"{broker.root}/config"
        broker.env.mkdirs(folder)

        def check(expression_type: str, expression: str) -> None:
            compile_expression = broker.filters.get(expression_type)
            if compile_expression is None:
                raise RemoteFault(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"no filter of type {expression_type}")
            run_steps(compile_steps(compile_expression, expression))

        self._consumers = ConsumerFilters(broker.env, f"{folder}/consumerFilter.json", check)

    @hookimpl
    def register_filters(self, broker: Broker) -> dict[str, FilterCompiler]:
        return {"TAG": tags.compile_in_steps, **({"SQL92": _compile_sql92} if self._config.sql92 else {})}

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        return {RequestCode.CHECK_CLIENT_CONFIG: check_client(broker.filters, broker.pace)}

    @hookimpl
    def persist(self, broker: Broker) -> dict[str, bytes] | None:
        """The file, if anybody who filters by more than tags came, changed or left."""
        groups = broker.services.find(ConsumerGroups)
        if groups is None:
            return None
        self._consumers.update(
            (group, wish) for group in groups.groups() for wish in groups.subscriptions_of(group).values()
        )
        return self._consumers.changes()


def _compile_sql92(expression: str) -> MessageFilter | FilterSteps:
    # Whoever never uses the parser does not load it.
    from gantrymq.plugins.filter.sql92 import compile_in_steps

    return compile_in_steps(expression)
