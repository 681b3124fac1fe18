"""Check the files ``ha-epoch.json``, ``ha-cut.json`` and ``ha-progress.json`` of a store that no broker uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gantrymq.plugins.ha.compare import CUT_FILE
from gantrymq.plugins.ha.epochs import FILE, decode_epochs
from gantrymq.plugins.ha.marks import MARKS_FILE, decode_marks

if TYPE_CHECKING:
    from gantrymq.kernel.stopped_store import StoppedStore

_READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def check_epochs(store: StoppedStore) -> None:
    """An unreadable epoch stops the start, because an older one would let two brokers be masters."""
    if not store.exists(FILE):
        return
    try:
        decode_epochs(store.read(FILE))
    except _READ_ERRORS as error:
        store.damaged(
            FILE, f"it cannot be read: {error!r:.200}",
            "no broker starts with it, since it says of which epoch the broker is the master: restore the file, or "
            "start with an empty folder as a slave of the current master",
        )  # fmt: skip


def check_cut(store: StoppedStore) -> None:
    """The offset at which the next start of a slave truncates its log lies in the log."""
    if not store.exists(CUT_FILE):
        return
    try:
        end = int(json.loads(store.read(CUT_FILE))["end"])
        problem = "" if store.log_start <= end <= store.log_end else f"it names offset {end}, which is not in the log"
    except _READ_ERRORS as error:
        problem = f"it cannot be read: {error!r:.200}"
    if problem:
        store.damaged(
            CUT_FILE, problem, "the slave does not start; without the file it compares its log with its master's again",
            "moves it to lost+found", moves=[CUT_FILE],
        )  # fmt: skip


def check_marks(store: StoppedStore) -> None:
    """The marks of progress can be read."""
    if not store.exists(MARKS_FILE):
        return
    try:
        decode_marks(store.read(MARKS_FILE))
    except (OSError, ValueError) as error:
        store.damaged(
            MARKS_FILE, f"it cannot be read: {error!r:.200}",
            "the broker does not start unless its .bak is good; without both, a cut of the log repeats the delivery of "
            "all delayed messages that the log still has",
            "moves it to lost+found", moves=[MARKS_FILE],
        )  # fmt: skip
