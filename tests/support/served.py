"""A broker process under test, and a numbered stream of messages whose every byte can be checked."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.requests import pull, send
from support.processes import GANTRYMQ, Child, ChildFailed, gantrymq_child
from support.rawpeer import RawPeer

FILE_BYTES = 1024 * 1024
BODY = bytes(range(256)) * 128


class Served:
    """``gantrymq serve`` on the store ``data``, with log files of 1 MiB, as a child that is stopped at the end.

    ``shell`` is a command of the shell that runs before it in the same process, for limits. ``program`` runs in place
    of ``python -m gantrymq.cli``, and gets the arguments.
    """

    def __init__(self, data: Path, log: Path, shell: str = "", program: list[str] | None = None) -> None:
        serve = ["serve", "--data", str(data), "--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
        for setting in (f"store.commit_log_file_bytes={FILE_BYTES}", "store.queue_file_units=1000"):
            serve += ["--set", setting]
        serve += ["--set", "broker.persist_interval=50ms"]
        if shell or program:
            gantrymq = [*(program or GANTRYMQ), *serve]
            self.child = child = Child(["/bin/sh", "-c", f'{shell or ":"} && exec "$@"', "sh", *gantrymq], log)
        else:
            self.child = child = gantrymq_child(serve, log)
        self.sent = 0
        """The number of acknowledged messages of topic T."""
        try:
            ready = child.wait_line(lambda line: line.startswith("ready"))
        except BaseException:
            child.stop()
            raise
        words = dict(word.partition("=")[::2] for word in ready.split()[1:])
        self.address, self.nameserver = words["broker"], words["nameserver"]

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()

    def send(self, peer: RawPeer, topic: str = "T") -> Command:
        """Send the next message; it is counted when it was stored."""
        answer = peer.ask(send(topic, b"%08d" % self.sent + BODY))
        if answer is None:
            raise ChildFailed("the broker closed the connection of a send")
        if answer.code == ResponseCode.SUCCESS:
            assert (answer.ext or {})["queueOffset"] == str(self.sent)
            self.sent += 1
        return answer

    def check_all(self, peer: RawPeer) -> None:
        """Check that exactly the acknowledged messages can be read, byte for byte."""
        at = 0
        while at < self.sent:
            answer = peer.ask(pull("T", 0, at))
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            for record in decode_records(answer.body):
                assert (record.queue_offset, record.body) == (at, b"%08d" % at + BODY)
                at += 1
        assert at == self.sent

    def log(self) -> list[dict[str, Any]]:
        """Its log lines."""
        lines = self.child.log.read_text().splitlines()
        return [msgspec.json.decode(line) for line in lines if line.startswith("{")]

    def printed(self) -> list[str]:
        """Its other output."""
        return [line for line in self.child.log.read_text().splitlines() if not line.startswith("{")]
