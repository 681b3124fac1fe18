"""Send requests against a whole broker: stored records, responses, and the codes of refusals."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

import gantrymq
from gantrymq.kernel import hookimpl
from gantrymq.kernel.batch import AppendBatch
from gantrymq.kernel.errors import NoRoom
from gantrymq.kernel.store.log.record import decode as decode_record
from gantrymq.kernel.store.log.segments import Segment, Segments
from gantrymq.plugins.interfaces import GroupTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SEND_LETTERS, SendMessageHeader
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker, run_cluster


def send(
    topic: str = "T", body: bytes = b"hello", *, code: int = RequestCode.SEND_MESSAGE_V2, kind: int = 0,
    **fields: str,
) -> Command:  # fmt: skip
    header = SendMessageHeader(
        producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=7,
    )  # fmt: skip
    ext = header.to_ext() | fields
    if code == RequestCode.SEND_MESSAGE:
        names = {letter: name for name, letter in SEND_LETTERS.items()}
        ext = {names[letter]: value for letter, value in ext.items()}
    return Command(code, ext, body, kind=kind)


def inner(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties


@pytest.mark.trio
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("kind", [0, 1])
async def test_a_message_is_stored_as_sent_and_the_answer_says_where(tmp_path: Path, code: int, kind: int) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        for offset in range(3):
            command = send(code=code, kind=kind, **{"i": "KEYS\x01k\x02WAIT\x01true\x02TAGS\x01a"})
            answer = await channel.call(command)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert answer.kind == kind
            assert answer.ext is not None
            assert answer.ext["queueOffset"] == str(offset)
            assert answer.ext["MSG_REGION"] == "DefaultRegion"
            assert answer.ext["TRACE_ON"] == "true"
        record = broker.log.read_record(int(answer.ext["msgId"][16:], 16))
        assert (record.topic, record.body, record.queue_offset, record.flag) == ("T", b"hello", 2, 7)
        assert record.properties == b"KEYS\x01k\x02TAGS\x01a\x02CLUSTER\x01DefaultCluster"
        assert broker.log.durable == broker.log.end, "acknowledged means durable"


@pytest.mark.trio
@pytest.mark.parametrize(
    ("asks_for", "kept"),
    [
        ("DELAY\x013", True),
        ("TIMER_DELAY_SEC\x019", True),
        ("DELAY\x010", False),
        ("DELAY\x0100", False),
        ("DELAY\x01-1", False),
        ("TIMER_DELIVER_MS\x019", False),
        ("TIMER_DELAY_SEC\x019\x02TIMER_OUT_MS\x015", False),
    ],
)
async def test_wait_stays_on_what_waits_elsewhere_first_as_in_rocketmq(
    tmp_path: Path, asks_for: str, kept: bool
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        answer = await channel.call(send(**{"i": f"WAIT\x01true\x02{asks_for}"}))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext is not None
        record = broker.log.read_record(int(answer.ext["msgId"][16:], 16))
        assert (b"WAIT\x01true" in record.properties) is kept


@pytest.mark.trio
async def test_a_batch_becomes_records_of_their_own_with_consecutive_offsets(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        body = inner(b"one", b"TAGS\x01a") + inner(b"two")
        answer = await channel.call(send(body=body, code=RequestCode.SEND_BATCH_MESSAGE, m="true"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext is not None
        ids = answer.ext["msgId"].split(",")
        records = [broker.log.read_record(int(message_id[16:], 16)) for message_id in ids]
        assert [(record.body, record.queue_offset) for record in records] == [(b"one", 0), (b"two", 1)]
        assert records[0].properties == b"TAGS\x01a\x02CLUSTER\x01DefaultCluster"


@pytest.mark.trio
async def test_a_batch_to_a_retry_topic_is_stored_as_in_rocketmq_4(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        assert broker.registry.get(GroupTable).find("G") is not None
        answer = await channel.call(send("%RETRY%G", body=inner(b"one") + inner(b"two"), m="true"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert broker.queues.get("%RETRY%G", 0).max_offset == 2


REFUSED = [
    (send("../x"), ResponseCode.SYSTEM_ERROR, "illegal"),
    (send("a\x00b"), ResponseCode.SYSTEM_ERROR, "illegal"),
    (send("t" * 128), ResponseCode.SYSTEM_ERROR, "max length"),
    (send(""), ResponseCode.SYSTEM_ERROR, "blank"),
    (send("SCHEDULE_TOPIC_XXXX"), ResponseCode.NO_PERMISSION, "forbidden"),
    (send("RMQ_SYS_TRANS_HALF_TOPIC"), ResponseCode.NO_PERMISSION, "forbidden"),
    (send("New", c="NoSuchDefault"), ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    (send("T", e="4"), ResponseCode.SYSTEM_ERROR, "illegal"),
    (send("T", e="2147483648"), ResponseCode.SYSTEM_ERROR, "queueId|`e`|<= 2147483647"),
    (send("T", e="zero"), ResponseCode.SYSTEM_ERROR, "int"),
    (send("T", i="K\x01" + "v" * 32767), ResponseCode.MESSAGE_ILLEGAL, "32k"),
    (send("T", i="K\x01" + "v" * 98_703), ResponseCode.MESSAGE_ILLEGAL, "32k"),
    (send("t" * 98_705), ResponseCode.SYSTEM_ERROR, "max length"),
    (send("T", c="x" * 98_705, i="K\x01" + "v" * 98_703, a="g" * 98_705), ResponseCode.MESSAGE_ILLEGAL, "32k"),
    (send("T", b"x" * 65537), ResponseCode.MESSAGE_ILLEGAL, "size exceeded"),
    (send("T", i="TRAN_MSG\x01true"), ResponseCode.MESSAGE_ILLEGAL, "producer group"),
    (send("T", b"", m="true"), ResponseCode.MESSAGE_ILLEGAL, "empty"),
    (send("T", b"\0\0\0\0", m="true"), ResponseCode.MESSAGE_ILLEGAL, "inside"),
    (send("T", inner(b"x")[:-1], m="true"), ResponseCode.MESSAGE_ILLEGAL, "inside|add up"),
    (send("T", inner(b"x", b"DELAY\x013"), m="true"), ResponseCode.MESSAGE_ILLEGAL, "delayed"),
    *[
        (send("T", inner(b"x"), m="true", f=bits), ResponseCode.MESSAGE_ILLEGAL, "transaction")
        for bits in ("4", "8", "12")
    ],
    (send("T", inner(b"x") + inner(b"y", b"K\x01a\0b"), m="true"), ResponseCode.MESSAGE_ILLEGAL, "zero byte"),
    (send("T", inner(b"x") + inner(b"y"), m="true", i="K\x01\0"), ResponseCode.MESSAGE_ILLEGAL, "zero byte"),
    (Command(RequestCode.SEND_MESSAGE_V2), ResponseCode.SYSTEM_ERROR, "missing"),
    (Command(9999), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 9999 not supported"),
]


@pytest.mark.trio
async def test_invalid_messages_are_refused_with_an_error_and_not_stored(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, store__max_message_bytes="64 KiB") as (broker, channel):
        assert (await channel.call(send())).code == ResponseCode.SUCCESS
        end = broker.log.end
        for command, code, remark in REFUSED:
            answer = await channel.call(command)
            assert answer.code == code, (command.ext, answer)
            assert re.search(remark, answer.remark or ""), (command.ext, answer.remark)
        assert broker.log.end == end
        assert (await channel.call(send())).code == ResponseCode.SUCCESS, "the connection lives on"


@pytest.mark.trio
async def test_a_message_that_is_too_large_is_logged_once_for_each_topic(tmp_path: Path) -> None:
    too_long = "K\x01" + "v" * 32767
    async with broker_and_channel(tmp_path, store__max_message_bytes="64 KiB") as (_, channel):
        with capture_logs() as logs:
            for command in (
                send("T", i=too_long), send("T", i=too_long), send("T", b"x" * 65537), send("U", b"x" * 65537),
                send("V", inner(b"x"), m="true", i=too_long),
            ):  # fmt: skip
                assert (await channel.call(command)).code == ResponseCode.MESSAGE_ILLEGAL
    logged = [each for each in logs if each["event"] == "message_too_large"]
    assert [(each["topic"], each["reason"][:25]) for each in logged] == [
        ("T", "the message is illegal, m"), ("U", "message body size exceede"), ("V", "the message is illegal, m"),
    ]  # fmt: skip


class RefusesSeven:
    """Refuses messages with the body ``7``, as a plugin that checks each message does."""

    name = "refuses_seven"

    @hookimpl
    def before_append(self, batch: AppendBatch) -> None:
        for row in batch.live:
            if batch.bodies[row] == b"7":
                batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, "no sevens")


@pytest.mark.trio
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_no_message_of_a_batch_is_stored_if_a_plugin_refuses_one(tmp_path: Path, place: int) -> None:
    bodies = [b"1", b"2", b"3"]
    bodies[place] = b"7"
    made = make_broker(tmp_path, enable=[RefusesSeven()])
    async with run_broker(made) as broker, open_channel(broker.address) as channel:
        assert (await channel.call(send())).code == ResponseCode.SUCCESS
        end = broker.log.end
        answer = await channel.call(send(body=b"".join(map(inner, bodies)), m="true"))
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "no sevens")
        assert broker.log.end == end
        answer = await channel.call(send(body=inner(b"1") + inner(b"2"), m="true"))
        assert answer.code == ResponseCode.SUCCESS
        assert (answer.ext or {})["queueOffset"] == "1"


@pytest.mark.trio
async def test_no_message_of_a_batch_is_stored_if_one_is_larger_than_a_file_of_the_log(tmp_path: Path) -> None:
    files = {"store__commit_log_file_bytes": "64 KiB", "store__max_message_bytes": "4 MiB"}
    async with broker_and_channel(tmp_path, **files) as (broker, channel):
        answer = await channel.call(send(body=inner(b"small") + inner(b"other"), m="true"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        most = 65536 - 8 - (int.from_bytes(broker.log.view(0, 4), "big") - len(b"small"))
        end = broker.log.end
        answer = await channel.call(send(body=inner(b"small") + inner(b"x" * (most + 1)), m="true"))
        assert (answer.code, answer.remark) == (
            ResponseCode.MESSAGE_ILLEGAL, "the message is larger than a file of the log",
        )  # fmt: skip
        assert broker.log.end == end
        answer = await channel.call(send(body=inner(b"small") + inner(b"x" * most), m="true"))
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.trio
async def test_concurrent_sends_are_stored_once_if_a_plugin_refuses_one_of_them(tmp_path: Path) -> None:
    refused = []
    async with (
        run_cluster(tmp_path, enable=[RefusesSeven()]) as cluster,
        gantrymq.connect(cluster.nameserver) as client,
        client.producer() as producer,
    ):

        async def send_number(number: int) -> None:
            try:
                await producer.send("T", b"%d" % number)
            except gantrymq.BrokerError:
                refused.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send_number, number)
        assert refused == [7]
        assert sum(queue.max_offset for queue in cluster.broker.queues if queue.topic == "T") == 19


@pytest.mark.trio
async def test_a_delayed_message_is_refused_without_a_plugin_for_delays(tmp_path: Path) -> None:
    async with (
        run_broker(make_broker(tmp_path, disable=["delay"])) as broker,
        open_channel(broker.address) as channel,
    ):
        answer = await channel.call(send("T", i="DELAY\x013"))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "takes no delayed messages" in (answer.remark or "")
        assert broker.log.end == 0


@pytest.mark.trio
async def test_a_negative_queue_means_any(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        answers = [await channel.call(send(e="-1")) for _ in range(64)]
        queues = {int((answer.ext or {})["queueId"]) for answer in answers}
        assert queues == {0, 1, 2, 3}


@pytest.mark.trio
async def test_a_bad_row_harms_no_other_row_of_its_sweep(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        answers: dict[int, Command] = {}

        async def call(number: int) -> None:
            answers[number] = await channel.call(send("../x" if number % 3 == 0 else "T", str(number).encode()))

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(call, number)
        for number, answer in answers.items():
            if number % 3 == 0:
                assert answer.code == ResponseCode.SYSTEM_ERROR
            else:
                offset = int((answer.ext or {})["msgId"][16:], 16)
                data = broker.log.view(offset, int.from_bytes(broker.log.view(offset, 4), "big"))
                assert decode_record(data)[0].body == str(number).encode()


@pytest.mark.trio
async def test_a_batch_of_which_only_a_part_fits_on_the_disk_is_not_answered_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a slave, the stored messages have the status SLAVE_NOT_AVAILABLE, which senders take for stored."""
    ensure = Segments.ensure

    def full(segments: Segments, at: int) -> Segment:
        if segments.folder.endswith("commitlog") and at >= segments.file_bytes:
            raise NoRoom(segments.folder, OSError(errno.ENOSPC, "No space left on device"))
        return ensure(segments, at)

    monkeypatch.setattr(Segments, "ensure", full)
    settings = {"store.commit_log_file_bytes": "64 KiB", "plugin.ha.role": "sync_master"}
    broker = make_broker(tmp_path, settings=settings, enable=["ha"], disable=["retention"])
    async with run_broker(broker), open_channel(broker.listening) as channel:
        one = await channel.call(send())
        assert one.code == ResponseCode.SLAVE_NOT_AVAILABLE
        answer = await channel.call(
            send(body=inner(b"x" * 1000) * 100, code=RequestCode.SEND_BATCH_MESSAGE, m="true"), 30
        )
        assert 0 < broker.log.end < 65536, "a part is stored"
        assert (answer.code, "msgId" in (answer.ext or {})) == (ResponseCode.SERVICE_NOT_AVAILABLE, False)
