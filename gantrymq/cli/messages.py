"""Messages of a reader on stdout, until its end, a limit, a signal, or until stdout is closed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from gantrymq.cli.consume import render, write_line
from gantrymq.cli.signals import ending_by_signal

if TYPE_CHECKING:
    from gantrymq.client.reader import Reader
    from gantrymq.message import DeliveredRecord


async def print_all(reader: Reader[DeliveredRecord], limit: int | None, as_json: bool) -> int:
    """Returns the exit code of the command."""
    count = 0
    scope = trio.CancelScope()
    with ending_by_signal(scope.cancel) as first, scope:
        while count < (limit or math.inf):
            messages = await reader.poll(max=32 if limit is None else min(limit - count, 32))
            if not messages:
                break
            for message in messages:
                try:
                    await trio.to_thread.run_sync(write_line, render(message, as_json))
                except BrokenPipeError:
                    return 0
                count += 1
    return first.exit_code
