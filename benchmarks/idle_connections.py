"""Idle connections: each sends one heartbeat, as a client does, and then nothing. Separate processes hold them."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.descriptors import descriptors_allowed, raise_descriptor_limit

ANSWER_SECONDS = 30.0
AT_ONCE = 500
"""The most connections opened before their responses are awaited: a listener's queue is limited."""


@contextmanager
def held(address: str, wanted: int) -> Iterator[Callable[[], int]]:
    """Hold ``wanted`` connections, in as many processes as their descriptors need; the yielded function returns how
    many are still open. Connections that the broker refuses are not counted and are no error."""
    raise_descriptor_limit()
    each = max(1, min(wanted, descriptors_allowed(1)))
    counts = [min(each, wanted - start) for start in range(0, wanted, each)]
    holders = [
        subprocess.Popen(
            [sys.executable, __file__, address, str(count), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, count in enumerate(counts)
    ]
    try:
        for holder in holders:
            _ask(holder, None)
        yield lambda: sum(_ask(holder, "count") for holder in holders)
    finally:
        for holder in holders:
            holder.communicate()


def _ask(holder: subprocess.Popen[str], word: str | None) -> int:
    assert holder.stdin is not None
    assert holder.stdout is not None
    if word is not None:
        holder.stdin.write(word + "\n")
        holder.stdin.flush()
    line = holder.stdout.readline()
    if not line:
        raise RuntimeError("a process that holds idle connections ended")
    return int(line)


def main() -> None:
    """Open the connections and print how many; print how many are left for each line of stdin; end with stdin."""
    raise_descriptor_limit()
    host, _, port = sys.argv[1].rpartition(":")
    connections: list[socket.socket] = []
    poll = select.poll()
    for start in range(0, int(sys.argv[2]), AT_ONCE):
        group = _open((host, int(port)), range(start, min(start + AT_ONCE, int(sys.argv[2]))), sys.argv[3])
        connections += group
        for connection in group:
            poll.register(connection, select.POLLIN)
    alive = {connection.fileno(): connection for connection in connections}
    print(_left(poll, alive), flush=True)
    for _ in sys.stdin:
        print(_left(poll, alive), flush=True)


def _open(address: tuple[str, int], numbers: range, holder: str) -> list[socket.socket]:
    made = []
    for number in numbers:
        try:
            connection = socket.create_connection(address, ANSWER_SECONDS)
            body = (
                f'{{"clientID":"127.0.0.1@{holder}-{number}","consumerDataSet":[],'
                f'"producerDataSet":[{{"groupName":"idle"}}]}}'
            )
            connection.sendall(encode(Command(RequestCode.HEART_BEAT, {}, body.encode(), language="JAVA")))
            made.append(connection)
        except OSError:
            break
    for connection in made:
        try:
            connection.recv(4096)
        except OSError:
            continue
    return made


def _left(poll: select.poll, alive: dict[int, socket.socket]) -> int:
    """How many connections the broker has not closed."""
    while found := poll.poll(0):
        for descriptor, _ in found:
            try:
                data = alive[descriptor].recv(65_536)
            except OSError:
                data = b""
            if not data:
                poll.unregister(descriptor)
                alive.pop(descriptor).close()
    return len(alive)


if __name__ == "__main__":
    main()
