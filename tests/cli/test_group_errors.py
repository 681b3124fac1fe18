"""Commands distinguish a broker that refuses a request about a group from one that does not have the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import gantrymq.sync
from gantrymq import Message
from gantrymq.client.errors import AccessDenied, BrokerError, NoRoute
from gantrymq.client.groups import OffsetReset, group_lags, plan_reset, reset_offsets
from gantrymq.client.requests import check_success
from gantrymq.operations.clients import connected_clients
from gantrymq.operations.groups import group_members, member_report
from gantrymq.remoting.bodies.clients import ClientConnection, ConsumerConnections
from gantrymq.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.remoting.bodies.offsets import ConsumeStats, OffsetWrapper, ResetOffsets
from gantrymq.remoting.bodies.queues import MessageQueue
from gantrymq.remoting.bodies.routes import QueueData, TopicRouteData
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.testing.harness import cluster_in_thread
from support.accounts import ACCOUNTS, ACL, ADMIN, WORKER
from support.processes import wait_for

Cli = Callable[..., Any]
Answers = dict[tuple[str, RequestCode], Command]

MASTERS = {"broker-a": "a:1", "broker-b": "b:1"}
MEMBERS = Command(
    ResponseCode.SUCCESS, None,
    ConsumerConnections(connection_set=[ClientConnection(client_id="m", client_addr="h:1")]).to_bytes(),
)  # fmt: skip
STATS = Command(
    ResponseCode.SUCCESS, None, ConsumeStats({MessageQueue("T", "broker-a", 0): OffsetWrapper(9, 4)}).to_bytes()
)
NOBODY_ONLINE = Command(ResponseCode.CONSUMER_NOT_ONLINE, remark="the consumer group[g] not online")
DENIED = Command(
    ResponseCode.SYSTEM_ERROR, remark="org.apache.rocketmq.acl.common.AclException: No default permission for %RETRY%g"
)
BUSY = Command(ResponseCode.SYSTEM_BUSY, remark="the quota is used up")
FAILED = Command(ResponseCode.SYSTEM_ERROR, remark="java.lang.NullPointerException")
REFUSALS = [DENIED, Command(ResponseCode.NO_PERMISSION, remark="group g"), BUSY, FAILED]
STATS_OF_GROUP, CONNECTIONS = RequestCode.GET_CONSUME_STATS, RequestCode.GET_CONSUMER_CONNECTION_LIST
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


class FakeAdmin:
    """Answers by address and code; ``stored``: the offsets that were set, by broker."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.stored: dict[str, int] = {}
        self.asked: list[tuple[str, int]] = []
        self.asked_for_brokers = 0

    async def request(self, address: str, command: Command) -> Command:
        self.asked.append((address, command.code))
        answer = self.answers[address, RequestCode(command.code)]
        check_success(answer, address)
        return answer

    async def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.stored[queue.broker_name] = offset

    async def route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(queue_datas=[QueueData("broker-a", 1, 1, 6)])

    async def min_offset(self, queue: MessageQueue) -> int:
        return 1

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int:
        return 4

    async def cluster(self) -> Any:
        self.asked_for_brokers += 1
        table = {name: SimpleNamespace(cluster="c", broker_addrs={0: address}) for name, address in MASTERS.items()}
        return SimpleNamespace(broker_addr_table=table)


def client_of(answers: Answers) -> Any:
    return SimpleNamespace(admin=FakeAdmin(answers))


# ----------------------------------------------------------------------------------------------- lags and members


@pytest.mark.trio
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda answer: str(answer.remark))
async def test_a_refusal_of_one_broker_is_raised_and_not_taken_for_no_lag_or_no_members(refusal: Command) -> None:
    client = client_of({
        ("a:1", STATS_OF_GROUP): STATS, ("b:1", STATS_OF_GROUP): refusal,
        ("a:1", CONNECTIONS): NOBODY_ONLINE, ("b:1", CONNECTIONS): refusal,
    })  # fmt: skip
    with pytest.raises(BrokerError) as lags:
        await group_lags(client.admin, "g", masters=MASTERS)
    with pytest.raises(BrokerError) as members:
        await group_members(client, "g", masters=MASTERS)
    assert [lags.value.address, members.value.address] == ["b:1", "b:1"]
    assert isinstance(lags.value, AccessDenied) is (refusal is DENIED)


