"""Serializers and deserializers: formats, types, models, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gantrymq
from gantrymq.client.serializers import deserializer_of, serializer_of


@dataclass
class Order:
    id: int
    tags: list[str]


class Struct(msgspec.Struct):
    id: int
    at: datetime | None = None


class Model:
    """A model with the methods of pydantic's models."""

    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump_json(self) -> str:
        return f'{{"number":{self.number}}}'

    def model_dump(self) -> dict[str, int]:
        return {"number": self.number}

    @classmethod
    def model_validate_json(cls, body: bytes) -> Model:
        return cls(msgspec.json.decode(body)["number"])


@pytest.mark.parametrize(
    ("serializer", "value", "body", "deserializer", "again"),
    [
        ("str", "größe", "größe".encode(), "str", "größe"),
        ("str", "x", b"x", str, "x"),
        (bytes, b"x", b"x", bytes, b"x"),
        ("json", {"a": [1, None]}, b'{"a":[1,null]}', "json", {"a": [1, None]}),
        ("json", Order(1, ["a"]), b'{"id":1,"tags":["a"]}', Order, Order(1, ["a"])),
        (
            "json", Struct(2, datetime(2026, 1, 2, tzinfo=UTC)), b'{"id":2,"at":"2026-01-02T00:00:00Z"}', Struct,
            Struct(2, datetime(2026, 1, 2, tzinfo=UTC)),
        ),
        ("json", [Order(1, [])], b'[{"id":1,"tags":[]}]', list[Order], [Order(1, [])]),
        ("json", [Model(3)], b'[{"number":3}]', "json", [{"number": 3}]),
        ("msgpack", {"a": b"b"}, b"\x81\xa1a\xc4\x01b", "msgpack", {"a": b"b"}),
        (lambda text: text.encode("latin-1"), "ä", b"\xe4", lambda body: body.decode("latin-1"), "ä"),
    ],
)  # fmt: skip
def test_serializers_encode_and_decode_bodies(
    serializer: Any, value: Any, body: bytes, deserializer: Any, again: Any
) -> None:
    assert serializer_of(serializer)(value) == body
    assert deserializer_of(deserializer)(body) == again


def test_models_encode_and_decode_themselves() -> None:
    assert serializer_of("json")(Model(3)) == b'{"number":3}'
    assert deserializer_of(Model)(b'{"number":3}').number == 3


def test_pydantic_models_encode_and_decode_themselves() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Kind", number=(int, ...))
    body = serializer_of("json")(kind(number=3))
    assert body == b'{"number":3}'
    assert deserializer_of(kind)(body) == kind(number=3)
    with pytest.raises(gantrymq.BodyError, match="cannot be read as Kind: ValidationError"):
        deserializer_of(kind)(b'{"number":"x"}')


def test_a_pydantic_model_within_another_object_is_the_json_of_the_model_alone() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Kind(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        took: timedelta
        raw: bytes
        where: Path
        rate: float

    model = Kind(took=timedelta(seconds=90), raw=b"ab", where=Path("/tmp/x"), rate=float("inf"))
    alone = serializer_of("json")(model)
    assert serializer_of("json")({"a": [model]}) == b'{"a":[' + alone + b"]}"
    number = pydantic.create_model("Number", raw=(bytes, ...))
    assert msgspec.msgpack.decode(serializer_of("msgpack")([number(raw=b"\xff")])) == [{"raw": b"\xff"}]


@pytest.mark.parametrize(
    ("serializer", "value", "reason"),
    [
        ("str", 1, "serializer str cannot encode int: TypeError: it is not a str"),
        ("json", b"x", "bytes have no form in JSON"),
        ("json", object(), "it has a object in it"),
        ("json", float, "serializer json cannot encode type"),
        (lambda value: str(value), 1, "serializer <lambda> returned str, not bytes"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_an_invalid_message(serializer: Any, value: Any, reason: str) -> None:
    with pytest.raises(gantrymq.InvalidMessage, match=reason):
        serializer_of(serializer)(value)


@pytest.mark.parametrize(
    ("deserializer", "body", "reason"),
    [
        ("str", b"\xff", "cannot be read as str: UnicodeDecodeError"),
        ("json", b"{", "cannot be read as json"),
        ("msgpack", b"\xc1", "cannot be read as msgpack"),
        (Order, b'{"id":"x","tags":[]}', "cannot be read as Order: ValidationError: Expected `int`"),
        (Struct, b"{}", "missing required field `id`"),
        (lambda body: 1 // 0, b"x", "cannot be read as <lambda>: ZeroDivisionError"),
    ],
)
def test_a_body_that_cannot_be_decoded_is_a_body_error(deserializer: Any, body: bytes, reason: str) -> None:
    with pytest.raises(gantrymq.BodyError, match=reason):
        deserializer_of(deserializer)(body)


@pytest.mark.parametrize("choice", ["xml", None, 5])
def test_unknown_choices_are_rejected(choice: Any) -> None:
    with pytest.raises(ValueError, match="serializer"):
        serializer_of(choice)
    with pytest.raises(ValueError, match="deserializer"):
        deserializer_of(choice)


def test_a_type_that_json_cannot_represent_is_rejected() -> None:
    with pytest.raises(ValueError, match="is not a type that JSON can stand for"):
        deserializer_of(list[Order | Struct])
    with pytest.raises(ValueError, match="is not a type that JSON can stand for"):
        deserializer_of(list[Path])
