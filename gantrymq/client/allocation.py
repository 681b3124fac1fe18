"""Share a topic's queues out between the members of a group, the same way in each of them. No I/O.

Source: RocketMQ 4.9.7 ``AllocateMessageQueueAveragely``; Java and Go members of the same group must come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.remoting.bodies.queues import MessageQueue


def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """The queues that fall to ``me``: consecutive ones, as many as to every other member or one more.

    ``queues`` and ``members`` may come in any order. A client that is no member gets nothing.
    """
    ordered_members = sorted(members)
    if me not in ordered_members:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(ordered_members))
    index = ordered_members.index(me)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]
