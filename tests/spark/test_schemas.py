"""Avro schemas, their resolution, and registries, without Spark, compared with fastavro and Confluent's framing."""

from __future__ import annotations

import base64
import datetime
import io
import json
import ssl
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

fastavro = pytest.importorskip("fastavro", reason="pip install 'gantrymq[spark-schemas]'")
pytest.importorskip("urllib3", reason="pip install 'gantrymq[spark-schemas]'")
pa = pytest.importorskip("pyarrow")

from gantrymq.spark import schemas  # noqa: E402
from gantrymq.spark.errors import BadBody, RegistryFailed, SparkMissing, WrongOption, WrongSchema  # noqa: E402
from gantrymq.spark.schemas import avro_functions, registry, udfs  # noqa: E402
from gantrymq.spark.schemas.avro import AvroReader  # noqa: E402
from gantrymq.spark.schemas.avro_schema import SchemaText, parse_avro  # noqa: E402
from gantrymq.spark.schemas.avro_types import spark_type  # noqa: E402
from gantrymq.spark.schemas.avro_writing import AvroWriter, check_writable  # noqa: E402
from gantrymq.spark.schemas.bodies import UnreadableBody, arrow_type, convert_column  # noqa: E402
from support.authority import Authority  # noqa: E402
from support.schema_registry import Answer, StubRegistry  # noqa: E402

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
ONE_SECOND = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    stub = StubRegistry()
    yield stub
    stub.close()


