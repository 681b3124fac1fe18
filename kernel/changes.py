"""The batches of the hooks ``topics_changed``, ``groups_changed``, ``offsets_committed`` and ``dead_lettered``."""

from __future__ import annotations

import attrs


@attrs.frozen
class TopicsBatch:
    """Names of topics that were created, changed or removed since the last call of the hook.

    A topic that was created and removed since then is in none of the lists; one that was removed and created again is
    in ``changed``.
    """

    created: list[str] = attrs.field(factory=list)
    changed: list[str] = attrs.field(factory=list)
    """Topics whose settings changed, or whose permission changed with the broker's permission."""
    removed: list[str] = attrs.field(factory=list)

    def __len__(self) -> int:
        return len(self.created) + len(self.changed) + len(self.removed)


@attrs.frozen
class GroupsBatch:
    """Names of consumer groups whose members or subscriptions changed since the last call of the hook."""

    groups: list[str] = attrs.field(factory=list)
    """The changed groups. A group is reported once more when its last member has left."""

    def __len__(self) -> int:
        return len(self.groups)


@attrs.frozen
class OffsetsBatch:
    """Offsets that consumer groups have committed since the last call of the hook; a row for each queue of a group.

    A queue whose offset changed more than once is one row with the newest offset.
    """

    groups: list[str] = attrs.field(factory=list)
    topics: list[str] = attrs.field(factory=list)
    queue_ids: list[int] = attrs.field(factory=list)
    offsets: list[int] = attrs.field(factory=list)
    """The queue offset of the next message that the group has not consumed. It may be lower than before."""

    def __len__(self) -> int:
        return len(self.groups)


@attrs.frozen
class DeadLettersBatch:
    """Messages that became dead letters of consumer groups; a row for each."""

    groups: list[str] = attrs.field(factory=list)
    topics: list[str] = attrs.field(factory=list)
    """The topics to which the messages were sent at first; empty text if a client did not tell it."""
    message_ids: list[str] = attrs.field(factory=list)
    """The broker's ids of the messages as they were delivered at first; empty text if a client did not tell it."""
    reconsume_times: list[int] = attrs.field(factory=list)
    """How often the group has failed to consume each message."""
    offsets: list[int] = attrs.field(factory=list)
    """Log offsets of the dead letters."""
    queue_offsets: list[int] = attrs.field(factory=list)
    """Queue offsets in the topics ``%DLQ%group``."""

    def __len__(self) -> int:
        return len(self.groups)
