"""Sends the lines of a file or a pipe as message bodies, in batches."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import attrs
import trio

from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.progress import Meter
from gantrymq.message import Message, SendStatus
from gantrymq.remoting.errors import GantryError

if TYPE_CHECKING:
    from gantrymq.client.producer import Producer

READ_BYTES = 256 * 1024
LINE_BYTES = 4 * 1024 * 1024
"""The longest line in bytes: the brokers' default limit of a body."""
BATCH_LINES = 64
BATCH_BYTES = 512 * 1024


@attrs.define
class Sending:
    """The progress of a command.

    ``skipped``: the number of empty lines, which are not sent; ``late``: messages that were stored, but not flushed or
    replicated in time; ``late_statuses``: theirs; ``next_line``: the number of the next line to send, from 1.
    """

    sent: int = 0
    bytes: int = 0
    skipped: int = 0
    late: int = 0
    late_statuses: set[str] = attrs.field(factory=set)
    seconds: float = 0.0
    next_line: int = 1

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.sent / self.seconds if self.seconds else 0.0


async def read_lines(descriptor: int) -> AsyncGenerator[list[bytes], None]:
    """Whole lines without their newline, as many as each read returned, so that lines of a slow pipe do not wait."""
    rest = b""
    while data := await trio.to_thread.run_sync(os.read, descriptor, READ_BYTES, abandon_on_cancel=True):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            raise CommandFailed(
                f"a line is longer than {LINE_BYTES} bytes, the limit of a message; check that this is a text file"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


async def send_lines(
    producer: Producer,
    descriptor: int,
    make: Callable[[int, bytes], Message],
    meter: Meter | None = None,
    *,
    most: int = BATCH_LINES,
) -> Sending:
    """Send each line that is not empty as ``make(line number from 1, line)``, one batch after the other to keep their
    order.

    Stops at the first error and raises :class:`CommandFailed` with it, the number of messages sent before it, and the
    first line that is not known to be stored. ``meter`` counts lines; a batch has at most ``most`` of them.
    """
    result = Sending()
    started = trio.current_time()
    try:
        async with aclosing(read_lines(descriptor)) as blocks:
            async for lines in blocks:
                await _send_block(producer, lines, make, meter, most, result)
    except (CommandFailed, GantryError) as error:
        if not result.sent:
            raise
        raise CommandFailed(
            f"{error}; {result.sent} messages were sent before that, and line {result.next_line} is the first that may "
            "be missing"
        ) from error
    result.seconds = trio.current_time() - started
    return result


async def _send_block(
    producer: Producer,
    lines: Sequence[bytes],
    make: Callable[[int, bytes], Message],
    meter: Meter | None,
    most: int,
    result: Sending,
) -> None:
    first = result.next_line
    numbers = [number for number, line in enumerate(lines, first) if line]
    messages = [make(number, lines[number - first]) for number in numbers]
    result.skipped += len(lines) - len(messages)
    done = 0
    for batch in cut_batches(messages, most):
        result.next_line = numbers[done]
        outcomes = [await producer.send(batch[0])] if len(batch) == 1 else await producer.send_batch(batch)
        done += len(batch)
        result.sent += len(batch)
        result.bytes += sum(len(message.body) for message in batch)
        late = [outcome.status.name for outcome in outcomes if outcome.status is not SendStatus.OK]
        result.late += len(late)
        result.late_statuses.update(late)
        if meter is not None:
            meter.advance(len(batch))
    result.next_line = first + len(lines)


def cut_batches(messages: Sequence[Message], most: int = BATCH_LINES) -> list[list[Message]]:
    """Batches of at most ``most`` messages and 512 KiB of bodies; a longer body is sent alone."""
    batches: list[list[Message]] = []
    size = 0
    for message in messages:
        size += len(message.body)
        if not batches or len(batches[-1]) == most or size > BATCH_BYTES:
            batches.append([])
            size = len(message.body)
        batches[-1].append(message)
    return batches
