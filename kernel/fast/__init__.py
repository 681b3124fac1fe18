"""The inner loops of the broker. ``KIND`` names the twin in use, ``compiled`` or ``plain``.

The plain twin is the reference. It is also used if the package was installed without a C compiler, and with
``GANTRYMQ_PURE=1``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from gantrymq.kernel.env import environment
from gantrymq.kernel.fast.plain import Layout, QueueEntries, Stop

STALE = (
    "the compiled inner loops were built from another version of this source ({}): run `make install` (or "
    "`python setup.py build_ext --inplace`), or set GANTRYMQ_PURE=1 to use the plain twin"
)
"""The error text for a compiled module that does not match the source, with the reason."""


def twin_of(package: str) -> ModuleType:
    """Return the inner loops of a plugin on compiled requests and rows: its ``_fast``, or ``plain`` if the kernel uses
    the plain twin or ``_fast`` was not built.

    Raises ``ImportError`` if ``_fast`` exists but was built for other requests and rows.
    """
    if KIND == "compiled":
        try:
            return import_module(f"{package}._fast")
        except (ImportError, TypeError, ValueError) as error:
            if getattr(error, "name", None) is None:
                raise ImportError(STALE.format(error)) from error
    return import_module(f"{package}.plain")


if TYPE_CHECKING or environment("GANTRYMQ_PURE") == "1":
    from gantrymq.kernel.fast import plain as records
    from gantrymq.kernel.fast import plain_flusher as flusher
    from gantrymq.kernel.fast import plain_memory as memory
    from gantrymq.kernel.fast import plain_requests as requests
else:
    try:
        from gantrymq.kernel.fast import _flusher as flusher
        from gantrymq.kernel.fast import _memory as memory
        from gantrymq.kernel.fast import _records as records
        from gantrymq.kernel.fast import _requests as requests
    except ImportError as error:
        if error.name != __name__ and not str(error.name).startswith(f"{__name__}._"):
            # The module of the requests exists, but lacks a name that this version of the source needs.
            raise ImportError(STALE.format(error)) from error
        from gantrymq.kernel.fast import plain as records
        from gantrymq.kernel.fast import plain_flusher as flusher
        from gantrymq.kernel.fast import plain_memory as memory
        from gantrymq.kernel.fast import plain_requests as requests
    except AttributeError as error:
        raise ImportError(STALE.format(error)) from error

try:
    KIND = records.KIND
    common_code = requests.common_code
    Flusher = flusher.Flusher
    dispatch_batch = requests.dispatch_batch
    delivery_columns = requests.delivery_columns
    empty_buffer = memory.empty_buffer
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
    read_ready = requests.read_ready
    write_ready = requests.write_ready
except AttributeError as error:
    raise ImportError(STALE.format(error)) from error

__all__ = [
    "KIND",
    "STALE",
    "Flusher",
    "Layout",
    "QueueEntries",
    "Readers",
    "Stop",
    "answer_rows",
    "common_code",
    "delivery_columns",
    "dispatch_batch",
    "empty_buffer",
    "encode_rows",
    "end_where_memory_ends",
    "new_batch",
    "queue_entries",
    "read_ready",
    "read_records",
    "read_requests",
    "scan",
    "tag_code",
    "tag_codes",
    "twin_of",
    "write_ready",
]  # fmt: skip
