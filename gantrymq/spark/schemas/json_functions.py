"""The functions for columns of JSON bodies, by Spark's own expressions; no Python worker runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gantrymq.spark.errors import RegistryFailed, WrongOption, WrongSchema
from gantrymq.spark.schemas.avro_schema import MAX_BYTES, MAX_DEPTH, MAX_WEIGHT
from gantrymq.spark.schemas.registry import FoundSchema, SchemaRegistry
from gantrymq.spark.schemas.udfs import ask_id, ask_latest, is_permissive

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

JsonSchema = str | Mapping[str, Any]
"""A JSON schema: its text, or what ``json.loads`` makes of it."""
_CORRUPT = "_gantrymq_corrupt_record"


def from_json(
    column: Column | str, schema: JsonSchema | None = None, *, registry: SchemaRegistry | None = None,
    subject: str | None = None, mode: str = "failfast", origin: Sequence[str] = (),
) -> Column:  # fmt: skip
    """The column of JSON bodies (or strings) as a column of the type of a JSON schema, in batches and streams.

    With ``registry`` each body begins with the header of a registry; ``schema`` is the newest one of ``subject`` unless
    it is given. The schema says which fields there are and of what types; nothing else of it is checked.

    ``mode`` and ``origin`` mean the same as for :func:`from_avro`. Raises :class:`WrongSchema`, :class:`WrongOption`,
    :class:`RegistryFailed`.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    if (schema is None) == (subject is None) or (subject is not None and registry is None):
        raise WrongOption("give the schema that the column is read with, or a registry and a subject that has one")
    text = schema if schema is not None else ask_latest(_given(registry), _given(subject), "JSON").text
    kind = StructType([*json_type(text).fields, StructField(_CORRUPT, StringType())])
    permissive = is_permissive(mode)
    body = f.col(column) if isinstance(column, str) else column
    if registry is not None:
        start = f.substring(body, 1, 1)
        body = f.when(start == f.lit(registry.header(0)[:1]), f.substring(body, len(registry.header(0)) + 1, 2**31 - 1))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    found = f.from_json(body.cast("string"), kind, options)
    bad = found.isNull() | found[_CORRUPT].isNotNull()
    value = found.dropFields(_CORRUPT)
    if permissive:
        return f.when(~bad, value)
    given = f.col(column) if isinstance(column, str) else column
    where = [part for name in origin for part in (f.lit(f"{name} "), f.col(name).cast("string"), f.lit(", "))]
    what = f.concat(*where, f.lit("the body is not the JSON of its schema"))
    return f.when(given.isNull(), None).when(bad, f.raise_error(what)).otherwise(value)


def to_json(
    column: Column | str, schema: JsonSchema | None = None, *, registry: SchemaRegistry, subject: str,
    register: bool = False,
) -> Column:  # fmt: skip
    """The column as JSON bodies behind the header of a registry; Spark's own ``to_json`` makes the text.

    The header has the id of ``schema`` in ``subject``, which must be there already or is added with ``register``, or of
    the newest schema without ``schema``. Rows are not checked against the schema.
    """
    from pyspark.sql import functions as f

    if schema is not None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        number = ask_id(registry, subject, FoundSchema(text, "JSON"), register)
    else:
        number = _given(ask_latest(registry, subject, "JSON").id)
    return f.concat(f.lit(registry.header(number)), f.to_json(column).cast("binary"))


def _given(value: Any) -> Any:
    if value is None:
        raise RegistryFailed("a schema registry answers without an id")
    return value


def json_type(schema: JsonSchema) -> StructType:
    """The type in Spark of what a JSON schema describes. Raises :class:`WrongSchema` unless that is an object."""
    from pyspark.sql.types import StructType

    if isinstance(schema, str):
        if len(schema) > MAX_BYTES:
            raise WrongSchema(f"a JSON schema has {len(schema):,} characters, the limit is {MAX_BYTES:,}")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise WrongSchema(f"a JSON schema is not JSON: {error}") from None
    kind = _Types(schema).type_of((schema, ()))
    if not isinstance(kind, StructType):
        raise WrongSchema(f"a JSON schema describes {kind.simpleString()}, not an object with properties")
    return kind


_Part = tuple[Any, tuple[str, ...]]
"""A schema, and the references that lead to it."""


