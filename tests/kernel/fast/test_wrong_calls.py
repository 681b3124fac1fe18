"""Wrong calls of plugins on the objects of hooks raise or do nothing, and never corrupt memory.

Every public method and attribute of requests, batches and records, called in the wrong order, with wrong types and
numbers, after ``forget``, on objects that were never initialized and on those that were initialized twice.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gantrymq.kernel import fast, hookimpl
from gantrymq.kernel.batch import Source
from gantrymq.kernel.fast import plain_requests
from gantrymq.kernel.store.log.record import Record
from gantrymq.kernel.store.log.record import encode as encode_record
from gantrymq.plugins.consume import plain as plain_pulls
from gantrymq.plugins.produce import plain as plain_sends
from gantrymq.plugins.produce.send import Origin
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command, encode
from gantrymq.remoting.records import decode_records
from gantrymq.testing.harness import make_broker, run_broker
from gantrymq.testing.requests import pull, send
from support.loops import Loops

pytestmark = pytest.mark.once  # it runs both twins

compiled = Loops(
    pytest.importorskip("gantrymq.kernel.fast._requests", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.produce._fast", reason="the extension is not built"),
    pytest.importorskip("gantrymq.plugins.consume._fast", reason="the extension is not built"),
)
TWINS: list[Any] = [Loops(plain_requests, plain_sends, plain_pulls), compiled]
LAYOUT = fast.Layout(b"\x7f\0\0\x01\0\0\x2a\x9f", 1000, 100_000)
LIMIT = 1 << 24
WRONG: list[Any] = [
    None, 0, -1, 1, 2, 10**6, -(10**6), 2**31, 2**63, 2**64, -(2**63) - 1, 1.5, True, "", "T", "\ud800", b"", b"K",
    b"x" * 40_000,
    [], [1], (), {}, {b"K": b"v"}, {"K": 1}, {b"K": None}, object(), int, range(3), bytearray(b"K"), memoryview(b"K"),
]  # fmt: skip
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
SHAKE = 2000
"""The number of objects that reuse freed memory."""


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_left_alone() -> None:
    """A collection looks at the objects of this module only: with those of thousands of tests before it takes 0.1 s."""
    gc.collect()
    gc.freeze()


def peer() -> Any:
    return SimpleNamespace(
        host=HOST, address="127.0.0.1:1", id=1, closed=False, send=lambda command: None,
        send_bytes=lambda data: None, take_response=lambda command: None, is_congested=lambda: False,
    )  # fmt: skip


def requests_of(twin: Any, *commands: Command) -> list[Any]:
    return list(twin.read_requests(peer(), b"".join(map(encode, commands)), LIMIT)[0])


def sends(count: int = 3, body: bytes = b"b" * 100, *, batched: bool = False) -> list[Command]:
    """Sends whose properties have escapes, so that they lie in the requests' own memory."""
    names = ("TAGS\x01a" if batched else f"K\x01{number}\x02TAGS\x01a" for number in range(count))
    commands = [send("T", body, properties=properties) for properties in names]
    if batched:
        inner = (22 + len(body) + 3).to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big")
        for command in commands:
            command.body = (inner + body + b"\0\3K\1v") * 3
            command.code = RequestCode.SEND_BATCH_MESSAGE
            (command.ext or {})["m"] = "true"
    return commands


def batch_of(twin: Any, requests: list[Any]) -> Any:
    batch = twin.new_batch(lambda batch: None, Source.CLIENT)
    twin.add_sends(batch, requests, lambda topic: (4, 0), b"CLUSTER\x01c", 1000, Origin, lambda batch, request: None)
    return batch


def encoded(twin: Any, batch: Any, start: int = 0) -> bytes:
    batch.place(start, 5)
    return b"".join(twin.encode_rows(batch, batch.live, 0, start, 90_000, {}, LAYOUT)[0])


def shake() -> list[bytes]:
    """Give the memory of what was freed to somebody else."""
    gc.collect()
    return [bytes([number % 256]) * 300 for number in range(SHAKE)]