def encode(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def parse(schema: Any) -> Any:
    return parse_avro(SchemaText(json.dumps(schema)))


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """A record with fields (name, type, default, aliases), (name, type), or as a schema has them."""
    keys = ("name", "type", "default", "aliases")
    named = [field if isinstance(field, dict) else dict(zip(keys, field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": named}


def read(writer: Any, value: Any, reader: Any) -> Any:
    """``value``, written by ``writer``, as Arrow has it when it is read by ``reader``."""
    kind = arrow_type(spark_type(parse(reader)))
    found = AvroReader(parse(writer), parse(reader))
    body = encode(writer, value)
    expected = pa.array([found.read(body)], kind)
    decoder = found.decoder(kind)
    if decoder is not None and (piece := decoder.decode(pa.array([body], pa.binary()), b"", bytearray(1))) is not None:
        assert piece[1].equals(expected), "the compiled loops decode as fastavro does"
    return expected[0].as_py()


class TestTypes:
    def test_a_column_has_the_types_that_sparks_own_from_avro_gives(self) -> None:
        schema = record(
            ("a", "int"), ("b", ["null", "long"]), ("c", {"type": "map", "values": "string"}),
            ("d", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}),
            ("e", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}), ("f", ["int", "long"]),
            ("g", ["string", "null", "boolean"]), ("h", {"type": "int", "logicalType": "time-millis"}),
            ("i", {"type": "long", "logicalType": "time-micros"}), ("j", {"type": "fixed", "name": "F", "size": 2}),
        )  # fmt: skip
        assert spark_type(parse(schema)).simpleString() == (
            "struct<a:int,b:bigint,c:map<string,string>,d:array<timestamp>,e:decimal(38,3),f:bigint,"
            "g:struct<member0:string,member1:boolean>,h:int,i:time(6),j:binary>"
        )

    @pytest.mark.parametrize(
        ("schema", "reason"),
        [
            (record(("next", ["null", "R"])), "the Avro schema of 'R' is recursive, .*; decode the column"),
            (record(("x", "Unknown")), "the unknown type 'Unknown'"),
            (["int", ["string"]], "a union within a union"),
            (["int", "int"], "the same branch twice"),
            ({"type": "array"}, "array without 'items'"),
            ({"type": "record", "name": "R"}, "'R' in an Avro schema has no list of fields"),
            (record(("x", "int"), ("x", "int")), "two fields of one name"),
            (17, "has 17 where a type is expected"),
        ],
    )
    def test_a_schema_without_a_type_in_spark_is_refused(self, schema: Any, reason: str) -> None:
        with pytest.raises(WrongSchema, match=reason):
            parse(schema)

    def test_a_decimal_with_more_digits_than_spark_has_can_be_read_as_bytes_only(self) -> None:
        long = parse({"type": "bytes", "logicalType": "decimal", "precision": 40})
        with pytest.raises(WrongSchema, match="a decimal of 40 digits, Spark has 38 at most; give a schema"):
            spark_type(long)
        assert AvroReader(long, parse("bytes")).read(encode("bytes", b"\1")) == b"\1"
        short = parse({"type": "bytes", "logicalType": "decimal", "precision": 38})
        with pytest.raises(WrongSchema, match="a decimal of 40 digits in the writer's Avro schema"):
            AvroReader(long, short)
        with pytest.raises(WrongSchema, match="cannot be written as"):
            AvroWriter(long, pa.decimal128(38))

    def test_schemas_that_need_too_much_memory_are_refused(self) -> None:
        deep: Any = "int"
        for _ in range(70):
            deep = {"type": "array", "items": deep}
        with pytest.raises(WrongSchema, match="nested deeper than 64 levels"):
            parse(deep)
        with pytest.raises(WrongSchema, match="nested deeper than 64 levels"):
            parse_avro(SchemaText("[" * 400_000 + "]" * 400_000))
        wide: Any = record(("a", "int"), name="R0")
        for level in range(1, 40):  # 2 ** 40 columns in 4 KB
            wide = record(("a", wide), ("b", f"R{level - 1}"), name=f"R{level}")
        with pytest.raises(WrongSchema, match="more than 10,000 types"):
            parse(wide)
        with pytest.raises(WrongSchema, match="the limit is 1,048,576"):
            parse_avro(SchemaText(" " * (1 << 20) + '"int"'))

    def test_an_array_whose_items_take_no_bytes_is_refused(self) -> None:
        for items in ("null", record(), {"type": "fixed", "name": "F", "size": 0}):
            schema = parse({"type": "array", "items": items})
            with pytest.raises(WrongSchema, match="whose items take no bytes"):
                AvroReader(schema, schema)


class TestResolution:
    @pytest.mark.parametrize(
        ("writer", "value", "reader", "expected"),
        [
            ("int", 7, "long", 7),
            ("int", 7, "double", 7.0),
            ("long", 2**53 + 1, "double", float(2**53)),
            ("string", "é", "bytes", "é".encode()),
            ("bytes", "é".encode(), "string", "é"),
            ("int", 7, ["null", "string", "long"], {"member0": None, "member1": 7}),
            ("string", "x", ["null", "string"], "x"),
            (["null", "int"], None, ["null", "long"], None),
            (["null", "int"], 5, "long", 5),
            (["string", "int"], "s", ["int", "null", "string"], {"member0": None, "member1": "s"}),
            (MILLIS, 1000, {**MILLIS, "logicalType": "timestamp-micros"}, ONE_SECOND),
            ({"type": "int", "logicalType": "time-millis"}, 1000, {"type": "long", "logicalType": "time-micros"},
             datetime.time(0, 0, 1)),
            (NANOS, 1001, NANOS, 1001),
            (NANOS, 1001, "long", 1001),
            ("long", 1001, NANOS, 1001),
            ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}, Decimal("12.5"),
             {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 3}, Decimal("12.500")),
        ],
    )  # fmt: skip
    def test_a_value_is_read_by_another_schema(self, writer: Any, value: Any, reader: Any, expected: Any) -> None:
        assert read(writer, value, reader) == expected

    def test_fields_are_matched_by_name_and_alias_and_missing_ones_get_their_default(self) -> None:
        writer = record(("gone", {"type": "array", "items": "string"}), ("old", "int"), ("same", "string"))
        reader = record(
            ("same", "string"), ("new", "long", 0, ["old"]), ("day", {"type": "int", "logicalType": "date"}, 1),
            ("raw", "bytes", "\u00ff"), ("some", ["null", "int"], None),
            ("list", {"type": "array", "items": "int"}, [1]), ("at", MILLIS, 1000), ("either", ["string", "long"], "s"),
            ("flag", "boolean", True), ("inner", record(("x", "int"), name="I"), {"x": 4}),
        )  # fmt: skip
        assert read(writer, {"gone": ["a", "b"], "old": 3, "same": "s"}, reader) == {
            "same": "s", "new": 3, "day": datetime.date(1970, 1, 2), "raw": b"\xff", "some": None, "list": [1],
            "at": ONE_SECOND, "flag": True, "inner": {"x": 4},
            "either": {"member0": "s", "member1": None},
        }  # fmt: skip

    @pytest.mark.parametrize("backwards", [False, True])
    def test_a_field_of_a_name_is_not_read_for_another_field_with_that_alias(self, backwards: bool) -> None:
        def reader(*fields: Any) -> Any:
            return record(*(reversed(fields) if backwards else fields))

        writer = record(("a", "int"), ("b", "int"))
        value = {"a": 1, "b": 2}
        assert read(writer, value, reader(("a", "int"), ("c", "int", 9, ["a"]))) == {"a": 1, "c": 9}
        assert read(writer, value, reader(("a", "int"), ("c", "int", 9, ["a", "b"]))) == {"a": 1, "c": 2}
        assert read(writer, value, reader(("a", "int", 0, ["b"]), ("b", "int", 0, ["a"]))) == value
        lacking = reader(("a", "int"), {"name": "c", "type": "int", "aliases": ["a"]})
        with pytest.raises(WrongSchema, match="the field 'c' of record 'R' is not in the writer's"):
            AvroReader(parse(writer), parse(lacking))

    def test_the_first_of_two_fields_with_one_alias_is_read(self) -> None:
        reader = record(("x", "int", 8, ["a"]), ("y", "int", 9, ["a"]))
        assert read(record(("a", "int")), {"a": 1}, reader) == {"x": 1, "y": 9}

    def test_records_of_a_union_are_matched_by_name(self) -> None:
        union = [record(("x", "int"), name="A"), record(("x", "int"), name="B")]
        backwards = [union[1], union[0]]
        assert read(union, ("B", {"x": 5}), backwards) == {"member0": {"x": 5}, "member1": None}
        assert read(union, ("A", {"x": 5}), backwards) == {"member0": None, "member1": {"x": 5}}

    def test_a_symbol_that_the_reader_lacks_is_its_default_or_an_error(self) -> None:
        writer = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
        assert read(writer, "B", {**writer, "symbols": ["A", "X"], "default": "X"}) == "X"
        with pytest.raises(UnreadableBody, match="the symbol 'B' is not in the enum 'E' of the reader's schema"):
            read(writer, "B", {**writer, "symbols": ["A"]})

    def test_a_branch_that_the_reader_lacks_is_an_error_for_its_values_only(self) -> None:
        assert read(["null", "int", "string"], 5, ["null", "int"]) == 5
        with pytest.raises(UnreadableBody, match="string in the writer's Avro schema fits no branch"):
            read(["null", "int", "string"], "s", ["null", "int"])

    @pytest.mark.parametrize(
        ("writer", "reader", "reason"),
        [
            ("string", "int", "string in the writer's Avro schema cannot be read as int"),
            ("long", "int", "long in the writer's Avro schema cannot be read as int"),
            (record(("a", "int")), record(("b", "int")), "the field 'b' of record 'R' is not in the writer's"),
            (record(), record(("b", "int", "seven")), "the default 'seven' in an Avro schema is not of its type, int"),
            (["int", "string"], "boolean", "cannot be read as boolean"),
            (NANOS, MILLIS, "timestamp-nanos in the writer's Avro schema cannot be read as timestamp-millis"),
            (MILLIS, NANOS, "timestamp-millis in the writer's Avro schema cannot be read as timestamp-nanos"),
            ({**NANOS, "logicalType": "local-timestamp-nanos"}, {**MILLIS, "logicalType": "local-timestamp-micros"},
             "cannot be read as local-timestamp-micros"),
        ],
    )  # fmt: skip
    def test_schemas_that_never_fit_are_refused(self, writer: Any, reader: Any, reason: str) -> None:
        with pytest.raises(WrongSchema, match=reason):
            AvroReader(parse(writer), parse(reader))

    def test_unions_that_would_be_compared_for_hours_are_refused(self) -> None:
        def nested(level: int, leaf: str) -> Any:
            if not level:
                return leaf
            return [record(("f", nested(level - 1, leaf)), name=f"{leaf}{level}{n}") for n in "abcd"]

        began = time.process_time()
        with pytest.raises(WrongSchema):
            AvroReader(parse(nested(5, "int")), parse(nested(5, "string")))
        assert time.process_time() - began < 5


