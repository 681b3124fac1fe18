"""Count the open transactions of the strategy ``state_table`` in a store that uses another one."""

from __future__ import annotations

import attrs
import structlog

from gantrymq.kernel.store.log.segments import StoreDamaged
from gantrymq.plugins.transaction.state_table.marks import StateMarks, marks_path, read_marks
from gantrymq.plugins.transaction.state_table.redo import PREPARED_MARK, OpenRecords, RedoLog
from gantrymq.plugins.transaction.state_table.rows import STATE_BITS, find_rows, scan_whole
from gantrymq.plugins.transaction.strategy import StrategyContext

log = structlog.get_logger("gantrymq.transaction")


def count_open_rows(context: StrategyContext) -> int:
    """Return the number of open transactions. If there are none, the marks record that, so that the next start reads
    less."""
    store = context.store
    folder = f"{store.root}/transaction"
    marks = read_marks(context.env, store.root)
    if marks is None and not context.env.is_dir(folder):
        return 0
    start = 0 if marks is None else marks.settled or marks.offset
    is_cut = start > store.log.end  # then transactions may be open again that had ended
    known: set[int] = set()
    if is_cut:
        start = 0
    elif marks is None or not marks.settled:
        found = _from_redo(context, folder, marks)
        if found is None:
            start = 0
        else:
            known.update(found.open)
            start = max(start, found.end)
    for batch in scan_whole(store.log, max(start, store.log.min_offset), store.dispatched):
        if batch.sys_flag_bits & STATE_BITS:
            rows = find_rows(batch, start, store.log)
            for offset, prepared_offset in zip(rows.offsets, rows.prepared_offsets, strict=True):
                if prepared_offset == PREPARED_MARK:
                    known.add(offset)
                else:
                    known.discard(prepared_offset)
    count = sum(offset >= store.log.min_offset for offset in known)
    if not count:
        settled = StateMarks(0, 0, 0, 0) if marks is None else marks
        context.env.replace(marks_path(store.root), attrs.evolve(settled, settled=store.dispatched).encode())
    return count


def _from_redo(context: StrategyContext, folder: str, marks: StateMarks | None) -> OpenRecords | None:
    """Return the open records of the redo log; None if it cannot be read. The redo log is not changed."""
    redo = RedoLog(
        context.env, f"{folder}/redolog", f"{context.store.root}/staging", file_entries=context.config.file_rows
    )
    try:
        redo.load()
        entries = redo.end if marks is None else marks.entries
        if redo.end < entries:
            raise StoreDamaged(f"the redo log has {redo.end} of {entries} entries")
        return redo.find_open(0 if marks is None else marks.open_from, entries)
    except StoreDamaged as error:
        log.error("redo_log_unreadable", reason=str(error))
        return None
    finally:
        redo.close()
