"""Read a queue for an expression that needs each record's properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gantrymq.kernel.filters import RecordFilter
from gantrymq.kernel.layouts import ENTRY
from gantrymq.kernel.store.log.record import body_end_in, is_intact, properties_in
from gantrymq.kernel.store.queues.consume_queue import FILLER_SIZE
from gantrymq.plugins.consume.plain import PullLimits, QueuePart, Window, is_of
from gantrymq.remoting.properties import PROPERTIES_MAX_BYTES

READ_AT_ONCE = 64
"""The most records that are read before the filter is evaluated; together they have at most the bytes of a response,
unless it is one record."""
SCAN_ENTRIES = 512
SCAN_BYTES = 4 * 1024 * 1024
SCAN_WORK = 40_000
"""The most records that one pull examines, and the most work (see ``RecordFilter.cost``), because it runs while other
connections wait. The consumer pulls the rest at once."""

Found = tuple[int, int, memoryview | bytes]


def select_records(
    entries: bytes,
    limits: PullLimits,
    oldest: int,
    wanted: RecordFilter,
    window: Window,
    wrong: Callable[[int], None],
    part: QueuePart | None,
) -> tuple[list[memoryview | bytes], int, bool]:
    """As :func:`gantrymq.plugins.consume.plain.gather`, with the records that ``wanted`` selects."""
    found: list[memoryview | bytes] = []
    total = scanned = looked_at = work = 0
    removed = False
    rows = list(ENTRY.iter_unpack(entries))
    messages, room, disk_messages, disk_room, disk_end = limits
    at_once = max(1, min(READ_AT_ONCE, SCAN_WORK // wanted.cost(PROPERTIES_MAX_BYTES)))

    def ends(at: int, size: int) -> bool:
        # as in gather(): the first entry that does not fit ends the response, whether or not it matches
        most, most_bytes = (disk_messages, disk_room) if at < disk_end else (messages, room)
        return bool(found) and (len(found) >= most or total + size > most_bytes)

    while scanned < len(rows) and work < SCAN_WORK and len(found) < limits.most:
        at, size, _ = rows[scanned]
        if ends(at, size) or (scanned and size != FILLER_SIZE and looked_at + size > SCAN_BYTES):
            break
        left = min(max(room, disk_room) - total, SCAN_BYTES - looked_at)
        chunk = _first_rows(rows[scanned : scanned + at_once], left)
        removed = removed or any(0 <= at < oldest for at, _, _ in chunk)
        records = list(_read(chunk, scanned, oldest, wanted, window, wrong, part))
        looked_at += sum(size for _, size, _ in records)
        properties = [properties_in(data) for _, _, data in records]
        work += sum(wanted.cost(len(own)) for own in properties)
        answers = wanted.select(properties)
        chosen = {number: data for (number, _, data), is_wanted in zip(records, answers, strict=True) if is_wanted}
        for number, (at, size, _) in enumerate(chunk):
            if ends(at, size):
                return found, scanned + number, removed
            if number in chosen:
                found.append(chosen[number])
                total += size
        scanned += len(chunk)
    return found, scanned, removed


def _first_rows(rows: list[tuple[int, int, int]], room: int) -> list[tuple[int, int, int]]:
    """Return the first rows, as many as have records of at most ``room`` bytes together, but at least one."""
    for number, (_, size, _) in enumerate(rows):
        room -= 0 if size == FILLER_SIZE else size
        if room < 0:
            return rows[: max(number, 1)]
    return rows


def _read(
    chunk: list[tuple[int, int, int]],
    first: int,
    oldest: int,
    wanted: RecordFilter,
    window: Window,
    wrong: Callable[[int], None],
    part: QueuePart | None,
) -> Iterator[Found]:
    """Yield the number in the chunk, size and bytes of the readable records whose entries may match."""
    for number, (at, size, code) in enumerate(chunk):
        if size == FILLER_SIZE:
            continue
        if at < oldest:
            if at < 0 or (part is not None and part.is_current):
                wrong(first + number)
            continue
        if not wanted.matches(code):
            continue
        data = window(first + number, at, size)
        if data is None:
            continue
        data = data[:size]
        if is_intact(data, at) and is_of(data, body_end_in(data), part, first + number):
            yield number, size, data
        else:
            wrong(first + number)
