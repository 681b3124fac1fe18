"""Protobuf bodies with and without a registry header, compared with Google's library and recorded bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("google.protobuf", reason="pip install 'gantrymq[spark-schemas]'")
pytest.importorskip("urllib3", reason="pip install 'gantrymq[spark-schemas]'")
pa = pytest.importorskip("pyarrow")

from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # noqa: E402

from gantrymq.spark import reason, schemas  # noqa: E402
from gantrymq.spark.errors import BadBody, RegistryFailed, WrongOption, WrongSchema  # noqa: E402
from gantrymq.spark.schemas import protobuf, protobuf_functions  # noqa: E402
from gantrymq.spark.schemas import registry as registries  # noqa: E402
from gantrymq.spark.schemas.bodies import UnreadableBody, arrow_type, convert_column  # noqa: E402
from support.schema_registry import StubRegistry, as_json  # noqa: E402

if TYPE_CHECKING:
    from conftest import FakeCluster
    from pyspark.sql import SparkSession

IMPORTS = (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
F = descriptor_pb2.FieldDescriptorProto
WELL_KNOWN = ".google.protobuf."


def message(name: str, *fields: Any, nested: Any = (), oneofs: Any = ()) -> Any:
    """A message with fields (name, number, type or message's name, more attributes)."""
    made = descriptor_pb2.DescriptorProto(name=name, nested_type=nested)
    for field, number, kind, more in fields:
        given = {"name": field, "number": number, "label": F.LABEL_OPTIONAL} | more
        given |= {"type": kind} if isinstance(kind, int) else {"type": F.TYPE_MESSAGE, "type_name": kind}
        made.field.add(**given)
    for oneof in oneofs:
        made.oneof_decl.add(name=oneof)
    return made


def map_entry(name: str, key: int, value: Any) -> Any:
    entry = message(name, ("key", 1, key, {}), ("value", 2, value, {}))
    entry.options.map_entry = True
    return entry


MANY = {"label": F.LABEL_REPEATED}
STATE = {"type_name": ".shop.State"}
ORDER = message(
    "Order",
    ("id", 1, F.TYPE_INT64, {}), ("user", 2, F.TYPE_STRING, {}), ("items", 3, ".shop.Order.Item", MANY),
    ("state", 4, F.TYPE_ENUM, STATE), ("at", 5, WELL_KNOWN + "Timestamp", {}), ("took", 6, WELL_KNOWN + "Duration", {}),
    ("note", 7, WELL_KNOWN + "StringValue", {}), ("extra", 8, WELL_KNOWN + "Struct", {}),
    ("by_sku", 9, ".shop.Order.BySkuEntry", MANY), ("rates", 10, ".shop.Order.RatesEntry", MANY),
    ("left", 12, F.TYPE_STRING, {"oneof_index": 0}), ("right", 13, F.TYPE_UINT32, {"oneof_index": 0}),
    ("raw", 14, F.TYPE_BYTES, {}), ("weight", 15, F.TYPE_FLOAT, {}), ("paid", 16, F.TYPE_BOOL, {}),
    ("states", 17, F.TYPE_ENUM, MANY | STATE), ("any", 18, WELL_KNOWN + "Any", {}), ("big", 19, F.TYPE_FIXED64, {}),
    ("maybe", 20, F.TYPE_INT32, {"proto3_optional": True, "oneof_index": 1}),
    nested=[
        map_entry("BySkuEntry", F.TYPE_STRING, ".shop.Order.Item"),
        message("Item", ("sku", 1, F.TYPE_STRING, {}), ("n", 2, F.TYPE_UINT64, {})),
        map_entry("RatesEntry", F.TYPE_INT32, F.TYPE_DOUBLE),
    ],
    oneofs=["pick", "_maybe"],
)  # fmt: skip


def file(*messages: Any, name: str = "shop.proto") -> Any:
    made = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", message_type=messages)
    made.dependency.extend(each.DESCRIPTOR.name for each in IMPORTS)
    values = [descriptor_pb2.EnumValueDescriptorProto(name=n, number=at) for at, n in enumerate(("OPEN", "DONE"))]
    made.enum_type.add(name="State", value=values)
    return made


def descriptors(*files: Any) -> bytes:
    """A FileDescriptorSet, in an order that puts imports last."""
    found = descriptor_pb2.FileDescriptorSet(file=files)
    for each in IMPORTS:
        each.DESCRIPTOR.CopyToProto(found.file.add())
    return found.SerializeToString()


BAG = message(
    "Bag",
    ("texts", 1, F.TYPE_STRING, MANY), ("flags", 2, F.TYPE_BOOL, MANY), ("raws", 3, F.TYPE_BYTES, MANY),
    ("numbers", 4, F.TYPE_INT32, MANY), ("states", 5, F.TYPE_ENUM, MANY | STATE),
    ("notes", 6, WELL_KNOWN + "StringValue", MANY), ("extras", 7, WELL_KNOWN + "Struct", MANY),
    ("times", 8, WELL_KNOWN + "Timestamp", MANY), ("empties", 9, ".shop.Bag.Empty", MANY),
    ("labels", 10, ".shop.Bag.LabelsEntry", MANY), ("marks", 11, ".shop.Bag.MarksEntry", MANY),
    ("by_note", 12, ".shop.Bag.ByNoteEntry", MANY),
    nested=[
        message("Empty"),
        map_entry("LabelsEntry", F.TYPE_STRING, F.TYPE_STRING),
        map_entry("MarksEntry", F.TYPE_STRING, F.TYPE_BOOL),
        map_entry("ByNoteEntry", F.TYPE_STRING, WELL_KNOWN + "StringValue"),
    ],
)  # fmt: skip
HEADER = message("Header", ("a", 1, F.TYPE_INT32, {}))
SHOP = file(HEADER, ORDER)
SET = descriptors(SHOP)


@pytest.fixture(scope="module")
def order() -> Any:
    """The generated class of the message."""
    return protobuf.MessageType("shop.Order", SET).load()


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    stub = StubRegistry()
    yield stub
    stub.close()


def full(order: Any) -> Any:
    made = order(id=-5, user="é", items=[{"sku": "x", "n": 2**64 - 1}], state=1, raw=b"\xff", weight=1.5, paid=True)
    made.states.extend([0, 1, 7])
    made.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678))
    made.took.FromTimedelta(timedelta(seconds=-5))
    made.note.value = ""
    made.extra["a"] = 1
    made.by_sku["k"].sku = "q"
    made.rates[3] = 1.5
    made.left = "L"
    made.big = 2**63
    made.any.Pack(wrappers_pb2.BoolValue(value=True))
    return made


