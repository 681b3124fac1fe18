"""The settings that administrators changed, kept for the next start: ``config/overrides.toml`` in the store's folder.

The file is read when the configuration is built, with a precedence between the configuration file and the environment
(:func:`gantrymq.kernel.config.sources.read_settings`). This module writes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gantrymq.kernel.config.sources import OVERRIDES_PATH, show, show_key, show_section
from gantrymq.kernel.errors import StartError

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

HEAD: Final = """\
# Settings that were changed while the broker ran (mqadmin updateBrokerConfig). They stand over the configuration file
# from the next start on; environment and flags stand over them. To undo one, take its line out before the start, or
# send SIGHUP to the broker afterwards.
"""

Values = dict[str, dict[str, object]]


class Overrides:
    """The file, which users edit too: each call reads it again. :class:`StartError` if it cannot be read."""

    def __init__(self, env: Env, root: str) -> None:
        self.path = f"{root}/{OVERRIDES_PATH}"
        self._env = env
        self.unwritten: Values = {}
        """Changes in force that could not be written; :meth:`keep` adds them."""
        self.read()

    def read(self) -> Values:
        """Return the file's values by section and key."""
        try:
            document = tomllib.loads(self._env.read_bytes(self.path).decode()) if self._env.exists(self.path) else {}
            plugins = {f"plugin.{name}": dict(table) for name, table in document.pop("plugin", {}).items()}
            return {name: dict(table) for name, table in document.items()} | plugins
        except (OSError, ValueError, TypeError, AttributeError) as error:  # the last two: a value without a section
            raise StartError(f"{self.path}: {error}") from None

    def keep(self, values: Values, changes: Mapping[str, Mapping[str, object]]) -> None:
        """Write ``values``, as read, with ``changes``; OSError if that fails."""
        _add(self.unwritten, changes)
        _add(values, self.unwritten)
        self._write(values)
        self.unwritten = {}

    def get(self, section: str, key: str) -> object | None:
        """Return the value, or None if it was not changed."""
        return self.read().get(section, {}).get(key)

    def take_out(self, section: str, key: str) -> None:
        """Remove the value, if there is one, and write the file; OSError if that fails."""
        values = self.read()
        if values.get(section, {}).pop(key, None) is not None:
            self._write(values)

    def _write(self, values: Values) -> None:
        parts = [HEAD]
        for section, table in sorted(item for item in values.items() if item[1]):
            lines: list[Any] = [f"{show_key(key)} = {show(value)}" for key, value in sorted(table.items())]
            parts.append("\n".join((show_section(section), *lines, "")))
        self._env.replace(self.path, "\n".join(parts).encode())


def _add(values: Values, changes: Mapping[str, Mapping[str, object]]) -> None:
    for section, changed in changes.items():
        values.setdefault(section, {}).update(changed)
