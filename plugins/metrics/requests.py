"""How long requests take until their response is sent: RocketMQ 5's ``rocketmq_rpc_latency``, from a sample.

An observed request is processed more slowly, so of each code at most ``TIMED_A_SECOND`` requests a second are timed.
Each stands for the requests of its code since the previous timed one: counts are those of all requests, and the shares
of the buckets are those of the sample.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from gantrymq.kernel.batch import PullBatch
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Request, RequestBatch

NAME: Final = "rocketmq_rpc_latency_milliseconds"
BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""RocketMQ 5.3.3's buckets (``RemotingMetricsManager``)."""
TIMED_A_SECOND: Final = 20
HELD_MAX: Final = 1_000
"""The most timed pulls that may be held at a time: those of clients that never return are forgotten."""
OTHERS: Final = "others"
_code_of: Final = attrgetter("code")


@attrs.define
class _Series:
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    milliseconds: float = 0.0


class RequestTimes:
    """Chooses requests, times them, and has the histogram."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._served: dict[int, str] = {}
        self._passed: Counter[int] = Counter()
        """By code: the requests since the last timed one."""
        self._next: dict[int, float] = {}
        """By code: when the next request may be timed."""
        self._pulls: dict[tuple[int, int], bool] = {}
        """Timed pulls without a response, by connection and opaque: whether they were held."""
        self._series: dict[tuple[str, str, bool, str], _Series] = {}

    def serve(self, codes: Iterable[int]) -> None:
        """Requests with these codes have series of their own; the others share one, whatever peers send."""
        self._served = {code: _name(RequestCode, code) for code in codes}

    def observe(self, batch: RequestBatch) -> None:
        """Count the requests that are not refused, and time some."""
        requests = batch.requests
        codes = Counter([requests[row].code for row in batch.live] if batch.refusals else map(_code_of, requests))
        self._passed.update(codes)
        now = self._clock()
        due = {code for code in codes if self._next.get(code, now) <= now}
        if not due:
            return
        for row in batch.live:
            code = requests[row].code
            if code in due:
                due.remove(code)
                self._time(batch, row, code, now)
                if not due:
                    return

    def held(self, batch: PullBatch) -> None:
        """These pulls wait for messages."""
        if self._pulls:
            for row in batch.rows:
                key = _key(row.request)
                if key in self._pulls:
                    self._pulls[key] = True

    def _time(self, batch: RequestBatch, row: int, code: int, now: float) -> None:
        request = batch.requests[row]
        name, weight = self._served.get(code, OTHERS), self._passed.pop(code, 1)
        if code in self._served:  # codes that a peer makes up must not fill the memory
            self._next[code] = now + 1 / TIMED_A_SECOND
        key = _key(request)
        if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            if len(self._pulls) >= HELD_MAX:
                self._pulls.pop(next(iter(self._pulls)))
            self._pulls[key] = False
        result = "oneway" if request.is_oneway else "success"

        def answered(response: int, _: str | None) -> None:
            held = self._pulls.pop(key, False)
            self._add((name, _name(ResponseCode, response), held, result), (self._clock() - now) * 1000, weight)

        batch.observe(row, answered)

    def _add(self, key: tuple[str, str, bool, str], milliseconds: float, weight: int) -> None:
        series = self._series.setdefault(key, _Series())
        series.counts[bisect_left(BOUNDS_MS, milliseconds)] += weight
        series.milliseconds += milliseconds * weight

    def report(self, metrics: Metrics) -> None:
        """Add the histogram."""
        for (request, response, held, result), series in self._series.items():
            metrics.histogram(
                NAME, "How long requests take until their response is sent, in milliseconds", BOUNDS_MS,
                list(series.counts), series.milliseconds, protocol_type="remoting", request_code=request,
                response_code=response, is_long_polling=held, result=result,
            )  # fmt: skip


def _key(request: Request) -> tuple[int, int]:
    return request.connection.id, request.command.opaque


def _name(kind: type[RequestCode] | type[ResponseCode], code: int) -> str:
    try:
        return kind(code).name.lower()
    except ValueError:
        return str(int(code))