class TestBodies:
    def test_each_damage_of_a_body_is_an_error_and_never_a_crash(self) -> None:
        schema = record(
            ("s", "string"), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}), ("u", ["null", "int"]),
            ("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}),
            ("a", {"type": "array", "items": "long"}), ("t", {"type": "long", "logicalType": "timestamp-millis"}),
        )  # fmt: skip
        value = {"s": "text", "e": "A", "u": 1, "d": Decimal("1.25"), "a": [1, 2, 3], "t": 5}
        body = encode(schema, value)
        reader = AvroReader(parse(schema), parse(schema))
        assert reader.read(body)["s"] == "text"
        for length in range(len(body)):
            with pytest.raises(UnreadableBody, match="end within a value"):
                reader.read(body[:length])
        with pytest.raises(UnreadableBody, match="have 1 more than a value needs"):
            reader.read(body + b"\0")
        kind = arrow_type(spark_type(parse(schema)))
        damaged = [
            body[:at] + bytes([value]) + body[at + 1 :] for at in range(len(body)) for value in (0, 1, 0x7F, 0x80, 0xFF)
        ]
        found = convert_column(pa.array(damaged), reader.read, kind, True, ())
        assert len(found) == len(damaged)
        assert 0 < found.null_count < len(damaged)

    @pytest.mark.parametrize("body", [b"\x01", b"\x04", b"\x7f"])  # -1, 2, -64
    def test_a_symbol_that_an_enum_does_not_have_is_an_error(self, body: bytes) -> None:
        schema = parse({"type": "enum", "name": "E", "symbols": ["A", "B"]})
        with pytest.raises(UnreadableBody, match="of an enum that has 2"):
            AvroReader(schema, schema).read(body)

    def test_a_body_is_null_or_an_error_that_names_its_row(self) -> None:
        schema = parse(ORDER)
        kind = arrow_type(spark_type(schema))
        bodies = pa.array([encode(ORDER, {"id": 5}), None, b""])
        origin = [("topic", pa.array(["t"] * 3)), ("queueOffset", pa.array([7, 8, 9]))]
        reader = AvroReader(schema, schema)
        assert convert_column(bodies, reader.read, kind, True, origin).to_pylist() == [{"id": 5}, None, None]
        with pytest.raises(BadBody, match=r"^topic 't', queueOffset 9: the 0 bytes of Avro end within a value"):
            convert_column(bodies, reader.read, kind, False, origin)

    def test_a_value_that_spark_has_no_place_for_is_found_in_its_column(self) -> None:
        schema = parse({"type": "long", "logicalType": "timestamp-millis"})
        kind = arrow_type(spark_type(schema))
        reader = AvroReader(schema, schema)
        bodies = pa.array([encode("long", 1), encode("long", 2**62)])
        assert convert_column(bodies, reader.read, kind, True, ()).null_count == 1
        with pytest.raises(BadBody, match=r"^queueOffset 4: "):
            convert_column(bodies, reader.read, kind, False, [("queueOffset", pa.array([3, 4]))])


