"""RocketMQ's message traces: who sent and who consumed a message, for ``mqadmin queryMsgTraceById``.

Source: RocketMQ 4.9.7 ``AsyncTraceDispatcher``, ``TraceDataEncoder``, ``SendMessageTraceHookImpl``,
``ConsumeMessageTraceHookImpl``, ``EndTransactionTraceHookImpl``; 5.3.3 ``DefaultRecallMessageTraceHook``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import attrs

from gantrymq.client.cluster import Cluster
from gantrymq.client.errors import GantryError
from gantrymq.client.interceptors import (
    ConsumeContext,
    Interceptor,
    RecallContext,
    SendContext,
    TransactionContext,
    now_ms,
)
from gantrymq.client.outgoing import prepare
from gantrymq.client.sender import Sender
from gantrymq.message import Message, Outcome, SendStatus
from gantrymq.remoting.address import decode_host, format_address
from gantrymq.remoting.message_ids import parse_offset_message_id
from gantrymq.remoting.names import TRACE_TOPIC
from gantrymq.remoting.properties import MSG_REGION, TRACE_ON

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
GATHER_SECONDS: Final = 0.5
"""So long traces wait for others."""
SEND_SECONDS: Final = 5.0
FLUSH_SECONDS: Final = 3.0
"""How long a closing client waits for its last traces to be stored."""
TRACE_MESSAGE_MAX_BYTES: Final = 118_000
"""The most bytes of a message that has several traces."""
TRACE_KEYS_MAX_BYTES: Final = 24_000
"""The most bytes of the keys of such a message, by which traces are found."""
TRACES_WAITING_MAX: Final = 8192
"""Traces that wait to be sent; more are dropped."""

FIELD_SEPARATOR: Final = "\x01"
TRACE_SEPARATOR: Final = "\x02"
NO_VALUE: Final = "null"
"""What Java writes where a message has no tag or key; its reader takes no empty field."""
_REGION: Final = "DefaultRegion"
_NORMAL, _HALF, _COMMIT, _DELAYED = 0, 1, 2, 3
"""``MessageType``; Java's clients write the third for each end of a transaction, a rollback as well."""
_STATES: Final = {
    Outcome.COMMIT: "COMMIT_MESSAGE", Outcome.ROLLBACK: "ROLLBACK_MESSAGE", Outcome.UNKNOWN: "UNKNOW",
}  # fmt: skip
"""``LocalTransactionState``."""
_SUCCESS, _FAILED = 0, 4
"""``ConsumeReturnType``."""
_DATA: Final = "gantrymq.message_trace"


@attrs.frozen
class Trace:
    """One line of a message of traces, and the keys to find it by."""

    text: str
    keys: tuple[str, ...]