FULL = {
    "id": -5, "user": "é", "items": [{"sku": "x", "n": Decimal(2**64 - 1)}], "state": "DONE",
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "took": timedelta(seconds=-5), "note": "", "extra": '{"a": 1.0}',
    "by_sku": [("k", {"sku": "q", "n": Decimal(0)})], "rates": [(3, 1.5)], "left": "L", "right": None, "raw": b"\xff",
    "weight": 1.5, "paid": True, "states": ["OPEN", "DONE", "7"], "big": Decimal(2**63), "maybe": None,
    "any": {"type_url": "type.googleapis.com/google.protobuf.BoolValue", "value": b"\x08\x01"},
}  # fmt: skip


def test_every_kind_of_field_is_read_and_written(order: Any) -> None:
    type_ = protobuf.find_message("shop.Order", SET)
    reader = protobuf.ProtobufReader(type_)
    kind = reader.kind
    assert kind.simpleString() == (
        "struct<id:bigint,user:string,items:array<struct<sku:string,n:decimal(20,0)>>,state:string,at:timestamp,"
        "took:interval day to second,note:string,extra:string,by_sku:map<string,struct<sku:string,n:decimal(20,0)>>,"
        "rates:map<int,double>,left:string,right:bigint,raw:binary,weight:float,paid:boolean,states:array<string>,"
        "any:struct<type_url:string,value:binary>,big:decimal(20,0),maybe:int>"
    )
    column = pa.array([reader.read(full(order).SerializeToString())], arrow_type(kind))
    assert column.to_pylist() == [FULL]
    writer = protobuf.ProtobufWriter(protobuf.find_message(order, None), column.type)
    assert order.FromString(writer.write(column.to_pylist()[0])) == full(order)