class TestWriting:
    def test_a_column_is_written_as_fastavro_writes_it(self) -> None:
        schema = record(
            ("a", "int"), ("m", {"type": "map", "values": {"type": "map", "values": "int"}}), ("o", ["null", "string"]),
            ("r", {"type": "array", "items": record(("x", ["null", "double"]), name="I")}), ("d", "string", "none"),
        )  # fmt: skip
        value = {"a": 1, "m": {"k": {"l": 2}}, "o": None, "r": [{"x": 1.5}, {"x": None}]}
        kind = pa.struct(
            [("a", pa.int32()), ("m", pa.map_(pa.string(), pa.map_(pa.string(), pa.int32()))), ("o", pa.string()),
             ("r", pa.list_(pa.struct([("x", pa.float64())])))]
        )  # fmt: skip
        column = pa.array([value], kind)
        writer = AvroWriter(parse(schema), kind, b"head")
        assert writer.write(column.to_pylist()[0]) == b"head" + encode(schema, {**value, "d": "none"})

    def test_columns_with_sparks_large_types_are_written(self) -> None:
        """Those of ``spark.sql.execution.arrow.useLargeVarTypes=true``."""
        schema = record(
            ("s", "string"), ("b", "bytes"), ("f", {"type": "fixed", "name": "F", "size": 1}),
            ("o", ["null", "string"]), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
            ("m", {"type": "map", "values": "string"}),
            ("u", {"type": "string", "logicalType": "uuid"}), ("l", {"type": "array", "items": "bytes"}),
        )  # fmt: skip
        value = {"s": "é", "b": b"b", "f": b"f", "o": "o", "e": "A", "m": {"k": "v"}, "u": "u", "l": [b"l"]}
        text, data = pa.large_string(), pa.large_binary()
        kind = pa.struct(
            [("s", text), ("b", data), ("f", data), ("o", text), ("e", text), ("m", pa.map_(text, text)), ("u", text),
             ("l", pa.list_(data))]
        )  # fmt: skip
        column = pa.array([value], kind)
        assert AvroWriter(parse(schema), kind).write(column.to_pylist()[0]) == encode(schema, value)

    @pytest.mark.parametrize(
        ("schema", "kind", "reason"),
        [
            (record(("a", "int")), pa.struct([("a", pa.int64())]), "the column.a is int64, which cannot be written as"),
            (record(("a", "int")), pa.struct([]), "the column lacks a, which has no default"),
            (record(), pa.struct([("a", pa.int64())]), "the column has a, which is not in the Avro schema"),
            ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us"), "cannot be written as"),
            (["int", "string"], pa.int32(), "a union of several types cannot be written"),
        ],
    )
    def test_a_column_that_does_not_fit_is_refused(self, schema: Any, kind: Any, reason: str) -> None:
        with pytest.raises(WrongSchema, match=reason):
            AvroWriter(parse(schema), kind)

    @pytest.mark.parametrize(
        ("type_", "default", "value"),
        [
            ("double", 0, 0.0),
            ("float", 1, 1.0),
            ("boolean", True, True),
            ("bytes", "\u00ff", b"\xff"),
            ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0000", b"\xff\0"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u00ff", Decimal("-0.01")),
            (MILLIS, 1000, 1000),
            (NANOS, 1000, 1000),
            ({"type": "long", "logicalType": "time-micros"}, 5, 5),
            ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
            (["null", "bytes"], None, None),
            (["bytes", "null"], "\u00ff", b"\xff"),
            ({"type": "array", "items": "double"}, [1], [1.0]),
            ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, {"k": b"\xff"}),
            (record(("a", "double"), ("b", "bytes", "\u00ff"), name="I"), {"a": 1}, {"a": 1.0, "b": b"\xff"}),
        ],
    )
    def test_a_field_that_the_column_lacks_has_its_default(self, type_: Any, default: Any, value: Any) -> None:
        schema = record(("id", "long"), ("x", type_, default))
        expected = encode(record(("id", "long"), ("x", type_)), {"id": 7, "x": value})
        assert AvroWriter(parse(schema), pa.struct([("id", pa.int64())])).write({"id": 7}) == expected
        nested = record(("rows", {"type": "array", "items": schema}), name="Outer")
        kind = pa.struct([("rows", pa.list_(pa.struct([("id", pa.int64())])))])
        assert AvroWriter(parse(nested), kind).write({"rows": [{"id": 7}]}) == b"\x02" + expected + b"\0"

    def test_a_field_with_a_default_is_written_if_the_column_has_it(self) -> None:
        schema = record(("price", "double", 0), ("raw", "bytes", "\u00ff"), ("at", MILLIS, 0))
        check_writable(parse(schema))
        writer = AvroWriter(parse(schema), pa.struct([("price", pa.float64()), ("raw", pa.binary())]))
        found = fastavro.schemaless_reader(
            io.BytesIO(writer.write({"price": 1.5, "raw": b"x"})),
            record(("price", "double"), ("raw", "bytes"), ("at", "long")), None,
        )  # fmt: skip
        assert found == {"price": 1.5, "raw": b"x", "at": 0}

    @pytest.mark.parametrize(
        ("type_", "default"),
        [
            ("int", "seven"),
            ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
            ({"type": "fixed", "name": "F", "size": 2}, "\u00ff"),
            ("long", 2**63),
            ("bytes", "\u0100"),
        ],
    )
    def test_a_default_that_is_none_of_its_type_is_refused_if_it_is_needed(self, type_: Any, default: Any) -> None:
        schema = parse(record(("id", "long"), ("x", type_, default)))
        with pytest.raises(WrongSchema, match=r"the default .* in an Avro schema"):
            AvroWriter(schema, pa.struct([("id", pa.int64())]))

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "enum", "name": "E", "symbols": ["a-b"]},
        ],
    )
    def test_a_schema_that_fastavro_refuses_is_a_wrong_schema(self, schema: Any) -> None:
        with pytest.raises(WrongSchema, match="an Avro schema cannot be written: "):
            check_writable(parse(record(("x", schema))))
        with pytest.raises(WrongSchema, match="an Avro schema cannot be written: "):
            AvroWriter(parse(schema), pa.string())

    @pytest.mark.parametrize(
        ("type_", "kind", "value"),
        [
            ("boolean", pa.bool_(), None),
            ("int", pa.int32(), None),
            ("long", pa.int64(), None),
            ("float", pa.float32(), None),
            ("double", pa.float64(), None),
            ("bytes", pa.binary(), None),
            ("string", pa.string(), None),
            ({"type": "array", "items": "boolean"}, pa.list_(pa.bool_()), [True, None]),
            ({"type": "map", "values": "boolean"}, pa.map_(pa.string(), pa.bool_()), [("k", None)]),
            (record(("on", "boolean"), name="I"), pa.struct([("on", pa.bool_())]), {"on": None}),
        ],
    )
    def test_a_null_where_the_schema_has_none_is_an_error(self, type_: Any, kind: Any, value: Any) -> None:
        writer = AvroWriter(parse(record(("x", type_), name="Order")), pa.struct([("x", kind)]))
        with pytest.raises(UnreadableBody, match="a row does not fit the Avro schema of record 'Order'"):
            writer.write({"x": value})

    def test_a_null_of_a_union_with_boolean_is_written(self) -> None:
        schema = record(("x", ["null", "boolean"]))
        writer = AvroWriter(parse(schema), pa.struct([("x", pa.bool_())]))
        for value in (None, True, False):
            assert writer.write({"x": value}) == encode(schema, {"x": value})


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def impatient(stub: StubRegistry, **more: Any) -> schemas.Registry:
    return schemas.Registry(stub.url, **({"retry_seconds": 0, "timeout": 2.0} | more))


