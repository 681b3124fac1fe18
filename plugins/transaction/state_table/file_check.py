"""Check ``gantrymq.transaction`` and the files under ``transaction/`` of a store that no broker uses.

Table and redo log are derived from the log. A start rebuilds a table that is missing from the redo log, and a missing
redo log from the log, so a repair only moves files to ``lost+found``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.kernel.layouts import ENTRY
from gantrymq.plugins.transaction.state_table.marks import NAME, StateMarks, decode_marks
from gantrymq.plugins.transaction.state_table.redo import PREPARED_MARK, QUEUE_ID, TOPIC
from gantrymq.plugins.transaction.state_table.table import ENDS, PREPARED, ROW, UNIT

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore

TABLE: Final = "transaction/statetable"
REDO: Final = f"transaction/redolog/{TOPIC}/{QUEUE_ID}"
_CHUNK_ROWS: Final = 32_768


def check_state_table(store: StoppedStore, file_rows: int) -> None:
    """Check marks, table and redo log, if the store has them."""
    marks: StateMarks | None = None
    if store.exists(NAME):
        try:
            marks = decode_marks(store.read(NAME))
            if store.is_clean and marks.offset > store.log_end:
                raise ValueError(f"it names offset {marks.offset}, and the log ends at {store.log_end}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            marks = None
            store.damaged(
                NAME, f"it cannot be used: {error}", "the next start builds table and redo log again from the log",
                "moves it to lost+found, and the files of table and redo log with it",
                moves=[path for path in (NAME, TABLE, REDO) if store.exists(path)],
            )  # fmt: skip
            return
    _check(store, TABLE, UNIT, file_rows, _wrong_row, "the next start builds it from the redo log")
    _check(store, REDO, ENTRY.size, file_rows, _wrong_entry, "the next start builds it from the log")


def _wrong_row(data: bytes, at: int, log_end: int) -> str | None:
    """What is wrong with a row; empty for no row, None for a right one."""
    offset, size, _, _, state = ROW.unpack_from(data, at)
    if not any(data[at : at + UNIT]):
        return ""
    if state != PREPARED and state not in ENDS:
        return f"has the unknown state {state}"
    if size <= 0 or not 0 <= offset <= log_end - size:
        return f"names {size} bytes at offset {offset}, which are not in the log"
    return None


def _wrong_entry(data: bytes, at: int, log_end: int) -> str | None:
    offset, size, ended = ENTRY.unpack_from(data, at)
    if not any(data[at : at + ENTRY.size]):
        return ""
    if size <= 0 or not 0 <= offset <= log_end - size:
        return f"names {size} bytes at offset {offset}, which are not in the log"
    if ended != PREPARED_MARK and not 0 <= ended < offset:
        return f"ends the transaction at offset {ended}, which is not before it"
    return None


def _check(store: StoppedStore, folder: str, unit: int, file_rows: int, wrong: object, meaning: str) -> None:
    assert callable(wrong)
    problem = ""
    previous: int | None = None
    for name in store.names(folder):
        path = f"{folder}/{name}"
        try:
            file = store.open(path)
        except OSError as error:
            problem = f"{path} cannot be opened: {error.strerror}"
            break
        try:
            base, size = int(name) if name.isdecimal() else -1, file.size()
            if size != file_rows * unit or base < 0 or (previous is not None and base != previous):
                problem = f"{path} has {size} bytes, or does not continue the file before it"
                break
            previous = base + size
            for start, end in file.data_ranges(0):
                first = start - start % unit
                while first < end and not problem:
                    data = file.pread(min(_CHUNK_ROWS * unit, -(-(end - first) // unit) * unit), first)
                    if data.strip(b"\0"):
                        for at in range(0, len(data) - unit + 1, unit):
                            found = wrong(data, at, store.log_end)
                            if found:
                                problem = f"row {(base + first + at) // unit} of {path} {found}"
                                break
                    first += max(len(data), unit)
        finally:
            file.close()
        if problem:
            break
    if problem and store.is_clean:
        store.damaged(folder, problem, meaning, "moves it to lost+found", moves=[folder])
