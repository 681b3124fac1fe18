"""JSON bodies by a JSON schema, with and without the header of a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("urllib3", reason="pip install 'gantrymq[spark-schemas]'")

from gantrymq.spark import reason, schemas
from gantrymq.spark.errors import RegistryFailed, WrongOption, WrongSchema
from gantrymq.spark.schemas.json_functions import json_type
from support.schema_registry import StubRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Registered and written by confluent-kafka 2.16.1.
ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "user": {"type": ["string", "null"]},
        "items": {"type": "array", "items": {"type": "object", "properties": {
            "sku": {"type": "string"}, "n": {"type": "number"}}}},
    },
}  # fmt: skip
CONFLUENT = b'\0\0\0\0\4{"id":7,"user":null,"items":[{"sku":"a","n":1.5}]}'


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    stub = StubRegistry()
    yield stub
    stub.close()


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["null", "number"]}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"enum": ["a", "b"]}, "string"),
        ({"type": "array"}, "array<string>"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "string"),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": True}}]},
            "struct<a:bigint,b:string>",
        ),
        ({"$ref": "#/$defs/a~1b"}, "struct<next:string>"),
        ({"$ref": "#/$defs/a~1b", "description": "a node", "type": "object"}, "struct<next:string>"),
        ({"$ref": "#/$defs/base", "properties": {"b": {"type": "boolean"}}}, "struct<id:bigint,b:boolean>"),
        (
            {"type": "object", "allOf": [{"$ref": "#/$defs/base"}], "properties": {"b": {"type": "boolean"}}},
            "struct<id:bigint,b:boolean>",
        ),
        ({"allOf": [{"$ref": "#/$defs/base"}, {"required": ["id"]}]}, "struct<id:bigint>"),
        (
            {"type": "object", "allOf": [{"$ref": "#/$defs/base"}, {"if": {}, "then": {"required": ["id"]}}]},
            "struct<id:bigint>",
        ),
        ({"allOf": [{"$ref": "#/$defs/derived"}], "properties": {"c": True}}, "struct<id:bigint,b:string,c:string>"),
        (
            {"allOf": [{"$ref": "#/$defs/derived"}, {"$ref": "#/$defs/base"}], "properties": {"id": {"minimum": 1}}},
            "struct<id:bigint,b:string>",
        ),
        (
            {"allOf": [{"properties": {"a": {"properties": {"b": {"type": "integer"}}}}}],
             "properties": {"a": {"properties": {"c": {"type": "number"}}}}},
            "struct<a:struct<b:bigint,c:double>>",
        ),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "bigint"),
        ({"allOf": [{"type": ["number", "null"]}, {"type": "integer"}]}, "bigint"),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"allOf": [{"$ref": "#/$defs/base"}, {"oneOf": [{"$ref": "#/$defs/derived"}, {"type": "object"}]}]}, "string"),
        ({"properties": {"a": True}, "oneOf": [{"properties": {"b": True}}, {"type": "object"}]}, "struct<a:string>"),
        ({"properties": {"a": True}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "struct<a:string>"),
        ({"allOf": [{"items": {"type": "integer"}, "type": "array"}, {"type": "array"}]}, "array<bigint>"),
        (
            {"allOf": [{"type": "object", "additionalProperties": {"type": "integer"}}], "type": "object"},
            "map<string,bigint>",
        ),
        ({"properties": {"a": {"$ref": "#/$defs/whole"}}}, "struct<a:struct<self:string,n:bigint>>"),
        (True, "string"),
    ],
)  # fmt: skip
def test_each_schema_has_a_type(schema: Any, kind: str) -> None:
    definitions = {
        "a/b": {"properties": {"next": {"$ref": "#/$defs/a~1b"}}},
        "base": {"type": "object", "properties": {"id": {"type": "integer"}}},
        "derived": {"allOf": [{"$ref": "#/$defs/base"}], "type": "object", "properties": {"b": {"type": "string"}}},
        "whole": {
            "properties": {
                "self": {"$ref": "#/$defs/whole", "properties": {"more": {"type": "integer"}}},
                "n": {"type": "integer"},
            }
        },
    }  # fmt: skip
    whole = {"properties": {"x": schema}, "$defs": definitions}
    assert json_type(whole).simpleString() == f"struct<x:{kind}>"


def test_an_ancestor_that_is_inherited_in_many_ways_counts_once() -> None:
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}", "title": name} for name in "ab"]} for n in range(20)
    }
    definitions["d20"] = {"properties": {"a": {"type": "integer"}}}
    assert json_type({"$ref": "#/$defs/d0", "$defs": definitions}).simpleString() == "struct<a:bigint>"


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ({"type": "array"}, "describes array<string>, not an object"),
        ({"properties": {"x": {"$ref": "other.json"}}}, "refers to 'other.json', which is not a path in it"),
        ({"properties": {"x": {"$ref": "#a"}}, "$defs": {"a": {"$anchor": "a"}}}, "refers to '#a', which is not a"),
        ({"properties": {"x": {"$ref": "#/$defs/x"}}}, "refers to '#/.defs/x', which it does not have"),
        ({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {
            f"d{n}": {"properties": {name: {"$ref": f"#/$defs/d{n + 1}"} for name in "ab"}} for n in range(40)
        } | {"d40": True}}, "has more than 10,000 types"),
        ({"$ref": "#"}, "describes string, not an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "describes string, not an object"),
    ],
    ids=["damaged", "deep", "array", "elsewhere", "anchor", "missing", "bomb", "itself", "own ancestor"],
)  # fmt: skip
def test_a_schema_without_a_type_is_refused(schema: Any, error: str) -> None:
    with pytest.raises(WrongSchema, match=error):
        json_type(schema)


def test_arguments_that_contradict_each_other_are_refused(stub: StubRegistry) -> None:
    registry = schemas.Registry(stub.url, retry_seconds=0)
    for given in ({}, {"schema": ORDER, "subject": "s"}, {"subject": "s"}):
        with pytest.raises(WrongOption, match="give the schema"):
            schemas.from_json("body", **given)  # type: ignore[arg-type]
    with pytest.raises(RegistryFailed, match="Subject 's' not found"):
        schemas.from_json("body", registry=registry, subject="s")


@pytest.mark.spark
def test_spark_reads_and_writes_json_by_a_registrys_schema(spark: SparkSession, stub: StubRegistry) -> None:
    stub.schemas = [{}, {}, {}]
    assert stub.add("orders-value", ORDER, "JSON") == 4
    registry = schemas.Registry(stub.url, retry_seconds=0)
    bodies = [CONFLUENT, CONFLUENT[:20], CONFLUENT[5:], b"", CONFLUENT.replace(b"7", b'"x"'), None]
    frame = spark.createDataFrame(list(enumerate(bodies)), "queueOffset bigint, body binary").coalesce(1)
    lenient = schemas.from_json("body", registry=registry, subject="orders-value", mode="permissive").alias("o")
    rows = frame.select(lenient).select("o.id", "o.user", "o.items").collect()
    assert rows[0].id == 7
    assert [(item.sku, item.n) for item in rows[0]["items"]] == [("a", 1.5)]
    assert [tuple(row) for row in rows[1:]] == [(None, None, None)] * 5

    strict = schemas.from_json("body", ORDER, registry=registry, origin=("queueOffset",)).alias("o")
    assert [row.o is None for row in frame.where("queueOffset IN (0, 5)").select(strict).collect()] == [False, True]
    for offset in range(1, 5):
        with pytest.raises(Exception, match="the body is not the JSON") as failed:
            frame.where(f"queueOffset = {offset}").select(strict).collect()
        assert f"queueOffset {offset}, the body is not the JSON of its schema" in reason(failed.value)

    plain = spark.createDataFrame([(CONFLUENT[5:],)], "body binary").select(schemas.from_json("body", ORDER).alias("o"))
    written = plain.select(schemas.to_json("o", registry=registry, subject="orders-value")).collect()[0][0]
    assert bytes(written)[:5] == CONFLUENT[:5]
    assert json.loads(bytes(written)[5:]) == {"id": 7, "items": [{"sku": "a", "n": 1.5}]}
    added = schemas.to_json("o", {"type": "object"}, registry=registry, subject="new", register=True)
    assert bytes(plain.select(added).collect()[0][0])[:5] == b"\0\0\0\0\5"
