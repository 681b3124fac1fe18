"""Let a message that could not be consumed come again, and put it aside when that has failed too often.

Slot: none.
Hooks: before_append, register_processors.
Config: none; the group's ``retryQueueNums`` and ``retryMaxTimes`` count.
Files: none.
Answers for RocketMQ's ``SendMessageProcessor.consumerSendMsgBack`` (code 36) and ``handleRetryAndDLQ``.

A message comes again by the topic ``%RETRY%group``, to which its consumers subscribe by themselves. The wait before is
a delay level like any other: this plugin writes the property, ``before_append`` of the plugin that serves delays does
the rest. Too often consumed, or with the level -1, it goes to ``%DLQ%group`` for people to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.retry.deadletter import DeadLetters
from gantrymq.plugins.retry.sendback import SendBackProcessor
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.processors import Processor


class RetryPlugin:
    """Answers 36, and looks after what is sent to a retry topic."""

    name = "retry"
    sources = (Source.RESEND,)
    _dead_letters: DeadLetters  # from register_processors on

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """36, all of a sweep at once."""
        topics, groups = broker.registry.get(TopicTable), broker.registry.get(GroupTable)
        self._dead_letters = DeadLetters(topics, groups)
        return {RequestCode.CONSUMER_SEND_MSG_BACK: SendBackProcessor(broker, topics, groups, self._dead_letters)}

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """A message that its consumer itself sent to a retry topic, once too often, is a dead letter."""
        if batch.traits & Trait.RETRY:
            self._dead_letters.redirect(batch)
