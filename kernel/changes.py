"""The batches of the hooks ``topics_changed`` and ``groups_changed``: names of what changed since the last call."""

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
