"""Avro, Protobuf and JSON bodies in Spark, with or without a schema registry; needs no jar.

The functions take a column of bodies and return a column of the schema's type, in batches and in streams. They need
the extra ``spark-schemas`` on the driver and on every machine that runs Python workers.
"""

from __future__ import annotations

from gantrymq.spark.schemas.avro_functions import avro_decoder, from_avro, to_avro
from gantrymq.spark.schemas.json_functions import from_json, to_json
from gantrymq.spark.schemas.protobuf_functions import from_protobuf, protobuf_decoder, to_protobuf
from gantrymq.spark.schemas.registry import Registry

__all__ = [
    "Registry",
    "avro_decoder",
    "from_avro",
    "from_json",
    "from_protobuf",
    "protobuf_decoder",
    "to_avro",
    "to_json",
    "to_protobuf",
]
