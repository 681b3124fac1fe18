"""The client: producers, consumers and administrative requests, on trio and on asyncio alike.

``client`` is the entry point, ``producer``, ``transactions`` and ``consumer`` are the roles, ``admin`` has the
administrative requests, ``cluster`` what they share. ``allocation``, ``progress``, ``outgoing`` and ``checks`` do no
I/O. ``gantrymq.sync`` is the same without async.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.client.accumulator import PendingSend
    from gantrymq.client.client import Client, connect
    from gantrymq.client.consumer import Consumer
    from gantrymq.client.producer import Producer
    from gantrymq.client.transactions import TransactionalProducer

_HOMES = {
    "Client": "gantrymq.client.client",
    "Consumer": "gantrymq.client.consumer",
    "PendingSend": "gantrymq.client.accumulator",
    "Producer": "gantrymq.client.producer",
    "TransactionalProducer": "gantrymq.client.transactions",
    "connect": "gantrymq.client.client",
}

__all__ = ["Client", "Consumer", "PendingSend", "Producer", "TransactionalProducer", "connect"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gantrymq.client' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
