"""Access control in a running broker: signed and permitted requests work, others are refused and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.kernel.api import Broker
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.metrics import Metrics
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.remoting.bodies.queues import LockBatchRequestBody, MessageQueue
from gantrymq.remoting.channel import Channel, open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.send import SEND_LETTERS, SendMessageResponse
from gantrymq.remoting.headers.transactions import EndTransactionHeader
from gantrymq.remoting.message_ids import parse_offset_message_id
from gantrymq.remoting.recall_handles import encode_handle
from gantrymq.remoting.records import decode_records
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.accounts import ACCOUNTS, ACL, ADMIN, NOBODY, WORKER, MakeBroker

pytestmark = pytest.mark.trio

REFUSED = "org.apache.rocketmq.acl.common.AclException: "


async def ask(channel: Channel, command: Command, credentials: Credentials | None = WORKER) -> tuple[int, str | None]:
    answer = await channel.call(command if credentials is None else credentials.sign(command), 10.0)
    return answer.code, answer.remark


def refused(broker: Broker) -> dict[str, float]:
    metrics = Metrics(1000)
    for _, call in broker.manager.calls("collect_metrics", broker=broker, metrics=metrics):
        call()
    family = metrics.families["gantrymq_acl_refused_requests_total"]
    return {values[0]: value for values, value in family.series.items() if isinstance(value, int) and value}


def write(file: Path, text: str | None) -> None:
    """The file's new text, all at once; None deletes it."""
    if text is None:
        file.unlink()
    else:
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").replace(file)


def text_of(file: Path) -> str:
    return file.read_text()


def is_private(file: Path) -> bool:
    return not file.stat().st_mode & 0o77


def long_named(command: Command) -> Command:
    """The same as SEND_MESSAGE (10)."""
    names = {letter: name for name, letter in SEND_LETTERS.items()}
    ext = {names[letter]: value for letter, value in (command.ext or {}).items()}
    return Command(RequestCode.SEND_MESSAGE, ext, command.body)


async def test_an_account_has_the_rights_of_its_permissions_only(guarded: MakeBroker) -> None:
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        assert await ask(channel, send("T", b"one")) == (0, None)
        assert await ask(channel, long_named(send("T", b"two", properties="KEYS\x01é"))) == (0, None)
        assert await ask(channel, send("sent", b"three")) == (0, None)
        assert await ask(channel, send("sent", b"four"), ADMIN) == (0, None)
        answer = await channel.call(WORKER.sign(pull("T", group="g")), 10.0)
        assert [record.body for record in decode_records(answer.body)] == [b"one", b"two"]
        no = REFUSED + "No default permission for "
        assert await ask(channel, pull("sent", group="g")) == (1, no + "topic:sent")
        assert await ask(channel, pull("T", group="other")) == (1, no + "group:other")
        assert await ask(channel, send("read", b"x")) == (1, no + "topic:read")
        assert await ask(channel, send("%RETRY%other", b"x")) == (1, no + "group:other")
        assert await ask(channel, send("RMQ_SYS_TRACE_TOPIC", b"x"), NOBODY) == (0, None)
        assert {connection.identity for connection in broker.connections} == {"the-nobody"}
        assert refused(broker) == {"permission": 4}


REPLYING = """\
- accessKey: the-replier
  secretKey: replier-secret
  topicPerms: [DefaultCluster_REPLY_TOPIC=PUB]
"""
REPLIER = Credentials("the-replier", "replier-secret")


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_needs_the_reply_topic_whatever_topic_it_names(guarded: MakeBroker, code: RequestCode) -> None:
    pushed = []

    async def take(command: Command) -> Command:
        pushed.append(command)
        return command.answer(0)

    def reply(topic: str) -> Command:
        plain = send(topic, b"42", properties="REPLY_TO_CLIENT\x01asker")
        return Command(code, (plain if code == RequestCode.SEND_REPLY_MESSAGE_V2 else long_named(plain)).ext, b"42")

    producer = Command(RequestCode.HEART_BEAT, {}, HeartbeatData("asker", [ProducerData("askers")]).to_bytes())
    own = "DefaultCluster_REPLY_TOPIC"
    async with run_broker(guarded(ACCOUNTS + REPLYING)) as broker, open_channel(broker.address, take) as channel:
        assert await ask(channel, producer, ADMIN) == (0, None)
        no = (1, f"{REFUSED}No default permission for topic:")
        assert await ask(channel, reply("sent")) == (no[0], no[1] + own)
        assert await ask(channel, reply("sent"), REPLIER) == (no[0], no[1] + "sent")
        assert pushed == []
        assert await ask(channel, reply(own), REPLIER) == (0, None)
        assert [each.code for each in pushed] == [RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]


