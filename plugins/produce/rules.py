"""The rules for sent messages, for other plugins that take messages from clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.produce.validate import check_topic, traits_of
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.headers.send import SendMessageHeader

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker


class Rules:
    """Provides ``SendRules``. ``response_fields``: the fields of each response to a sender."""

    def __init__(self, broker: Broker, response_fields: dict[str, str]) -> None:
        self.response_fields = response_fields
        self._broker = broker

    def check_topic(self, header: SendMessageHeader) -> TopicConfig:
        """Return the message's topic; ``RemoteFault`` if clients may not send to it."""
        registry = self._broker.registry
        return check_topic(header, registry.get(TopicTable), registry.get(GroupTable), self._broker.name)

    def traits_of(self, properties: bytes) -> int:
        """Return the traits that the encoded properties request."""
        return traits_of(properties)
