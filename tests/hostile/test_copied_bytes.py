"""One turn reads and writes a limited number of megabytes for small requests that refer to large messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.broker import Broker
from gantrymq.plugins.transaction import endings, resume
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.headers.transactions import EndTransactionHeader, ResumeCheckHeader, TransactionState
from gantrymq.remoting.names import TRANS_CHECK_MAX_TIME_TOPIC
from gantrymq.testing.harness import cluster_in_thread
from gantrymq.testing.memory_env import MemoryEnv
from gantrymq.testing.requests import pull, send
from gantrymq.testing.transacted import Producer, TransactedStore, received
from support.rawpeer import RawPeer

MIB = 1024 * 1024
HALF = "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01{}"
COUNT = 24
A_TURN = endings.TURN_BYTES // MIB + 1


def end_of(offset: int, table_offset: int, key: str, state: TransactionState) -> Command:
    header = EndTransactionHeader(
        producer_group="g", tran_state_table_offset=table_offset, commit_log_offset=offset, commit_or_rollback=state,
        msg_id=key,
    )  # fmt: skip
    return Command(RequestCode.END_TRANSACTION, header.to_ext())


@pytest.mark.parametrize("strategy", ["half", "state_table"])
@pytest.mark.parametrize("repeats", [1, COUNT])
def test_ends_of_large_transactions_are_processed_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, repeats: int
) -> None:
    """``repeats``: each end is said so often, which reads the same half message so often."""
    read: list[int] = []
    read_many = endings.read_many

    def counted(log: Any, offsets: list[int]) -> Any:
        read.append(len(offsets))
        return read_many(log, offsets)

    monkeypatch.setattr(endings, "read_many", counted)
    settings = {"plugin.transaction.strategy": strategy, "plugin.flush.mode": "async"}
    with cluster_in_thread(tmp_path, settings=settings) as cluster, RawPeer(cluster.address, timeout=60) as peer:
        broker: Broker = cluster.broker
        ends = []
        for number in range(COUNT // repeats):
            answer = peer.ask(send("T", bytes(MIB), properties=HALF.format(number)))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            offset = int((answer.ext or {})["msgId"][16:], 16)
            table_offset = broker.log.read_record(offset).queue_offset
            ends += [end_of(offset, table_offset, str(number), TransactionState.COMMIT)] * repeats
        peer.send_bytes(b"".join(
            encode(Command(end.code, end.ext, opaque=number)) for number, end in enumerate(ends, start=1)
        ))  # fmt: skip
        answers: list[Command] = []
        while len(answers) < len(ends):
            answers += peer.receive()
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        assert [answer.opaque for answer in answers] == list(range(1, len(ends) + 1))
        assert peer.ask(pull("T", 0, COUNT // repeats - 1)).code == ResponseCode.SUCCESS
    assert sum(read) == COUNT
    assert max(read) <= A_TURN


def test_resumed_large_messages_are_processed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "TURN_BYTES", 4 * (1024 + resume.REQUEST_BYTES))
    batches: list[int] = []
    world = TransactedStore(MemoryEnv(), "half", check_max=1)
    world.producers.join()
    for number in range(COUNT):
        world.half(b"%04d" % number * 256, topic="T", queue_id=0)
    world.commit()
    for _ in range(2):
        world.pass_time(61)
        world.scan()
    asides = world.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    assert len(asides) == COUNT

    def append(batch: AppendBatch) -> None:
        batches.append(len(batch))

    processor = resume.ResumeHalves(world.store, append, is_slave=False)
    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    requests = [
        request
        for aside in asides
        for request in received(Producer(), code, ResumeCheckHeader(msg_id=aside.message_id).to_ext())
    ]
    while requests:
        taken = processor.handle(requests)
        assert taken >= 1
        requests = requests[taken:]
    assert sum(batches) == COUNT
    assert max(batches) == 4