async def test_an_account_without_the_group_reads_its_offset_and_cannot_consume(guarded: MakeBroker) -> None:
    """A 4.9.7 client takes a refusal for "never committed": it would begin at the end and skip messages."""
    queue = {"consumerGroup": "other", "topic": "T", "queueId": "0"}
    query = Command(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    commit = Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": "1"})
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        for _ in range(2):
            assert await ask(channel, send("T", b"x")) == (0, None)
        assert await ask(channel, commit, ADMIN) == (0, None)
        answer = await channel.call(WORKER.sign(query), 10.0)
        assert (answer.code, answer.ext) == (0, {"offset": "1"})
        no = (1, REFUSED + "No default permission for group:other")
        assert await ask(channel, pull("T", group="other")) == no
        assert await ask(channel, commit) == no
        wrong = Credentials(WORKER.access_key, "guessed")
        assert (await ask(channel, query, wrong))[1] == REFUSED + "Check signature failed for accessKey=the-worker"
        assert (await ask(channel, query, None))[1] == REFUSED + "No accessKey is configured"


async def test_requests_without_the_right_key_are_refused_with_rocketmqs_texts(guarded: MakeBroker) -> None:
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        assert await ask(channel, send("T", b"x"), None) == (1, REFUSED + "No accessKey is configured")
        assert await ask(channel, send("T", b"x"), Credentials("stranger", "whatever")) == (
            1, REFUSED + "No acl config for stranger",
        )  # fmt: skip
        assert await ask(channel, send("T", b"x"), Credentials("the-worker", "guessed")) == (
            1, REFUSED + "Check signature failed for accessKey=the-worker",
        )  # fmt: skip
        assert await ask(channel, Command(RequestCode.UPDATE_AND_CREATE_TOPIC)) == (
            1, REFUSED + "Need admin permission for request code=17, but accessKey=the-worker is not",
        )  # fmt: skip
        assert broker.log.end == 0
        assert refused(broker) == {"no_key": 1, "unknown_key": 1, "signature": 1, "not_admin": 1}
        assert await ask(channel, Command(12345)) == (3, " request type 12345 not supported")


async def test_no_changed_byte_of_a_signed_request_passes(guarded: MakeBroker) -> None:
    signed = WORKER.sign(send("T", b"body", properties="KEYS\x01k"))
    assert signed.ext is not None
    altered = []
    for name, value in signed.ext.items():
        if name != "AccessKey":
            for at in range(len(value)):
                other = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
                altered.append(Command(signed.code, {**signed.ext, name: other}, signed.body))
        altered.append(Command(signed.code, {**signed.ext, name: value + "1"}, signed.body))
        altered.append(
            Command(signed.code, {each: signed.ext[each] for each in signed.ext if each != name}, signed.body)
        )
    altered += [Command(signed.code, signed.ext, body) for body in (b"", b"bodx", b"body\0", b"4body")]
    altered.append(Command(signed.code, {**signed.ext, "more": "x"}, signed.body))
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        for command in altered:
            code, remark = await ask(channel, command, None)
            assert code == 1, command.ext
            assert (remark or "").startswith(REFUSED), command.ext
        assert broker.log.end == 0
        assert sum(refused(broker).values()) == len(altered)
        replayed = Command(RequestCode.GET_MAX_OFFSET, signed.ext, signed.body)  # the code is not signed, in RocketMQ
        assert (await ask(channel, replayed, None))[0] == 1


async def test_a_request_that_was_read_can_be_sent_again_because_signatures_have_no_time(guarded: MakeBroker) -> None:
    """Signatures cover fields and body, as in RocketMQ, but neither the code nor a time; TLS hides requests."""
    async with run_broker(guarded()) as broker:
        read = ADMIN.sign(send("T", b"x"))
        for replayed in (read, read, Command(RequestCode.GET_BROKER_CONFIG, read.ext, read.body)):
            async with open_channel(broker.address) as stranger:
                assert await ask(stranger, replayed, None) == (0, None)
        assert refused(broker) == {}


async def test_a_signature_is_good_for_its_own_fields_only(guarded: MakeBroker) -> None:
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        signature = (WORKER.sign(send("T", b"x")).ext or {})["Signature"]
        for command in (send("T", b"y"), send("sent", b"x"), pull("T", group="g")):
            ext = {**(command.ext or {}), "AccessKey": "the-worker", "Signature": signature}
            assert (await ask(channel, Command(command.code, ext, command.body), None))[0] == 1
        assert broker.log.end == 0


def heartbeat(*groups: str, topics: tuple[str, ...] = (), producers: tuple[str, ...] = ()) -> Command:
    consumers = [
        ConsumerData(each, subscription_data_set=[SubscriptionData.for_tags(t) for t in topics]) for each in groups
    ]
    data = HeartbeatData("client", [ProducerData(each) for each in producers], consumers)
    return Command(RequestCode.HEART_BEAT, None, data.to_bytes())


def lock(topic: str) -> Command:
    body = LockBatchRequestBody("g", "c", {MessageQueue(topic, "b", 0)})
    return Command(RequestCode.LOCK_BATCH_MQ, None, body.to_bytes())


def recall(topic: str, handle: str) -> Command:
    return Command(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


@pytest.mark.parametrize(
    ("command", "credentials", "code"),
    [
        (heartbeat("g", topics=("T", "%RETRY%g")), WORKER, 0),
        (heartbeat("g", topics=("sent",)), WORKER, 1),
        (heartbeat("g", "other", topics=("T",)), WORKER, 1),
        (heartbeat(producers=("p",)), WORKER, 0),
        (heartbeat(producers=("p",)), NOBODY, 1),
        (heartbeat(), NOBODY, 1),
        (Command(RequestCode.HEART_BEAT, None, b"{"), WORKER, 1),
        (Command(RequestCode.HEART_BEAT, None, b'{"consumerDataSet":[' + b"{}," * 70_000 + b"{}]}"), WORKER, 1),
        (lock("T"), WORKER, 0),
        (lock("sent"), WORKER, 1),
        (Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}), WORKER, 0),
        (Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "other"}), WORKER, 1),
        (Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}), NOBODY, 1),
        (Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "other"}), WORKER, 1),
        (Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {}), WORKER, 1),
        (Command(RequestCode.GET_MAX_OFFSET, {"topic": "sent", "queueId": "0"}), WORKER, 0),
        (Command(RequestCode.GET_MAX_OFFSET, {"topic": "other", "queueId": "0"}), WORKER, 1),
        (recall("T", encode_handle("read", "b", 1, "k")), WORKER, 1),
        (recall("read", encode_handle("T", "b", 1, "k")), WORKER, 1),
        (recall("T", "nonsense"), WORKER, 1),
    ],
)  # fmt: skip
async def test_requests_that_name_topics_in_other_ways(
    guarded: MakeBroker, command: Command, credentials: Credentials, code: int
) -> None:
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        await ask(channel, send("T", b"x"))
        await ask(channel, send("sent", b"x"))
        found = await ask(channel, command, credentials)
        assert (found[0], REFUSED in (found[1] or "")) == (code, code != 0), found


