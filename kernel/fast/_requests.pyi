from collections.abc import Callable, Sequence
from typing import Any

from gantrymq.kernel.batch import AppendBatch, DispatchBatch, Pull
from gantrymq.kernel.fast.plain import Layout, QueueEntries, Stop
from gantrymq.kernel.fast.plain_pulls import PullDesk, Suggest
from gantrymq.kernel.fast.plain_requests import PullLimits, ReplyForm, Terms, Window
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.processors import Request
from gantrymq.kernel.store.log.record import Record
from gantrymq.remoting.headers.pull import PullMessageHeader

def read_requests(connection: Connection, buffer: bytes | bytearray, limit: int) -> tuple[list[Request], int]: ...
def read_pull_header(request: Request) -> PullMessageHeader: ...
def add_sends(
    batch: AppendBatch,
    requests: list[Request],
    terms: Callable[[str], Terms | None],
    mark: bytes,
    max_body_bytes: int,
    many: Callable[[Request, int, int, int | None], Any],
    other: Callable[[AppendBatch, Request], None],
) -> None: ...
def answer_sends(batch: AppendBatch, form: ReplyForm, other: Callable[[AppendBatch, int], int]) -> None: ...
def answer_rows(batch: AppendBatch) -> None: ...
def gather(
    entries: bytes,
    limits: PullLimits,
    oldest: int,
    matches: Callable[[int], bool] | None,
    window: Window,
    damaged: Callable[[int, int], None],
) -> tuple[list[bytes | memoryview], int, bool, int]: ...
def read_records(data: memoryview | bytes, start: int, offsets: Sequence[int]) -> list[Record | None]: ...
def new_batch(done: Callable[[AppendBatch], None]) -> AppendBatch: ...
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

class PullAnswers:
    def __init__(self, desk: PullDesk) -> None: ...
    def answer(self, requests: list[Request], first: int, budget: int, other: Callable[[Request], int]) -> int: ...
    def resume(self, pull: Pull, codes: frozenset[int], suggest: Suggest | None) -> int: ...
