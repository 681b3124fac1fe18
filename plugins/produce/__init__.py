"""Accept messages: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

Slot: none; essential.
Hooks: before_append, configure, config_section, register_processors.
Config ``[plugin.produce]``: ``region`` (returned to every producer as MSG_REGION), ``trace`` (TRACE_ON).
Files: none.
Provides: SendRules.
Replaces RocketMQ's ``SendMessageProcessor``.

``before_append`` runs last. It refuses delayed messages and half messages that no plugin has handled, because an
ordinary append would deliver them too early. A slave (``broker.id`` above 0) refuses everything. Of a batch request of
which a plugin or the log refuses a message, no message is stored, as with RocketMQ, unless the disk has no room for the
next file of the log: the sender gets an error, and the messages before that file are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.plugins.interfaces import GroupTable, SendRules, TopicTable
from gantrymq.plugins.produce.config import ProduceConfig
from gantrymq.plugins.produce.rules import Rules
from gantrymq.plugins.produce.send import SendProcessor, record_room, refuse_large_rows, refuse_whole_requests
from gantrymq.plugins.produce.validate import refuse_all, refuse_unhandled
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.properties import MSG_REGION, TRACE_ON

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.processors import Processor


class ProducePlugin:
    """Answers the three send requests with one processor, so that the requests of a turn are one batch."""

    name = "produce"
    essential = True
    sources = Source.ALL

    @hookimpl
    def config_section(self) -> tuple[str, type[ProduceConfig]]:
        return "produce", ProduceConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        self._config = config.section(ProduceConfig)
        self._slave_id = broker.broker_id
        trace = "true" if self._config.trace else "false"
        self._rules = Rules(broker, {MSG_REGION: self._config.region, TRACE_ON: trace})
        broker.registry.provide(SendRules, self._rules)

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        processor = SendProcessor(
            broker,
            broker.registry.get(TopicTable),
            broker.registry.get(GroupTable),
            self._rules.response_fields,
        )
        self._room = record_room(broker)
        codes = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return dict.fromkeys(codes, processor)

    @hookimpl(trylast=True)
    def before_append(self, batch: AppendBatch) -> None:
        if self._slave_id:
            refuse_all(batch, self._slave_id)
            return
        if batch.traits & (Trait.DELAY | Trait.PREPARED):
            refuse_unhandled(batch)
        if batch.traits & Trait.BATCH:
            if self._room is not None:
                refuse_large_rows(batch, self._room)
            if batch.refused:
                refuse_whole_requests(batch)
