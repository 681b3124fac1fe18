"""Avro schemas as a tree of types, with the limits that a schema from somewhere else has to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gantrymq.spark.errors import WrongSchema

MAX_BYTES = 1 << 20
"""The most bytes of a schema's text."""
MAX_DEPTH = 64
"""The most levels of nested types."""
MAX_WEIGHT = 10_000
"""The most types in a schema, where each use of a named type counts all that it has."""
MAX_PRECISION = 38
"""The most digits of a decimal in Spark."""

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NANOS = ("timestamp-nanos", "local-timestamp-nanos")
"""The logical types in nanoseconds, which no type of Spark has: they are read as numbers."""
LOGICAL_TYPES = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros",
        *NANOS,
    ),
    "string": ("uuid",),
    "bytes": ("decimal",),
    "fixed": ("decimal",),
}  # fmt: skip
"""The logical types that change how a column is built, read or written; others are ignored, as Avro wants it."""


@attrs.frozen(eq=False)
class AvroField:
    """A field of a record. ``default`` is JSON, and counts if ``has_default``."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@attrs.frozen(eq=False)
class AvroType:
    """One type. ``kind`` is Avro's name of it, or ``union``; ``name`` is the full name of a record, enum or fixed.

    ``items`` is the type of an array's items or of a map's values. ``min_bytes`` is 0 or 1: whether a value can take
    no byte at all. ``weight`` and ``depth`` count this type and those below it. A decimal of more digits than Spark has
    is no logical type here, so that its bytes can be read, but has its ``precision``.
    """

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    min_bytes: int = 1
    weight: int = 1
    depth: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    @property
    def members(self) -> tuple[AvroType, ...]:
        """The branches of a union that are not null; [int, long] is one long and [float, double] one double."""
        found = tuple(branch for branch in self.branches if branch.kind != "null")
        for narrow, wide in (("int", "long"), ("float", "double")):
            if sorted(branch.kind for branch in found) == sorted((narrow, wide)):
                return (AvroType(wide),)
        return found


@attrs.frozen
class SchemaText:
    """A schema as text, and the texts of the schemas that it refers to by name, each after those that it needs."""

    text: str
    references: tuple[str, ...] = ()


def to_text(schema: str | Mapping[str, Any] | Sequence[Any]) -> str:
    """``schema`` as JSON text."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def parse_avro(schema: SchemaText) -> AvroType:
    """The tree of ``schema``. Raises :class:`WrongSchema`: it is not an Avro schema, recursive, or too large."""
    names: dict[str, AvroType | None] = {}
    for text in schema.references:
        _parse(_load(text), "", names)
    return _parse(_load(schema.text), "", names)


def _load(text: str) -> Any:
    if len(text) > MAX_BYTES:
        raise WrongSchema(f"an Avro schema has {len(text):,} characters, the limit is {MAX_BYTES:,}")
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        # Avro's specification allows the bare name of a primitive type, as registries send it.
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise WrongSchema(f"an Avro schema is not JSON: {error}") from None


def _too_deep() -> WrongSchema:
    return WrongSchema(f"an Avro schema is nested deeper than {MAX_DEPTH} levels")


def _parse(found: Any, namespace: str, names: dict[str, AvroType | None], level: int = 1) -> AvroType:
    if level > 2 * MAX_DEPTH:
        raise _too_deep()
    if isinstance(found, str):
        return AvroType(found, min_bytes=found != "null") if found in PRIMITIVES else _named(found, namespace, names)
    if isinstance(found, list):
        return _checked(_parse_union(found, namespace, names, level))
    if not isinstance(found, dict) or "type" not in found:
        raise WrongSchema(f"an Avro schema has {json.dumps(found)[:80]} where a type is expected")
    kind = found["type"]
    if kind in ("record", "error", "enum", "fixed"):
        return _checked(_parse_named(kind, found, namespace, names, level))
    if kind in ("array", "map"):
        name = "items" if kind == "array" else "values"
        if name not in found:
            raise WrongSchema(f"an Avro schema has {kind} without {name!r}")
        return _checked(AvroType(kind, items=_parse(found[name], namespace, names, level + 1)))
    type_ = _parse(kind, namespace, names, level + 1)
    return _with_logical(type_, found) if type_.kind in PRIMITIVES else type_


