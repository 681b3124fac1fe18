from typing import Final

from gantrymq.kernel.batch import DispatchBatch
from gantrymq.plugins.index.layout import Header

KIND: Final[str]

def first_with_keys(batch: DispatchBatch) -> int: ...
def put_rows(
    batch: DispatchBatch, row: int, key: int, slots: bytearray, header: Header, entries: int
) -> tuple[bytes, int, int]: ...
def rebuild_slots(data: bytes, first: int, offset: int, slots: bytearray) -> tuple[int, int, int]: ...
