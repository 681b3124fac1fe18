"""Runs a scenario on simulated time; a seed determines all random choices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog
import trio
from trio.testing import MockClock

from gantrymq.testing.simulated._determinism import all_from
from gantrymq.testing.simulated._sockets import MemorySockets
from gantrymq.testing.simulated.cluster import Cluster
from gantrymq.testing.simulated.network import Network

_R = TypeVar("_R")

LIMIT_S: Final = 24 * 3600.0
"""The longest scenario in simulated seconds; a longer one waits for something that never happens."""
_LINES_SHOWN: Final = 40


def simulate(scenario: Callable[[Cluster], Awaitable[_R]], seed: int) -> _R:
    """Run ``scenario`` with an empty cluster and return its result. Its errors get notes with the seed and the last log
    lines.

    Everything that still runs at its end is stopped. Do not call it within another event loop.
    """

    async def main() -> _R:
        async with trio.open_nursery() as nursery:
            network = Network(seed, nursery)
            trio.socket.set_custom_socket_factory(MemorySockets(network))
            cluster = Cluster(network, nursery)
            cluster.log = logged
            try:
                with trio.fail_after(LIMIT_S):
                    result = await scenario(cluster)
            except BaseException:
                cluster.resume()  # a paused process cannot end
                raise
            cluster.end()
            nursery.cancel_scope.cancel()
        return result

    clock = MockClock(autojump_threshold=0)  # it keeps the real clock that it finds
    with _logs() as logged, all_from(seed):
        try:
            return trio.run(main, clock=clock)
        except BaseException as error:
            lines = "\n".join(str(line) for line in logged[-_LINES_SHOWN:])
            error.add_note(f"seed {seed}; the last that was logged:\n{lines}")
            raise


@contextmanager
def _logs() -> Iterator[list[Any]]:
    def stamp(_logger: object, _method: str, event: Any) -> Any:
        event["at"] = round(trio.current_time(), 4)
        return event

    with structlog.testing.capture_logs([stamp]) as lines:
        yield lines
