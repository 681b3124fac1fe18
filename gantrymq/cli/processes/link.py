"""The connection between a broker of a unit and the parent: a socket pair that only these two processes have.

Each message is a packet with one JSON object. The broker sends that it is ready, that it restarts in its process, its
state each second, and each topic that a first message created. The parent sends the topics of the other brokers, so
that all brokers have them: clients send to every broker that has a topic. The broker confirms each; one that it has not
confirmed is sent again when it is ready after a restart.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import trio

from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.broker import Broker
    from gantrymq.plugins.interfaces import TopicTable

VARIABLE: Final = "GANTRYMQ_PROCESS_LINK"
"""The environment variable with the file descriptor of a broker's end."""
STATE_SECONDS: Final = 1.0
SEND_SECONDS: Final = 1.0
PACKET_MAX_BYTES: Final = 64 * 1024
REASONS_MAX_CHARS: Final = 5000

log = structlog.get_logger("gantrymq.processes")


class Packet(msgspec.Struct, omit_defaults=True):
    """One message. ``ready``: the broker's address; ``pages``: that of its health pages. ``restarting``: the broker has
    stopped and starts again in its process; until the next ``ready`` it serves no clients and reports no state.

    ``not_alive``, ``not_ready`` and ``degraded`` are those of the plugin ``http``; the first two are None in a packet
    that has no state. ``topic``: the body of a :class:`TopicConfig`; ``confirmed``: the body that the broker received,
    once it has the topic or refuses it.
    """

    ready: str = ""
    pages: str = ""
    restarting: bool = False
    not_alive: dict[str, str] | None = None
    not_ready: dict[str, str] | None = None
    degraded: dict[str, str] = {}
    topic: str = ""
    confirmed: str = ""


class Link:
    """One end of the pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._packets, self._unsent = trio.open_memory_channel[Packet](math.inf)

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] = os.environ) -> Link | None:
        """The broker's end; None if this process has no such parent. The variable is removed: it is used once."""
        text = environ.pop(VARIABLE, "")
        return cls(socket.socket(fileno=int(text))) if text else None

    def send(self, packet: Packet) -> None:
        """Queue the packet for :meth:`run_sender`. A broker creates a limited number of topics, so that the queue has
        a limit too."""
        self._packets.send_nowait(packet)

    async def run_sender(self) -> None:
        """Send queued packets until cancelled or until the other end is closed."""
        try:
            async for packet in self._unsent:
                await self._sock.send(msgspec.json.encode(packet))
        except OSError as error:
            log.debug("process_link_closed", reason=str(error))

    async def send_now(self, packet: Packet) -> None:
        """Send the packet before queued ones, without :meth:`run_sender`, which must not run.

        It is dropped if the other end is closed, or takes no packet for :data:`SEND_SECONDS`.
        """
        try:
            with trio.move_on_after(SEND_SECONDS):
                await self._sock.send(msgspec.json.encode(packet))
        except OSError as error:
            log.debug("process_link_closed", reason=str(error))

    async def receive(self) -> Packet | None:
        """The next packet; None if the other end is closed or has sent no packet that can be read."""
        try:
            data = await self._sock.recv(PACKET_MAX_BYTES)
            return msgspec.json.decode(data, type=Packet) if data else None
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("process_link_closed", reason=str(error))
            return None

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


def make_pair() -> tuple[Link, socket.socket]:
    """The parent's end, and the socket for the child."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), theirs


def share_topics(link: Link, broker: Broker) -> None:
    """In a broker of a unit, before :meth:`Broker.run`: let :func:`serve_link` send each topic that a first message
    creates, from the first client on."""
    from gantrymq.plugins.interfaces import TopicTable

    async def watch() -> None:
        topics = broker.registry.find(TopicTable)
        if topics is not None:
            topics.watch_created(lambda config: link.send(Packet(topic=config.to_bytes().decode())))

    broker.before_listening.append(watch)


async def serve_link(link: Link, broker: Broker) -> None:
    """In a broker of a unit that is ready: exchange topics with the parent and report the state, until cancelled."""
    from gantrymq.plugins.interfaces import Health, TopicTable

    topics, health = broker.registry.find(TopicTable), broker.registry.find(Health)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run_sender)
        if topics is not None:
            nursery.start_soon(_take_topics, link, topics)
        while True:
            state = Packet(not_alive={}, not_ready={})
            if health is not None:
                state = Packet(
                    not_alive=_short(health.not_alive()),
                    not_ready=_short(health.not_ready()),
                    degraded=_short(health.degraded()),
                )
            link.send(state)
            await trio.sleep(STATE_SECONDS)


def _short(reasons: Mapping[str, str]) -> dict[str, str]:
    each = REASONS_MAX_CHARS // max(1, len(reasons))
    return {name[:200]: reason[:each] for name, reason in reasons.items()}


async def _take_topics(link: Link, topics: TopicTable) -> None:
    while (packet := await link.receive()) is not None:
        if packet.topic:
            try:
                topics.ensure(TopicConfig.from_bytes(packet.topic.encode()))
            except RemoteFault as fault:
                log.warning("topic_not_shared", reason=fault.remark)
            link.send(Packet(confirmed=packet.topic))