def test_fields_that_are_not_set_have_the_values_that_protobuf_gives_them() -> None:
    found = protobuf.ProtobufReader(protobuf.MessageType("shop.Order", SET)).read(b"")
    assert found == {
        "id": 0, "user": "", "items": [], "state": "OPEN", "at": None, "took": None, "note": None, "extra": None,
        "by_sku": {}, "rates": {}, "left": None, "right": None, "raw": b"", "weight": 0.0, "paid": False, "states": [],
        "any": None, "big": 0, "maybe": None,
    }  # fmt: skip


def test_damaged_bodies_are_errors_and_never_a_crash(order: Any) -> None:
    reader = protobuf.ProtobufReader(protobuf.MessageType("shop.Order", SET))
    kind = arrow_type(reader.kind)
    body = full(order).SerializeToString(deterministic=True)
    damaged = [body[:length] for length in range(len(body))]
    damaged += [body[:at] + bytes([value]) + body[at + 1 :] for at in range(len(body)) for value in (0, 0x7F, 0xFF)]
    found = convert_column(pa.array(damaged), reader.read, kind, True, ())
    assert 0 < found.null_count < len(damaged)
    with pytest.raises(BadBody, match=r"^queueOffset 3: the 1 bytes are no Protobuf message 'shop.Order'"):
        convert_column(pa.array([b"\xff"]), reader.read, kind, False, [("queueOffset", pa.array([3]))])


def test_messages_without_a_type_in_spark_are_refused() -> None:
    tree = message("Tree", ("kids", 1, ".shop.Tree", MANY))
    with pytest.raises(WrongSchema, match=r"'shop.Tree' is recursive"):
        schemas.protobuf_decoder("shop.Tree", descriptors(file(tree)))
    wide = [
        message(
            f"M{level}", *(("ab"[at], at + 1, f".shop.M{level - 1}" if level else F.TYPE_INT32, {}) for at in (0, 1))
        )
        for level in range(30)  # 2 ** 30 fields
    ]
    with pytest.raises(WrongSchema, match="more than 10,000 fields"):
        schemas.protobuf_decoder("shop.M29", descriptors(file(*wide)))


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("Order", SET, "have no message 'Order', with its package"),
        ("shop.Order", b"\xff", "the descriptors of 'shop.Order' cannot be read"),
        ("shop.Order", "/nowhere/shop.bin", "'/nowhere/shop.bin' cannot be read: No such file"),
        ("shop.Order", None, "needs descriptors: the file that protoc"),
        (17, None, "give a generated message class"),
    ],
)
def test_a_message_that_cannot_be_found_is_an_error_with_a_remedy(name: Any, given: Any, error: str) -> None:
    with pytest.raises((WrongOption, WrongSchema), match=error):
        schemas.protobuf_decoder(name, given)


def test_a_file_of_descriptors_is_read(tmp_path: Path) -> None:
    (tmp_path / "shop.bin").write_bytes(SET)
    assert protobuf.find_message("shop.Header", tmp_path / "shop.bin") == protobuf.MessageType("shop.Header", SET)


# Messages 1 and 0 of a file, written by confluent-kafka 2.16.1.
CONFLUENT_ORDER = bytes.fromhex("0000000003020208051202c3a91a0e0a017810ffffffffffffffffff012001")
CONFLUENT_HEADER = bytes.fromhex("0000000003000801")


