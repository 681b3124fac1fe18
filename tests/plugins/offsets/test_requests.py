"""Requests of consumers about offsets, and the responses to invalid ones."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from gantrymq.remoting.bodies.offsets import CorrectionOffsets

GROUP = {"consumerGroup": "shop", "topic": "TBW102", "queueId": 0}


@pytest.fixture
def broker(make_broker: Any) -> Any:
    broker = make_broker("topics", "offsets", **{"plugin.offsets.from_start_within": "1000"})
    broker.queues.add("TBW102", 0, 10)
    broker.log.end = 2000
    return broker


def test_a_committed_offset_is_reported(broker: Any) -> None:
    answer = broker.ask(15, {**GROUP, "commitOffset": 4})
    assert (answer.code, answer.remark) == (0, None)
    assert broker.ask(14, GROUP).ext == {"offset": "4"}


def test_a_oneway_commit_counts_and_gets_no_answer(broker: Any) -> None:
    assert broker.ask(15, {**GROUP, "commitOffset": 4}, oneway=True) is None
    assert broker.ask(14, GROUP).ext == {"offset": "4"}


def test_a_new_group_begins_at_zero_while_the_queues_beginning_is_near(broker: Any) -> None:
    broker.queues.add("TBW102", 0, 10, first_at=1000)
    answer = broker.ask(14, GROUP)
    assert (answer.code, answer.ext) == (0, {"offset": "0"})


@pytest.mark.parametrize(
    ("queue", "extra"),
    [
        ({"max_offset": 10, "first_at": 999}, {}),
        ({"max_offset": 10, "min_offset": 3, "first_at": 1999}, {}),
        ({"max_offset": 10, "first_at": 1999}, {"setZeroIfNotFound": "false"}),
    ],
    ids=["its beginning is far", "its beginning is gone", "5.x asks not to"],
)
def test_a_new_group_chooses_where_to_begin(broker: Any, queue: dict[str, int], extra: dict[str, str]) -> None:
    broker.queues.add("TBW102", 0, **queue)
    answer = broker.ask(14, {**GROUP, **extra})
    assert answer.code == 22
    assert answer.remark == "group shop has no offset in queue 0 of topic TBW102"
    assert answer.ext is None


def test_a_new_group_begins_at_zero_if_the_queue_cannot_be_read(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would make a 4.9.7 client begin at the queue's end."""

    def entries(queue: Any, offset: int, count: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(type(broker.queues.get("TBW102", 0)), "entries", entries)
    answer = broker.ask(14, GROUP)
    assert (answer.code, answer.ext) == (0, {"offset": "0"})


@pytest.mark.parametrize("queue", [{"topic": "nothing"}, {"queueId": 99}, {"queueId": -1}])
def test_a_queue_without_messages_is_begun_at_zero(broker: Any, queue: dict[str, object]) -> None:
    assert broker.ask(14, {**GROUP, **queue}).ext == {"offset": "0"}


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"topic": "nothing"}, 17, "topic[nothing] not exist"),
        ({"topic": "../x"}, 17, "topic[../x] not exist"),
        ({"consumerGroup": "../x"}, 26, "subscription group not exist, ../x"),
        ({"consumerGroup": "g" * 128}, 26, "subscription group not exist"),
        ({"queueId": 8}, 1, "queueId[8] is illegal, topic:[TBW102] has 8 queues"),
        ({"queueId": -1}, 1, "queueId[-1] is illegal"),
        ({"queueId": 2**31}, 1, "queueId"),
        ({"commitOffset": -1}, 1, "commitOffset is -1"),
        ({"commitOffset": 2**63}, 1, "commitOffset"),
        ({"commitOffset": "x"}, 1, "commitOffset"),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(
    broker: Any, change: dict[str, object], code: int, remark: str
) -> None:
    answer = broker.ask(15, {**GROUP, "commitOffset": 4, **change})
    assert answer.code == code
    assert remark in answer.remark


def test_the_limit_of_pairs_is_reported(make_broker: Any) -> None:
    broker = make_broker("topics", "offsets", **{"plugin.offsets.max_entries": "1"})
    broker.queues.add("TBW102", 0, 10)
    assert broker.ask(15, {**GROUP, "commitOffset": 4}).code == 0
    answer = broker.ask(15, {**GROUP, "consumerGroup": "other", "commitOffset": 4})
    assert answer.code == 1
    assert "plugin.offsets.max_entries" in answer.remark


def test_a_clone_of_offsets_that_the_table_has_no_room_for_is_an_error(make_broker: Any) -> None:
    broker = make_broker("topics", "offsets", **{"plugin.offsets.max_entries": "1"})
    broker.queues.add("TBW102", 0, 10)
    assert broker.ask(200, body=b'{"groupName":"copy"}').code == 0
    assert broker.ask(15, {**GROUP, "commitOffset": 4}).code == 0
    answer = broker.ask(314, {"srcGroup": "shop", "destGroup": "copy", "topic": "TBW102", "offline": True})
    assert answer.code == 1
    assert "plugin.offsets.max_entries" in answer.remark


def test_a_group_before_the_first_message_does_not_count_in_a_correction_of_offsets(broker: Any) -> None:
    broker.queues.add("TBW102", 0, 100)
    for group, offset in (("abandoned", 3), ("live", 60), ("compared", 70)):
        assert broker.ask(15, {**GROUP, "consumerGroup": group, "commitOffset": offset}).code == 0
    asked = {"topic": "TBW102", "compareGroup": "compared", "filterGroups": ""}
    assert CorrectionOffsets.from_bytes(broker.ask(308, asked).body).correction_offsets == {0: 3}
    broker.queues.add("TBW102", 0, 100, min_offset=50)
    assert CorrectionOffsets.from_bytes(broker.ask(308, asked).body).correction_offsets == {0: 60}


def test_a_queue_that_its_topic_lost_can_still_be_consumed_to_its_end(broker: Any) -> None:
    topic = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    commit = {**GROUP, "topic": "orders", "queueId": 3}
    broker.ask(17, topic)
    broker.queues.add("orders", 3, 10)
    assert broker.ask(15, {**commit, "commitOffset": 1}).code == 0
    broker.ask(17, {**topic, "readQueueNums": 2, "writeQueueNums": 2})
    assert broker.ask(15, {**commit, "commitOffset": 2}).code == 0
    assert broker.ask(15, {**commit, "queueId": 2, "commitOffset": 2}).code == 1


def test_the_bounds_of_a_queue_are_reported(broker: Any) -> None:
    broker.queues.add("TBW102", 1, 20, min_offset=5)
    queue = {"topic": "TBW102", "queueId": 1}
    assert broker.ask(30, queue).ext == {"offset": "20"}
    assert broker.ask(31, queue).ext == {"offset": "5"}
    assert broker.ask(29, {**queue, "timestamp": 1234}).ext == {"offset": "7"}
    assert broker.queues.asked_times == [("TBW102", 1, 1234)]


@pytest.mark.parametrize("queue", [{"topic": "nothing", "queueId": 0}, {"topic": "../x", "queueId": -5}])
def test_a_queue_that_is_not_there_has_rocketmqs_bounds(broker: Any, queue: dict[str, object]) -> None:
    assert broker.ask(30, queue).ext == {"offset": "0"}
    assert broker.ask(31, queue).ext == {"offset": "0"}
    assert broker.ask(29, {**queue, "timestamp": -1}).ext == {"offset": "0"}


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31])
def test_a_missing_header_is_answered_with_the_missing_field(broker: Any, code: int) -> None:
    answer = broker.ask(code)
    assert answer.code == 1
    assert "missing required field" in answer.remark
