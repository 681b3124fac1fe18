"""RocketMQ's dashboard (``apache/rocketmq-dashboard``) with our nameserver and broker, and with those of 5.3.3.

No registry has it, so that the tests need its source: ``GANTRYMQ_ROCKETMQ_DASHBOARD_SOURCE`` names the folder
(``git clone https://github.com/apache/rocketmq-dashboard``), where Maven builds it once, without its web pages. The
tests ask what those pages ask, and compare the answers by their fields. It does not work with brokers of 4.9.7, whose
topics it cannot read (code 351).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import gantrymq.sync
from support.clients import ForeignClient
from support.foreign import Java, ToolMissing, start_broker, start_nameserver
from support.processes import wait_for
from support.rocketmq_dashboard import SOURCE, Answer, JavaDashboard, find_jar, run_dashboard, shape

pytestmark = [
    pytest.mark.needs_variable(SOURCE),
    pytest.mark.interop,
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

Homes = Callable[[str], Path]
CLUSTER = "DefaultCluster"
HOUR_MS = 3_600_000
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
ON_PURPOSE = {
    # Runtime info (28): 5.3.3's request queues and timers, which 4.9 does not have, and our own fields.
    "cluster": {"brokerServer"},
    "broker config": {""},
    # RocketMQ 5 stores these properties, or sends this field; 4.9 does not, and we do as 4.9.
    "send": {"transactionId"},
    "by id": {"properties", "messageTrackList"},
    "by key": {"properties"},
    "by time": {"properties"},
    "a page": {"properties"},
    "traced message": {"properties"},
    "dead letters": {"properties"},
    # 5.3.3 answers with the topic where it should say which groups consume it, so that their state is unknown.
    "groups of a topic": {""},
}
"""Fields in which the answers differ, by question; ``""``: the answer as a whole."""


@attrs.frozen
class Site:
    """A cluster and its dashboard."""

    dashboard: JavaDashboard
    nameserver: str
    broker: str
    name: str


@pytest.fixture(scope="module")
def jar() -> Path:
    try:
        return find_jar()
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def own_site(jar: Path, java5: Java, homes: Homes, gantry: Any) -> Iterator[Site]:
    with run_dashboard(jar, java5.java, homes("own-dashboard"), gantry.nameserver) as dashboard:
        yield Site(dashboard, gantry.nameserver, gantry.broker, "broker-a")


@pytest.fixture(scope="module")
def java_site(jar: Path, java5: Java, homes: Homes) -> Iterator[Site]:
    nameserver = start_nameserver(java5, homes("nameserver"))
    # without timers 5.3.3 cannot delete a topic
    broker = start_broker(java5, homes("broker"), nameserver.address, timerWheelEnable="true")
    try:
        with run_dashboard(jar, java5.java, homes("java-dashboard"), nameserver.address) as dashboard:
            yield Site(dashboard, nameserver.address, broker.address, "java-broker")
    finally:
        broker.discard()
        nameserver.discard()


def ask_as_the_pages_do(site: Site, client: ForeignClient, name: str) -> dict[str, Answer]:
    """The answers by question, in the order of somebody who works with a new topic and a new group."""
    ask, answers = site.dashboard, dict[str, Answer]()
    topic, group = f"{name}-t", f"{name}-g"
    here: dict[str, Any] = {"clusterNameList": [CLUSTER], "brokerNameList": [site.name]}

    def keep(question: str, answer: Answer) -> Any:
        assert answer.status == 0, f"{question}: {answer.error}"
        answers[question] = answer
        return answer.data

    keep("cluster", ask.get("/cluster/list.query"))
    keep("broker config", ask.get("/cluster/brokerConfig.query", brokerAddr=site.broker))
    settings = {**here, "topicName": topic, "writeQueueNums": 2, "readQueueNums": 2, "perm": 6, "order": False}
    assert keep("create", ask.post("/topic/createOrUpdate.do", {**settings, "messageType": "NORMAL"})) is True
    wait_for(lambda: ask.get("/topic/route.query", topic=topic).status == 0)
    assert topic in keep("topics", ask.get("/topic/list.query", skipSysProcess=True, skipRetryAndDlq=True))["topicList"]
    types = keep("topic types", ask.get("/topic/list.queryTopicType"))
    assert types["messageTypeList"][types["topicNameList"].index(topic)] == "NORMAL"
    keep("topic stats", ask.get("/topic/stats.query", topic=topic))
    keep("route", ask.get("/topic/route.query", topic=topic))
    (found,) = keep("topic config", ask.get("/topic/examineTopicConfig.query", topic=topic, brokerName=site.name))
    assert (found["writeQueueNums"], found["perm"], found["messageType"]) == (2, 6, "NORMAL")
    message = {"topic": topic, "key": "k-1", "tag": "a", "messageBody": "hello", "traceEnabled": True}
    sent = keep("send", ask.post("/topic/sendTopicMessage.do", message))
    assert sent["sendStatus"] == "SEND_OK"
    of_message = {"topic": topic, "msgId": sent["msgId"]}

    config = {"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 5, "brokerId": 0}
    keep("create group", ask.post("/consumer/createOrUpdate.do", {**here, "subscriptionGroupConfig": config}))
    (found,) = keep("group config", ask.get("/consumer/examineSubscriptionGroupConfig.query", consumerGroup=group))
    assert found["subscriptionGroupConfig"]["retryMaxTimes"] == 5
    assert keep("brokers of a group", ask.get("/consumer/fetchBrokerNameList.query", consumerGroup=group)) == [
        site.name
    ]
    options = (f"namesrv={site.nameserver}", f"topic={topic}", "count=6", "seed=1", "hold=true")
    with (
        client.consumer(site.nameserver, topic, group, trace="true") as consumer,
        client.run("produce", *options) as producer,
    ):
        consumer.wait(7)
        producer.wait_event("held")
        of_group = {"consumerGroup": group, "address": site.broker}
        # a push consumer commits every five seconds
        wait_for(lambda: [row["diffTotal"] for row in ask.get("/consumer/queryTopicByConsumer.query", **of_group).data
                          if row["topic"] == topic] == [0])  # fmt: skip
        keep("refresh groups", ask.get("/consumer/group.refresh.all"))
        groups = keep("groups", ask.get("/consumer/groupList.query", skipSysGroup=True))
        assert [(row["count"], row["consumeType"]) for row in groups if row["group"] == group] == [
            (1, "CONSUME_PASSIVELY")
        ]
        keep("group", ask.get("/consumer/group.refresh", consumerGroup=group))
        keep("topics of a group", ask.get("/consumer/queryTopicByConsumer.query", **of_group))
        (member,) = keep("members", ask.get("/consumer/consumerConnection.query", **of_group))["connectionSet"]
        of_member = {"consumerGroup": group, "clientId": member["clientId"]}
        running = "/consumer/consumerRunningInfo.query"  # a member takes its queue of retries up to 20 s later
        wait_for(lambda: len(ask.get(running, **of_member, jstack=False).data["mqTable"]) == 3, 60)
        for stacks in (False, True):
            found = keep(f"running information, stacks: {stacks}", ask.get(running, **of_member, jstack=stacks))
            assert bool(found["jstack"]) == stacks
        keep("state of the groups of a topic", ask.get("/topic/queryTopicConsumerInfo.query", topic=topic))
        keep("groups of a topic", ask.get("/topic/queryConsumerByTopic.query", topic=topic))

        seen = keep("by id", ask.get("/message/viewMessage.query", **of_message))
        assert seen["messageView"]["messageBody"] == "hello"
        wait_for(lambda: bool(ask.get("/message/queryMessageByTopicAndKey.query", topic=topic, key="k-1").data))
        keep("by key", ask.get("/message/queryMessageByTopicAndKey.query", topic=topic, key="k-1"))
        begin, end = int(time.time() * 1000) - HOUR_MS, int(time.time() * 1000) + HOUR_MS
        between = ask.get("/message/queryMessageByTopic.query", topic=topic, begin=begin, end=end)
        assert len(keep("by time", between)) == 7
        page = {"topic": topic, "begin": begin, "end": end, "pageNum": 1, "pageSize": 20, "taskId": ""}
        listed = keep("a page", ask.post("/message/queryMessagePageByTopic.query", page))
        assert listed["page"]["totalElements"] == 7

        of_trace = {"msgId": sent["msgId"], "traceTopic": TRACE_TOPIC}
        trace = "/messageTrace/viewMessageTraceGraph.query"
        wait_for(lambda: bool(ask.get(trace, **of_trace).data["subscriptionNodeList"]), 60)
        keep("trace", ask.get(trace, **of_trace))
        keep("trace in detail", ask.get("/messageTrace/viewMessageTraceDetail.query", msgId=sent["msgId"]))
        keep("traced message", ask.get("/messageTrace/viewMessage.query", **of_message))

        direct = ask.post("/message/consumeMessageDirectly.do", **of_message, consumerGroup=group)
        assert keep("consume directly", direct)["consumeResult"] == "CR_SUCCESS"
        senders = ask.get("/producer/producerConnection.query", producerGroup="interop-producer", topic=topic)
        assert len(keep("producers", senders)["connectionSet"]) == 1
        for question, at in (("reset", begin), ("skip", -1)):
            path = "/consumer/resetOffset.do" if question == "reset" else "/consumer/skipAccumulate.do"
            plan = {"consumerGroupList": [group], "topic": topic, "resetTime": at, "force": True}
            assert keep(question, ask.post(path, plan))[group]["status"] is True
        producer.say("stop")

    with gantrymq.sync.connect(site.nameserver) as python:
        with python.consumer(topic, group, start="first") as letters, python.producer(f"{name}-p") as sender:
            sender.send(topic, b"dead letter")
            next(iter(letters)).retry(-1)
    letters_page = page | {"topic": f"%DLQ%{group}"}

    def dead_letters() -> Answer:
        return ask.post("/dlqMessage/queryDlqMessageByConsumerGroup.query", letters_page)

    wait_for(lambda: bool(dead_letters().data["page"]["content"]))
    (letter,) = keep("dead letters", dead_letters())["page"]["content"]
    with client.consumer(site.nameserver, topic, group):
        one = [{"topicName": f"%DLQ%{group}", "consumerGroup": group, "msgId": letter["msgId"]}]
        wait_for(lambda: ask.get("/consumer/consumerConnection.query", **of_group).status == 0)
        (resent,) = keep("resend", ask.post("/dlqMessage/batchResendDlqMessage.do", one))
        assert resent["consumeResult"] == "CR_SUCCESS"

    keep("home of operations", ask.get("/ops/homePage.query"))
    keep("state of the cluster", ask.get("/ops/rocketMqStatus.query"))
    delete_group = {"groupName": group, "brokerNameList": [site.name]}
    keep("delete the group", ask.post("/consumer/deleteSubGroup.do", delete_group))
    keep("create again", ask.post("/topic/createOrUpdate.do", {**settings, "messageType": "FIFO"}))
    keep("delete at a broker", ask.post("/topic/deleteTopicByBroker.do", brokerName=site.name, topic=topic))
    keep("create once more", ask.post("/topic/createOrUpdate.do", {**settings, "messageType": "FIFO"}))
    keep("delete", ask.post("/topic/deleteTopic.do", topic=topic))
    wait_for(lambda: ask.get("/topic/route.query", topic=topic).status == -1)
    return answers


def shapes_of(site: Site, name: str, answers: dict[str, Answer]) -> dict[str, Any]:
    """The fields of the answers, without names and addresses of this cluster."""

    def rename(key: str) -> str:
        plain = key.replace(site.name, "BROKER").replace(name, "NAME")
        return re.sub(r"[\d.]+@\d+#\d+", "CLIENT", re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", plain))

    return {question: shape(answer.data, rename) for question, answer in answers.items()}


def without(value: Any, fields: set[str]) -> Any:
    """The shape without these fields, at any depth."""
    if "" in fields:
        return None
    if isinstance(value, dict):
        return {key: without(each, fields) for key, each in value.items() if key not in fields}
    return [without(each, fields) for each in value] if isinstance(value, list) else value


def test_the_dashboard_of_rocketmq_gets_the_same_answers_from_our_broker(
    own_site: Site, java_site: Site, java4_client: ForeignClient, names: Callable[[str], str]
) -> None:
    name = names("dashboard")[:40]
    ours, theirs = (
        shapes_of(site, name, ask_as_the_pages_do(site, java4_client, name)) for site in (own_site, java_site)
    )
    assert list(ours) == list(theirs)
    different = {
        question: (ours[question], theirs[question])
        for question, fields in ((question, ON_PURPOSE.get(question, set())) for question in ours)
        if without(ours[question], fields) != without(theirs[question], fields)
    }
    assert different == {}
    same = [question for question in ON_PURPOSE if ours[question] == theirs[question]]
    assert same == [], "on purpose, and no difference any more"
    numbers = {key for key in theirs["cluster"]["brokerServer"]["BROKER"]["0"] if key.startswith(("msg", "put", "get"))}
    assert numbers <= set(ours["cluster"]["brokerServer"]["BROKER"]["0"])


def test_the_dashboard_of_rocketmq_gets_the_same_errors_from_our_broker(own_site: Site, java_site: Site) -> None:
    def errors(site: Site) -> list[tuple[int, str]]:
        ask = site.dashboard
        found = [
            ask.get("/topic/stats.query", topic="nothing"),
            ask.get("/topic/route.query", topic="nothing"),
            ask.get("/message/viewMessage.query", topic="nothing", msgId="0" * 32),
            ask.get("/producer/producerConnection.query", producerGroup="nobody", topic="TBW102"),
            ask.get("/consumer/consumerConnection.query", consumerGroup="nobody", address=site.broker),
        ]
        return [(each.status, re.sub(r"127\.0\.0\.1:\d+|\n.*", "", each.error)) for each in found]

    assert errors(own_site) == errors(java_site)
