"""The configuration as administrators see and change it, under RocketMQ's names or GantryMQ's own.

Plugins list the keys that can change while the broker runs (``LiveSettings.allow``). A change is validated like one in
the file; all changes of a request take effect or none, and they are kept for the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import attrs
import structlog

from gantrymq.kernel.config.broker_conf import write_keys
from gantrymq.kernel.config.fields import HIDDEN, coerce
from gantrymq.kernel.config.rocketmq_keys import write_plain
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.admin.overrides import Overrides
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.javaproperties import read_properties, write_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config

T = TypeVar("T")

BODY_BYTES_MAX = 65_536
"""The most bytes of a request, which names a few keys."""
CONSTANTS = {
    "clientCallbackExecutorThreads": "1",
    "fileReservedTime": "72",
    "filterServerNums": "0",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "useTLS": "false",
}
"""Values that tools expect, whether or not a plugin has a setting for them."""

log = structlog.get_logger("gantrymq.admin")


@attrs.define
class _Live:
    """A section with changeable keys: its current values, and the function to call after a change."""

    current: Any
    keys: Collection[str]
    change: Callable[[Any], None]
    check: Callable[[Any], Awaitable[None]] | None = None


class ChangeableSettings:
    """Provides ``LiveSettings``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._keys = broker.config.rocketmq_keys
        self._live: dict[str, _Live] = {}
        self._overrides = Overrides(broker.env, broker.root)
        self.version = DataVersion()

    def allow(
        self,
        section: str,
        current: T,
        keys: Collection[str],
        change: Callable[[T], None],
        check: Callable[[T], Awaitable[None]] | None = None,
    ) -> None:
        """Put ``keys`` of ``section`` (``plugin.topics``) on the list; ``change`` gets the section's new values, and so
        does ``check`` before a request changes them."""
        self._live[section] = _Live(current, frozenset(keys), change, check)

    def text(self) -> bytes:
        """Return all settings as properties: by RocketMQ's names and, with their section, by our own."""
        table = {**CONSTANTS, "brokerRole": "ASYNC_MASTER", **write_keys(self._sections())}
        for row in self._broker.config.explain():
            live = self._live.get(row.section)
            shown = row.value if live is None or row.value == HIDDEN else getattr(live.current, row.key)
            table[f"{row.section}.{row.key}"] = write_plain(shown)
        if self._broker.broker_id:
            table["brokerRole"] = "SLAVE"
        return write_properties(table)

    def update(self, body: bytes) -> list[str]:
        """Apply the settings in ``body`` (properties); return the changed keys by GantryMQ's names.

        :class:`RemoteFault` (code 1) names the key that cannot be changed, or the invalid value; then nothing has
        changed.
        """
        changes = self._changes_in(body)
        if not changes:
            return []
        try:
            kept = self._overrides.read()
        except StartError as error:
            raise _fault(f"nothing has changed: {error}") from None
        names = self._apply(changes)
        try:
            self._overrides.keep(kept, changes)
        except OSError as error:
            path = self._overrides.path
            raise _fault(f"the change is in force, but lost at the stop: {path}: {error.strerror}") from error
        return names

    async def check(self, body: bytes) -> None:
        """Wait for the checks of the plugins whose settings are in ``body``. :class:`RemoteFault` as for
        :meth:`update`, or if a plugin refuses the change."""
        for section, values in self._changes_in(body).items():
            live = self._live[section]
            if live.check is not None:
                await live.check(attrs.evolve(live.current, **values))

    def _changes_in(self, body: bytes) -> dict[str, dict[str, object]]:
        """Return the validated values in ``body`` by section and key."""
        if len(body) > BODY_BYTES_MAX:
            raise _fault(f"a configuration of {len(body)} bytes, {BODY_BYTES_MAX} are taken")
        try:
            given = read_properties(body)
        except ValueError as error:
            raise _fault(f"string2Properties error: {error}") from None
        changes: dict[str, dict[str, object]] = {}
        for name, value in given.items():
            section, key = self._place(name)
            changes.setdefault(section, {})[key] = self._read(section, key, name, value.strip())
        return changes

    def reload(self, config: Config) -> tuple[list[str], list[str]]:
        """Apply the settings of ``config`` that differ and may change now; returns their names, and those of the rest.

        :class:`RemoteFault` (code 1) if a plugin refuses a value; then nothing has changed.
        """
        changes: dict[str, dict[str, object]] = {}
        pending: list[str] = []
        running = {(row.section, row.key): (row.value, row.mark) for row in self._broker.config.explain()}
        for row in config.explain():
            live = self._live.get(row.section)
            if live is not None and row.key in live.keys:
                value = getattr(config.section(type(live.current)), row.key)
                if value != getattr(live.current, row.key):
                    changes.setdefault(row.section, {})[row.key] = value
            elif running.get((row.section, row.key), (row.value, row.mark)) != (row.value, row.mark):
                pending.append(f"{row.section}.{row.key}")
        names = self._apply(changes)
        self._overrides.unwritten.clear()  # no longer in force
        return names, pending

    def _apply(self, changes: dict[str, dict[str, object]]) -> list[str]:
        """Put validated values in force; returns their names. If a plugin refuses one, changes all sections back."""
        applied: list[tuple[_Live, Any]] = []
        try:
            # the role last: it is not changed back
            for section in sorted(changes, key=lambda name: (name == "broker", name)):
                live = self._live[section]
                before, changed = live.current, attrs.evolve(live.current, **changes[section])
                live.change(changed)
                live.current = changed
                applied.append((live, before))
        except Exception:
            for live, before in reversed(applied):
                live.change(before)
                live.current = before
            raise
        names = sorted(f"{section}.{key}" for section, values in changes.items() for key in values)
        if names:
            self.version = self.version.next(self._broker.env.wall_ms())
            log.info("settings_changed", keys=names)
        return names

    def _sections(self) -> dict[str, Any]:
        """Return the typed values of all sections, as they are now."""
        config = self._broker.config
        sections: dict[str, Any] = {"broker": config.broker, "store": config.store, "limits": config.limits}
        for _, (name, kind) in self._broker.manager.call_each("config_section", tuple):
            sections[f"plugin.{name}"] = config.section(kind)
        return sections | {name: live.current for name, live in self._live.items()}

    def _place(self, name: str) -> tuple[str, str]:
        section, _, key = name.rpartition(".")
        place = next((place for place, theirs in self._keys.items() if theirs.name == name), (section, key))
        if place[0] not in self._live or place[1] not in self._live[place[0]].keys:
            raise _fault(f"{name[:100]!r} cannot be changed while the broker runs; {self._allowed()}")
        return place

    def _read(self, section: str, key: str, name: str, value: str) -> object:
        live = self._live[section]
        kind = type(live.current)
        field: attrs.Attribute[Any] = getattr(attrs.fields(kind), key)
        try:
            theirs = self._keys.get((section, key))
            ours = theirs.read(value) if theirs is not None and theirs.name == name else value
            found = coerce(ours, get_type_hints(kind)[key], field, True)
            attrs.evolve(live.current, **{key: found})  # converters and ranges speak here
        except ValueError as error:
            raise _fault(f"{name} = {value[:100]!r}: {error.args[0] if error.args else error}") from None
        return found

    def _allowed(self) -> str:
        places = [(section, key) for section, live in self._live.items() for key in live.keys]
        names = sorted(self._keys[place].name if place in self._keys else ".".join(place) for place in places)
        return f"these can: {', '.join(names) or 'none'}"


def _fault(remark: str) -> RemoteFault:
    return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)
