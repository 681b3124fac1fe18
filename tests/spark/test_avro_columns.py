"""The compiled loops for Avro bodies, compared with the reader that decodes body by body."""

from __future__ import annotations

import datetime
import io
import json
import random
from decimal import Decimal
from typing import Any

import pytest

fastavro = pytest.importorskip("fastavro", reason="pip install 'gantrymq[spark-schemas]'")
pa = pytest.importorskip("pyarrow")

from gantrymq.spark.errors import BadBody  # noqa: E402
from gantrymq.spark.schemas import avro_columns  # noqa: E402
from gantrymq.spark.schemas.avro import AvroReader  # noqa: E402
from gantrymq.spark.schemas.avro_columns import WRITERS_MAX, decode_column  # noqa: E402
from gantrymq.spark.schemas.avro_functions import _AvroBodies  # noqa: E402
from gantrymq.spark.schemas.avro_schema import SchemaText, parse_avro  # noqa: E402
from gantrymq.spark.schemas.avro_types import spark_type  # noqa: E402
from gantrymq.spark.schemas.bodies import UnreadableBody, arrow_type, convert_column  # noqa: E402

pytestmark = pytest.mark.skipif(avro_columns.compiled is None, reason="the compiled loops are not built")

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
TYPES: dict[str, Any] = {
    "flag": "boolean", "small": "int", "large": "long", "single": "float", "real": "double", "raw": "bytes",
    "text": "string", "fixed": {"type": "fixed", "name": "F", "size": 3}, "none": "null", "at": MILLIS,
    "color": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]},
    "day": {"type": "int", "logicalType": "date"}, "time": {"type": "long", "logicalType": "time-micros"},
    "price": PRICE, "maybe": ["null", "string"], "either": ["string", "null", "boolean"], "number": ["int", "long"],
    "list": {"type": "array", "items": ["null", "long"]}, "map": {"type": "map", "values": "int"},
    "inner": {"type": "record", "name": "N", "fields": [{"name": "x", "type": {"type": "array", "items": "string"}}]},
}  # fmt: skip


def record(*names: str) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": TYPES[name]} for name in names]}


def parse(schema: Any) -> Any:
    return parse_avro(SchemaText(json.dumps(schema)))


def reader_of(writer: Any, reader: Any) -> tuple[AvroReader, Any]:
    return AvroReader(parse(writer), parse(reader)), arrow_type(spark_type(parse(reader)))


