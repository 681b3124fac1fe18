"""Schemas in a real registry, Apicurio, with Confluent's own serializers on the other side of the topic."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gantrymq.spark import reason, schemas
from gantrymq.testing.harness import cluster_in_thread
from support.apicurio import run_apicurio
from support.foreign import BUILD_SECONDS, ToolMissing, cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.once, pytest.mark.interop, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("fastavro", reason="pip install 'gantrymq[spark-schemas]'")

HERE = Path(__file__).parent
CONFLUENT = "confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1"
ORDER = {"id": 7, "user": "ada"}
KINDS = ("avro", "json", "protobuf")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with run_apicurio(cache_folder(HERE / ".cache"), tmp_path_factory.mktemp("apicurio")) as url:
            yield url
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def confluent(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Any]:
    """Runs ``confluent.py``, with Confluent's package from the index in an environment of its own."""
    folder = tmp_path_factory.mktemp("confluent")
    python = folder / "bin" / "python"
    for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", CONFLUENT]):
        subprocess.run(command, check=True, timeout=BUILD_SECONDS)

    def run(asked: Any) -> Any:
        command = [python, HERE / "confluent.py", registry]
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def shop_descriptors() -> bytes:
    """The file of ``confluent.py``, with its imports, of which there are none."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Header").field.add(name="a", number=1, type=5, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="user", number=2, type=9, label=1)
    return files.SerializeToString()


@pytest.mark.soak(0)
def test_confluents_bodies_are_read_and_ours_are_read_by_confluent(
    registry: str, confluent: Callable[[Any], Any], spark: SparkSession, tmp_path: Path
) -> None:
    ours = schemas.Registry(registry, retry_seconds=0)
    descriptors = shop_descriptors()
    reads: dict[str, Callable[..., Any]] = {
        "avro": lambda **more: schemas.from_avro("body", registry=ours, subject="avro-orders-value", **more),
        "json": lambda **more: schemas.from_json("body", registry=ours, subject="json-orders-value", **more),
        "protobuf": lambda **more: schemas.from_protobuf("body", "shop.Order", descriptors, registry=ours, **more),
    }
    bodies = confluent({"write": ORDER})
    assert sorted(bodies) == list(KINDS)
    ids = {}
    with cluster_in_thread(tmp_path / "store") as cluster:
        to = {"nameserver": cluster.nameserver}
        for kind in KINDS:
            sent = spark.createDataFrame([(bytearray(base64.b64decode(bodies[kind])),)], "body binary")
            sent.write.format("gantrymq").options(**to, topic=kind).mode("append").save()
            read = spark.read.format("gantrymq").options(**to, topic=kind).load()
            [row] = read.select(reads[kind]().alias("o")).collect()
            assert (row.o.id, row.o.user) == (7, "ada"), kind
            ids[kind] = bytes(base64.b64decode(bodies[kind]))[:5]

    value = spark.createDataFrame([(8, "bob")], "id bigint, user string").selectExpr("struct(id, user) AS value")
    writes = {
        "avro": schemas.to_avro("value", registry=ours, subject="avro-orders-value"),
        "json": schemas.to_json("value", registry=ours, subject="json-orders-value"),
        "protobuf": schemas.to_protobuf(
            "value", "shop.Order", descriptors, registry=ours, subject="protobuf-orders-value", register=True
        ),
    }
    made = {kind: bytes(value.select(column.alias("b")).first().b) for kind, column in writes.items()}
    assert {kind: body[:5] for kind, body in made.items() if kind != "protobuf"} == {
        kind: head for kind, head in ids.items() if kind != "protobuf"
    }, "with the ids of the schemas that are there already"
    read_back = confluent({"read": {kind: base64.b64encode(body).decode() for kind, body in made.items()}})
    assert read_back == {kind: {"id": 8, "user": "bob"} for kind in KINDS}

    unknown = spark.createDataFrame([(bytearray(b"\0\0\0\x27\x0f\x02"),)], "body binary")
    with pytest.raises(Exception, match="9999") as failed:
        unknown.select(reads["avro"]()).collect()
    assert "status 404" in reason(failed.value)
    assert [row[0] for row in unknown.select(reads["avro"](mode="permissive").alias("o")).collect()] == [None]
