"""Check ``consumerOffset.json`` of a store that no broker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.plugins.offsets.table import SEPARATOR
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper
from gantrymq.remoting.errors import RemoteFault

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore

PATH: Final = "config/consumerOffset.json"
BACKUP: Final = f"{PATH}.bak"


def check_offsets(store: StoppedStore) -> None:
    """Check that each offset is one of its queue's.

    A broker commits none beyond the queue's end, so after a clean stop such an offset is damage. After a crash the
    next start sets it to the end. RocketMQ's broker stores whatever a client commits.
    """
    table = store.read_table(
        PATH,
        ConsumerOffsetSerializeWrapper.from_bytes,
        "the offsets of all groups, which begin again by their settings",
    )
    if table is None:
        return
    older = _older(store)
    sound: dict[str, dict[int, int]] = {}
    problems: list[tuple[str, str]] = []
    ahead: list[str] = []
    for name, offsets in table.offset_table.items():
        topic, separator, group = name.partition(SEPARATOR)
        if not separator or not topic or not group:
            problems.append((f"the entry {name[:300]!r} names no topic and group", "removes the entry"))
            continue
        kept = sound[name] = dict(offsets)
        for queue_id, offset in sorted(offsets.items()):
            place = f"group {group!r}, topic {topic!r}, queue {queue_id}: offset {offset}"
            end = store.queue_ends.get((topic, queue_id), 0)
            if queue_id < 0 or offset < 0:
                del kept[queue_id]
                problems.append((f"{place} is out of its range", "removes it"))
            elif offset > end:
                before = older.get(name, {}).get(queue_id, -1)
                kept[queue_id] = before if 0 <= before <= end else end
                source = f"that of {BACKUP}" if kept[queue_id] == before else "the queue's end"
                text = f"{place} is behind the queue's end, {end}"
                if store.is_clean and not store.is_foreign:
                    problems.append((text, f"sets it to {kept[queue_id]}, {source}"))
                else:
                    ahead.append(text)
    content = ConsumerOffsetSerializeWrapper(offset_table=sound, data_version=table.data_version).to_bytes()
    for problem, repair in problems:
        store.damaged(
            PATH, problem, "the next start ignores it, or sets it to the queue's end, and the group may miss messages",
            repair, contents={PATH: content},
        )  # fmt: skip
    for text in ahead:
        store.note(PATH, text, "the next start sets it to the queue's end")


def _older(store: StoppedStore) -> dict[str, dict[int, int]]:
    try:
        return ConsumerOffsetSerializeWrapper.from_bytes(store.read(BACKUP)).offset_table
    except (RemoteFault, ValueError, OSError):
        return {}
