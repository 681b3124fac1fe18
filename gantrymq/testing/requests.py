"""Requests for tests without a client, with the defaults of RocketMQ's clients."""

from __future__ import annotations

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader

_SUSPEND = 2
_SUBSCRIPTION = 4


def send(topic: str, body: bytes, *, queue_id: int = 0, queues: int = 1, properties: str = "") -> Command:
    """SEND_MESSAGE_V2 with one message; a missing topic is created with ``queues`` queues."""
    header = SendMessageHeader(
        producer_group="producers", topic=topic, default_topic="TBW102", default_topic_queue_nums=queues,
        queue_id=queue_id, sys_flag=0, born_timestamp=1, flag=0, properties=properties,
    )  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


def pull(
    topic: str,
    queue_id: int = 0,
    offset: int = 0,
    *,
    group: str = "consumers",
    limit: int = 32,
    suspend_ms: int = 0,
    expression: str = "*",
) -> Command:
    """PULL_MESSAGE with its subscription; the broker may hold it for up to ``suspend_ms`` milliseconds."""
    header = PullMessageHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=limit,
        sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms else 0), commit_offset=0, suspend_timeout_millis=suspend_ms,
        subscription=expression, sub_version=0,
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext())
