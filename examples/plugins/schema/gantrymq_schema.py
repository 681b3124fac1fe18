"""Refuses messages whose bodies are not JSON, or break the JSON schema of their topic.

Slot: none. Hooks: config_section, configure, before_append. Files: the schemas, which it reads at the start.
Config ``[plugin.schema]``: ``files``, by topic the path of its schema; ``max_body``, the longest body that is checked,
longer ones are refused: all clients wait while a body is read::

    [plugin.schema]
    files = { orders = "/etc/gantrymq/orders.schema.json" }

Senders get the code MESSAGE_ILLEGAL with the first thing that is wrong. A compressed body is unpacked for the check and
stored as it was sent. Messages that are stored already, such as retries, are not checked again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import fastjsonschema

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import size
from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.records import COMPRESSED, BodyError, decompress

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import AppendBatch
    from gantrymq.kernel.config.sections import Config

REMARK_MAX_CHARS = 300
"""An error may have much of the body in it."""


@attrs.frozen
class SchemaConfig:
    """``[plugin.schema]``."""

    files: dict[str, str] = attrs.field(factory=dict)
    max_body: int = size("64 KiB", minimum=1, maximum="4 MiB")


class SchemaPlugin:
    """One object per broker."""

    name = "schema"
    version = "1.0.0"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "schema", SchemaConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read and compile the schemas; the broker refuses to start without one of them."""
        section = config.section(SchemaConfig)
        self._max_body = section.max_body
        self._checks = {topic: read_schema(topic, path) for topic, path in section.files.items()}

    @hookimpl(tryfirst=True)
    def before_append(self, batch: AppendBatch) -> None:
        """First, while a delayed message still has its own topic."""
        for row in batch.live:
            check = self._checks.get(batch.topics[row])
            if check is not None:
                problem = self._problem(check, batch.bodies[row], batch.sys_flags[row])
                if problem:
                    batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, problem[:REMARK_MAX_CHARS])

    def _problem(self, check: Callable[[Any], Any], body: bytes, sys_flag: int) -> str:
        """What is wrong with the body; empty if nothing is."""
        try:
            if sys_flag & COMPRESSED:
                body = decompress(body, sys_flag, self._max_body)
            if len(body) > self._max_body:
                return f"the body has {len(body)} bytes, at most {self._max_body} can be checked"
            value = json.loads(body)
        except (ValueError, RecursionError, BodyError) as error:
            return f"the body is not JSON that can be read: {type(error).__name__}"
        try:
            check(value)
        except fastjsonschema.JsonSchemaValueException as error:
            return f"the body breaks the schema: {error.message}"
        except Exception as error:  # the body must not stop the broker: 1e400 overflows in the check of "multipleOf"
            return f"the body cannot be checked: {type(error).__name__}"
        return ""


def read_schema(topic: str, path: str) -> Callable[[Any], Any]:
    """The compiled schema; ``StartError`` names the topic and the file that is wrong."""
    try:
        check: Callable[[Any], Any] = fastjsonschema.compile(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError, RecursionError, fastjsonschema.JsonSchemaException) as error:
        raise StartError(f"plugin.schema.files: the schema {path!r} of {topic!r} cannot be used: {error}") from None
    return check