async def test_a_log_offset_needs_rights_on_the_topic_of_its_message(guarded: MakeBroker) -> None:
    """This holds even if the request names another topic."""
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:

        async def stored(topic: str, properties: str = "") -> tuple[str, int]:
            command = send(topic, b"secret", properties=properties)
            answer = await channel.call(ADMIN.sign(command), 10.0)
            assert answer.code == 0, answer.remark
            header = msgspec.convert(answer.ext, SendMessageResponse, strict=False)
            return header.msg_id, header.queue_offset

        offsets = {
            topic: parse_offset_message_id((await stored(topic))[0].split(",")[0])[1] for topic in ("T", "other")
        }

        def back(offset: int) -> Command:
            ext = {"offset": str(offset), "group": "g", "delayLevel": "1", "originTopic": "T"}
            return Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext)

        def view(offset: int) -> Command:
            return Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": "T"})

        for make in (back, view):
            assert (await ask(channel, make(offsets["T"])))[0] == 0
            assert await ask(channel, make(offsets["other"])) == (1, REFUSED + "No default permission for topic:other")
            assert (await ask(channel, make(offsets["other"] + 1)))[0] == 1
            assert (await ask(channel, make(-1)))[0] == 1

        half = "TRAN_MSG\x01true\x02PGROUP\x01producers"
        for topic, code in (("T", 0), ("other", 1)):
            command = send(topic, b"half", properties=half)
            assert command.ext is not None
            command.ext["f"] = "4"
            answer = await channel.call(ADMIN.sign(command), 10.0)
            assert answer.code == 0, answer.remark
            place = msgspec.convert(answer.ext, SendMessageResponse, strict=False)
            end = EndTransactionHeader(
                producer_group="producers", tran_state_table_offset=place.queue_offset,
                commit_log_offset=parse_offset_message_id(place.msg_id)[1], commit_or_rollback=8,
                from_transaction_check=False, msg_id="x", transaction_id="x",
            )  # fmt: skip
            found = await ask(channel, Command(RequestCode.END_TRANSACTION, {**end.to_ext(), "topic": "T"}))
            assert found == ((0, None) if code == 0 else (1, REFUSED + "No default permission for topic:other"))


