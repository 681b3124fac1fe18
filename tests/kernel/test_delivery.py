"""The hook ``before_deliver``: plugins change, withhold or fail on records of all forms."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import structlog

from gantrymq.kernel import delivery, hookimpl, hookspecs
from gantrymq.kernel.delivery import DeliverBatch, Deliveries
from gantrymq.kernel.errors import PluginError, StartError
from gantrymq.kernel.manager import PluginManager
from gantrymq.kernel.store.log.record import Record, decode, encode
from gantrymq.remoting.errors import RemoteFault

V4 = b"\x7f\0\0\x01\0\0\x2a\x9f"
V6 = bytes(range(16)) + b"\0\0\x2a\x9f"


class Changer:
    name = "changer"

    def __init__(self, change: Callable[[DeliverBatch], Any], name: str = "changer") -> None:
        self.change = change
        self.name = name

    @hookimpl
    def before_deliver(self, batch: DeliverBatch) -> None:
        self.change(batch)


def deliveries(*changes: Callable[[DeliverBatch], Any]) -> Deliveries:
    plugins = [Changer(change, f"p{number}") for number, change in enumerate(changes)]
    return Deliveries(PluginManager([(plugin.name, plugin) for plugin in plugins], hookspecs), lambda: 0.0)


def records(*bodies: bytes) -> list[Record]:
    return [
        Record(
            "orders", 3, body, b"TAGS\x01a", 5, 0, 70 + row, 1000 + row, 11, b"\x7f\0\0\x01\0\0\x2a\x9f", 12,
            b"\x7f\0\0\x01\0\0\x2a\x9f", 2, 9,
        )
        for row, body in enumerate(bodies)
    ]  # fmt: skip


def joined(some: list[Record]) -> bytes:
    return b"".join(map(encode, some))


def decoded(data: bytes) -> list[Record]:
    found, at = [], 0
    while at < len(data):
        record, at = decode(data, at)  # checks the CRC of the body and all lengths
        found.append(record)
    return found


def test_columns_hold_the_messages_and_unchanged_bytes_are_sent_as_stored() -> None:
    seen: list[DeliverBatch] = []
    peer: Any = object()
    data = joined(records(b"one", b""))
    given = deliveries(seen.append).deliver(data, "pull", peer, "readers")
    assert (given.data, given.messages, given.decided, given.fault) == (data, 2, 2, None)
    (batch,) = seen
    assert (batch.connection, batch.group, batch.purpose) == (peer, "readers", "pull")
    assert (batch.topics, batch.queue_ids, batch.queue_offsets) == (["orders"] * 2, [3, 3], [70, 71])
    assert (batch.offsets, batch.store_timestamps) == ([1000, 1001], [12, 12])
    assert (batch.bodies, batch.properties) == ([b"one", b""], [b"TAGS\x01a"] * 2)
    assert batch.property_of(0, b"TAGS") == b"a"


@pytest.mark.parametrize("version", [1, 2], ids=["short topic", "long topic"])
@pytest.mark.parametrize(("born", "stored"), [(V4, V6), (V6, V6), (V6, V4)])
def test_a_changed_record_differs_in_body_properties_lengths_and_checksum_only(
    version: int, born: bytes, stored: bytes
) -> None:
    (record,) = records(b"old body")
    record = attrs.evolve(record, born_host=born, store_host=stored)
    data = encode(record)
    if version == 2:
        data = long_named(data, record)
    record, _ = decode(data)

    def change(batch: DeliverBatch) -> None:
        batch.bodies[0], batch.properties[0] = b"a new and longer body", b"K\x01v\x02TAGS\x01b"

    (changed,) = decoded(deliveries(change).deliver(data, "pull").data)
    assert changed == attrs.evolve(record, body=b"a new and longer body", properties=b"K\x01v\x02TAGS\x01b")


def long_named(data: bytes, record: Record) -> bytes:
    """The record with a topic of 200 bytes, as RocketMQ 5 writes it."""
    at = data.index(record.body) + len(record.body)
    topic = b"T" * 200
    data = data[:at] + len(topic).to_bytes(2, "big") + topic + data[at + 1 + len(record.topic) :]
    return len(data).to_bytes(4, "big") + b"\xda\xa3\x20\xab" + data[8:]


def test_withheld_rows_are_left_out_and_later_plugins_do_not_see_them() -> None:
    live: list[list[int]] = []
    some = records(b"a", b"b", b"c")
    given = deliveries(lambda batch: batch.withhold(1), lambda batch: live.append(list(batch.live))).deliver(
        joined(some), "pull"
    )
    assert ([record.body for record in decoded(given.data)], given.messages, given.decided) == ([b"a", b"c"], 2, 3)
    assert live == [[0, 2]]
    everything = deliveries(lambda batch: [batch.withhold(row) for row in batch.live]).deliver(joined(some), "pull")
    assert (everything.data, everything.messages, everything.decided) == (b"", 0, 3)
    assert deliveries(lambda batch: batch.withhold(0)).deliver_one(encode(some[0]), "query") is None


@pytest.mark.parametrize("on_error", ["stop", "skip", "disable"])
def test_a_plugins_failure_ends_the_response_before_that_message(on_error: str) -> None:
    def upper(batch: DeliverBatch) -> None:
        for row in batch.live:
            batch.bodies[row] = batch.bodies[row].upper()
            if batch.bodies[row] == b"BAD":
                raise KeyError("no key")

    plugin = Changer(upper)
    plugin.on_error = on_error  # type: ignore[attr-defined]
    own = Deliveries(PluginManager([("changer", plugin)], hookspecs), lambda: 0.0)
    with structlog.testing.capture_logs() as logs:
        given = own.deliver(joined(records(b"a", b"b", b"bad", b"c")), "pull")
        with pytest.raises(RemoteFault, match="the plugin 'changer' failed to deliver the message"):
            own.deliver_one(encode(records(b"bad")[0]), "query")
    assert [record.body for record in decoded(given.data)] == [b"A", b"B"], "each was changed once"
    assert (given.messages, given.decided) == (2, 2)
    assert given.fault is not None
    (line,) = [line for line in logs if line["event"] == "delivery_failed"]
    assert line["plugin"] == "changer"
    assert "before_deliver failed: KeyError('no key') at " in line["reason"]


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.bodies.__setitem__(0, "text"),
        lambda batch: batch.bodies.__setitem__(0, None),
        lambda batch: batch.properties.__setitem__(0, b"x" * 32768),
        lambda batch: batch.withhold(1),
        lambda batch: batch.withhold(-1),
    ],
)
def test_a_value_that_fits_no_record_is_an_error_of_the_plugin(change: Any) -> None:
    given = deliveries(change).deliver(joined(records(b"a")), "pull")
    assert (given.data, given.decided) == (b"", 0)
    assert given.fault is not None


def test_fatal_errors_of_plugins_end_the_broker() -> None:
    def fail(batch: DeliverBatch) -> None:
        raise PluginError("the end")

    with pytest.raises(PluginError):
        deliveries(fail).deliver(joined(records(b"a")), "pull")


def test_messages_that_grow_are_moved_to_the_next_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RESPONSE_MAX_BYTES", 2500)

    def grow(batch: DeliverBatch) -> None:
        for row in batch.live:
            batch.bodies[row] *= 1000

    some = records(b"a", b"b", b"c")
    given = deliveries(grow).deliver(joined(some), "pull")
    assert ([record.body for record in decoded(given.data)], given.decided) == ([b"a" * 1000, b"b" * 1000], 2)
    assert given.fault is None
    monkeypatch.setattr(delivery, "RESPONSE_MAX_BYTES", 10)
    assert deliveries(grow).deliver(joined(some), "pull").messages == 1, "the first one always fits"
    assert zlib.crc32(b"a" * 1000) & 0x7FFFFFFF == int.from_bytes(given.data[8:12], "big")


def test_a_hook_implementation_that_compiled_code_would_bypass_stops_the_start() -> None:
    class Blind:
        name = "blind"

        @hookimpl
        def before_deliver(self) -> None: ...

    with pytest.raises(StartError, match="plugin 'blind': before_deliver cannot wrap others"):
        Deliveries(PluginManager([("blind", Blind())], hookspecs), lambda: 0.0)