class MessageTrace(Interceptor):
    """Gathers the traces of one client and sends them to ``topic``."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._waiting: deque[Trace] = deque()
        self._arrived = anyio.Event()
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._dropped = 0

    def start(self, cluster: Cluster) -> None:
        """Send from now on what is gathered."""
        self._cluster = cluster
        self._arrived = anyio.Event()
        self._sending = anyio.Lock()
        self._sender = Sender(cluster, TRACE_GROUP, SEND_SECONDS, 2)
        cluster.start_soon(self._keep_sending)

    async def flush(self) -> None:
        """Send what is there, and wait for what is being sent, within three seconds."""
        with anyio.move_on_after(FLUSH_SECONDS, shield=True):
            await self._send_all()

    def after_send(self, context: SendContext) -> None:
        """Trace a message that is stored; as with RocketMQ's clients what failed has no trace."""
        result, message = context.result, context.message
        if result is None or message.topic == self.topic:
            return
        try:
            host, _ = parse_offset_message_id(result.offset_message_id)
            store_host = format_address(*decode_host(host))
        except ValueError:
            store_host = NO_VALUE
        delayed = message.delay_level or message.delay is not None or message.deliver_at is not None
        kind = _HALF if context.kind == "half" else _DELAYED if delayed else _NORMAL
        self._add(
            message.keys, result.message_id,
            "Pub", context.started, _REGION, self._plain(context.group), self._plain(message.topic), result.message_id,
            message.tags or NO_VALUE, _text(message.keys), store_host, len(message.body),
            (context.stored or now_ms()) - context.started, kind,
            result.offset_message_id or NO_VALUE, _bool(result.status is SendStatus.OK),
        )  # fmt: skip

    def after_transaction(self, context: TransactionContext) -> None:
        """Trace the outcome of a transaction, also one that a broker has checked back for."""
        message = context.message
        if message.topic == self.topic:
            return
        region = message.properties.get(MSG_REGION) or _REGION
        self._add(
            message.keys, context.transaction_id,
            "EndTransaction", now_ms(), region, self._plain(context.group), self._plain(message.topic),
            context.transaction_id, message.tags or NO_VALUE, _text(message.keys), context.broker, _COMMIT,
            context.transaction_id, _STATES[context.outcome], _bool(context.checked),
        )  # fmt: skip

    def after_recall(self, context: RecallContext) -> None:
        """Trace that a message was recalled, where the broker names its region: RocketMQ's do from 5.3 on."""
        if context.region is None or context.topic == self.topic:
            return
        self._add(
            (), context.message_id,
            "Recall", now_ms(), context.region, self._plain(context.group), self._plain(context.topic),
            context.message_id, _bool(True),
        )  # fmt: skip

    def before_consume(self, context: ConsumeContext) -> None:
        """Trace that a consumer has a message."""
        message = context.message
        if self._cluster is None or message.properties.get(TRACE_ON) == "false":
            return
        request = context.data[_DATA] = self._cluster.unique_keys.next()
        self._add(
            message.keys, message.message_id,
            "SubBefore", context.started, message.properties.get(MSG_REGION) or _REGION, self._plain(context.group),
            request, message.message_id, message.reconsume_times, _text(message.keys),
        )  # fmt: skip

    def after_consume(self, context: ConsumeContext) -> None:
        """Trace what became of it."""
        message, request = context.message, context.data.get(_DATA)
        if request is None:
            return
        done = bool(context.acknowledged)
        self._add(
            message.keys, message.message_id,
            "SubAfter", request, message.message_id, now_ms() - context.started, _bool(done), _text(message.keys),
            _SUCCESS if done else _FAILED, now_ms(), self._plain(context.group),
        )  # fmt: skip

    def _plain(self, name: str) -> str:
        namespace = None if self._cluster is None else self._cluster.namespace
        return name if namespace is None else namespace.without(name)

    def _add(self, keys: tuple[str, ...], message_id: str, *fields: object) -> None:
        if len(self._waiting) >= TRACES_WAITING_MAX:
            self._dropped += 1
            return
        self._waiting.append(Trace(FIELD_SEPARATOR.join(map(str, fields)) + TRACE_SEPARATOR, (message_id, *keys)))
        self._arrived.set()

    async def _keep_sending(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            await anyio.sleep(GATHER_SECONDS)
            await self._send_all()

    async def _send_all(self) -> None:
        async with self._sending:
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        while self._waiting:
            texts: list[bytes] = []
            keys: set[str] = set()
            size = key_bytes = 0
            while self._waiting:
                trace = self._waiting[0]
                text = trace.text.encode()
                size += len(text)
                key_bytes += sum(len(key.encode()) + 1 for key in trace.keys)
                if texts and (size > TRACE_MESSAGE_MAX_BYTES or key_bytes > TRACE_KEYS_MAX_BYTES):
                    break
                self._waiting.popleft()
                texts.append(text)
                keys.update(trace.keys)
            await self._send(Message(self.topic, b"".join(texts), keys=tuple(sorted(keys))), len(texts))

    async def _send(self, message: Message, traces: int) -> None:
        assert self._cluster is not None  # it is started
        assert self._sender is not None
        dropped, self._dropped = self._dropped, 0
        try:
            await self._sender.deliver(await prepare(message, self._cluster.unique_keys.next), None, None)
        except GantryError as error:
            self._cluster.rare.warning(
                "message_traces_lost", self.topic, topic=self.topic, traces=traces + dropped, reason=str(error)
            )
        else:
            if dropped:
                reason = f"{TRACES_WAITING_MAX} were waiting to be sent"
                self._cluster.rare.warning(
                    "message_traces_lost", self.topic, topic=self.topic, traces=dropped, reason=reason
                )


def trace_of(choice: bool | str) -> MessageTrace | None:
    """What ``trace=`` of ``connect`` asks for; ValueError for neither a bool nor a topic."""
    if isinstance(choice, bool):
        return MessageTrace(TRACE_TOPIC) if choice else None
    if isinstance(choice, str) and choice:
        return MessageTrace(choice)
    raise ValueError(f"trace is True, False or a topic, not {choice!r}")


def _text(keys: tuple[str, ...]) -> str:
    return " ".join(keys) or NO_VALUE


def _bool(value: bool) -> str:
    return "true" if value else "false"
