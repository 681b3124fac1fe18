"""Check the timer's files of a store that no broker uses: ``config/timercheck``, ``timerlog/`` and ``timerwheel``.

The timer log and the wheel are derived from the queue of the timer topic. A broker that finds them damaged moves them
to ``lost+found`` and builds them again, so a repair only moves them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.delay.timer.check import TimerCheck
from gantrymq.plugins.delay.timer.log import BLANK_MAGIC, NOWHERE, UNIT, UNIT_BYTES, DamagedUnit, Unit
from gantrymq.plugins.delay.timer.wheel import SLOT, SLOT_BYTES, SLOTS
from gantrymq.remoting.names import TIMER_TOPIC
from gantrymq.remoting.timer_times import PRECISION_MS, floor

if TYPE_CHECKING:
    from gantrymq.kernel.env import File
    from gantrymq.kernel.stopped_store import StoppedStore

CHECK: Final = "config/timercheck"
WHEEL: Final = "timerwheel"
LOG: Final = "timerlog"
REBUILT: Final = "the next start builds wheel and timer log from the queue of the timer topic"
AGAIN: Final = "messages that became due in the last second may be delivered twice"
_CHUNK_UNITS: Final = 4096
_CHUNK_BYTES: Final = SLOT_BYTES * 32_768
_BLANK_AT: Final = 12
"""Where a blank at the end of a file has its magic."""


def check_timer(store: StoppedStore, slots: int = SLOTS) -> None:
    """Check the three; ``slots``: how many the wheel has."""
    check = store.read_table(
        CHECK, TimerCheck.from_bytes, "the timer's position; timed messages that were delivered are delivered again"
    )
    derived = [path for path in (WHEEL, LOG) if store.exists(path)]
    if check is None:
        if derived and not store.exists(CHECK) and not store.exists(f"{CHECK}.bak"):
            store.note(CHECK, "it is missing", f"{REBUILT}; messages that were delivered are delivered again")
        return
    end = store.queue_ends.get((TIMER_TOPIC, 0), 0)
    if check.queue_offset > end and store.is_clean:
        store.damaged(
            CHECK, f"the queue of the timer topic ends at {end}, and its entries before {check.queue_offset} are taken",
            "messages that get these offsets would not be delivered",
            f"sets the offset to {end}",
            contents={CHECK: check.moved(check.read_ms, check.log_end, end, check.timestamp).to_bytes()},
        )  # fmt: skip
    if check.log_end and not store.names(LOG):
        store.note(LOG, "it is missing", f"{REBUILT}; {AGAIN}")
        return
    try:
        times = _check_log(store, check)
    except (DamagedUnit, OSError) as error:
        store.damaged(
            LOG, str(error), f"{REBUILT}; {AGAIN}", f"moves {' and '.join(derived)} to lost+found", moves=derived
        )
        return
    if times and not store.exists(WHEEL):
        store.note(WHEEL, "it is missing", "the next start builds it from the timer log")
    elif store.is_clean and not store.is_foreign and store.exists(WHEEL):  # otherwise a start builds it again
        try:
            _check_wheel(store, check, times, slots)
        except (DamagedUnit, OSError) as error:
            store.damaged(
                WHEEL, str(error), "messages of these seconds would not be delivered",
                "moves it to lost+found; the next start builds it from the timer log", moves=[WHEEL],
            )  # fmt: skip


def _check_log(store: StoppedStore, check: TimerCheck) -> dict[int, int]:
    """Read all units before the checkpoint's position. Returns the slot's time (ms) by position for units that may
    wait. :class:`DamagedUnit`, :class:`OSError`."""
    names = store.names(LOG)
    times: dict[int, int] = {}
    position: int | None = None
    for name in names:
        path = f"{LOG}/{name}"
        file = store.open(path)
        try:
            size = file.size()
            if not size and name == names[-1]:
                continue
            if not name.isdecimal() or (position is not None and int(name) != position):
                raise DamagedUnit(f"{path} does not continue the timer log")
            base = int(name)
            for at, unit in _units(file, base, min(size, check.log_end - base), path):
                if store.is_clean and unit.offset >= store.log_end:
                    raise DamagedUnit(f"{path}: the unit at {at} names offset {unit.offset} behind the log's end")
                time = floor(unit.time)
                if time >= check.read_ms:
                    times[at] = time
            position = base + size
        finally:
            file.close()
    if check.log_end > (position or 0):
        raise DamagedUnit(f"{LOG} ends at {position or 0}, and {check.log_end} bytes were written")
    return times


def _units(file: File, base: int, size: int, path: str) -> Iterator[tuple[int, Unit]]:
    at = 0
    while at + UNIT_BYTES <= size:
        data = file.pread(_CHUNK_UNITS * UNIT_BYTES, at)[: size - at]
        for start in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
            length, *fields = UNIT.unpack_from(data, start)
            if int.from_bytes(data[start + _BLANK_AT : start + _BLANK_AT + 4], "big") == BLANK_MAGIC:
                return
            unit = Unit._make(fields)
            if length != UNIT_BYTES or not 1 <= unit.magic <= 0xF or unit.previous >= base + at + start:
                raise DamagedUnit(f"{path}: no unit at {base + at + start}")
            yield base + at + start, unit
        at += len(data) - len(data) % UNIT_BYTES or UNIT_BYTES


def _check_wheel(store: StoppedStore, check: TimerCheck, times: dict[int, int], slots: int) -> None:
    """Each waiting second of the log has a slot, which leads to one of its units. :class:`DamagedUnit`."""
    waiting = set(times.values())
    file = store.open(WHEEL)
    try:
        if file.size() != slots * SLOT_BYTES:
            raise DamagedUnit(f"it has {file.size()} bytes instead of {slots * SLOT_BYTES}")
        for start, end in file.data_ranges(0):
            start -= start % SLOT_BYTES
            for at in range(start, end, _CHUNK_BYTES):
                data = file.pread(min(_CHUNK_BYTES, end - at), at)
                for second, _, position, _, _ in SLOT.iter_unpack(data[: len(data) - len(data) % SLOT_BYTES]):
                    time = second * PRECISION_MS
                    if second and time >= check.read_ms and position != NOWHERE:
                        if times.get(position) != time:
                            raise DamagedUnit(f"the slot of {time} leads to {position}, where no unit of it is")
                        waiting.discard(time)
    finally:
        file.close()
    if waiting:
        raise DamagedUnit(f"it has no slot for {len(waiting)} seconds of which messages wait in the timer log")
