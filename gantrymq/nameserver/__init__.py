"""The nameserver: it returns the brokers of a topic's queues to clients.

Brokers register at every nameserver. Nameservers do not communicate with each other, and keep only the KV config on the
disk.
"""

from __future__ import annotations

from gantrymq.nameserver.server import NameServer, NameServerConfig, NotProtected

__all__ = ["NameServer", "NameServerConfig", "NotProtected"]
