"""The activity of the plugins of a running broker: tasks, request codes, files, errors, and the duration of hooks.

It is ``broker.manager.activity``; ``gantrymq plugins show --broker``, ``plugins trace`` and metrics show it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

import attrs

TEXT_MAX_CHARS: Final = 300
"""The number of characters that are kept of an error's text."""
FILES_MAX: Final = 100
"""The most paths that are remembered for a plugin."""
BOUNDS_S: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0)
"""The bounds of the histogram of call durations, in seconds."""

Function = Callable[[Any], object]


@attrs.define
class HookTime:
    """The timed calls of one plugin's hook: seconds, messages or requests, and calls by :data:`BOUNDS_S`."""

    seconds: float = 0.0
    rows: int = 0
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS_S) + 1))

    @property
    def calls(self) -> int:
        """How many calls were timed."""
        return sum(self.counts)


class HookTimes:
    """Times the hooks that get a batch of messages or requests, while measuring is requested.

    At other times the broker calls the plugins' functions directly, without overhead. A time includes everything that
    the hook calls. A hook that a plugin wraps (``hookwrapper``) is not timed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds (``env.monotonic``)."""
        self._clock = clock
        self._until = float("-inf")
        self._places: list[tuple[Callable[[Function], None], Function, Function, HookTime]] = []
        self.totals: dict[tuple[str, str], HookTime] = {}
        """By plugin and hook, since the broker's start."""

    @property
    def is_on(self) -> bool:
        """Whether calls are timed now."""
        return self._clock() < self._until

    def follow(self, plugin: str, hook: str, function: Function, put: Callable[[Function], None]) -> None:
        """Register the plugin's hook ``function``. ``put`` sets the function that the broker calls for the hook, and is
        called with a timed function while measuring is on."""
        total = self.totals.setdefault((plugin, hook), HookTime())
        timed = self._timed(function, total)
        self._places.append((put, function, timed, total))
        if self.is_on:
            put(timed)

    def leave(self, plugin: str, hook: str) -> None:
        """Unregister a hook that is not called any more."""
        total = self.totals[plugin, hook]
        self._places = [place for place in self._places if place[3] is not total]

    def measure_for(self, seconds: float) -> None:
        """Time all calls in the next ``seconds``, which may be infinite."""
        self._until = max(self._until, self._clock() + seconds)
        for put, _, timed, _ in self._places:
            put(timed)

    def _stop(self) -> None:
        for put, function, _, _ in self._places:
            put(function)

    def _timed(self, function: Function, total: HookTime) -> Function:
        clock, counts = self._clock, total.counts

        def call(batch: Any) -> object:
            begun = clock()
            try:
                return function(batch)
            finally:
                ended = clock()
                seconds = ended - begun
                total.seconds += seconds
                total.rows += len(batch)
                counts[bisect_left(BOUNDS_S, seconds)] += 1
                if ended >= self._until:
                    self._stop()

        return call


@attrs.define
class ErrorCount:
    """How often a plugin failed at one place, and the last error's text."""

    count: int = 0
    last: str = ""


class PluginActivity:
    """The activity by plugin, since the broker's start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds (``env.monotonic``)."""
        self.times = HookTimes(clock)
        self.tasks: dict[str, dict[str, str]] = {}
        """The state of each background task: ``running``, ``ended`` or ``failed``."""
        self.request_codes: dict[str, list[int]] = {}
        self.files: dict[str, dict[str, None]] = {}
        """Paths of what the broker writes for the plugin (hooks ``persist`` and ``save_state``)."""
        self.errors: dict[str, dict[str, ErrorCount]] = {}
        """By hook or background task."""

    def failed(self, plugin: str, where: str, error: BaseException) -> None:
        """Count an error that the broker survived. ``where``: the hook, or ``task NAME``."""
        found = self.errors.setdefault(plugin, {}).setdefault(where, ErrorCount())
        found.count += 1
        found.last = f"{type(error).__name__}: {error}"[:TEXT_MAX_CHARS]

    def failed_tasks(self) -> dict[str, list[str]]:
        """Return the names of the background tasks that raised, by plugin."""
        return self._tasks_in("failed")

    def running_tasks(self) -> dict[str, list[str]]:
        """Return the names of the background tasks that have not ended, by plugin."""
        return self._tasks_in("running")

    def _tasks_in(self, wanted: str) -> dict[str, list[str]]:
        found = {
            plugin: sorted(name for name, state in states.items() if state == wanted)
            for plugin, states in self.tasks.items()
        }
        return {plugin: names for plugin, names in found.items() if names}

    def wrote(self, plugin: str, path: str) -> None:
        """Remember a file of the plugin."""
        files = self.files.setdefault(plugin, {})
        if len(files) < FILES_MAX:
            files[path] = None
