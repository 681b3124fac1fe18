"""Queries for single messages: by key or unique id, and by message id.

Slot: none.
Hooks: register_processors.
Config: none.
Files: none; it reads the log, and the index through MessageIndex.
Replaces RocketMQ's ``QueryMessageProcessor``: codes 12 and 33.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.kernel.processors import Heavy, Processor
from gantrymq.plugins.query.requests import QueryRequests
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker


class QueryPlugin:
    """Serves two requests, each in its own task."""

    name = "query"

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 12 and 33."""
        requests = QueryRequests(broker)
        return {
            RequestCode.QUERY_MESSAGE: Heavy(requests.by_key, requests.wait_for_index),
            RequestCode.VIEW_MESSAGE_BY_ID: Heavy(requests.by_offset),
        }
