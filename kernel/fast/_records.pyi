from collections.abc import Iterable, Sequence
from typing import Final

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.fast.plain import Layout

KIND: Final[str]
FOLDS: Final[bool]

def encode_rows(
    batch: AppendBatch,
    rows: Sequence[int],
    first: int,
    offset: int,
    room: int,
    next_offsets: dict[tuple[str, int], int],
    layout: Layout,
) -> tuple[list[bytes], int, int]: ...
def tag_code(properties: bytes) -> int: ...
def tag_codes(properties: Iterable[bytes]) -> list[int]: ...
def body_crc(data: memoryview | bytes, folds: bool = ...) -> int: ...
