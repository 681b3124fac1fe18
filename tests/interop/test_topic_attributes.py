"""RocketMQ's 5.3.3 broker and ours return the same topic attributes and 5.x fields of groups."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from support.foreign import ask
from support.mqadmin import KeyedMqAdmin

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.once]

Names = Callable[[str], str]

CHANGES = [
    "+message.type=DELAY,+queue.type=SimpleCQ",
    "+message.type=FIFO,+reserve.time=-1",
    "",
    "+reserve.time=9223372036854775807",
    "-reserve.time",
    "-reserve.time",
    "+queue.type=SimpleCQ",
    "-queue.type",
    "+cleanup.policy=DELETE",
    "message.type=DELAY",
    "+message.type",
    "+message.type=DELAY,+message.type=FIFO",
    "+message.type=DELAY,-message.type",
    "x+message.type=DELAY",
    "+message-type=DELAY",
    "+=DELAY",
    "+color=red",
    "+message.type=delay",
    "+message.type=MIXED",
    "+reserve.time=-2",
    "+reserve.time=soon",
    "+reserve.time=9223372036854775808",
    "+message.type=A=B",
    "-message.type",
]
"""Changes of one topic, one after the other."""
CREATIONS = [
    "-message.type",
    "+color=red",
    "+cleanup.policy=KEEP",
    "+queue.type=Other",
    "+message.type=MIXED",
    "+cleanup.policy=DELETE,+reserve.time=5",
]
"""Requests that create a topic or are refused."""
GROUP = {
    "retryMaxTimes": 3, "consumeMessageOrderly": True, "consumeTimeoutMinute": 20, "groupSysFlag": 1,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
    },
    "subscriptionDataSet": [{"topic": "orders", "expressionType": "TAG", "expression": "a||b", "version": 7}],
}  # fmt: skip


def set_topic(broker: str, topic: str, attributes: str) -> tuple[int, str | None]:
    """Code and remark of a refusal; the order of a set says nothing, nor does the remark of a success."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": attributes,
    }  # fmt: skip
    answer = ask(broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
    if answer.code == 0:
        return 0, None
    remark = answer.remark and re.sub(
        r"\[(.*)\]", lambda found: str(sorted(found[1].split(", "))), answer.remark.strip()
    )
    return answer.code, remark or None


def attributes_of(broker: str, topic: str) -> dict[str, str] | None:
    """The topic's attributes; None when there is no topic. Ours leaves the field out where there are none."""
    answer = ask(broker, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
    return json.loads(answer.body).get("attributes", {}) if answer.code == 0 else None


def test_attribute_changes_get_the_responses_of_5_3_3(java5_system: Any, gantry: Any, names: Names) -> None:
    topic = names("t")
    for changes in CHANGES:
        theirs, ours = (set_topic(system.broker, topic, changes) for system in (java5_system, gantry))
        assert ours == theirs, changes
        theirs_now, ours_now = (attributes_of(system.broker, topic) for system in (java5_system, gantry))
        assert ours_now == theirs_now, changes


def test_topics_with_attributes_are_created_as_in_5_3_3(java5_system: Any, gantry: Any, names: Names) -> None:
    for number, attributes in enumerate(CREATIONS):
        topic = names(f"t{number}")
        theirs, ours = (set_topic(system.broker, topic, attributes) for system in (java5_system, gantry))
        assert ours == theirs, attributes
        theirs_now, ours_now = (attributes_of(system.broker, topic) for system in (java5_system, gantry))
        assert ours_now == theirs_now, attributes


@pytest.mark.parametrize("attributes", ["+queue.type=BatchCQ", "+cleanup.policy=COMPACTION"])
def test_attributes_that_need_another_store_are_refused_here_only(
    java5_system: Any, gantry: Any, names: Names, attributes: str
) -> None:
    topic = names("t")
    assert set_topic(java5_system.broker, topic, attributes) == (0, None)
    code, remark = set_topic(gantry.broker, topic, attributes)
    assert (code, "is not supported: this broker" in str(remark)) == (1, True)
    assert attributes_of(gantry.broker, topic) is None


def test_group_fields_of_5_x_are_kept_as_in_5_3_3(java5_system: Any, gantry: Any, names: Names) -> None:
    group = names("g")
    body = json.dumps({"groupName": group, **GROUP}).encode()
    found = []
    for system in (java5_system, gantry):
        assert ask(system.broker, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
        answer = ask(system.broker, Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}))
        received = json.loads(answer.body)
        found.append({name: received[name] for name in GROUP})
    assert found == [GROUP, GROUP]


def test_mqadmin_5_sets_shows_and_deletes_attributes(mqadmin5: KeyedMqAdmin, gantry: Any, names: Names) -> None:
    topic = names("t")

    def update(attributes: str) -> str:
        # The tool would take a value with a minus ahead for an option of its own.
        return mqadmin5(None, "updateTopic", "-n", gantry.nameserver, "-b", gantry.broker, "-t", topic,
                        "-r", "4", "-w", "4", f"--attributes={attributes}")  # fmt: skip

    assert "message.type" in update("+message.type=DELAY,+reserve.time=72")
    assert attributes_of(gantry.broker, topic) == {"message.type": "DELAY", "reserve.time": "72"}
    update("-reserve.time")
    assert attributes_of(gantry.broker, topic) == {"message.type": "DELAY"}
    mqadmin5(None, "updateTopicPerm", "-n", gantry.nameserver, "-b", gantry.broker, "-t", topic, "-p", "4")
    assert attributes_of(gantry.broker, topic) == {"message.type": "DELAY"}
