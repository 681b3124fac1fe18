"""A progress bar on stderr in a terminal, shown after one second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 1.0


class Meter:
    """Counts messages or bytes; ``total`` is None if the end is unknown. A context manager."""

    def __init__(self, label: str, total: int | None = None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._started = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None
        self._visible = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def advance(self, count: int = 1) -> None:
        """Add ``count`` to the progress."""
        self.set(self.done + count)

    def set(self, done: int, total: int | None = None) -> None:
        """Set the progress to ``done``, and ``total`` if it is known now. May be called from another thread."""
        self.done = done
        self.total = self.total if total is None else total
        if self._shown is None and self.seconds >= PATIENCE_SECONDS:
            self.show()
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self.done, total=self.total)

    def show(self) -> None:
        """Show the bar now, for work that takes long before its first progress."""
        if self._visible and self._shown is None:
            self._shown = self._show()

    def _show(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = progress.add_task(self.label, total=self.total)
        progress.start()
        return progress, task
