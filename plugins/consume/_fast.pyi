from collections.abc import Callable, Mapping
from typing import Any, Final

from gantrymq.kernel.batch import Pull
from gantrymq.kernel.processors import Request
from gantrymq.plugins.consume.plain import PullContext, Suggest
from gantrymq.plugins.consume.plain import gather as gather
from gantrymq.plugins.consume.plain import read_pull_header as read_pull_header

KIND: Final[str]
READERS: Final[Mapping[int, Any]]

class PullResponses:
    def __init__(self, context: PullContext) -> None: ...
    def answer(self, requests: list[Request], first: int, budget: int, fallback: Callable[[Request], int]) -> int: ...
    def resume(self, pull: Pull, codes: frozenset[int], suggest: Suggest | None) -> int: ...
