"""A master and its slave as real processes with a nameserver, and their readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.ledger import ReadObserver
from support.foreign import ask, runtime_info
from support.processes import Child, free_ports, gantrymq_child

NAME = "broker-a"
FILE_BYTES = 16 << 20


class HaPair:
    """Processes of one broker name; each has a store of its own, and a file of RocketMQ's properties.

    ``settings``: of both, as ``section.key: value``. ``file_bytes``: the size of their logs' files. ``stores``: where
    the two stores are, if not below ``home``.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] | None = None,
        file_bytes: int = FILE_BYTES,
        stores: Sequence[Path] | None = None,
    ) -> None:
        self.home = home
        self.stores = list(stores or (home / "data-0", home / "data-1"))
        self._settings = dict(settings or {})
        self._file_bytes = file_bytes
        self._stack = ExitStack()
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(2, around=(0, 1, -2))]
        self.nameserver = f"127.0.0.1:{free_ports()[0]}"

    def __enter__(self) -> HaPair:
        self.start_nameserver()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _child(self, log: str, *arguments: str) -> Child:
        return self._stack.enter_context(gantrymq_child(arguments, self.home / f"{log}.log"))

    def start_nameserver(self) -> Child:
        """The nameserver at its address, which is ready."""
        child = self._child("names", "nameserver", "--listen", self.nameserver)
        child.wait_line(lambda line: line.startswith("ready"))
        return child

    def start(self, number: int, role: str, *, ready: bool = True) -> Child:
        """The broker on store ``number`` (0 or 1): SYNC_MASTER, ASYNC_MASTER, or SLAVE with the id 1."""
        file = self.home / f"broker-{number}.conf"
        broker_id = int(role == "SLAVE")
        file.write_text(f"brokerRole={role}\nbrokerId={broker_id}\nmappedFileSizeCommitLog={self._file_bytes}\n")
        sets = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        child = self._child(
            f"broker-{number}", "broker", "--nameserver", self.nameserver, "--listen", self.addresses[number],
            "--data", str(self.stores[number]), "--config", str(file), *sets,
        )  # fmt: skip
        if ready:
            child.wait_line(lambda line: line.startswith("ready"))
        return child

    def runtime(self, number: int) -> dict[str, str]:
        """The broker's runtime information (code 28)."""
        return runtime_info(self.addresses[number])

    def end(self, number: int) -> int:
        """The end of the broker's log, in bytes."""
        return int(self.runtime(number)["commitLogMaxOffset"])

    def level(self) -> bool:
        """Whether both logs end at the same byte."""
        return self.end(0) == self.end(1)

    def same(self) -> bool:
        """Whether both have the same log, byte for byte; last records of a stopped sender may be on the way."""
        return self.level() and self.log(0) == self.log(1)

    def log(self, number: int) -> bytes:
        """The store's log up to where the running broker says that it ends."""
        files = sorted((self.stores[number] / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)[: self.end(number) - int(files[0].name)]


def read_all(address: str, topic: str, queues: int, ledger: ReadObserver) -> dict[int, int]:
    """Show the ledger everything that the broker gives to readers of the topic; how far each queue was read."""
    ends: dict[int, int] = {}
    for queue_id in range(queues):
        said = _ask(address, RequestCode.GET_MAX_OFFSET, topic, queue_id).ext or {}
        end, offset = int(said["offset"]), 0
        while offset < end:
            answer = _ask(
                address, RequestCode.PULL_MESSAGE, topic, queue_id, queueOffset=offset, maxMsgNums=32, sysFlag=4,
                commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            )  # fmt: skip
            if answer.code != ResponseCode.SUCCESS:
                raise AssertionError(f"queue {queue_id} at {offset}: {answer.code} {answer.remark}")
            for record in decode_records(answer.body):
                ledger.observe(record.body, record.queue_id, record.queue_offset)
                offset = record.queue_offset + 1
        ends[queue_id] = offset  # it may have grown meanwhile
    return ends


def _ask(address: str, code: RequestCode, topic: str, queue_id: int, **fields: object) -> Command:
    ext = {"topic": topic, "queueId": queue_id, "consumerGroup": "ledger", **fields}
    return ask(address, Command(code, {name: str(value) for name, value in ext.items()}))
