"""The settings that administrators changed, kept for the next start: ``config/overrides.toml`` in the store's folder.

The file is read when the configuration is built, with a precedence between the configuration file and the environment
(:func:`gantrymq.kernel.config.sources.read_settings`). This module writes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gantrymq.kernel.config.sources import OVERRIDES_PATH, show
from gantrymq.kernel.errors import StartError

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

HEAD: Final = """\
# Settings that were changed while the broker ran (mqadmin updateBrokerConfig). They stand over the configuration file
# from the next start on; environment and flags stand over them. To undo one, take its line out before the start.
"""


class Overrides:
    """The file's values, by section and key. :class:`StartError` if the file cannot be read."""

    def __init__(self, env: Env, root: str) -> None:
        self.path = f"{root}/{OVERRIDES_PATH}"
        self._env = env
        self._values: dict[str, dict[str, object]] = {}
        try:
            document = tomllib.loads(env.read_bytes(self.path).decode()) if env.exists(self.path) else {}
        except (OSError, ValueError) as error:
            raise StartError(f"{self.path}: {error}") from None
        self._values = {name: dict(table) for name, table in document.items() if name != "plugin"}
        self._values |= {f"plugin.{name}": dict(table) for name, table in document.get("plugin", {}).items()}

    def keep(self, changes: Mapping[str, Mapping[str, object]]) -> None:
        """Add ``changes`` and write the file; OSError if that fails."""
        for section, values in changes.items():
            self._values.setdefault(section, {}).update(values)
        self._env.replace(self.path, self._text().encode())

    def get(self, section: str, key: str) -> object | None:
        """Return the value, or None if it was not changed."""
        return self._values.get(section, {}).get(key)

    def take_out(self, section: str, key: str) -> None:
        """Remove the value, if there is one, and write the file; OSError if that fails."""
        if self._values.get(section, {}).pop(key, None) is not None:
            self._env.replace(self.path, self._text().encode())

    def _text(self) -> str:
        parts = [HEAD]
        for section, values in sorted(item for item in self._values.items() if item[1]):
            lines: list[Any] = [f"{key} = {show(value)}" for key, value in sorted(values.items())]
            parts.append("\n".join((f"[{section}]", *lines, "")))
        return "\n".join(parts)
