"""The client: producers, consumers and questions to a cluster, on trio and on asyncio alike.

``client`` is the entrance, ``producer``, ``transactions`` and ``consumer`` the roles, ``admin`` the questions,
``cluster`` what they share. ``allocation``, ``progress``, ``outgoing`` and ``checks`` do no I/O. ``gantrymq.sync`` is
the same without async.
"""

from __future__ import annotations

from gantrymq.client.accumulator import PendingSend
from gantrymq.client.client import Client, connect
from gantrymq.client.consumer import Consumer
from gantrymq.client.producer import Producer
from gantrymq.client.transactions import TransactionalProducer

__all__ = ["Client", "Consumer", "PendingSend", "Producer", "TransactionalProducer", "connect"]
