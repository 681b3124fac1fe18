from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.processors import Request
from gantrymq.kernel.record import Record
from gantrymq.plugins.transaction.plain import Ending, EndTerms, Refuse

KIND: Final[str]

def read_endings(requests: Sequence[Request], refuse: Refuse) -> list[Ending]: ...
def match_records(
    endings: Sequence[Ending],
    records: Sequence[Record | None],
    is_prepared: Callable[[Record], bool],
    refuse: Refuse,
) -> list[Ending]: ...
def half_rows(batch: AppendBatch) -> list[int]: ...
def divert_rows(
    batch: AppendBatch,
    rows: Sequence[int],
    topic: str,
    changes: Callable[[str, int], dict[bytes, bytes | None]],
    clear: int,
    fitting: int,
) -> list[int]: ...
def add_ends(
    batch: AppendBatch,
    endings: Sequence[Ending],
    ended: dict[int, Ending],
    terms: EndTerms,
    other: Callable[[Ending], None],
) -> None: ...
def close_ends(
    batch: AppendBatch, ended: Mapping[int, Ending], states: bytearray, origin: int
) -> tuple[int, int, int, int, list[int]]: ...
