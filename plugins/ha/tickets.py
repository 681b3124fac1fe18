"""Tickets for the port of replication, whose protocol has no room for a signature or an identity.

A slave asks for a ticket with a request (47004) at the master's port for clients, where access control decides about
it, and sends it as the first bytes of its next connection to the port of replication. A ticket is valid once, for half
a minute.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.ha.frames import TICKET_BYTES
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.replication import SlaveTicketResponse

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.processors import Request
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.peers import PeerRule

VALID_S: Final = 30.0
TICKETS_MAX: Final = 64
"""The most unused tickets; beyond it the oldest one is discarded."""


class Tickets:
    """The unused tickets. ``required``: whether slaves need one; without this they get none."""

    def __init__(self, broker: Broker, peers: PeerRule, required: bool) -> None:
        self._broker = broker
        self._peers = peers
        self.required = required
        self._valid_until: dict[bytes, float] = {}

    def answer(self, request: Request) -> Command:
        """Answer 47004. Code 16 for a peer that may not be a slave."""
        host = request.connection.peer[0]
        if not self._peers.admits(host):
            raise RemoteFault(
                ResponseCode.NO_PERMISSION, f"plugin.ha.peers does not name {host}: it is not an allowed slave"
            )
        header = SlaveTicketResponse(ticket=self.issue().hex() if self.required else None)
        return request.command.answer(ResponseCode.SUCCESS, None, header.to_ext())

    def issue(self) -> bytes:
        """A new ticket."""
        while len(self._valid_until) >= TICKETS_MAX:
            del self._valid_until[next(iter(self._valid_until))]
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._valid_until[ticket] = self._broker.env.monotonic() + VALID_S
        return ticket

    def take(self, ticket: bytes) -> bool:
        """Whether ``ticket`` is valid; afterwards it no longer is."""
        until = self._valid_until.pop(ticket, None)  # 256 random bits: the time of the look-up shows nothing
        return until is not None and self._broker.env.monotonic() <= until
