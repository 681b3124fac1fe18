import select
from array import array

from gantrymq.bench.plain_loop import CountingLoad, Left

KIND: str

class Loop:
    @property
    def last_response(self) -> int: ...
    def __init__(self, epoll: select.epoll) -> None: ...
    def add_sender(
        self, fd: int, load: CountingLoad, frames: list[bytes], sent: array[int], place: array[int]
    ) -> None: ...
    def add_puller(
        self, fd: int, load: CountingLoad, frames: list[tuple[bytes, bytes]], offsets: array[int], begins: array[int],
        sent: array[int],
    ) -> None: ...  # fmt: skip
    def resume(self, fd: int) -> None: ...
    def remove(self, fd: int) -> None: ...
    def poll(self, wait: float, until: int) -> list[Left]: ...