def converter(registry: schemas.Registry, reader: Any) -> Any:
    """The converter of bodies in a Python worker."""
    spec = avro_functions._AvroSpec(SchemaText(json.dumps(reader)), None, registry)
    return avro_functions._avro_converter.__wrapped__(spec, pa.binary())


class TestRegistry:
    def test_each_schema_is_asked_for_once(self, stub: StubRegistry) -> None:
        wider = record(("id", "int"), ("note", "string"), name="Order")
        stub.add("orders-value", ORDER)
        stub.add("orders-value", wider)
        convert = converter(impatient(stub), ORDER)
        for number in range(3):
            assert convert(framed(1, encode(ORDER, {"id": number}))) == {"id": number}
            assert convert(framed(2, encode(wider, {"id": number, "note": "n"})))["id"] == number
        assert stub.requests == ["GET /schemas/ids/1", "GET /schemas/ids/2"]

    def test_an_unknown_id_is_a_bad_body_and_asked_for_once_a_minute(self, stub: StubRegistry) -> None:
        convert = converter(impatient(stub), ORDER)
        for _ in range(2):
            with pytest.raises(UnreadableBody, match=r"status 404 .Schema 77 not found"):
                convert(framed(77, b"\x02"))
        assert stub.requests == ["GET /schemas/ids/77"]

    def test_a_flood_of_unknown_ids_is_an_error_in_any_mode(
        self, stub: StubRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(udfs, "MAX_UNKNOWN", 3)
        convert = converter(impatient(stub), ORDER)
        for number in range(3):
            with pytest.raises(UnreadableBody):
                convert(framed(70 + number, b"\x02"))
        with pytest.raises(RegistryFailed, match="lacks 3 ids of these bodies"):
            convert(framed(99, b"\x02"))

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "the body of 0 bytes is shorter than the header"),
            (b"\0\0\0\0", "the body of 4 bytes is shorter than the header"),
            (b"{}   ", "the body begins with byte 123, the header of a schema registry with 0"),
            (b"\1" + bytes(20), "a header with a GUID is not supported"),
        ],
    )
    def test_a_body_without_the_header_is_an_error(self, body: bytes, reason: str, stub: StubRegistry) -> None:
        with pytest.raises(UnreadableBody, match=reason):
            converter(impatient(stub), ORDER)(body)
        assert not stub.requests

    def test_a_writers_schema_that_does_not_fit_is_a_bad_body(self, stub: StubRegistry) -> None:
        stub.add("orders-value", "string")
        stub.add("orders-value", "message Order {}", "PROTOBUF")
        stub.add("orders-value", record(("next", ["null", "R"])))
        convert = converter(impatient(stub), ORDER)
        for number, reason in ((1, "string in the writer's"), (2, "it is PROTOBUF"), (3, "recursive")):
            with pytest.raises(UnreadableBody, match=rf"schema {number} of Registry\(.*{reason}"):
                convert(framed(number, b"\x02"))

    def test_referenced_schemas_are_fetched(self, stub: StubRegistry) -> None:
        stub.add("item", record(("sku", "string"), name="shop.Item"))
        stub.add("cart", record(("items", {"type": "array", "items": "shop.Item"}), name="shop.Cart"),
                 references=[{"name": "shop.Item", "subject": "item", "version": 1}])  # fmt: skip
        order = record(("cart", "shop.Cart"), ("extra", "shop.Item"), name="shop.Order")
        stub.add("orders", order, references=[{"name": "shop.Cart", "subject": "cart", "version": 1},
                                              {"name": "shop.Item", "subject": "item", "version": 1}])  # fmt: skip
        found = udfs.ask_latest(impatient(stub), "orders", "AVRO")
        schema = parse_avro(SchemaText(found.text, found.references))
        assert (
            spark_type(schema).simpleString()
            == "struct<cart:struct<items:array<struct<sku:string>>>,extra:struct<sku:string>>"
        )

    def test_references_without_end_are_refused(self, stub: StubRegistry) -> None:
        stub.add("a", ORDER, references=[{"name": "B", "subject": "a", "version": 1}])
        with pytest.raises(RegistryFailed, match="references"):
            impatient(stub).latest("a")

    def test_credentials_go_with_each_request(self, stub: StubRegistry) -> None:
        stub.add("orders-value", ORDER)
        impatient(stub, user="me", password="pass").by_id(1)
        assert stub.headers["Authorization"] == f"Basic {base64.b64encode(b'me:pass').decode()}"
        impatient(stub, token="secret").by_id(1)
        assert stub.headers["Authorization"] == "Bearer secret"
        assert "pass" not in repr(impatient(stub, user="me", password="pass").connection)

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ((302, {"location": "http://elsewhere/"}, b""), "redirects to 'http://elsewhere/', which is not followed"),
            ((401, {}, b'{"message": "who?"}'), r"status 401 \(who\?\): check user, password and token"),
            ((200, {}, b"<html>"), "which is not the JSON of a registry"),
            ((200, {}, b"[" * 200_000), "which is not the JSON of a registry"),
            ((200, {}, b"[1]"), "schema 1 answers without a 'schema'"),
            ((200, {}, b" " * 5_000_000), "answers with more than 4,194,304 bytes"),
            ((200, {"content-encoding": "gzip"}, b"bomb"), "a compressed body, which was not asked for"),
            ((503, {}, b""), "answers with status 503"),
            ((500, {}, b'{"message": "down"}'), r"answers with status 500 \(down\)"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_each_wrong_answer_has_its_reason(self, answer: Answer, reason: str, stub: StubRegistry) -> None:
        stub.script = lambda method, path, body: answer
        with pytest.raises(RegistryFailed, match=reason):
            impatient(stub).by_id(1)
        assert len(stub.requests) == 1

    def test_a_registry_that_answers_too_late_is_an_error(self, stub: StubRegistry) -> None:
        def drip(method: str, path: str, body: bytes) -> None:
            time.sleep(0.5)

        stub.script = drip
        with pytest.raises(RegistryFailed, match="did not answer within 0"):
            impatient(stub, timeout=0.1).by_id(1)

    def test_a_registry_that_restarts_is_waited_for(self, stub: StubRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        stub.add("orders-value", ORDER)
        monkeypatch.setattr(registry, "_FIRST_PAUSE", 0.01)
        stub.script = lambda method, path, body: (503, {}, b"") if len(stub.requests) < 3 else None
        assert impatient(stub, retry_seconds=5).by_id(1).text == json.dumps(ORDER)

    def test_another_address_is_tried_when_one_is_down(self, stub: StubRegistry) -> None:
        down = StubRegistry()
        down.close()
        stub.add("orders-value", ORDER)
        found = schemas.Registry(f"{down.url}, {stub.url}/", retry_seconds=0).latest("orders-value")
        assert (found.text, found.id) == (json.dumps(ORDER), 1)
        with pytest.raises(RegistryFailed, match="cannot be reached"):
            schemas.Registry(down.url, retry_seconds=0).latest("orders-value")

    def test_a_registry_with_tls_is_trusted_by_its_authority_only(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authority.issue("server"))
        stub = StubRegistry(context)
        try:
            stub.add("orders-value", ORDER)
            found = schemas.Registry(stub.url, ca_file=str(authority.file), retry_seconds=0).by_id(1)
            assert found.text == json.dumps(ORDER)
            with pytest.raises(RegistryFailed, match="certificate verify failed"):
                schemas.Registry(stub.url, retry_seconds=0).by_id(1)
            with pytest.raises(RegistryFailed, match=r"'/nowhere\.pem' of a schema registry cannot be read"):
                schemas.Registry(stub.url, ca_file="/nowhere.pem", retry_seconds=0).by_id(1)
        finally:
            stub.close()

    def test_a_replaced_authority_is_trusted_without_a_restart(self, tmp_path: Path) -> None:
        authorities = [Authority(tmp_path, name) for name in ("first", "second")]
        trusted = tmp_path / "trusted.pem"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authorities[0].issue("server"))
        stub = StubRegistry(context)
        try:
            for authority in authorities:
                trusted.write_bytes(authority.file.read_bytes())
                context.load_cert_chain(authority.issue("server"))
                stub.add("orders-value", ORDER)
                assert schemas.Registry(stub.url, ca_file=str(trusted), retry_seconds=0).by_id(1).text == json.dumps(
                    ORDER
                )
        finally:
            stub.close()

    @pytest.mark.parametrize("url", ["", "registry:8081", "ftp://registry", "http://me:pass@registry:8081"])
    def test_a_wrong_address_is_refused_at_once(self, url: str) -> None:
        with pytest.raises(WrongOption, match="schema registry"):
            schemas.Registry(url)


class TestSchemaToWrite:
    def test_a_schema_is_found_or_registered(self, stub: StubRegistry) -> None:
        registry = impatient(stub)
        with pytest.raises(RegistryFailed, match="register=True adds the schema to subject 'a/b'"):
            avro_functions._schema_to_write(ORDER, registry, "a/b", False)
        assert avro_functions._schema_to_write(ORDER, registry, "a/b", True)[1] == 1
        assert avro_functions._schema_to_write(ORDER, registry, "a/b", False)[1] == 1
        assert avro_functions._schema_to_write(None, registry, "a/b", False) == (SchemaText(json.dumps(ORDER)), 1)
        assert stub.requests[-1] == "GET /subjects/a%2Fb/versions/latest"

    @pytest.mark.parametrize("register", [False, True])
    def test_a_schema_that_cannot_be_written_is_refused_before_the_registry_has_it(
        self, register: bool, stub: StubRegistry
    ) -> None:
        with pytest.raises(WrongSchema, match="a union of several types cannot be written"):
            avro_functions._schema_to_write(record(("x", ["int", "string"])), impatient(stub), "s", register)
        assert stub.requests == []

    def test_a_latest_schema_that_cannot_be_written_is_refused(self, stub: StubRegistry) -> None:
        stub.add("orders-value", record(("x", ["int", "string"])))
        with pytest.raises(WrongSchema, match="a union of several types cannot be written"):
            avro_functions._schema_to_write(None, impatient(stub), "orders-value", False)

    def test_a_latest_schema_of_another_kind_is_refused(self, stub: StubRegistry) -> None:
        stub.add("orders-value", "message Order {}", "PROTOBUF")
        with pytest.raises(WrongSchema, match="the schema of subject 'orders-value' is PROTOBUF, not AVRO"):
            avro_functions._schema_to_write(None, impatient(stub), "orders-value", False)


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(SparkMissing, match=r"'fastavro' is not installed: pip install 'gantrymq\[spark-schemas\]'"):
        schemas.from_avro("body", ORDER)
    with pytest.raises(SparkMissing, match="'fastavro' is not installed"):
        avro_functions._avro_encoder.__wrapped__((SchemaText('"int"'), b""), pa.int32())
