from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gantrymq.kernel.batch import AppendBatch, DispatchBatch
from gantrymq.kernel.fast.plain import Layout, QueueEntries, Stop
from gantrymq.kernel.fast.plain_requests import DeliveryColumns
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import Record

class Readers:
    def __init__(self, readers: Mapping[int, Any] = ...) -> None: ...

def read_requests(
    connection: Connection, buffer: bytes | bytearray, limit: int, readers: Readers | None = None
) -> tuple[list[Request], int]: ...
def common_code(requests: list[Request]) -> int | None: ...
def read_ready(
    events: list[tuple[int, int]],
    position: int,
    connections: dict[int, Connection],
    requests: list[Request],
    now: float,
    read: Callable[[Connection, bytes, list[Request], float], object],
    limit: int,
    readers: Readers,
    most: int,
    rows: int,
) -> tuple[int, int]: ...
def write_ready(connections: Collection[Connection]) -> tuple[list[Connection], int]: ...
def answer_rows(batch: AppendBatch) -> None: ...
def read_records(data: memoryview | bytes, start: int, offsets: Sequence[int]) -> list[Record | None]: ...
def delivery_columns(records: bytes) -> DeliveryColumns: ...
def new_batch(done: Callable[[AppendBatch], None], source: str) -> AppendBatch: ...
def encode_rows(
    batch: AppendBatch,
    rows: Sequence[int],
    first: int,
    offset: int,
    room: int,
    next_offsets: dict[tuple[str, int], int],
    layout: Layout,
) -> tuple[list[bytes], int, int]: ...
def dispatch_batch(batches: list[AppendBatch]) -> DispatchBatch: ...
def queue_entries(batch: DispatchBatch, rules: dict[str, Callable[[int, bytes, int], int]]) -> list[QueueEntries]: ...
def scan(
    data: memoryview | bytes, start: int, rows: int, *, check_body: bool, replay: bool = False, copied: bool = False
) -> tuple[DispatchBatch, Stop]: ...