def _checked(type_: AvroType) -> AvroType:
    below = (*type_.branches, *(field.type for field in type_.fields), *([type_.items] if type_.items else []))
    depth = 1 + max((each.depth for each in below), default=0)
    weight = 1 + sum(each.weight for each in below)
    if depth > MAX_DEPTH:
        raise _too_deep()
    if weight > MAX_WEIGHT:
        raise WrongSchema(f"an Avro schema has more than {MAX_WEIGHT:,} types")
    return attrs.evolve(type_, depth=depth, weight=weight)


def _named(name: str, namespace: str, names: dict[str, AvroType | None]) -> AvroType:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    for each in (full, name):
        if each in names:
            type_ = names[each]
            if type_ is None:
                raise WrongSchema(
                    f"the Avro schema of {each!r} is recursive, which no type of Spark can be; decode the column "
                    "body in a function of your own"
                )
            return type_
    raise WrongSchema(f"an Avro schema has the unknown type {name!r}")


def _parse_union(found: list[Any], namespace: str, names: dict[str, AvroType | None], level: int) -> AvroType:
    branches = tuple(_parse(each, namespace, names, level + 1) for each in found)
    if not branches:
        raise WrongSchema("an Avro schema has a union without branches")
    if any(branch.kind == "union" for branch in branches):
        raise WrongSchema("an Avro schema has a union within a union")
    unique = [branch.name or branch.kind for branch in branches]
    if len(set(unique)) != len(unique):
        raise WrongSchema(f"an Avro schema has a union with the same branch twice: {', '.join(unique)}")
    return AvroType("union", branches=branches)


def _parse_named(
    kind: str, found: dict[str, Any], namespace: str, names: dict[str, AvroType | None], level: int
) -> AvroType:
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise WrongSchema(f"an Avro schema has {kind} without a name")
    given = found.get("namespace", namespace)
    full = name if "." in name or not given else f"{given}.{name}"
    if full in names:
        raise WrongSchema(f"an Avro schema defines {full!r} twice")
    inner = full.rpartition(".")[0]
    aliases = tuple(_texts(found.get("aliases", ()), f"the aliases of {full!r}"))
    if kind == "enum":
        symbols = tuple(_texts(found.get("symbols"), f"the symbols of {full!r}"))
        default = found.get("default")
        if default is not None and default not in symbols:
            raise WrongSchema(f"the default of {full!r} in an Avro schema is not one of its symbols")
        type_ = AvroType("enum", name=full, aliases=aliases, symbols=symbols, default_symbol=default)
    elif kind == "fixed":
        size = found.get("size")
        if not isinstance(size, int) or not 0 <= size <= MAX_BYTES:
            raise WrongSchema(f"the size of {full!r} in an Avro schema is {size!r}")
        type_ = _with_logical(AvroType("fixed", name=full, aliases=aliases, size=size, min_bytes=size > 0), found)
    else:
        names[full] = None
        fields = found.get("fields")
        if not isinstance(fields, list):
            raise WrongSchema(f"the record {full!r} in an Avro schema has no list of fields")
        parsed = tuple(_parse_field(field, full, inner, names, level) for field in fields)
        if len({field.name for field in parsed}) != len(parsed):
            raise WrongSchema(f"the record {full!r} in an Avro schema has two fields of one name")
        type_ = AvroType(
            "record", name=full, aliases=aliases, fields=parsed,
            min_bytes=any(field.type.min_bytes for field in parsed),
        )  # fmt: skip
    names[full] = type_ = _checked(type_)
    return type_


def _parse_field(found: Any, record: str, namespace: str, names: dict[str, AvroType | None], level: int) -> AvroField:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or "type" not in found:
        raise WrongSchema(f"the record {record!r} in an Avro schema has a field without name or type")
    aliases = tuple(_texts(found.get("aliases", ()), f"the aliases of {found['name']!r}"))
    type_ = _parse(found["type"], namespace, names, level + 1)
    return AvroField(found["name"], type_, aliases, "default" in found, found.get("default"))


def _texts(found: Any, what: str) -> Sequence[str]:
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, str) for each in found):
        raise WrongSchema(f"{what} in an Avro schema are not a list of names")
    return found


def _with_logical(type_: AvroType, found: dict[str, Any]) -> AvroType:
    logical = found.get("logicalType")
    if logical not in LOGICAL_TYPES.get(type_.kind, ()):
        return type_
    if logical != "decimal":
        return attrs.evolve(type_, logical=logical)
    precision, scale = found.get("precision"), found.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return type_  # Avro's specification: an invalid logical type is ignored
    if precision > MAX_PRECISION:
        return attrs.evolve(type_, precision=precision)
    return attrs.evolve(type_, logical=logical, precision=precision, scale=scale)
