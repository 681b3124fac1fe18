"""The inner loops of the broker. ``KIND`` says which of their twins runs, ``compiled`` or ``plain``.

The plain twin is the reference. It also runs where the package was installed without a C compiler, and where
``GANTRYMQ_PURE=1`` asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel.env import environment
from gantrymq.kernel.fast.plain import Layout, QueueEntries, Stop

STALE = (
    "the compiled inner loops were built from another version of this source ({}): run `make install` (or "
    "`python setup.py build_ext --inplace`), or set GANTRYMQ_PURE=1 to do without them"
)
"""What to say of a compiled module that there is and that does not fit; with what is wrong."""


def refuse_stale(error: Exception) -> None:
    """Raise ``ImportError`` where a plugin's compiled module is there, but not built for these requests and rows.

    ``error`` is what its import has raised. Returns where the module is missing: the plain twin then does.
    """
    if getattr(error, "name", None) is None:
        raise ImportError(STALE.format(error)) from error


if TYPE_CHECKING or environment("GANTRYMQ_PURE") == "1":
    from gantrymq.kernel.fast import plain as records
    from gantrymq.kernel.fast import plain_flusher as flusher
    from gantrymq.kernel.fast import plain_memory as memory
    from gantrymq.kernel.fast import plain_requests as requests
else:
    try:
        from gantrymq.kernel.fast import _flusher as flusher
        from gantrymq.kernel.fast import _records as records
        from gantrymq.kernel.fast import _requests as requests
    except ImportError as error:
        if error.name != __name__ and not str(error.name).startswith(f"{__name__}._"):
            # They are there, but miss something of ours.
            raise ImportError(STALE.format(error)) from error
        from gantrymq.kernel.fast import plain as records
        from gantrymq.kernel.fast import plain_flusher as flusher
        from gantrymq.kernel.fast import plain_requests as requests
    except AttributeError as error:
        raise ImportError(STALE.format(error)) from error
    try:
        from gantrymq.kernel.fast import _memory as memory
    except ImportError:
        from gantrymq.kernel.fast import plain_memory as memory

try:
    KIND = records.KIND
    Flusher = flusher.Flusher
    dispatch_batch = requests.dispatch_batch
    encode_rows = requests.encode_rows
    end_where_memory_ends = memory.end_where_memory_ends
    new_batch = requests.new_batch
    queue_entries = requests.queue_entries
    scan = requests.scan
    tag_code = records.tag_code
    tag_codes = records.tag_codes
    Readers = requests.Readers
    answer_rows = requests.answer_rows
    read_records = requests.read_records
    read_requests = requests.read_requests
except AttributeError as error:
    raise ImportError(STALE.format(error)) from error

__all__ = [
    "KIND", "STALE", "Flusher", "Layout", "QueueEntries", "Readers", "Stop", "answer_rows", "dispatch_batch",
    "encode_rows", "end_where_memory_ends", "new_batch", "queue_entries", "read_records", "read_requests",
    "refuse_stale", "scan", "tag_code", "tag_codes",
]  # fmt: skip