class _Recursive(Exception):
    """A schema refers to one that it is within."""


class _Types:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._count = 0

    def type_of(self, *given: _Part, depth: int = 0) -> DataType:
        """The type of what fits all of the schemas ``given``; a string for JSON of any form."""
        from pyspark.sql import types

        found: list[_Part] = []
        seen: set[int] = set()
        try:
            for schema, above in given:
                self._collect(schema, above, depth, found, seen)
        except _Recursive:
            return types.StringType()
        typed = [part for part in found if _is_typed(part[0])]
        if len(typed) < len(found) and not any(_is_typed(schema) for schema, _ in given):
            return types.StringType()  # one of several types
        kinds: set[str] = set.intersection(*(_kinds(schema) for schema, _ in typed)) if typed else set()
        if kinds == {"array"}:
            items = [(schema.get("items"), above) for schema, above in typed]
            return types.ArrayType(self.type_of(*items, depth=depth + 1))
        if kinds == {"object"}:
            return self._object(typed, depth)
        if kinds == {"integer", "number"}:
            return types.DoubleType()
        simple: dict[str, DataType] = {"boolean": types.BooleanType(), "integer": types.LongType()}
        return simple.get(kinds.pop(), types.StringType()) if len(kinds) == 1 else types.StringType()

    def _collect(self, schema: Any, above: tuple[str, ...], depth: int, found: list[_Part], seen: set[int]) -> None:
        """Add ``schema`` to ``found``, behind those that its values fit too by ``$ref`` and ``allOf``.

        Schemas that say nothing of types are left out. Raises :class:`_Recursive`.
        """
        self._count += 1
        if self._count > MAX_WEIGHT or depth > MAX_DEPTH:
            raise WrongSchema(f"a JSON schema has more than {MAX_WEIGHT:,} types or {MAX_DEPTH} levels")
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        if isinstance(reference := schema.get("$ref"), str):
            if reference in above:
                raise _Recursive
            self._collect(self._resolve(reference), (*above, reference), depth + 1, found, seen)
        for each in _listed(schema, "allOf"):
            self._collect(each, above, depth + 1, found, seen)
        choices = [each for each in _choices(schema) if not (isinstance(each, dict) and each.get("type") == "null")]
        if _is_typed(schema):
            found.append((schema, above))
        elif len(choices) == 1:
            self._collect(choices[0], above, depth + 1, found, seen)
        elif any(isinstance(each, dict) and not _TYPING.isdisjoint(each) for each in choices):
            found.append((schema, above))

    def _object(self, parts: list[_Part], depth: int) -> DataType:
        from pyspark.sql import types

        fields: dict[str, list[_Part]] = {}
        for schema, above in parts:
            if isinstance(properties := schema.get("properties"), dict):
                for name, each in properties.items():
                    fields.setdefault(name, []).append((each, above))
        if fields:
            struct = types.StructType()
            for name, given in fields.items():
                struct.add(name, self.type_of(*given, depth=depth + 1))
            return struct
        values = [(schema.get("additionalProperties"), above) for schema, above in parts]
        values = [each for each in values if isinstance(each[0], dict)]
        if values:
            return types.MapType(types.StringType(), self.type_of(*values, depth=depth + 1))
        return types.StringType()

    def _resolve(self, reference: str) -> Any:
        found = self._root
        if reference != "#" and not reference.startswith("#/"):
            raise WrongSchema(
                f"a JSON schema refers to {reference!r}, which is not a path in it: give one without such references"
            )
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise WrongSchema(f"a JSON schema refers to {reference!r}, which it does not have")
            found = found[name]
        return found


_TYPING = frozenset({"type", "properties", "$ref", "allOf", "anyOf", "oneOf"})
"""The keywords of a schema that may say of which type its values are."""


def _is_typed(schema: Any) -> bool:
    return isinstance(schema, dict) and ("type" in schema or "properties" in schema)


def _kinds(schema: dict[str, Any]) -> set[str]:
    """JSON's types of the values of ``schema`` other than null; each integer is a number too."""
    given = schema.get("type", "object")
    kinds = {kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)} - {"null"}
    return kinds | {"integer"} if "number" in kinds else kinds


def _listed(schema: dict[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _choices(schema: dict[str, Any]) -> list[Any]:
    return _listed(schema, "anyOf") or _listed(schema, "oneOf")