class TestRegistry:
    def converter(self, stub: StubRegistry, name: str = "shop.Order", retry_seconds: float = 0.0) -> Any:
        registry = schemas.Registry(stub.url, retry_seconds=retry_seconds)
        spec = protobuf_functions._Spec(protobuf.MessageType(name, SET), registry)
        return protobuf_functions._converter.__wrapped__(spec, pa.binary())

    @pytest.mark.parametrize("form", ["descriptor", "serialized", "text"])
    def test_bodies_of_confluents_serializer_are_read(self, form: str, stub: StubRegistry) -> None:
        encoded = base64.b64encode(SHOP.SerializeToString()).decode()
        text = encoded if form == "descriptor" else 'syntax = "proto3"; message Header {} message Order {}'
        stub.schemas = [{}, {}, {"schema": text, "schemaType": "PROTOBUF"}]
        stub.script = lambda method, path, body: (
            as_json(200, {"schema": encoded}) if form == "serialized" and path.endswith("?format=serialized") else None
        )
        found = self.converter(stub)(CONFLUENT_ORDER)
        assert (found["id"], found["user"], found["state"]) == (5, "é", "DONE")
        assert found["items"] == [{"sku": "x", "n": 2**64 - 1}]
        assert self.converter(stub, "shop.Header")(CONFLUENT_HEADER) == {"a": 1}
        with pytest.raises(UnreadableBody, match=r"has the message shop\.Header of schema 3, not shop\.Order"):
            self.converter(stub)(CONFLUENT_HEADER)

    def test_a_file_with_messages_in_another_order_is_read_by_their_names(self, stub: StubRegistry) -> None:
        swapped = file(ORDER, HEADER)
        number = stub.add("orders", base64.b64encode(swapped.SerializeToString()).decode(), "PROTOBUF")
        assert self.converter(stub)(b"\0" + number.to_bytes(4, "big") + b"\0" + b"\x08\x05")["id"] == 5
        with pytest.raises(UnreadableBody, match=r"has the message shop\.Header"):
            self.converter(stub)(b"\0" + number.to_bytes(4, "big") + b"\x02\x02" + b"\x08\x05")

    def test_a_nested_message_is_found_with_and_without_entries_of_maps(self, stub: StubRegistry) -> None:
        number = stub.add("items", base64.b64encode(SHOP.SerializeToString()).decode(), "PROTOBUF")
        for nested in (b"\x00", b"\x02"):
            body = b"\0" + number.to_bytes(4, "big") + b"\x04\x02" + nested + b"\x0a\x01x"
            assert self.converter(stub, "shop.Order.Item")(body) == {"sku": "x", "n": 0}

    def test_a_registry_without_descriptors_is_asked_once_and_not_waited_for(self, stub: StubRegistry) -> None:
        stub.add("orders", "syntax = 'proto3';", "PROTOBUF")
        stub.script = lambda method, path, body: (500, {}, b"") if "?format" in path else None
        convert = self.converter(stub, retry_seconds=60)
        for _ in range(3):
            assert convert(b"\0\0\0\0\x01\x02\x02\x08\x05")["id"] == 5
        assert stub.requests == ["GET /schemas/ids/1", "GET /schemas/ids/1?format=serialized"]

    @pytest.mark.parametrize("status", [400, 404, 405, 406, 422, 500])
    def test_a_registry_that_refuses_to_return_descriptors_has_none(self, status: int, stub: StubRegistry) -> None:
        stub.script = lambda method, path, body: (status, {}, b"")
        found = registries.FoundSchema("syntax = 'proto3';", "PROTOBUF")
        assert schemas.Registry(stub.url, retry_seconds=60).descriptor(1, found) is None
        assert len(stub.requests) == 1

    @pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 502, 503, 504])
    def test_a_registry_that_fails_to_return_descriptors_is_an_error(self, status: int, stub: StubRegistry) -> None:
        stub.script = lambda method, path, body: (status, {}, b"")
        found = registries.FoundSchema("syntax = 'proto3';", "PROTOBUF")
        with pytest.raises(RegistryFailed, match=f"status {status}"):
            schemas.Registry(stub.url, retry_seconds=0).descriptor(1, found)

    def test_a_short_failure_does_not_change_how_messages_are_recognized(
        self, stub: StubRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registries, "_FIRST_PAUSE", 0.01)
        swapped = base64.b64encode(file(ORDER, HEADER).SerializeToString()).decode()
        stub.add("orders", "syntax = 'proto3';", "PROTOBUF")

        def answer(method: str, path: str, body: bytes) -> Any:
            if "?format" not in path:
                return None
            return (503, {}, b"") if len(stub.requests) < 4 else as_json(200, {"schema": swapped})

        stub.script = answer
        assert self.converter(stub, retry_seconds=60)(b"\0\0\0\0\x01\0\x08\x05")["id"] == 5
        assert len(stub.requests) == 4

    @pytest.mark.parametrize(
        "path", [b"", b"\x80", b"\x80" * 9, b"\x02", b"\xfe\xff\xff\xff\x0f", b"\x01", b"\x04\x02\x63"]
    )
    def test_a_damaged_message_index_is_an_error(self, path: bytes, stub: StubRegistry) -> None:
        stub.add("orders", "syntax = 'proto3';", "PROTOBUF")
        with pytest.raises(UnreadableBody, match=r"message index|has the message number"):
            self.converter(stub)(b"\0\0\0\0\x01" + path)

    def test_a_schema_of_another_kind_is_an_error(self, stub: StubRegistry) -> None:
        stub.add("orders", "string")
        with pytest.raises(UnreadableBody, match="it is AVRO, not PROTOBUF"):
            self.converter(stub)(CONFLUENT_HEADER[:4] + b"\x01" + CONFLUENT_HEADER[5:])


