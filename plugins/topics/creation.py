"""How long requests take that create or change a topic or a group.

Names, labels and buckets are RocketMQ 5.3.3's (``BrokerMetricsManager``, ``InvocationStatus``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from gantrymq.kernel.metrics import Buckets
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.names import is_system_topic

if TYPE_CHECKING:
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Request
    from gantrymq.remoting.command import Command

BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
_MS: Final = 1000.0

AsyncHandler = Callable[["Request"], Awaitable["Command"]]


class CreationTimes:
    """Times handlers, until they have their response; a failed one counts as well."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._topics: dict[tuple[str, bool], Buckets] = {}
        """By status, and whether it is a system topic."""
        self._groups: dict[str, Buckets] = {}
        """By status."""

    def topic(self, handler: AsyncHandler) -> AsyncHandler:
        """Return ``handler`` of requests whose header names a topic, timed."""

        def add(request: Request, status: str, took_ms: float) -> None:
            key = (status, is_system_topic((request.command.ext or {}).get("topic") or ""))
            self._topics.setdefault(key, Buckets(BOUNDS_MS)).add(took_ms)

        return self._timed(handler, add)

    def group(self, handler: AsyncHandler) -> AsyncHandler:
        """Return ``handler`` of requests about a group, timed."""

        def add(_: Request, status: str, took_ms: float) -> None:
            self._groups.setdefault(status, Buckets(BOUNDS_MS)).add(took_ms)

        return self._timed(handler, add)

    def _timed(self, handler: AsyncHandler, add: Callable[[Request, str, float], None]) -> AsyncHandler:
        async def timed(request: Request) -> Command:
            began, status = self._clock(), "failure"
            try:
                response = await handler(request)
                status = _status(response)
                return response
            finally:
                add(request, status, (self._clock() - began) * _MS)

        return timed

    def report(self, metrics: Metrics) -> None:
        """Report both histograms."""
        for (status, is_system), times in self._topics.items():
            metrics.histogram(
                "rocketmq_topic_create_execution_time_milliseconds", "How long requests take that set a topic",
                times.bounds, times.counts, times.total, invocation_status=status, is_system=is_system,
            )  # fmt: skip
        for status, times in self._groups.items():
            metrics.histogram(
                "rocketmq_consumer_group_create_execution_time_milliseconds", "How long requests take that set a group",
                times.bounds, times.counts, times.total, invocation_status=status,
            )  # fmt: skip


def _status(response: Command) -> str:
    return "success" if response.code == ResponseCode.SUCCESS else "failure"
