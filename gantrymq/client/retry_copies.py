"""The request that sends a message to its group's retry topic when the broker cannot send it back by itself.

A broker that is asked to redeliver a message (CONSUMER_SEND_MSG_BACK) reads it from its log, where it may no longer be.
The client still has it. Source: RocketMQ 4.9.7 ``DefaultMQPushConsumerImpl.sendMessageBack``,
``DefaultMQProducerImpl.sendKernelImpl``, ``SendMessageProcessor.handleRetryAndDLQ``.
"""

from __future__ import annotations

from typing import Final

from gantrymq.client.outgoing import Outgoing
from gantrymq.message import DeliveredRecord
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import RECONSUME_UNLIMITED
from gantrymq.remoting.names import retry_topic
from gantrymq.remoting.properties import replace_properties
from gantrymq.remoting.property_bytes import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, TRAN_MSG
from gantrymq.remoting.records import COMPRESSED, COMPRESSION_MASK

FIRST_LEVEL: Final = 3
"""The delay level of the first redelivery where the application chooses none; each further one uses the next level."""


def retry_copy(
    record: DeliveredRecord, topic: str, group: str, delay_level: int, max_retries: int | None
) -> tuple[Outgoing, Command]:
    """What stores ``record``, which was sent to ``topic``, in queue 0 of the retry topic of ``group``.

    ``topic`` and ``group`` are the names that the broker knows. The broker, which is that of the record, makes it a
    dead letter where ``delay_level`` is negative or the attempts are used up: ``max_retries`` redeliveries, or as many
    as the group's configuration allows. The sender of the copy, which may ignore the levels of flushing and
    replication, checks the answer with :meth:`Outgoing.stored`.
    """
    is_dead = delay_level < 0 or (max_retries is not None and record.reconsume_times >= max_retries)
    properties = record.properties
    level = b"%d" % (delay_level or FIRST_LEVEL + record.reconsume_times)
    text = replace_properties(
        record.raw_properties,
        {
            RETRY_TOPIC: (properties.get(RETRY_TOPIC.decode()) or topic).encode(),
            ORIGIN_MESSAGE_ID: (properties.get(ORIGIN_MESSAGE_ID.decode(), "").strip() or record.message_id).encode(),
            DELAY: None if is_dead else level,  # RocketMQ's broker would delay the dead letter
            TRAN_MSG: None,  # of a committed half message
        },
    ).decode("utf-8", "replace")
    outgoing = Outgoing(retry_topic(group), record.stored_body, [record.message_id], properties=text)
    outgoing.flag = record.flag
    outgoing.sys_flag = record.sys_flag & (COMPRESSED | COMPRESSION_MASK)
    outgoing.born = record.born_timestamp
    queue = MessageQueue(topic=outgoing.topic, broker_name=record.broker_name, queue_id=0)
    # access control takes the sender's group for the consumer group of a retry topic
    command = outgoing.command(group, queue)
    assert command.ext is not None  # of a send it never is
    command.ext["j"] = str(record.reconsume_times + 1)
    # A copy that has as many reconsume times as its limit is a dead letter for RocketMQ 4.9 and none for 5.x.
    if is_dead:
        command.ext["l"] = "0"
    elif max_retries is not None:
        command.ext["l"] = str(RECONSUME_UNLIMITED)
    return outgoing, command