@pytest.mark.trio
@pytest.mark.parametrize(
    "absent",
    [
        NOBODY_ONLINE,
        Command(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="Group g does not exist"),
        Command(ResponseCode.TOPIC_NOT_EXIST, remark="topic[T] not exist"),
    ],
    ids=lambda answer: ResponseCode(answer.code).name,
)
async def test_a_broker_without_the_group_adds_nothing(absent: Command) -> None:
    client = client_of({
        ("a:1", STATS_OF_GROUP): STATS, ("b:1", STATS_OF_GROUP): absent,
        ("a:1", RequestCode.QUERY_CONSUME_TIME_SPAN): absent,
        ("a:1", CONNECTIONS): MEMBERS, ("b:1", CONNECTIONS): absent,
    })  # fmt: skip
    (lag,) = await group_lags(client.admin, "g", times=True, masters=MASTERS)
    assert (lag.lag, lag.behind_ms) == (5, None)
    (member,) = await group_members(client, "g", masters=MASTERS)
    assert member.client_id == "m"


@pytest.mark.trio
async def test_a_refused_list_of_members_fails_the_list_of_clients() -> None:
    table = SubscriptionGroupWrapper({"g": SubscriptionGroupConfig(group_name="g")})
    known = Command(ResponseCode.SUCCESS, None, table.to_bytes())
    client = client_of({
        (address, code): answer
        for address in MASTERS.values()
        for code, answer in ((RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, known), (CONNECTIONS, DENIED))
    })  # fmt: skip
    with pytest.raises(ExceptionGroup) as failed:
        await connected_clients(client)
    assert failed.group_contains(AccessDenied)


@pytest.mark.trio
@pytest.mark.parametrize(
    "answer",
    [
        DENIED,
        Command(ResponseCode.SYSTEM_ERROR, remark="The Consumer <g> <m> not online"),
        Command(ResponseCode.CONSUME_MSG_TIMEOUT, remark="consumer <g> <m> Timeout: "),
    ],
    ids=lambda answer: str(answer.remark),
)
async def test_a_member_of_which_the_broker_gives_no_report_has_none(answer: Command) -> None:
    client = client_of({("a:1", RequestCode.GET_CONSUMER_RUNNING_INFO): answer})
    assert await member_report(client, "a:1", "g", "m") is None


# ------------------------------------------------------------------------------------------------ reset of offsets

RESETS = [OffsetReset(MessageQueue("T", "broker-a", 0), 4, 0), OffsetReset(MessageQueue("T", "broker-b", 0), None, 0)]


def reset_to(*offsets: int) -> Command:
    """The answer of broker-a: the offsets that it has sent to the members, by queue."""
    table = {MessageQueue("T", "broker-a", queue_id): offset for queue_id, offset in enumerate(offsets)}
    return Command(ResponseCode.SUCCESS, body=ResetOffsets(table).to_bytes())


NEVER_COMMITTED = Command(ResponseCode.SYSTEM_ERROR, remark="THe consumer group <g> not exist")
DONE = reset_to(0)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("reset", "connections"),
    [
        (DENIED, NOBODY_ONLINE),
        (BUSY, NOBODY_ONLINE),
        (NEVER_COMMITTED, MEMBERS),
        (
            Command(ResponseCode.SYSTEM_ERROR, remark="the client does not support this feature."),
            MEMBERS,
        ),
        (NEVER_COMMITTED, DENIED),
    ],
)
async def test_a_refused_reset_is_raised_and_stores_no_offsets(reset: Command, connections: Command) -> None:
    client = client_of({("a:1", RESET): DONE, ("b:1", RESET): reset, ("b:1", CONNECTIONS): connections})
    with pytest.raises(BrokerError):
        await reset_offsets(client.admin, "g", RESETS, "first")
    assert client.admin.stored == {}


@pytest.mark.trio
@pytest.mark.parametrize("reset", [NOBODY_ONLINE, NEVER_COMMITTED])
async def test_offsets_are_stored_at_the_brokers_without_members(reset: Command) -> None:
    client = client_of({("a:1", RESET): DONE, ("b:1", RESET): reset, ("b:1", CONNECTIONS): NOBODY_ONLINE})
    assert await reset_offsets(client.admin, "g", RESETS, "first") == RESETS
    assert client.admin.stored == {"broker-b": 0}


