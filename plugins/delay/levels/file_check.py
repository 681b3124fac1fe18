"""Check ``delayOffset.json`` of a store that no broker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.plugins.delay.levels.levels import LEVELS_MAX
from gantrymq.plugins.delay.levels.positions import encode_positions
from gantrymq.remoting.bodies.offsets import DelayOffsetSerializeWrapper
from gantrymq.remoting.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore

PATH: Final = "config/delayOffset.json"


def check_positions(store: StoppedStore, *, is_slave: bool) -> None:
    """Check that the position of each level lies in its queue. Those of a slave are its master's, which may be ahead
    of the slave's queues."""
    table = store.read_table(
        PATH, DelayOffsetSerializeWrapper.from_bytes, "the positions of the delay levels; messages are delivered again"
    )
    if table is None:
        return
    sound = dict(table.offset_table)
    problems = []
    for level, offset in sorted(table.offset_table.items()):
        end = store.queue_ends.get((SCHEDULE_TOPIC, level - 1), 0)
        if not 1 <= level <= LEVELS_MAX:
            del sound[level]
            problems.append((f"there is no delay level {level}", "removes it"))
        elif offset < 0:
            sound[level] = 0
            problems.append((f"level {level} has the negative offset {offset}", "sets it to 0"))
        elif offset > end:
            text = f"level {level} has the offset {offset}, and its queue ends at {end}"
            if store.is_clean and not store.is_foreign and not is_slave:
                sound[level] = end
                problems.append((text, f"sets it to {end}"))
            else:
                store.note(PATH, text, f"a master continues at {end}")
    content = encode_positions(sound)
    for problem, repair in problems:
        store.damaged(
            PATH, problem, "a broker moves it into its queue, and messages may be missed or delivered again",
            repair, contents={PATH: content},
        )  # fmt: skip
