"""Which messages a subscription wants: tag expressions, by the hash in the consume queue entry.

Slot: none.
Hooks: register_filters.
Config: none. Files: none. Answers for RocketMQ's ``FilterAPI`` and ``ExpressionMessageFilter`` for the type TAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.plugins.filter.tags import compile_tags

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.kernel.filters import FilterCompiler


class FilterPlugin:
    """Compiles tag expressions."""

    name = "filter"

    @hookimpl
    def register_filters(self, broker: Broker) -> dict[str, FilterCompiler]:
        return {"TAG": compile_tags}
