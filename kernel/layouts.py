"""Byte layouts of consume queue entries, and of parts of a record that are read without the rest.

The whole head of a record is :data:`gantrymq.remoting.records.HEADS`, as clients get records too.
"""

from __future__ import annotations

import struct
from typing import Final

ENTRY: Final = struct.Struct(">qiq")
"""An entry of a consume queue: log offset, record size, tag code."""
SIZE_AND_MAGIC: Final = struct.Struct(">iI")
"""The first fields of a record, and all of a blank."""
PROOF: Final = struct.Struct(">iIi16xqi")
"""Fields of a record: size, magic, CRC, log offset, sys flag."""
PROOF_V4: Final = struct.Struct(">iII16xqI44xi")
"""Fields of a record with hosts of IPv4: those of :data:`PROOF`, and the body's length."""
QUEUE_PLACE: Final = struct.Struct(">i4xq")
"""Fields of a record from its queue id on: queue id and queue offset."""
LOG_PLACE: Final = struct.Struct(">4xI20xq")
"""Fields of a record: magic and log offset."""
PLACES: Final = struct.Struct(">iI4xi4xqqi")
"""Fields of a record: size, magic, queue id, queue offset, log offset, sys flag."""
FLAGS_AND_PLACES: Final = struct.Struct(">16xiqqi")
"""Fields of a record: flag, queue offset, log offset, sys flag."""