def tried(call: Callable[[], Any]) -> str:
    """Call it; what it raises, by name."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


# ------------------------------------------------------------------------------------------------------- after forget


@pytest.mark.parametrize("batched", [False, True])
def test_forgetting_a_request_before_its_rows_are_stored_keeps_the_rows(batched: bool) -> None:
    results = []
    for twin in TWINS:
        wanted = encoded(twin, batch_of(twin, requests_of(twin, *sends(batched=batched))))
        requests = requests_of(twin, *sends(batched=batched))
        batch = batch_of(twin, requests)
        for request in requests:
            request.forget()
        kept = shake()
        assert encoded(twin, batch) == wanted
        results.append((wanted, [list(getattr(batch, name)) for name in ("bodies", "properties", "born_hosts")]))
        assert kept
    assert batched or results[0] == results[1]  # the plain twin leaves batches to others


@pytest.mark.parametrize("batched", [False, True])
def test_a_forgotten_request_is_not_stored_with_reused_memory(batched: bool) -> None:
    for twin in TWINS:
        requests = requests_of(twin, *sends(batched=batched))
        for request in requests:
            request.forget()
        kept, others = shake(), list[Any]()

        def other(batch: Any, request: Any, others: list[Any] = others) -> None:
            others.append(request)

        batch = twin.new_batch(lambda batch: None, Source.CLIENT)
        twin.add_sends(batch, requests, lambda topic: (4, 0), b"C\x01c", 1000, Origin, other)
        assert (len(batch), others) == (0, requests)
        assert kept


def test_every_attribute_of_a_forgotten_request_is_readable() -> None:
    end = {
        "producerGroup": "g", "tranStateTableOffset": "3", "commitLogOffset": "700", "commitOrRollback": "8",
        "fromTransactionCheck": "true", "msgId": "A0",
    }  # fmt: skip
    for twin in TWINS:
        for request in requests_of(twin, *sends(1), *sends(1, batched=True), pull("T"), Command(37, end), Command(999)):
            for _ in range(3):
                request.forget()
            kept = shake()
            touch_all(request)
            tried(lambda: twin.read_pull_header(request))  # noqa: B023 - called at once
            assert kept


class Forgetting:
    """A plugin that forgets requests while their messages are on the way into the log."""

    name = "forgetting"

    @hookimpl
    def before_append(self, batch: Any) -> None:
        for origin in batch.origins:
            request = getattr(origin, "request", origin)
            request.forget()
        self.kept = shake()


@pytest.mark.trio
async def test_a_plugin_that_forgets_requests_before_the_append_alters_no_message(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, enable=[f"{__name__}:Forgetting"])
    async with run_broker(broker), open_channel(broker.address) as channel:
        for command in (*sends(), *sends(batched=True)):
            assert (await channel.call(command)).code == 0
        found = await channel.call(pull("T"))
        messages = decode_records(found.body)
        assert [message.body for message in messages] == [b"b" * 100] * (3 + 9)
        assert [message.properties["K"] for message in messages] == ["0", "1", "2", *["v"] * 9]


# --------------------------------------------------------------------------------------------- wrong types and numbers


def touch_all(thing: Any) -> None:
    """Ask for every public attribute, set each to what it cannot be, call each method with everything that is wrong."""
    for name in dir(thing):
        if name.startswith("_") or name == "done":
            continue
        found = None
        try:
            found = getattr(thing, name)
        except Exception:
            continue
        if callable(found):
            for arguments in argument_lists():
                tried(lambda call=found, given=arguments: call(*given))  # type: ignore[misc]


def argument_lists() -> Iterator[tuple[Any, ...]]:
    yield ()
    for first in WRONG:
        yield (first,)
        for second in WRONG:
            yield (first, second)
    for one in WRONG:
        yield (one, one, one)
        yield (0, "T", 0, one, 0)
        yield (one, "T", 0, {b"K": b"v"}, 0)
        yield (0, one, one, {b"K": b"v"}, one)
        yield ("T", 0, one, one)
        yield (one, 0, b"", b"")
        yield ("T", one, b"", b"")


def things() -> Iterator[tuple[str, Callable[[], Any]]]:
    record = Record("T", 0, b"body", b"K\x01v", offset=500, store_timestamp=1)

    def placed() -> Any:
        batch = batch_of(compiled, requests_of(compiled, *sends()))
        encoded(compiled, batch)
        return batch

    yield "batch", lambda: batch_of(compiled, requests_of(compiled, *sends(), *sends(batched=True)))
    yield "placed", placed
    yield "dispatched", lambda: compiled.dispatch_batch([placed()])
    yield "scanned", lambda: compiled.scan(encode_record(record), 500, 5, check_body=True)[0]
    yield "record", lambda: compiled.read_records(encode_record(record), 500, [500])[0]
    yield "readers", lambda: compiled.Readers(compiled.readers_by_code)
    yield "reader", lambda: next(iter(compiled.readers_by_code.values()))
    for name, command in (("send", sends(1)[0]), ("pull", pull("T")), ("other", Command(999, {"a": "b"}))):
        yield name, lambda command=command: requests_of(compiled, command)[0]  # type: ignore[misc]


THINGS = dict(things())
ALL = pytest.mark.parametrize("name", THINGS)


@ALL
def test_wrong_arguments_raise_and_do_not_crash(name: str) -> None:
    thing = THINGS[name]()
    touch_all(thing)
    touch_all(thing)
    shake()


@ALL
def test_uninitialized_objects_do_not_crash(name: str) -> None:
    kind = type(THINGS[name]())
    thing = kind.__new__(kind)
    touch_all(thing)
    tried(lambda: kind())
    shake()


@ALL
def test_an_object_initialized_twice_keeps_its_content(name: str) -> None:
    thing = THINGS[name]()
    columns = ("topics", "bodies", "properties", "queue_ids", "offsets")
    before = {column: list(getattr(thing, column)) for column in columns if name in ("placed",)}
    for arguments in ((), (None,), (None, 3), (1, 2, 3)):
        tried(lambda given=arguments: thing.__init__(*given))  # type: ignore[misc]
    shake()
    touch_all(THINGS[name]())
    assert {column: list(getattr(thing, column)) for column in before} == before
    touch_all(thing)


@ALL
def test_attributes_of_wrong_types_do_not_crash(name: str) -> None:
    for attribute in [known for known in dir(THINGS[name]()) if not known.startswith("_") and known != "done"]:
        for value in WRONG:
            thing = THINGS[name]()
            tried(lambda: setattr(thing, attribute, value))  # noqa: B023 - called at once
            if name in ("batch", "placed"):
                tried(lambda: encoded(compiled, thing))  # noqa: B023
                tried(lambda: compiled.dispatch_batch([thing]))  # noqa: B023
                tried(lambda: compiled.answer_sends(thing, FORM, lambda batch, row: row + 1))  # noqa: B023
                tried(lambda: compiled.answer_rows(thing))  # noqa: B023
    shake()


FORM = plain_sends.reply_form({}, HOST.hex())


@pytest.mark.parametrize("change", ["pop", "append", "clear", "extend", "types"])
@pytest.mark.parametrize("when", ["before", "placed", "encoded"])
def test_columns_changed_behind_the_batch_do_not_crash(change: str, when: str) -> None:
    names = [
        "topics", "queue_ids", "bodies", "properties", "flags", "sys_flags", "born_timestamps", "born_hosts",
        "reconsume_times", "prepared_offsets", "waits", "origins", "statuses", "offsets", "sizes", "queue_offsets",
    ]  # fmt: skip

    def spoil(column: list[Any]) -> None:
        if change == "pop" and column:
            column.pop()
        elif change == "append":
            column.append(column[0] if column else 0)
        elif change == "clear":
            column.clear()
        elif change == "extend":
            column.extend([0] * 1000)
        elif change == "types":
            column[:] = [object()] * len(column)

    for name in names:
        batch = batch_of(compiled, requests_of(compiled, *sends(5), *sends(2, batched=True)))
        if when == "before":
            spoil(getattr(batch, name))
            tried(lambda: batch.refuse(0, 1, "no"))  # noqa: B023 - called at once
        if when != "before":
            batch.place(0, 5)
        if when == "placed":
            spoil(getattr(batch, name))
        tried(lambda: compiled.encode_rows(batch, batch.live, 0, 0, 90_000, {}, LAYOUT))  # noqa: B023
        if when == "encoded":
            spoil(getattr(batch, name))
        for _ in range(2):
            tried(lambda: compiled.answer_sends(batch, FORM, lambda batch, row: row + 1))  # noqa: B023
            tried(lambda: compiled.answer_rows(batch))  # noqa: B023
            tried(lambda: compiled.dispatch_batch([batch]))  # noqa: B023
            tried(lambda: (batch.live, batch.waited_for, len(batch)))  # noqa: B023
    shake()


def test_senders_are_answered_if_a_plugin_has_added_to_a_column() -> None:
    batch = batch_of(compiled, requests_of(compiled, *sends(2)))
    batch.place(0, 5)
    compiled.encode_rows(batch, batch.live, 0, 0, 90_000, {}, LAYOUT)
    batch.statuses.append(0)
    answered: list[int] = []
    compiled.answer_sends(batch, FORM, lambda batch, row: answered.append(row) or row + 1)
    assert answered == [0, 1]


@pytest.mark.parametrize("rows", [[3], [-1], [10**6], [2**62], [0, 1, 2, 3], range(4)])
def test_rows_beyond_the_batch_are_not_encoded(rows: Any) -> None:
    batch = batch_of(compiled, requests_of(compiled, *sends(3)))
    batch.place(0, 5)
    with pytest.raises(IndexError):
        compiled.encode_rows(batch, rows, 0, 0, 90_000, {}, LAYOUT)


def test_columns_belong_to_their_batch() -> None:
    batch, dispatched = THINGS["placed"](), THINGS["dispatched"]()
    columns = [getattr(type(one), name) for one in (batch, dispatched) for name in dir(type(one))]
    for column in [one for one in columns if type(one).__name__ == "Column"]:
        for other in (batch, dispatched, *WRONG):
            tried(lambda: column.__get__(other, type(other)))  # noqa: B023 - called at once
            tried(lambda: column.__set__(other, [1]))  # noqa: B023
        for number in (0, 9, 15, 16, 99, -1, 2**31 - 1):
            tried(lambda: column.__init__(number))  # noqa: B023
    shake()


@pytest.mark.parametrize("row", [-4, -1, 0, 2, 3, 2**31])
def test_both_twins_count_rows_the_same(row: int) -> None:
    results = []
    for twin in TWINS:
        some = []
        for when in ("new", "placed"):
            batch = batch_of(twin, requests_of(twin, *sends(3)))
            if when == "placed":
                encoded(twin, batch)
            for call in (
                lambda: batch.queue_of(row),  # noqa: B023 - called at once
                lambda: batch.property_of(row, b"K"),  # noqa: B023
                lambda: batch.sizes_of(row),  # noqa: B023
                lambda: batch.place_of(row),  # noqa: B023
                lambda: batch.divert(row, "U", 1, {b"N": b"v"}, 4),  # noqa: B023
                lambda: batch.refuse(row, 1, "no"),  # noqa: B023
            ):
                try:
                    some.append(call())
                except IndexError:
                    some.append("IndexError")
            some.append((list(batch.topics), list(batch.properties), batch.live))
        results.append(some)
    assert results[0] == results[1]


def test_reading_the_tag_codes_of_a_queue_adds_none() -> None:
    for twin in TWINS:
        batch = batch_of(twin, requests_of(twin, *sends(3)))
        encoded(twin, batch)
        dispatched = twin.dispatch_batch([batch])
        assert dispatched.tag_codes_of("T", 0) == {97}
        for topic, queue_id in (("T", 7), ("U", 0), ("T", 2**40), ("T", "0"), (None, None)):
            assert dispatched.tag_codes_of(topic, queue_id) == set()
        assert dispatched.queues == [("T", 0)]


def test_cyclically_tied_rows_do_not_crash() -> None:
    for twin in TWINS:
        batch = batch_of(twin, requests_of(twin, *sends(3)))
        batch.tie_next_to(2)
        batch.tie_next_to(3)
        assert tried(lambda: batch.refuse(2, 1, "no")) in ("IndexError", "RecursionError", "")  # noqa: B023 - called at once
