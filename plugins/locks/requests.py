"""LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42). Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``."""

from __future__ import annotations

from gantrymq.kernel.processors import Handler, Request
from gantrymq.plugins.locks.table import LockTable
from gantrymq.remoting.bodies import LockBatchRequestBody, LockBatchResponseBody
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import validate_group, validate_topic

NAME_MAX_CHARACTERS = 1024
"""Characters of a client's id, and of a broker's name; both stay in the table for as long as the lock."""
QUEUES_MAX = 10_000
"""The most queues that one request may name."""


class LockRequests:
    """Handlers of the two codes."""

    def __init__(self, table: LockTable) -> None:
        self._table = table

    def processors(self) -> dict[int, Handler]:
        """Request code to handler."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Request) -> Command:
        """41: answers which of the queues the client has from now on."""
        body = _body(request)
        given = self._table.lock(body.consumer_group, body.mq_set, body.client_id, request.connection.id)
        answer = LockBatchResponseBody(lock_ok_mq_set=given).to_bytes()
        return request.command.answer(ResponseCode.SUCCESS, body=answer)

    def unlock(self, request: Request) -> Command:
        """42: what the client does not have is no error."""
        body = _body(request)
        self._table.unlock(body.consumer_group, body.mq_set, body.client_id)
        return request.command.answer(ResponseCode.SUCCESS)


def _body(request: Request) -> LockBatchRequestBody:
    body = LockBatchRequestBody.from_request(request.command.body)
    if not body.consumer_group or not body.client_id:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "the body names no consumerGroup or no clientId")
    if len(body.mq_set) > QUEUES_MAX:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{len(body.mq_set)} queues, at most {QUEUES_MAX} in one request")
    validate_group(body.consumer_group)
    for topic in {queue.topic for queue in body.mq_set}:
        validate_topic(topic)
    for name in {queue.broker_name for queue in body.mq_set} | {body.client_id}:
        if len(name) > NAME_MAX_CHARACTERS:
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR,
                f"a client id or broker name of {len(name)} characters, {NAME_MAX_CHARACTERS} are the limit",
            )
    return body
