"""The nameserver: tells clients on which brokers a topic's queues are.

Brokers register at every nameserver, nameservers know nothing of each other, and all but the KV config is forgotten at
the end of the process.
"""

from __future__ import annotations

from gantrymq.nameserver.server import NameServer, NameServerConfig, NotProtected

__all__ = ["NameServer", "NameServerConfig", "NotProtected"]
