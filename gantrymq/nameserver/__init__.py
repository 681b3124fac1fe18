"""The nameserver: it returns the brokers of a topic's queues to clients.

Brokers register at every nameserver, nameservers know nothing of each other, and all but the KV config is forgotten at
the end of the process.
"""

from __future__ import annotations

from gantrymq.nameserver.server import NameServer, NameServerConfig, NotProtected

__all__ = ["NameServer", "NameServerConfig", "NotProtected"]
