"""GantryMQ: a message broker as a microkernel that speaks RocketMQ's protocol and keeps RocketMQ's files.

``gantrymq.connect`` is the entry point of the client (``gantrymq.sync.connect`` without async). The names below are
loaded when they are first used, so that ``import gantrymq`` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq._version import __version__
    from gantrymq.client.accumulator import PendingSend
    from gantrymq.client.app import App
    from gantrymq.client.batches import MessageBatch
    from gantrymq.client.client import Client, connect
    from gantrymq.client.consumer import Consumer
    from gantrymq.client.errors import (
        AccessDenied,
        AllocationFailed,
        AuthenticationFailed,
        BadResponse,
        BodyError,
        BrokerError,
        CallTimeout,
        ChannelClosed,
        ClientClosed,
        CompressorMissing,
        ConnectError,
        ConnectFailed,
        DeadLetter,
        GantryError,
        InvalidMessage,
        InvalidName,
        NoRoute,
        NotANameserver,
        ReplyTimeout,
        RetryLater,
        SendTimeout,
        TlsFailed,
        UnsupportedByBroker,
    )
    from gantrymq.client.groups import GroupLag, OffsetReset, QueueLag
    from gantrymq.client.interceptors import (
        ConsumeContext,
        Interceptor,
        RecallContext,
        SendContext,
        TransactionContext,
    )
    from gantrymq.client.options import Sql
    from gantrymq.client.producer import Producer
    from gantrymq.client.reader import Reader
    from gantrymq.client.statistics import ConsumerStatistics, QueueStatistics
    from gantrymq.client.transactions import TransactionalProducer
    from gantrymq.message import (
        Message,
        MessageQueue,
        Outcome,
        ReceivedMessage,
        SendResult,
        SendStatus,
        TransactionResult,
    )

_HOMES = {
    "__version__": "gantrymq._version",
    "App": "gantrymq.client.app",
    "Client": "gantrymq.client.client",
    "connect": "gantrymq.client.client",
    "Consumer": "gantrymq.client.consumer",
    "ConsumeContext": "gantrymq.client.interceptors",
    "GroupLag": "gantrymq.client.groups",
    "OffsetReset": "gantrymq.client.groups",
    "QueueLag": "gantrymq.client.groups",
    "Interceptor": "gantrymq.client.interceptors",
    "RecallContext": "gantrymq.client.interceptors",
    "SendContext": "gantrymq.client.interceptors",
    "TransactionContext": "gantrymq.client.interceptors",
    "MessageBatch": "gantrymq.client.batches",
    "PendingSend": "gantrymq.client.accumulator",
    "Producer": "gantrymq.client.producer",
    "Reader": "gantrymq.client.reader",
    "Sql": "gantrymq.client.options",
    "ConsumerStatistics": "gantrymq.client.statistics",
    "QueueStatistics": "gantrymq.client.statistics",
    "TransactionalProducer": "gantrymq.client.transactions",
    "AccessDenied": "gantrymq.client.errors",
    "AllocationFailed": "gantrymq.client.errors",
    "AuthenticationFailed": "gantrymq.client.errors",
    "BadResponse": "gantrymq.client.errors",
    "BodyError": "gantrymq.client.errors",
    "BrokerError": "gantrymq.client.errors",
    "CallTimeout": "gantrymq.client.errors",
    "ChannelClosed": "gantrymq.client.errors",
    "ClientClosed": "gantrymq.client.errors",
    "CompressorMissing": "gantrymq.client.errors",
    "ConnectError": "gantrymq.client.errors",
    "ConnectFailed": "gantrymq.client.errors",
    "DeadLetter": "gantrymq.client.errors",
    "GantryError": "gantrymq.client.errors",
    "InvalidMessage": "gantrymq.client.errors",
    "InvalidName": "gantrymq.client.errors",
    "NoRoute": "gantrymq.client.errors",
    "NotANameserver": "gantrymq.client.errors",
    "ReplyTimeout": "gantrymq.client.errors",
    "RetryLater": "gantrymq.client.errors",
    "SendTimeout": "gantrymq.client.errors",
    "TlsFailed": "gantrymq.client.errors",
    "UnsupportedByBroker": "gantrymq.client.errors",
    "Message": "gantrymq.message",
    "MessageQueue": "gantrymq.message",
    "Outcome": "gantrymq.message",
    "ReceivedMessage": "gantrymq.message",
    "SendResult": "gantrymq.message",
    "SendStatus": "gantrymq.message",
    "TransactionResult": "gantrymq.message",
}

__all__ = [
    "AccessDenied",
    "AllocationFailed",
    "App",
    "AuthenticationFailed",
    "BadResponse",
    "BodyError",
    "BrokerError",
    "CallTimeout",
    "ChannelClosed",
    "Client",
    "ClientClosed",
    "CompressorMissing",
    "ConnectError",
    "ConnectFailed",
    "ConsumeContext",
    "Consumer",
    "ConsumerStatistics",
    "DeadLetter",
    "GantryError",
    "GroupLag",
    "Interceptor",
    "InvalidMessage",
    "InvalidName",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "NoRoute",
    "NotANameserver",
    "OffsetReset",
    "Outcome",
    "PendingSend",
    "Producer",
    "QueueLag",
    "QueueStatistics",
    "Reader",
    "RecallContext",
    "ReceivedMessage",
    "ReplyTimeout",
    "RetryLater",
    "SendContext",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "Sql",
    "TlsFailed",
    "TransactionContext",
    "TransactionResult",
    "TransactionalProducer",
    "UnsupportedByBroker",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gantrymq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