@pytest.mark.parametrize("properties", ["DELAY\x0118", "TIMER_DELAY_SEC\x013600", "TRAN_MSG\x01true\x02PGROUP\x01p"])
async def test_a_message_that_waits_in_a_topic_of_the_broker_needs_rights_on_the_topic_for_which_it_was_sent(
    guarded: MakeBroker, properties: str
) -> None:
    """This holds even for an account that may read the broker's topic by default."""
    reader = Credentials("the-reader", "reader-secret")
    account = "- {accessKey: the-reader, secretKey: reader-secret, defaultTopicPerm: SUB, defaultGroupPerm: SUB"
    async with run_broker(guarded(f"{ACCOUNTS}{account}, topicPerms: [other=DENY]}}\n")) as broker:
        async with open_channel(broker.address) as channel:
            for topic in ("T", "other"):
                command = send(topic, b"secret", properties=properties)
                assert command.ext is not None
                command.ext["f"] = "4" if "TRAN_MSG" in properties else "0"
                answer = await channel.call(ADMIN.sign(command), 10.0)
                assert answer.code == 0, answer.remark
                offset = parse_offset_message_id((answer.ext or {})["msgId"])[1]
                for code, ext in (
                    (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T"}),
                    (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "delayLevel": "1", "originTopic": "T"}),
                ):
                    found = await ask(channel, Command(code, {**ext, "offset": str(offset)}), reader)
                    denied = found == (1, REFUSED + "No default permission for topic:other")
                    assert denied is (topic == "other"), found


async def test_listed_addresses_need_no_key(guarded: MakeBroker) -> None:
    async with run_broker(guarded(ACCOUNTS + "globalWhiteRemoteAddresses: [127.0.0.*]\n")) as broker:
        async with open_channel(broker.address) as channel:
            assert await ask(channel, send("other", b"x"), None) == (0, None)
            assert [connection.identity for connection in broker.connections] == [None]


async def test_an_account_at_its_own_address_needs_no_signature(guarded: MakeBroker) -> None:
    text = ACCOUNTS.replace("defaultTopicPerm: DENY\n", "whiteRemoteAddress: 127.0.0.1\n", 1)
    async with run_broker(guarded(text)) as broker, open_channel(broker.address) as channel:
        command = send("other", b"x")
        ext = {**(command.ext or {}), "AccessKey": "the-worker"}
        assert await ask(channel, Command(command.code, ext, command.body), None) == (0, None)


