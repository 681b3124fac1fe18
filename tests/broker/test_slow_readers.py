"""Unread responses are limited in memory, and a slow reader is not disconnected."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import Cluster, cluster_in_thread
from gantrymq.testing.requests import pull, send
from support.rawpeer import RawPeer

QUEUES = 24
BODY = bytes(512 * 1024)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with 24 queues of 1 MiB each."""
    settings = {"plugin.topics.default_queues": str(QUEUES), "limits.frame_deadline": "1s"}
    with cluster_in_thread(tmp_path_factory.mktemp("full"), settings=settings) as cluster:
        with RawPeer(cluster.address) as peer:
            for number in range(2 * QUEUES):
                answer = peer.ask(send("Much", BODY, queue_id=number % QUEUES, queues=QUEUES))
                assert answer is not None
                assert answer.code == 0
        yield cluster


def test_a_slow_reader_gets_responses_larger_than_the_write_buffer_completely(full: Cluster) -> None:
    got = dict.fromkeys(range(QUEUES), 0)
    with RawPeer(full.address) as peer, RawPeer(full.address) as other:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        while min(got.values()) < 2:
            asked = {number: pull("Much", queue_id, got[queue_id]) for number, queue_id in enumerate(got)}
            for opaque, command in asked.items():
                command.opaque = opaque
            peer.send(*asked.values())
            assert other.is_served(), "all is asked for before anything is read"
            for opaque in asked:
                answer = peer.answer_to(opaque)
                assert answer is not None, "the connection was closed under an honest reader"
                if answer.code == ResponseCode.SUCCESS:
                    got[opaque] += len(decode_records(answer.body))
                elif got[opaque] < 2:
                    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                    assert (answer.ext or {})["nextBeginOffset"] == str(got[opaque]), "nothing is skipped"


def test_a_slow_reader_gets_the_responses_to_all_its_queries(tmp_path: Path) -> None:
    """Ten responses of 512 KiB, which together exceed the write buffer of 256 KiB many times."""
    count = 10
    with (
        cluster_in_thread(tmp_path, settings={"limits.write_buffer_bytes": "256 KiB"}) as cluster,
        RawPeer(cluster.address) as peer,
        RawPeer(cluster.address) as other,
    ):
        sent = other.ask(send("Much", BODY))
        assert sent is not None
        view = {"offset": str(int((sent.ext or {})["msgId"][16:], 16))}
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection = next(one for one in cluster.broker.sweep.connections if one.peer == peer.sock.getsockname())
        # Otherwise it grows until it takes several responses.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)  # type: ignore[attr-defined]
        peer.send(*(Command(RequestCode.VIEW_MESSAGE_BY_ID, view, opaque=number) for number in range(count)))
        while connection.outbound_bytes <= 64 * 1024 and not connection.closed:
            assert other.is_served()
        assert all(other.is_served() for _ in range(100)), "others are served while it does not read"
        for number in range(count):
            answer = peer.answer_to(number)
            assert answer is not None, "the connection was closed under an honest reader"
            assert answer.code == ResponseCode.SUCCESS
            assert [record.body for record in decode_records(answer.body)] == [BODY]
