"""Write bodies with Confluent's serializers or read them with its deserializers: confluent.py URL, JSON on stdin.

It runs in an environment that has confluent-kafka. ``{"write": ...}`` prints the bodies of the order in Avro, JSON and
Protobuf, whose schemas it registers; ``{"read": {kind: body}}`` prints the orders of such bodies. Bodies are base64.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

AVRO = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "user", "type": ["null", "string"], "default": None}],
}  # fmt: skip
JSON = {
    "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "user": {"type": "string"}}, "required": ["id"],
}  # fmt: skip


def protobuf_class() -> Any:
    """The class of the second message of a file, so that bodies have an index that is not the short one."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Header").field.add(name="a", number=1, type=5, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="user", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def main(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    client = SchemaRegistryClient({"url": url})
    order = protobuf_class()
    at = {kind: SerializationContext(f"{kind}-orders", MessageField.VALUE) for kind in ("avro", "json", "protobuf")}
    if "write" in asked:
        value = asked["write"]
        to_protobuf = ProtobufSerializer(order, client, {"use.deprecated.format": False})
        made = {
            "avro": AvroSerializer(client, json.dumps(AVRO))(value, at["avro"]),
            "json": JSONSerializer(json.dumps(JSON), client)(value, at["json"]),
            "protobuf": to_protobuf(order(**value), at["protobuf"]),
        }
        return {kind: base64.b64encode(body).decode() for kind, body in made.items()}
    bodies = {kind: base64.b64decode(text) for kind, text in asked["read"].items()}
    # Without the client: it would ask for the descriptors that it registered itself, at which Apicurio fails.
    message = ProtobufDeserializer(order, {"use.deprecated.format": False})(bodies["protobuf"], at["protobuf"])
    return {
        "avro": AvroDeserializer(client)(bodies["avro"], at["avro"]),
        "json": JSONDeserializer(None, schema_registry_client=client)(bodies["json"], at["json"]),
        "protobuf": {"id": message.id, "user": message.user},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.load(sys.stdin))))