async def eventually(condition: Callable[[], Any]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - what is awaited is a file that a thread reads
            await trio.sleep(0.02)


async def test_changes_of_the_file_come_into_force(guarded: MakeBroker, accounts_file: Path) -> None:
    with capture_logs() as logs:
        async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
            assert (await ask(channel, send("other", b"x")))[0] == 1
            write(accounts_file, ACCOUNTS.replace("T=PUB|SUB", "other=PUB"))
            await eventually(lambda: [each for each in logs if each["event"] == "acl_file_loaded"])
            assert (await ask(channel, send("other", b"x")))[0] == 0
            assert (await ask(channel, send("T", b"x")))[0] == 1
            write(accounts_file, "accounts: [{accessKey: x, secretKey: hush-hush}]")
            await eventually(lambda: [each for each in logs if each["event"] == "acl_file_refused"])
            write(accounts_file, None)
            await eventually(lambda: len([each for each in logs if each["event"] == "acl_file_refused"]) == 2)
            assert (await ask(channel, send("other", b"x")))[0] == 0, "the accounts of before stay in force"
    assert "hush" not in str(logs)
    assert "secret'" not in str(logs)


async def test_a_file_without_content_or_with_values_that_yaml_cannot_read_leaves_the_accounts_in_force(
    guarded: MakeBroker, accounts_file: Path
) -> None:
    """An editor or ``cp`` empties the file before it writes the new text."""

    def found(event: str) -> list[str]:
        return [each.get("reason", "") for each in logs if each["event"] == event]

    with capture_logs() as logs:
        async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
            for text in ("", "# hush-hush\n", "{}", "accounts: !!bool hush-hush", "accounts: !!timestamp hush-hush"):
                before = len(found("acl_file_refused"))
                write(accounts_file, text)
                await eventually(lambda: len(found("acl_file_refused")) > before)  # noqa: B023 - awaited in the loop
                assert (await ask(channel, send("T", b"x")))[0] == 0, text
            empty = "the file is empty: write `accounts: []` for no accounts"
            assert found("acl_file_refused") == [*[empty] * 3, *["it is not YAML"] * 2]
            write(accounts_file, "accounts: []")
            await eventually(lambda: found("acl_file_loaded"))
            assert (await ask(channel, send("T", b"x")))[0] == 1


@pytest.mark.parametrize("text", [None, "", "# nothing\n"])
async def test_administrators_do_not_replace_a_file_that_is_empty_or_gone_for_a_moment(
    guarded: MakeBroker, accounts_file: Path, text: str | None
) -> None:
    """The new file would have the one account only."""
    async with run_broker(guarded(plugin__acl__interval="1h")) as broker, open_channel(broker.address) as channel:
        write(accounts_file, text)
        newcomer = account(accessKey="newcomer", secretKey="newcomer-secret")
        code, remark = await ask(channel, newcomer, ADMIN)
        assert code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        assert "the file is empty or missing" in (remark or "")
        write(accounts_file, ACCOUNTS)
        assert await ask(channel, newcomer, ADMIN) == (0, None)
        assert await ask(channel, send("T", b"x")) == (0, None)


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("accounts: [{accessKey: x}]", {}, "cannot be null and length should longer than 6"),
        (ACCOUNTS, {"plugin__acl__file": "/nowhere/plain_acl.yml"}, "cannot be read: No such file"),
        (ACCOUNTS, {"plugin__acl__codes": "9001=root"}, "one of admin, send, read, topic, consume, group"),
    ],
)
async def test_a_broker_with_a_wrong_file_does_not_start(
    guarded: MakeBroker, text: str, settings: dict[str, str], reason: str
) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with run_broker(guarded(text, **settings)):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)


async def test_a_broker_with_accounts_may_listen_beyond_loopback(guarded: MakeBroker) -> None:
    async with run_broker(guarded(broker__listen="0.0.0.0:0")) as broker:
        assert broker.listening.startswith("0.0.0.0:")


# ------------------------------------------------------------------------------------------------- administrators


def account(**fields: str) -> Command:
    return Command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)


async def test_administrators_change_accounts(guarded: MakeBroker, accounts_file: Path) -> None:
    newcomer = Credentials("newcomer", "newcomer-secret")
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        create = account(
            accessKey="newcomer", secretKey="newcomer-secret", admin="false", defaultTopicPerm="DENY",
            defaultGroupPerm="SUB", topicPerms="T=PUB|SUB,sent=SUB",
        )  # fmt: skip
        assert await ask(channel, create, ADMIN) == (0, None)
        assert await ask(channel, send("T", b"x"), newcomer) == (0, None)
        assert (await ask(channel, send("sent", b"x"), newcomer))[0] == 1
        update = account(accessKey="newcomer", secretKey="newcomer-secret", topicPerms="sent=PUB")
        assert await ask(channel, update, ADMIN) == (0, None)
        assert await ask(channel, send("sent", b"x"), newcomer) == (0, None)
        assert (await ask(channel, send("T", b"x"), newcomer))[0] == 1

        answer = await channel.call(ADMIN.sign(Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)), 10.0)
        shown = fastjson.loads(answer.body.decode())
        assert [each["accessKey"] for each in shown["plainAccessConfigs"]] == [
            "the-admin", "the-worker", "the-nobody", "newcomer",
        ]  # fmt: skip
        assert shown["plainAccessConfigs"][3]["topicPerms"] == ["sent=PUB"]
        assert b"secret" not in answer.body.lower()
        answer = await channel.call(ADMIN.sign(Command(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)), 10.0)
        ext = answer.ext or {}
        assert fastjson.loads(ext["version"])["counter"] == 2
        assert fastjson.loads(ext["allAclFileVersion"])[str(accounts_file)]["counter"] == 2
        assert (ext["brokerName"], ext["clusterName"]) == (broker.name, broker.cluster)

        addresses = {"globalWhiteAddrs": "10.1.1.*,10.1.2.3", "aclFileFullPath": ""}
        assert await ask(channel, Command(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, addresses), ADMIN) == (0, None)
        assert await ask(channel, Command(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "newcomer"}), ADMIN) == (0, None)
        assert await ask(channel, send("sent", b"x"), newcomer) == (1, REFUSED + "No acl config for newcomer")
    text = text_of(accounts_file)
    assert "newcomer" not in text
    assert "- 10.1.1.*\n" in text
    assert is_private(accounts_file)
    async with run_broker(make_broker_again(accounts_file)) as broker, open_channel(broker.address) as channel:
        assert await ask(channel, send("T", b"x")) == (0, None)