def encode(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return buffer.getvalue()


def any_value(dice: random.Random) -> dict[str, Any]:
    number = dice.choice([0, 1, -1, 63, -65, 2**31 - 1, -(2**31), dice.randrange(-(2**31), 2**31)])
    text = dice.choice(["", "a", "blé", "x" * 200, "\U0001f600"])
    return {
        "flag": dice.random() < 0.5, "small": number, "large": dice.randrange(-(2**63), 2**63), "single": number / 4,
        "real": dice.uniform(-1e300, 1e300), "raw": dice.randbytes(dice.randrange(5)), "text": text,
        "fixed": dice.randbytes(3), "none": None, "color": dice.choice(["RED", "GREEN"]),
        "at": datetime.datetime.fromtimestamp(dice.randrange(-(2**31), 2**33), datetime.UTC),
        "day": datetime.date.fromordinal(dice.randrange(1, 3_000_000)), "time": datetime.time(23, 59, 59, 999_999),
        "price": Decimal(dice.randrange(-(10**9) + 1, 10**9)).scaleb(-2), "maybe": dice.choice([None, text]),
        "either": dice.choice([None, text, True]), "number": number,
        "list": [dice.choice([None, 7, number]) for _ in range(dice.randrange(4))],
        "map": {f"{text}{key}": number for key in range(dice.randrange(4))},
        "inner": {"x": [text] * dice.randrange(3)},
    }  # fmt: skip


def decode(found: AvroReader, kind: Any, bodies: list[bytes]) -> Any:
    decoder = found.decoder(kind)
    assert decoder is not None
    piece = decoder.decode(pa.array(bodies, pa.binary()), b"", bytearray(len(bodies)))
    if piece is not None:
        assert list(memoryview(piece[0]).cast("i")) == list(range(len(bodies)))
        piece[1].validate()
    return None if piece is None else piece[1]


def test_values_of_all_types_are_those_of_the_other_reader() -> None:
    dice = random.Random(4)
    schema = record(*TYPES)
    found, kind = reader_of(schema, schema)
    bodies = [encode(schema, any_value(dice)) for _ in range(200)]
    decoded = decode(found, kind, bodies)
    assert decoded is not None
    decoded.validate(full=True)
    assert decoded.equals(pa.array([found.read(body) for body in bodies], kind))
    assert decode(found, kind, bodies[:1]).equals(decoded[:1]), "a decoder forgets the rows that it has returned"


def test_resolved_fields_defaults_and_left_out_fields_are_those_of_the_other_reader() -> None:
    dice = random.Random(5)
    writer = record(*TYPES)
    reader = record("text", "small", "list", "either")
    reader["fields"][1]["type"] = "double"
    reader["fields"] += [
        {"name": "added", "type": {"type": "map", "values": "long"}, "default": {"a": 1}},
        {"name": "empty", "type": ["null", "string"], "default": None},
    ]
    found, kind = reader_of(writer, reader)
    bodies = [encode(writer, any_value(dice)) for _ in range(50)]
    assert decode(found, kind, bodies).equals(pa.array([found.read(body) for body in bodies], kind))


@pytest.mark.parametrize("name", list(TYPES))
def test_damaged_bodies_are_decoded_equally_or_left_to_the_other_reader(name: str) -> None:
    dice = random.Random(name)
    schema = record(name, "list" if name == "flag" else "flag")
    found, kind = reader_of(schema, schema)
    refused = 0
    for _ in range(60):
        body = bytearray(encode(schema, {**any_value(dice)}))
        for _ in range(dice.randrange(1, 4)):
            body[dice.randrange(len(body))] = dice.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        damaged = bytes(body)[: dice.choice([len(body), len(body), dice.randrange(len(body))])]
        decoded = decode(found, kind, [damaged])
        try:
            expected = pa.array([found.read(damaged)], kind)
        except (UnreadableBody, pa.ArrowException, OverflowError, ValueError, TypeError):
            expected = None
        if expected is None:
            refused += 1
            assert decoded is None
        elif decoded is not None:
            assert decoded.equals(expected) or "nan" in str(expected)
    assert refused


def test_a_column_has_bodies_of_several_writers_nulls_and_an_offset() -> None:
    reader = record("large", "maybe")
    writers = [reader, record("maybe", "flag", "large")]
    readers = [reader_of(writer, reader)[0] for writer in writers]
    kind = arrow_type(spark_type(parse(reader)))
    values: list[Any] = []
    for row in range(20):
        value = {"large": row, "maybe": "x" * row, "flag": True}
        values.append(None if row % 5 == 3 else bytes([row % 2]) + encode(writers[row % 2], value))
    column = pa.array(values, pa.binary())[2:]
    converter = _AvroBodies(lambda body: (readers[body[0]], 1))
    decoded = converter.convert_all(column, kind)
    assert decoded is not None
    assert decoded.equals(pa.array([None if body is None else converter(body) for body in values[2:]], kind))
    assert converter.convert_all(pa.nulls(3, pa.binary()), kind).equals(pa.nulls(3, kind))


@pytest.mark.parametrize("logical", ["timestamp-millis", "local-timestamp-millis", "time-micros"])
def test_an_int_that_is_read_as_a_time_is_that_of_the_other_reader(logical: str) -> None:
    found, kind = reader_of("int", {"type": "long", "logicalType": logical})
    body = encode("int", 7)
    assert decode(found, kind, [body]).equals(pa.array([found.read(body)], kind))


def test_one_body_that_cannot_be_decoded_is_named_or_null_among_others() -> None:
    schema = record("large", "text")
    found, kind = reader_of(schema, schema)
    good = encode(schema, {"large": 1, "text": "a"})
    column = pa.array([good, good[:-1], good], pa.binary())
    converter = _AvroBodies(lambda body: (found, 0))
    offsets = [("queueOffset", pa.array([5, 6, 7]))]
    with pytest.raises(BadBody, match=r"queueOffset 6: .* end within a value"):
        convert_column(column, converter, kind, False, offsets)
    assert convert_column(column, converter, kind, True, offsets).to_pylist() == [
        {"large": 1, "text": "a"}, None, {"large": 1, "text": "a"},
    ]  # fmt: skip


def test_the_largest_decimals_and_empty_bodies_are_decoded_as_by_the_other_reader() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    found, kind = reader_of(schema, schema)
    bodies = [encode(schema, Decimal(sign * (10**38 - 1))) for sign in (1, -1)]
    assert decode(found, kind, bodies).equals(pa.array([found.read(body) for body in bodies], kind))
    over = encode({**schema, "precision": 39}, Decimal(10**38))
    assert decode(found, kind, [over]) is None
    found, kind = reader_of("null", "null")
    assert decode(found, kind, [b"", b""]).equals(pa.nulls(2))
    found, kind = reader_of("string", "string")
    assert decode(found, kind, [b""]) is None


def test_very_many_headers_in_one_batch_are_left_to_the_other_reader() -> None:
    found, kind = reader_of("long", "long")
    bodies = [bytes([header]) + encode("long", 7) for header in range(WRITERS_MAX + 1)]
    assert decode_column(pa.array(bodies[:-1], pa.binary()), kind, lambda body: (found.decoder(kind), 1)) is not None
    assert decode_column(pa.array(bodies, pa.binary()), kind, lambda body: (found.decoder(kind), 1)) is None


def test_a_type_that_the_loops_lack_is_left_to_the_other_reader() -> None:
    other = {**PRICE, "scale": 1}
    found, kind = reader_of(other, PRICE)
    assert found.decoder(kind) is None
    body = encode(other, Decimal("12.5"))
    converter = _AvroBodies(lambda body: (found, 0))
    assert convert_column(pa.array([body]), converter, kind, False, []).to_pylist() == [Decimal("12.50")]
