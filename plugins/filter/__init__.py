"""Which messages a subscription wants: by tag, or by an SQL92 expression on the properties.

A tag is compared by the hash in the consume queue entry; for SQL92 each record is read.

Slot: none.
Hooks: config_section, configure, register_filters, register_processors.
Config ``[plugin.filter]``: ``sql92`` (true; RocketMQ's ``enablePropertyFilter``, which is off there).
Files: none. Answers for RocketMQ's ``FilterAPI``, ``ExpressionMessageFilter`` and ``SqlFilter``, and for the request
CHECK_CLIENT_CONFIG (46).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from gantrymq.kernel import hookimpl
from gantrymq.plugins.filter.check import check_client
from gantrymq.plugins.filter.tags import compile_tags
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.config import Config
    from gantrymq.kernel.filters import FilterCompiler, MessageFilter
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

    @hookimpl
    def register_filters(self, broker: Broker) -> dict[str, FilterCompiler]:
        return {"TAG": compile_tags, **({"SQL92": _compile_sql92} if self._config.sql92 else {})}

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        return {RequestCode.CHECK_CLIENT_CONFIG: check_client(broker.filters)}


def _compile_sql92(expression: str) -> MessageFilter:
    # The parser takes some megabytes and a tenth of a second: whoever never uses it does not pay.
    from gantrymq.plugins.filter.sql92 import compile_sql92

    return compile_sql92(expression)
