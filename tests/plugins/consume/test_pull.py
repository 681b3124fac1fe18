"""Pull requests against a whole broker: found messages, next offsets, and held pulls."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio

from gantrymq.kernel.filters import MessageFilter
from gantrymq.plugins.consume import subscriptions
from gantrymq.plugins.interfaces import GroupTable, TopicTable
from gantrymq.remoting import rare_warnings
from gantrymq.remoting.bodies.clients import CheckClientConfig, ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig
from gantrymq.remoting.bodies.topics import TopicConfig
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.pull import PullMessageHeader
from gantrymq.remoting.headers.send import SendMessageHeader
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import broker_and_channel, make_broker, run_broker

INLINE, SUSPEND, COMMIT = 4, 2, 1


async def send(
    channel: Channel, count: int, *, tag: str = "", body: bytes = b"m", topic: str = "T", properties: str = ""
) -> None:
    for number in range(count):
        header = SendMessageHeader(
            producer_group="g", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties=f"TAGS\x01{tag}" if tag else properties,
        )  # fmt: skip
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body + str(number).encode())
        assert (await channel.call(command)).code == 0


def pull(
    offset: int, *, limit: int = 32, sys_flag: int = INLINE, tags: str = "*", wait_ms: int = 0, topic: str = "T",
    queue: int = 0, group: str = "cg", kind: str | None = "TAG", commit: int = 0, sub_version: int = 0,
    max_bytes: int | None = None,
) -> Command:  # fmt: skip
    header = PullMessageHeader(
        consumer_group=group, topic=topic, queue_id=queue, queue_offset=offset, max_msg_nums=limit, sys_flag=sys_flag,
        commit_offset=commit, suspend_timeout_millis=wait_ms, subscription=tags, sub_version=sub_version,
        expression_type=kind, gantrymq_max_bytes=max_bytes,
    )  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, header.to_ext())


def bounds(answer: Command) -> tuple[int, int, int]:
    ext = answer.ext or {}
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


@pytest.mark.trio
async def test_a_queue_is_read_in_order_in_batches_of_the_requested_size(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 5)
        answer = await channel.call(pull(0, limit=3))
        assert (answer.code, answer.remark, bounds(answer)) == (0, "FOUND", (3, 0, 5))
        assert bodies(answer) == [b"m0", b"m1", b"m2"]
        assert bodies(await channel.call(pull(3))) == [b"m3", b"m4"]


@pytest.mark.trio
async def test_a_pull_gets_one_record_of_any_size(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, plugin__consume__memory_bytes="1 KiB") as (_, channel):
        await send(channel, 2, body=b"x" * 5000)
        answer = await channel.call(pull(0))
        assert len(bodies(answer)) == 1
        assert bounds(answer)[0] == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_offsets_out_of_range_return_the_offset_to_continue_from(
    tmp_path: Path, offset: int, code: int, remark: str, next_offset: int
) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 3)
        answer = await channel.call(pull(offset))
        assert (answer.code, answer.remark, bounds(answer)) == (code, remark, (next_offset, 0, 3))


@pytest.mark.trio
async def test_a_moved_offset_is_logged_once_an_hour_for_a_groups_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 3)
        for command in (pull(3), pull(10), pull(11), pull(7, queue=1)):
            await channel.call(command)
    first, second = (line for line in capsys.readouterr().out.splitlines() if "offset_moved" in line)
    for part in ("warning", "asked=10", "group=cg", "next=3", "queue_id=0", "status=OFFSET_OVERFLOW_BADLY", "topic=T"):
        assert part in first
    for part in ("asked=7", "next=0", "queue_id=1"):
        assert part in second


@pytest.mark.trio
async def test_a_queue_without_messages_starts_at_zero(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        answer = await channel.call(pull(0, queue=1))
        assert (answer.code, bounds(answer)) == (ResponseCode.PULL_NOT_FOUND, (0, 0, 0))
        answer = await channel.call(pull(7, queue=1))
        assert (answer.code, bounds(answer)) == (ResponseCode.PULL_OFFSET_MOVED, (0, 0, 0))


@pytest.mark.trio
async def test_a_pull_finds_a_tag_behind_many_messages_that_do_not_match(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path, plugin__consume__scan_entries="64") as (_, channel):
        await send(channel, 40, tag="A")
        await send(channel, 1, tag="B")
        answer = await channel.call(pull(0, tags="B || C"))
        assert (bodies(answer), bounds(answer)[0]) == ([b"m0"], 41)
        answer = await channel.call(pull(0, tags="C"))
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert bounds(answer)[0] == 41


@pytest.mark.trio
async def test_a_held_pull_is_answered_only_by_a_matching_message(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel), trio.open_nursery() as nursery:
        await send(channel, 1, tag="A")
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await channel.call(pull(1, tags="B", sys_flag=INLINE | SUSPEND, wait_ms=60_000), 30.0))

        nursery.start_soon(wait)
        await send(channel, 1, tag="A", topic="Other")
        await send(channel, 1, tag="A")
        assert answers == []
        await send(channel, 1, tag="B")
        with trio.fail_after(30):
            while not answers:
                await trio.lowlevel.checkpoint()
        assert bodies(answers[0]) == [b"m0"]
        assert bounds(answers[0])[0] == 3


@pytest.mark.trio
async def test_a_pull_whose_time_is_up_is_answered_not_found(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        answer = await channel.call(pull(1, sys_flag=INLINE | SUSPEND, wait_ms=50), 5.0)
        assert (answer.code, bounds(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))


@pytest.mark.trio
async def test_a_stopping_broker_answers_the_pulls_it_holds(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel), trio.open_nursery() as nursery:
        await send(channel, 1)
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await channel.call(pull(1, sys_flag=INLINE | SUSPEND, wait_ms=60_000), 10.0))

        nursery.start_soon(wait)
        assert (await channel.call(pull(0))).code == 0
        broker.stop()
    assert [answer.code for answer in answers] == [ResponseCode.PULL_NOT_FOUND]


@pytest.mark.trio
async def test_without_a_holder_nothing_waits(tmp_path: Path) -> None:
    broker = make_broker(tmp_path / "store", disable=["longpoll"])
    async with run_broker(broker), open_channel(broker.address) as channel:
        await send(channel, 1)
        answer = await channel.call(pull(1, sys_flag=INLINE | SUSPEND, wait_ms=60_000), 5.0)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.trio
async def test_the_offset_that_rides_on_a_pull_is_committed(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 5)
        await channel.call(pull(4, sys_flag=INLINE | COMMIT, commit=3))
        query = Command(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "cg", "topic": "T", "queueId": "0"})
        assert (await channel.call(query)).ext == {"offset": "3"}


@pytest.mark.trio
async def test_without_an_inline_subscription_the_groups_heartbeat_counts(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1, tag="A")
        await send(channel, 1, tag="B", body=b"n")
        assert (await channel.call(pull(0, sys_flag=0))).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        subscription = SubscriptionData.for_tags("T", "B", 5)
        consumer = ConsumerData(group_name="cg", subscription_data_set=[subscription])
        beat = HeartbeatData(client_id="me", consumer_data_set=[consumer])
        assert (await channel.call(Command(RequestCode.HEART_BEAT, body=beat.to_bytes()))).code == 0
        assert bodies(await channel.call(pull(0, sys_flag=0, sub_version=5))) == [b"n0"]
        answer = await channel.call(pull(0, sys_flag=0, sub_version=6))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def subscribe(channel: Channel, expression: str, kind: str, version: int) -> None:
    """A heartbeat that subscribes the group to ``T``."""
    subscription = SubscriptionData(topic="T", sub_string=expression, expression_type=kind, sub_version=version)
    if kind == "TAG":
        subscription = SubscriptionData.for_tags("T", expression, version)
    beat = HeartbeatData("me", [], [ConsumerData("cg", subscription_data_set=[subscription])])
    assert (await channel.call(Command(RequestCode.HEART_BEAT, body=beat.to_bytes()))).code == 0


@pytest.mark.trio
@pytest.mark.parametrize(
    ("kind", "before", "after", "properties"),
    [("SQL92", "a = 1", "a = 2", "a\x012"), ("TAG", "A", "B", "TAGS\x01B")],
    ids=["the message wakes it", "its time is up"],
)
async def test_a_held_pull_skips_no_message_that_the_groups_new_subscription_wants(
    tmp_path: Path, kind: str, before: str, after: str, properties: str
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        held = next(info.plugin for info in broker.manager.plugins if info.name == "longpoll")._held
        await send(channel, 1)
        await subscribe(channel, before, kind, 1)
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await channel.call(pull(1, sys_flag=SUSPEND, sub_version=1, wait_ms=20_000), 30.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await channel.call(pull(0))  # it is sent behind the other, and answered behind it
            assert len(held) == 1
            await subscribe(channel, after, kind, 2)
            await send(channel, 1, properties=properties)
            held.resume_expired(math.inf)
        (answer,) = answers
        assert (answer.code, bounds(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, (1, 0, 2))
        assert bodies(await channel.call(pull(1, sys_flag=0, sub_version=2))) == [b"m0"]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (SubscriptionGroupConfig("cg", consume_enable=False), ResponseCode.NO_PERMISSION),
        (TopicConfig("T", perm=2), ResponseCode.NO_PERMISSION),
        (TopicConfig("T", read_queue_nums=0), ResponseCode.SYSTEM_ERROR),
    ],
    ids=["the group is disabled", "the topic is write-only", "the queue is gone"],
)
async def test_a_held_pull_gets_no_message_that_its_group_may_not_read_any_more(
    tmp_path: Path, change: SubscriptionGroupConfig | TopicConfig, code: int
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await send(channel, 1)
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await channel.call(pull(1, sys_flag=INLINE | SUSPEND, wait_ms=20_000), 30.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await channel.call(pull(0))  # it is sent behind the other, and answered behind it
            if isinstance(change, TopicConfig):
                broker.registry.get(TopicTable).set(change)
            else:
                broker.registry.get(GroupTable).set(change)
            await send(channel, 1)
        assert [(answer.code, answer.body) for answer in answers] == [(code, b"")]


@pytest.mark.trio
async def test_a_held_pull_keeps_its_subscription_while_the_group_has_it(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel), trio.open_nursery() as nursery:
        await send(channel, 1)
        await subscribe(channel, "a = 1", "SQL92", 1)
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await channel.call(pull(1, sys_flag=SUSPEND, sub_version=1, wait_ms=20_000), 30.0))

        nursery.start_soon(wait)
        await channel.call(pull(0))
        await subscribe(channel, "a = 1", "SQL92", 2)
        await send(channel, 1, properties="a\x011")
        with trio.fail_after(30):
            while not answers:
                await trio.lowlevel.checkpoint()
        assert bodies(answers[0]) == [b"m0"]


REFUSED = [
    (pull(0, topic="Nowhere"), ResponseCode.TOPIC_NOT_EXIST),
    (pull(0, queue=4), ResponseCode.SYSTEM_ERROR),
    (pull(0, queue=-1), ResponseCode.SYSTEM_ERROR),
    (pull(0, group="../x"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (pull(0, tags="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (pull(0, tags="a > 1", kind="SQL93"), ResponseCode.SYSTEM_ERROR),
    (Command(RequestCode.PULL_MESSAGE), ResponseCode.SYSTEM_ERROR),
]


@pytest.mark.trio
async def test_invalid_pulls_are_refused_with_an_error(tmp_path: Path) -> None:
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        for command, code in REFUSED:
            answer = await channel.call(command)
            assert answer.code == code, (command.ext, answer)
            assert answer.remark
        assert (await channel.call(pull(0, limit=2**31 - 1))).code == 0
        assert bodies(await channel.call(pull(0, limit=-5))) == [b"m0"]


@pytest.mark.trio
async def test_an_expression_that_comes_with_each_pull_is_compiled_once_as_long_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_and_channel(tmp_path) as (broker, channel):
        await send(channel, 2)
        compiled: list[str] = []
        compiler = broker.filters["SQL92"]

        def compile_counted(expression: str) -> MessageFilter:
            compiled.append(expression)
            return compiler(expression)

        broker.filters["SQL92"] = compile_counted
        long, other = ("a IN (" + ",".join(f"'{word}{number}'" for number in range(500)) + ")" for word in "xy")
        for expression in (long, other, long, other):
            await channel.call(pull(0, tags=expression, kind="SQL92"))
        assert compiled == [long, other]
        monkeypatch.setattr(subscriptions, "CHARACTERS_KEPT", len(long) + 10)
        for expression in ("b = 1", long, long, other):
            await channel.call(pull(0, tags=expression, kind="SQL92"))
        assert compiled == [long, other, "b = 1", long, other], "the oldest made room each time"


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["TAG", "SQL92", "XPATH"])
async def test_a_refused_expression_is_logged_once_an_hour_for_a_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(rare_warnings, "KEYS_MAX", 2)
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        capsys.readouterr()
        expressions = ["a" * 70_000, "a >" if kind == "SQL92" else "||", "a" * 70_001]

        async def logged(*asked: tuple[str, str]) -> list[str]:
            for group, expression in asked:
                member = ConsumerData(
                    group,
                    message_model="CLUSTERING",
                    subscription_data_set=[
                        SubscriptionData(topic="T", sub_string=expression, expression_type=kind, sub_version=1)
                    ],
                )
                beat = HeartbeatData(client_id="client", consumer_data_set=[member]).to_bytes()
                assert (await channel.call(Command(RequestCode.HEART_BEAT, {}, beat))).code == 0
                answer = await channel.call(pull(0, sys_flag=0, group=group, sub_version=1))
                assert answer.code in (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR)
            return [line for line in capsys.readouterr().out.splitlines() if "subscription_refused" in line]

        (line,) = await logged(*(("g1", expression) for expression in expressions))
        for part in ("warning", "group=g1", "topic=T", f"expression_type={kind}", "characters=70000"):
            assert part in line
        assert len(line) < 1000
        assert len(await logged(("g2", expressions[0]), ("g2", expressions[0]))) == 1
        assert not await logged(("g1", expressions[0])), "g1 was logged"
        assert not await logged(("g3", expressions[0])), "there is no room to remember g3"
        monkeypatch.setattr(rare_warnings, "QUIET_S", 0.0)
        lines = "".join(await logged(("g3", expressions[0]), ("g1", expressions[0])))
        assert "group=g3" in lines
        assert "group=g1" in lines


@pytest.mark.trio
async def test_a_long_expression_type_is_neither_logged_nor_returned_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "X" * 60_000
    async with broker_and_channel(tmp_path) as (_, channel):
        await send(channel, 1)
        check = CheckClientConfig("c", "g", SubscriptionData("T", "a", expression_type=kind)).to_bytes()
        for command in (pull(0, kind=kind), Command(RequestCode.CHECK_CLIENT_CONFIG, body=check)):
            answer = await channel.call(command)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert len(answer.remark or "") < 300
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "subscription_refused" in line]
    assert len(line) < 1000


@pytest.mark.trio
async def test_pulls_with_expressions_of_their_own_are_not_held_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CHARACTERS_IN_USE", 2000)
    monkeypatch.setattr(subscriptions, "CHARACTERS_KEPT", 500)
    report, answered = trio.open_memory_channel[str](20)
    async with broker_and_channel(tmp_path) as (_, channel), trio.open_nursery() as nursery:
        await send(channel, 1)

        async def wait(name: str, offset: int, tags: str, kind: str = "TAG") -> None:
            command = pull(offset, tags=tags, kind=kind, sys_flag=INLINE | SUSPEND, wait_ms=20_000)
            assert (await channel.call(command, 30.0)).code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
            report.send_nowait(name)

        async def start(*arguments: str, offset: int = 1) -> None:
            nursery.start_soon(wait, arguments[0], offset, *arguments[1:])
            await channel.call(pull(0))  # it is sent behind the other, and answered behind it

        for number in range(4):
            await start(f"held {number}", "||".join(f"t{number}-{tag}" for tag in range(70)))
        long = "||".join(f"other{tag}" for tag in range(70))
        await start("at once", long)
        assert await answered.receive() == "at once"
        await start("at once by an expression", "a = 1" + " OR a = 2" * 20, "SQL92")
        assert await answered.receive() == "at once by an expression"
        await start("all", "*")
        await start("a tag", "A || B")
        with pytest.raises(trio.WouldBlock):
            answered.receive_nowait()
        for number in range(4):
            await send(channel, 1, tag=f"t{number}-7")
        await send(channel, 1, tag="A")
        with trio.fail_after(30):
            names = {await answered.receive() for _ in range(6)}
        assert names == {"all", "a tag", *(f"held {number}" for number in range(4))}
        await start("held again", long, offset=6)
        await channel.call(pull(0))
        with pytest.raises(trio.WouldBlock):
            answered.receive_nowait()
        nursery.cancel_scope.cancel()