async def test_an_account_that_another_broker_has_deleted_from_the_file_can_be_deleted_here_too(
    guarded: MakeBroker, accounts_file: Path
) -> None:
    delete = Command(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "the-worker"})
    broker = guarded(plugin__acl__interval="1h")
    async with run_broker(broker), open_channel(broker.address) as channel:
        entry = fastjson.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True}).decode()
        write(accounts_file, f"accounts: [{entry}]\n")
        assert await ask(channel, delete, ADMIN) == (0, None)
        assert await ask(channel, send("T", b"x")) == (1, f"{REFUSED}No acl config for {WORKER.access_key}")
        assert (await ask(channel, delete, ADMIN))[0] == ResponseCode.DELETE_ACL_CONFIG_FAILED


async def test_a_change_of_an_account_that_is_in_the_file_twice_replaces_both_entries(guarded: MakeBroker) -> None:
    again = "- {accessKey: the-worker, secretKey: other-secret, admin: true}\n"
    async with run_broker(guarded(ACCOUNTS + again)) as broker, open_channel(broker.address) as channel:
        assert await ask(channel, account(accessKey="the-worker", topicPerms="sent=PUB"), ADMIN) == (0, None)
        assert await ask(channel, send("sent", b"x")) == (0, None)
        assert (await ask(channel, send("T", b"x")))[0] == 1
        answer = await channel.call(ADMIN.sign(Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)), 10.0)
        shown = fastjson.loads(answer.body.decode())["plainAccessConfigs"]
        assert [each["accessKey"] for each in shown] == ["the-admin", "the-worker", "the-nobody"]


def make_broker_again(file: Path) -> Any:
    settings = {"plugin.acl.file": str(file)}
    return make_broker(file.parent / "store", settings=settings, enable=[ACL])


@pytest.mark.parametrize(
    ("command", "code", "remark"),
    [
        (account(accessKey="newcomer", secretKey="short"), 209, "secretKey=\\*\\*\\* cannot be null"),
        (account(accessKey="newcomer"), 209, "cannot be null"),
        (account(accessKey="newcomer", secretKey="hush-hush", topicPerms="a"), 209, "'Res=Perm'"),
        (account(accessKey="newcomer", secretKey="hush-hush", groupPerms="a=WRITE"), 209, "The expected permissions"),
        (account(accessKey="newcomer", secretKey="hush-hush", whiteRemoteAddress="here"), 209, "is not an address"),
        (Command(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "unknown"}), 210,
         r"The accesskey\[unknown\] corresponding to accessConfig has been deleted failed\."),
        (Command(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.1.1"}), 211, "not an address"),
        (Command(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
                 {"globalWhiteAddrs": "10.1.1.1", "aclFileFullPath": "/etc/passwd"}), 211, "has been updated failed"),
    ],
)  # fmt: skip
async def test_wrong_changes_of_accounts_change_nothing(
    guarded: MakeBroker, accounts_file: Path, command: Command, code: int, remark: str
) -> None:
    async with run_broker(guarded()) as broker, open_channel(broker.address) as channel:
        answer = await channel.call(ADMIN.sign(command), 10.0)
        assert answer.code == code
        with pytest.raises(ValueError, match=remark):
            raise ValueError(answer.remark)
        assert "hush" not in str(answer.remark)
        assert text_of(accounts_file) == ACCOUNTS
        assert ResponseCode(code).name.endswith("_CONFIG_FAILED")