class TestWriting:
    def test_columns_with_sparks_large_types_are_written(self) -> None:
        """Those of ``spark.sql.execution.arrow.useLargeVarTypes=true``."""
        text, data = pa.large_string(), pa.large_binary()
        kind = pa.struct(
            [("texts", pa.list_(text)), ("raws", pa.list_(data)), ("states", pa.list_(text)), ("notes", pa.list_(text)),
             ("extras", pa.list_(text)), ("labels", pa.map_(text, text))]
        )  # fmt: skip
        value = {
            "texts": ["é"], "raws": [b"\xff"], "states": ["DONE"], "notes": ["n"], "extras": ['{"a": 1.0}'],
            "labels": [("k", "v")],
        }  # fmt: skip
        type_ = protobuf.MessageType("shop.Bag", descriptors(file(BAG)))
        body = protobuf.ProtobufWriter(type_, kind).write(pa.array([value], kind).to_pylist()[0])
        assert {name: each for name, each in protobuf.ProtobufReader(type_).read(body).items() if each} == value | {
            "labels": {"k": "v"}
        }

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            (pa.struct([("other", pa.int64())]), "the column has other, which is not in the Protobuf message"),
            (pa.struct([("id", pa.string())]), "the column.id is string, which cannot be written as"),
            (pa.struct([("items", pa.int64())]), "cannot be written as a repeated field"),
            (pa.struct([("rates", pa.int64())]), "cannot be written as a map"),
            (pa.struct([("at", pa.timestamp("us"))]), "cannot be written as the Protobuf message 'google"),
            (pa.int64(), "the column is int64"),
        ],
    )
    def test_a_column_that_does_not_fit_is_refused(self, kind: Any, error: str) -> None:
        with pytest.raises(WrongSchema, match=error):
            protobuf.ProtobufWriter(protobuf.MessageType("shop.Order", SET), kind)

    @pytest.mark.parametrize(
        ("name", "kind", "value"),
        [
            ("state", pa.string(), "LOST"),
            ("right", pa.int64(), -1),
            ("extra", pa.string(), "{"),
            ("extra", pa.string(), "[1]"),
        ],
    )
    def test_a_value_that_does_not_fit_is_an_error(self, name: str, kind: Any, value: Any) -> None:
        writer = protobuf.ProtobufWriter(protobuf.MessageType("shop.Order", SET), pa.struct([(name, kind)]))
        with pytest.raises(UnreadableBody, match=r"a row does not fit the Protobuf message 'shop\.Order'"):
            writer.write({name: value})

    @pytest.mark.parametrize(
        ("name", "kind", "value"),
        [
            ("texts", pa.list_(pa.string()), ["a", None]),
            ("flags", pa.list_(pa.bool_()), [None]),
            ("raws", pa.list_(pa.binary()), [None]),
            ("numbers", pa.list_(pa.int32()), [None]),
            ("states", pa.list_(pa.string()), [None]),
            ("notes", pa.list_(pa.string()), [None]),
            ("extras", pa.list_(pa.string()), [None]),
            ("times", pa.list_(pa.timestamp("us", "UTC")), [None]),
            ("empties", pa.list_(pa.struct([])), [None]),
            ("labels", pa.map_(pa.string(), pa.string()), [("k", None)]),
            ("marks", pa.map_(pa.string(), pa.bool_()), [("k", None)]),
            ("by_note", pa.map_(pa.string(), pa.string()), [("k", None)]),
        ],
    )
    def test_a_null_within_a_list_or_map_is_an_error(self, name: str, kind: Any, value: Any) -> None:
        type_ = protobuf.MessageType("shop.Bag", descriptors(file(BAG)))
        with pytest.raises(UnreadableBody, match=r"the Protobuf message 'shop\.Bag': null has no place in the column"):
            protobuf.ProtobufWriter(type_, pa.struct([(name, kind)])).write({name: value})

    def test_a_row_without_a_required_field_is_an_error(self) -> None:
        old = file(message("Old", ("id", 1, F.TYPE_INT32, {"label": F.LABEL_REQUIRED}), ("n", 2, F.TYPE_INT32, {})))
        old.syntax = "proto2"
        kind = pa.struct([("id", pa.int32()), ("n", pa.int32())])
        writer = protobuf.ProtobufWriter(protobuf.MessageType("shop.Old", descriptors(old)), kind)
        assert writer.write({"id": 1, "n": None}) == b"\x08\x01"
        with pytest.raises(UnreadableBody, match=r"does not fit the Protobuf message 'shop\.Old': .*required"):
            writer.write({"id": None, "n": 1})

    def test_files_with_imports_are_not_registered(self, stub: StubRegistry) -> None:
        other = file(message("Other", ("h", 1, ".shop.Header", {})), name="other.proto")
        other.ClearField("enum_type")
        other.dependency.append("shop.proto")
        with pytest.raises(WrongOption, match=r"imports shop\.proto"):
            schemas.to_protobuf(
                "v", "shop.Other", descriptors(other, SHOP), registry=schemas.Registry(stub.url), subject="s"
            )
        assert not stub.requests


