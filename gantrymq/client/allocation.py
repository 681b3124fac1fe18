"""Share a topic's queues out between the members of a group, the same way in each of them. No I/O.

Source: RocketMQ 4.9.7 ``client/consumer/rebalance``, ``ConsistentHashRouter``; Java and Go members of the same group
must come to the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import attrs

from gantrymq.remoting.bodies.queues import MessageQueue

Allocation = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""Gets all queues of a topic and the client ids of all members of the group, both sorted, and the client id of this
member; returns the queues of this member.

The results of all members must fit together: each queue belongs to one member. A member that is not in the list gets
nothing.
"""

VIRTUAL_NODES: Final = 10

T = TypeVar("T")


def average(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Return consecutive ``queues``, equally many for each of the ``members``, or one more for the first ones; those of
    ``me`` (``AllocateMessageQueueAveragely``)."""
    if me not in members:
        return []
    share, rest = divmod(len(queues), len(members))
    index = members.index(me)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """The ``members`` take one of the ``queues`` each in turn; return those of ``me``
    (``AllocateMessageQueueAveragelyByCircle``)."""
    return list(queues[members.index(me) :: len(members)]) if me in members else []


def _as_queues(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    return tuple(queues)


def _as_rooms(rooms: Iterable[str]) -> frozenset[str]:
    return frozenset(rooms)


@attrs.frozen
class FixedQueues:
    """Always these queues, whatever other members the group has (``AllocateMessageQueueByConfig``).

    You see to it that the members together have all queues. Those of the retry topic are shared out evenly.
    """

    queues: tuple[MessageQueue, ...] = attrs.field(converter=_as_queues)
    """The queues of this member."""

    def __call__(self, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        """See :data:`Allocation`."""
        return list(self.queues)


@attrs.frozen
class MachineRooms:
    """The queues of brokers with names ``room@name`` in these rooms, evenly (``AllocateMessageQueueByMachineRoom``).

    As in RocketMQ a broker whose name has no room, or another one, is left out: its queues have no consumer.
    """

    rooms: frozenset[str] = attrs.field(converter=_as_rooms)
    """The names of the rooms."""

    def __call__(self, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        """See :data:`Allocation`."""
        if me not in members:
            return []
        inside = [queue for queue in queues if self._has(queue.broker_name)]
        share, rest = divmod(len(inside), len(members))
        index = members.index(me)
        mine = inside[index * share : (index + 1) * share]
        if index < rest:
            mine.append(inside[index + share * len(members)])
        return mine

    def _has(self, broker: str) -> bool:
        parts = broker.rstrip("@").split("@")  # as Java's split: empty parts at the end do not count
        return len(parts) == 2 and parts[0] in self.rooms


@attrs.frozen
class ConsistentHash:
    """By position on a hash ring, so that few queues move when a member comes or goes
    (``AllocateMessageQueueConsistentHash``). ValueError for less than one virtual node."""

    virtual_nodes: int = VIRTUAL_NODES
    """The places of each member on the ring."""

    def __attrs_post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ValueError(f"a member needs at least one virtual node, not {self.virtual_nodes}")

    def __call__(self, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        """See :data:`Allocation`."""
        if me not in members:
            return []
        ring = {_hash(f"{member}-{node}"): member for member in members for node in range(self.virtual_nodes)}
        places = sorted(ring)
        mine = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            place = bisect_left(places, _hash(text))
            if ring[places[place % len(places)]] == me:
                mine.append(queue)
        return mine


@attrs.frozen
class NearestRoom:
    """The queues of the member's own room, shared out among the members there; queues of rooms without a member are
    shared out among all (``AllocateMachineRoomNearby``)."""

    broker_room: Callable[[MessageQueue], str]
    """Returns the name of a queue's room."""
    member_room: Callable[[str], str]
    """Returns the name of the room of a client id."""
    inner: Allocation = average
    """The strategy within a room."""

    def __call__(self, queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        """See :data:`Allocation`."""
        if me not in members:
            return []
        queues_of = _by_room(queues, self.broker_room)
        members_of = _by_room(members, self.member_room)
        own = self.member_room(me)
        mine = self.inner(queues_of.pop(own), members_of[own], me) if own in queues_of else []
        for room in sorted(queues_of.keys() - members_of.keys()):
            mine += self.inner(queues_of[room], members, me)
        return mine


NAMED: Final[dict[str, Allocation]] = {
    "average": average,
    "circle": circle,
    "consistent_hash": ConsistentHash(),
}
"""The strategies that need no arguments."""


def allocate(
    queues: Iterable[MessageQueue], members: Iterable[str], me: str, strategy: Allocation = average
) -> list[MessageQueue]:
    """The queues that fall to ``me``. ``queues`` and ``members`` may come in any order."""
    return strategy(sorted(queues), sorted(members), me)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ValueError(f"no room is named for {thing}")
        rooms.setdefault(room, []).append(thing)
    return rooms