@pytest.mark.trio
async def test_a_reset_returns_the_offsets_that_the_broker_has_set() -> None:
    planned = [*RESETS[:1], OffsetReset(MessageQueue("T", "broker-a", 1), 4, 0)]
    client = client_of({("a:1", RESET): reset_to(2)})
    assert await reset_offsets(client.admin, "g", planned, "first") == [
        OffsetReset(MessageQueue("T", "broker-a", 0), 4, 2)
    ]


@pytest.mark.trio
@pytest.mark.parametrize("topics", [[], ["T"]])
async def test_a_plan_of_a_reset_asks_for_the_brokers_once(topics: list[str]) -> None:
    client = client_of({("a:1", STATS_OF_GROUP): STATS, ("b:1", STATS_OF_GROUP): NOBODY_ONLINE})
    assert await plan_reset(client.admin, "g", topics, "first") == [OffsetReset(MessageQueue("T", "broker-a", 0), 4, 1)]
    assert client.admin.asked_for_brokers == 1


@pytest.mark.trio
async def test_a_reset_changes_nothing_if_a_broker_has_no_master() -> None:
    client = client_of({("a:1", RESET): DONE})
    with pytest.raises(NoRoute, match="broker-c has no master now"):
        await reset_offsets(
            client.admin, "g", [*RESETS[:1], OffsetReset(MessageQueue("T", "broker-c", 0), 1, 0)], "first"
        )
    assert client.admin.asked == []


# ------------------------------------------------------------------------------------------- with access control

LIMITED = """\
- {accessKey: the-limited, secretKey: limited-secret, admin: true, defaultGroupPerm: DENY, groupPerms: [other=SUB]}
"""


@pytest.fixture
def secured(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The nameserver's address of a broker with accounts; group g has consumed 4 messages of topic T."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS + LIMITED)
    settings = {"plugin.acl.file": str(tmp_path / "plain_acl.yml")}
    with cluster_in_thread(tmp_path / "store", settings=settings, enable=[ACL]) as cluster:
        monkeypatch.setenv("GANTRYMQ_NAMESERVER", cluster.nameserver)
        with connected(cluster.nameserver, ADMIN) as client:
            client.admin.create_topic("T", 1)
            with client.producer() as producer:
                for number in range(4):
                    producer.send(Message("T", b"%d" % number))
        with connected(cluster.nameserver, WORKER) as client, client.consumer("T", "g", start="first") as consumer:
            for _, message in zip(range(4), consumer, strict=False):
                message.ack()
        yield cluster.nameserver


def connected(nameserver: str, account: Any) -> Any:
    return gantrymq.sync.connect(nameserver, access_key=account.access_key, secret_key=account.secret_key)


def use(monkeypatch: pytest.MonkeyPatch, access_key: str, secret_key: str) -> None:
    monkeypatch.setenv("GANTRYMQ_ACCESS_KEY", access_key)
    monkeypatch.setenv("GANTRYMQ_SECRET_KEY", secret_key)


def committed(nameserver: str) -> int | None:
    with connected(nameserver, ADMIN) as client:
        (queue,) = client.admin.queues("T")
        offset: int | None = client.admin.consumer_offset("g", queue)
        return offset


def test_a_group_whose_members_are_not_shown_is_deleted_only_with_force(
    cli: Cli, secured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "the-limited", "limited-secret")
    with connected(secured, WORKER) as client, client.consumer("T", "g"):
        refused = cli("group", "delete", "g", "--yes")
        assert (refused.code, "No default permission for group:g" in refused.err) == (1, True), refused.err
        lag = cli("group", "lag", "g")
        assert (lag.code, "No default permission for group:g" in lag.err) == (1, True), lag.err
    assert committed(secured) == 4
    assert cli("group", "delete", "g", "--yes", "--force").code == 0
    assert committed(secured) is None


def test_an_account_that_may_not_reset_members_changes_no_offset(
    cli: Cli, secured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, WORKER.access_key, WORKER.secret_key)
    for online in (False, True):
        if online:
            with connected(secured, WORKER) as client, client.consumer("T", "g"):
                wait_for(lambda: "1 member" in cli("group", "describe", "g").out)
                done = cli("group", "reset-offsets", "g", "--to", "first")
        else:
            done = cli("group", "reset-offsets", "g", "--to", "first")
        assert (done.code, "the-worker" in done.err) == (1, True), done.err
        assert committed(secured) == 4