@pytest.mark.spark
def test_spark_reads_and_writes_protobuf(
    spark: SparkSession, cluster: FakeCluster, stub: StubRegistry, order: Any
) -> None:
    registry = schemas.Registry(stub.url, retry_seconds=0)
    rows = spark.range(1, 2).selectExpr(
        "named_struct('id', id, 'user', 'é', 'by_sku', map('k', named_struct('sku', 's')), "
        "'at', TIMESTAMP '2026-01-02 03:04:05') AS value"
    )
    with pytest.raises(RegistryFailed, match="register=True adds the schema"):
        schemas.to_protobuf("value", "shop.Order", SET, registry=registry, subject="orders-value")
    written = schemas.to_protobuf("value", order, registry=registry, subject="orders-value", register=True)
    body = bytes(rows.coalesce(1).select(written).collect()[0][0])
    assert body[:7] == b"\0\0\0\0\x01\x02\x02"

    cluster.add_topic("orders")
    cluster.put("orders", 0, body)
    cluster.put("orders", 0, body[:5] + b"\0\x08\x01")
    frame = spark.read.format("gantrymq").options(nameserver=cluster.address, topic="orders").load()
    lenient = schemas.from_protobuf("body", "shop.Order", SET, registry=registry, mode="permissive").alias("o")
    found = frame.select(lenient).selectExpr("o.id", "o.user", "o.by_sku.k.sku", "o.took", "string(o.at)").collect()
    assert [tuple(row) for row in found] == [(1, "é", "s", None, "2026-01-02 03:04:05"), (None,) * 5]
    with pytest.raises(Exception, match=r"shop\.Header") as failed:
        frame.select(schemas.from_protobuf("body", order, registry=registry, origin=("queueOffset",))).collect()
    assert reason(failed.value) == "queueOffset 1: the body has the message shop.Header of schema 1, not shop.Order"
