"""LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42). Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``."""

from __future__ import annotations

from collections.abc import Generator

from gantrymq.kernel.processors import AnswerSteps, Handler, Request
from gantrymq.plugins.locks.table import STEP_QUEUES, LockTable
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, LockBatchResponseBody, MessageQueue
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.names import validate_group, validate_topic

NAME_MAX_CHARACTERS = 1024
"""The most characters of a client id and of a broker name, which both stay in the table with the lock."""
QUEUES_MAX = 10_000
"""The most queues of one request."""
COMMAS_MAX = 65_536
"""The most commas of one request: each queue has three."""


class LockRequests:
    """Handlers of the two codes. They answer in steps, because a client may have thousands of queues."""

    def __init__(self, table: LockTable) -> None:
        self._table = table

    def processors(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Request) -> AnswerSteps:
        """Answer 41: lock the queues that are free; the response has those that the client holds now."""
        body = yield from _body(request)
        given = yield from self._table.lock_in_steps(
            body.consumer_group, body.mq_set, body.client_id, request.connection.id
        )
        answer = yield from _encode(given)
        return request.command.answer(ResponseCode.SUCCESS, body=answer)

    def unlock(self, request: Request) -> AnswerSteps:
        """Answer 42: unlock the queues. A queue that the client does not hold is not an error."""
        body = yield from _body(request)
        yield from self._table.unlock_in_steps(body.consumer_group, body.mq_set, body.client_id)
        return request.command.answer(ResponseCode.SUCCESS)


def _body(request: Request) -> Generator[None, None, LockBatchRequestBody]:
    data = request.command.body
    # Counted first: eight megabytes of empty objects take half a second to decode.
    queues = data.count(b"{") - 1
    if queues > 2 * QUEUES_MAX:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"about {queues} queues, at most {QUEUES_MAX} in one request")
    yield
    commas = data.count(b",")
    if commas > COMMAS_MAX:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{commas} commas, at most {COMMAS_MAX} in one request")
    yield
    body = LockBatchRequestBody.from_request(data)
    yield
    if not body.consumer_group or not body.client_id:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, "the body has no consumerGroup or no clientId")
    if len(body.mq_set) > QUEUES_MAX:
        raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"{len(body.mq_set)} queues, at most {QUEUES_MAX} in one request")
    validate_group(body.consumer_group)
    _check_length(body.client_id)
    topics: set[str] = set()
    brokers: set[str] = set()
    for number, queue in enumerate(body.mq_set, start=1):
        if queue.topic not in topics:
            validate_topic(queue.topic)
            topics.add(queue.topic)
        if queue.broker_name not in brokers:
            _check_length(queue.broker_name)
            brokers.add(queue.broker_name)
        if number % STEP_QUEUES == 0:
            yield
    return body


def _check_length(name: str) -> None:
    if len(name) > NAME_MAX_CHARACTERS:
        raise RemoteFault(
            ResponseCode.SYSTEM_ERROR,
            f"a client id or broker name of {len(name)} characters, {NAME_MAX_CHARACTERS} are the limit",
        )


def _encode(given: set[MessageQueue]) -> Generator[None, None, bytes]:
    """Encode the response in steps, as :class:`LockBatchResponseBody` does; the order of queues is not defined."""
    if len(given) <= STEP_QUEUES:
        return LockBatchResponseBody(lock_ok_mq_set=given).to_bytes()
    brokers: dict[str, str] = {}
    parts: list[str] = []
    for number, queue in enumerate(given, start=1):
        broker = brokers.get(queue.broker_name)
        if broker is None:
            broker = brokers[queue.broker_name] = fastjson.dumps(queue.broker_name).decode()
        # The topic's name was validated: it has no character that JSON escapes.
        parts.append(f'{{"brokerName":{broker},"queueId":{queue.queue_id},"topic":"{queue.topic}"}}')
        if number % STEP_QUEUES == 0:
            yield
    return f'{{"lockOKMQSet":[{",".join(parts)}]}}'.encode()
