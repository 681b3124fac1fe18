"""The offset table keeps the last commit within the queue, and a broken file never resets groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.interfaces import ConsumerOffsets
from gantrymq.remoting.bodies.offsets import ConsumerOffsetSerializeWrapper


@pytest.fixture
def broker(make_broker: Any) -> Any:
    broker = make_broker("topics", "offsets")
    broker.queues.add("TBW102", 0, 100)
    broker.queues.add("TBW102", 1, 100)
    return broker


def offsets_of(broker: Any) -> ConsumerOffsets:
    return broker.registry.get(ConsumerOffsets)


def stored(tmp_path: Path) -> dict[str, dict[int, int]]:
    return ConsumerOffsetSerializeWrapper.from_bytes(
        (tmp_path / "config/consumerOffset.json").read_bytes()
    ).offset_table


def test_the_last_commit_counts_even_a_lower_one(broker: Any) -> None:
    offsets = offsets_of(broker)
    assert offsets.query("g", "TBW102", 0) is None
    for offset in (5, 9, 3):
        offsets.commit("g", "TBW102", 0, offset)
        assert offsets.query("g", "TBW102", 0) == offset
    assert offsets.query("g", "TBW102", 1) is None
    assert offsets.query("h", "TBW102", 0) is None


@pytest.mark.parametrize(
    ("queue_id", "offset", "taken"), [(0, 101, 100), (0, 2**63 - 1, 100), (7, 4, 0), (0, 100, 100)]
)
def test_no_offset_is_beyond_the_end_of_its_queue(broker: Any, queue_id: int, offset: int, taken: int) -> None:
    offsets_of(broker).commit("g", "TBW102", queue_id, offset)
    assert offsets_of(broker).query("g", "TBW102", queue_id) == taken


def test_offsets_beyond_the_end_of_a_queue_are_corrected_and_logged_once(
    broker: Any, make_broker: Any, tmp_path: Path
) -> None:
    broker.queues.add("other", 0, 100)
    for queue_id, offset in ((0, 90), (1, 40)):
        offsets_of(broker).commit("g", "TBW102", queue_id, offset)
    offsets_of(broker).commit("h", "TBW102", 0, 50)
    offsets_of(broker).commit("g", "other", 0, 7)
    broker.persist()
    again = make_broker("topics", "offsets")
    again.queues.add("TBW102", 0, 50)
    again.queues.add("TBW102", 1, 30)
    with structlog.testing.capture_logs() as logs:
        (recovered,) = [call for info, call in again.manager.calls("recovered", broker=again) if info.name == "offsets"]
        recovered()
    logged = {(line["topic"], line["group"]): line["queues"] for line in logs}
    assert logged == {("TBW102", "g"): {0: "90 -> 50", 1: "40 -> 30"}, ("other", "g"): {0: "7 -> 0"}}
    again.persist()
    assert stored(tmp_path) == {"TBW102@g": {0: 50, 1: 30}, "TBW102@h": {0: 50}, "other@g": {0: 0}}


def test_a_negative_offset_changes_nothing(broker: Any) -> None:
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    offsets_of(broker).commit("g", "TBW102", 0, -1)
    assert offsets_of(broker).query("g", "TBW102", 0) == 5


def test_the_number_of_offsets_is_limited_and_known_ones_can_still_change(make_broker: Any) -> None:
    broker = make_broker("topics", "offsets", **{"plugin.offsets.max_entries": "1"})
    broker.queues.add("TBW102", 0, 100)
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    offsets_of(broker).commit("h", "TBW102", 0, 5)
    offsets_of(broker).commit("g", "TBW102", 0, 6)
    assert offsets_of(broker).query("h", "TBW102", 0) is None
    assert offsets_of(broker).query("g", "TBW102", 0) == 6
    offsets_of(broker).forget_group("g")
    offsets_of(broker).commit("h", "TBW102", 0, 5)
    assert offsets_of(broker).query("h", "TBW102", 0) == 5


def test_a_topic_and_a_group_can_be_forgotten(broker: Any, tmp_path: Path) -> None:
    broker.queues.add("other", 0, 100)
    for group in ("g", "h"):
        for topic in ("TBW102", "other"):
            offsets_of(broker).commit(group, topic, 0, 5)
    broker.persist()
    offsets_of(broker).forget_group("g")
    broker.persist()
    assert stored(tmp_path).keys() == {"TBW102@h", "other@h"}
    offsets_of(broker).forget_topic("other")
    broker.persist()
    assert stored(tmp_path).keys() == {"TBW102@h"}


def test_the_file_has_rocketmqs_form_to_the_byte(broker: Any, tmp_path: Path) -> None:
    offsets_of(broker).commit("g", "TBW102", 1, 7)
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    offsets_of(broker).commit("h", "TBW102", 0, 1)
    broker.persist()
    file = tmp_path / "config/consumerOffset.json"
    assert file.read_bytes() == b'{"offsetTable":{"TBW102@g":{0:5,1:7},"TBW102@h":{0:1}}}'


def test_the_offsets_file_is_written_only_after_a_change(broker: Any, tmp_path: Path) -> None:
    broker.persist()
    assert "consumerOffset.json" not in broker.env.writes
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    broker.persist()
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    broker.persist()
    assert broker.env.writes.count("consumerOffset.json") == 1
    offsets_of(broker).commit("g", "TBW102", 0, 6)
    broker.persist()
    assert broker.env.writes.count("consumerOffset.json") == 2
    assert stored(tmp_path) == {"TBW102@g": {0: 6}}
    assert b"{0:5}" in (tmp_path / "config/consumerOffset.json.bak").read_bytes()


def test_written_offsets_are_read_again_and_kept_by_the_next_write(
    broker: Any, make_broker: Any, tmp_path: Path
) -> None:
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    offsets_of(broker).commit("h", "TBW102", 0, 6)
    broker.persist()
    again = make_broker("topics", "offsets")
    again.queues.add("TBW102", 0, 100)
    assert offsets_of(again).query("g", "TBW102", 0) == 5
    offsets_of(again).commit("g", "TBW102", 0, 8)
    again.persist()
    assert stored(tmp_path) == {"TBW102@g": {0: 8}, "TBW102@h": {0: 6}}


JAVA_4 = b"""{
\t"offsetTable":{
\t\t"%RETRY%shop@shop":{0:0
\t\t},
\t\t"orders@shop":{0:12,1:13,2:9223372036854775807,3:11
\t\t}
\t}
}"""
JAVA_5 = (
    b'{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{"orders@shop":{0:12}}}'
)


def load(make_broker: Any, tmp_path: Path, text: bytes) -> ConsumerOffsets:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/consumerOffset.json").write_bytes(text)
    return offsets_of(make_broker("topics", "offsets"))


def test_javas_files_are_read(make_broker: Any, tmp_path: Path) -> None:
    offsets = load(make_broker, tmp_path, JAVA_4)
    assert [offsets.query("shop", "orders", queue_id) for queue_id in range(4)] == [12, 13, 2**63 - 1, 11]
    assert offsets.query("shop", "%RETRY%shop", 0) == 0
    assert load(make_broker, tmp_path, JAVA_5).query("shop", "orders", 0) == 12
    quoted = json.dumps({"offsetTable": {"orders@shop": {"0": 12}}}).encode()
    assert load(make_broker, tmp_path, quoted).query("shop", "orders", 0) == 12
    assert load(make_broker, tmp_path, b"{}").query("shop", "orders", 0) is None


def test_single_entries_that_mean_nothing_are_left_out(make_broker: Any, tmp_path: Path) -> None:
    offsets = load(make_broker, tmp_path, b'{"offsetTable":{"orders@shop":{0:-1,1:4,-2:4},"orders":{0:1},"@g":{0:1}}}')
    assert offsets.query("shop", "orders", 0) is None
    assert offsets.query("shop", "orders", 1) == 4
    assert offsets.query("", "orders", 0) is None


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b"\xff", b'{"offsetTable":{"a@b":{0:9223372036854775808}}}', b'{"offsetTable":{"a@b":{0:"x"}}}', b"[]"],
)
def test_a_broken_file_never_makes_groups_start_over(
    broker: Any, make_broker: Any, tmp_path: Path, broken: bytes
) -> None:
    offsets_of(broker).commit("g", "TBW102", 0, 5)
    broker.persist()
    offsets_of(broker).commit("g", "TBW102", 0, 6)
    broker.persist()
    assert load(make_broker, tmp_path, broken).query("g", "TBW102", 0) == 5
    assert (tmp_path / "config/consumerOffset.json.bad").read_bytes() == broken
    (tmp_path / "config/consumerOffset.json.bak").write_bytes(b"{")
    with pytest.raises(StartError, match=r"consumerOffset\.json"):
        load(make_broker, tmp_path, broken)
