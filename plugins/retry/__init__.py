"""Deliver messages again that consumers send back, and turn them into dead letters after too many attempts.

Slot: none.
Hooks: before_append, register_processors.
Config: none; the group's ``retryQueueNums`` and ``retryMaxTimes`` apply.
Files: none.
Calls the hook ``dead_lettered``.
Replaces RocketMQ's ``SendMessageProcessor.consumerSendMsgBack`` (code 36) and ``handleRetryAndDLQ``.

A message is delivered again through the topic ``%RETRY%group``, to which consumers subscribe automatically. It waits
first, in an ordinary delay level: this plugin sets the property, and ``before_append`` of the plugin ``delay`` diverts
the message. After too many attempts, or with the level -1, the message becomes a dead letter in ``%DLQ%group``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch, Source, Trait
from gantrymq.kernel.observers import observe
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.plugins.retry.deadletter import DeadLetters
from gantrymq.plugins.retry.sendback import SendBackProcessor
from gantrymq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.processors import Processor


class RetryPlugin:
    """Answers 36, and checks messages that clients send to a retry topic."""

    name = "retry"
    sources = (Source.RESEND,)
    _dead_letters: DeadLetters  # set by register_processors

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """Return the handlers of 36, in batches."""
        topics, groups = broker.registry.get(TopicTable), broker.registry.get(GroupTable)
        self._dead_letters = DeadLetters(topics, groups, observe(broker.manager, "dead_lettered"))
        return {RequestCode.CONSUMER_SEND_MSG_BACK: SendBackProcessor(broker, topics, groups, self._dead_letters)}

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        """Turn messages that a consumer sent to a retry topic after too many attempts into dead letters."""
        if batch.traits & Trait.RETRY:
            self._dead_letters.redirect(batch)
