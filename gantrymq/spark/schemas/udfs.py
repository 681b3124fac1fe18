"""What the functions for columns of bodies share: the registry on the driver, and the work in Python workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gantrymq.spark.errors import RegistryFailed, WrongOption, WrongSchema
from gantrymq.spark.schemas.bodies import Convert, UnreadableBody, arrow_type, convert_column
from gantrymq.spark.schemas.registry import FoundSchema, SchemaRegistry, UnknownSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Reader = TypeVar("Reader", bound=Callable[[bytes, int], Any])
MAX_UNKNOWN = 1000
"""The most unknown ids that a Python worker meets before it fails, also if unreadable bodies become null: each costs a
request, and so many mean that the bodies are not of this registry."""
_UNKNOWN_SECONDS = 60.0


def ask_latest(registry: SchemaRegistry, subject: str, kind: str) -> FoundSchema:
    """The newest schema of ``subject``. Raises :class:`WrongSchema` if it is not of ``kind``."""
    try:
        found = registry.latest(subject)
    except UnknownSchema as error:
        raise RegistryFailed(str(error)) from None
    if found.kind != kind:
        raise WrongSchema(f"the schema of subject {subject!r} is {found.kind}, not {kind}")
    return found


def ask_id(registry: SchemaRegistry, subject: str | None, schema: FoundSchema, register: bool) -> int:
    """The id of ``schema`` in ``subject``, where it is added with ``register``."""
    if subject is None:
        raise WrongOption("a registry needs the subject that has the schema")
    try:
        return registry.register(subject, schema) if register else registry.find(subject, schema)
    except UnknownSchema as error:
        raise RegistryFailed(f"{error}; register=True adds the schema to subject {subject!r}") from None


def is_permissive(mode: str) -> bool:
    """Whether bodies that cannot be decoded become null. Raises :class:`WrongOption` for another mode."""
    if mode.lower() not in ("failfast", "permissive"):
        raise WrongOption(f"mode is 'failfast' or 'permissive', not {mode!r}")
    return mode.lower() == "permissive"


def make_udf(
    make: Callable[[Any, pa.DataType], Convert], spec: Any, kind: DataType, permissive: bool, origin: tuple[str, ...]
) -> Callable[..., Column]:
    """A function of columns: one that ``make(spec, its type)`` converts into ``kind``, and those of ``origin``."""
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    def convert(column: pa.Array, *where: pa.Array) -> pa.Array:
        named = list(zip(origin, where, strict=True))
        return convert_column(column, make(spec, column.type), arrow_type(kind), permissive, named)

    # Spark evaluates the hints to find what kind of function it is.
    convert.__annotations__ = dict.fromkeys(("column", "where", "return"), pa.Array)
    udf: Callable[..., Column] = arrow_udf(convert, kind)
    return udf


class RegistryConverter(Generic[Reader]):
    """Decodes bodies with a header, each by what ``make`` returns for the id of its schema."""

    def __init__(self, registry: SchemaRegistry, make: Callable[[int], Reader]) -> None:
        self._registry = registry
        self._make = make
        self._readers: dict[int, Reader] = {}
        self._refused: dict[int, tuple[float, str]] = {}

    def convert(self, body: bytes) -> Any:
        """The value of ``body``. Raises :class:`UnreadableBody`, :class:`RegistryFailed`."""
        read, start = self.find(body)
        return read(body, start)

    def find(self, body: bytes) -> tuple[Reader, int]:
        """What decodes ``body``, and where the value begins. Raises as :meth:`convert` does."""
        number, start = self._registry.split(body)
        return self._readers.get(number) or self._open(number), start

    def _open(self, number: int) -> Reader:
        since, reason = self._refused.get(number, (0.0, ""))
        if not reason or time.monotonic() - since > _UNKNOWN_SECONDS:
            if len(self._refused) >= MAX_UNKNOWN:
                raise RegistryFailed(f"{self._registry} lacks {MAX_UNKNOWN:,} ids of these bodies, the last: {reason}")
            try:
                self._readers[number] = self._make(number)
                return self._readers[number]
            except UnknownSchema as error:
                reason = str(error)
            except WrongSchema as error:
                reason = f"schema {number} of {self._registry}: {error}"
            self._refused[number] = (time.monotonic(), reason)
        raise UnreadableBody(reason)
