"""State that a plugin builds from ``dispatch``, exact whatever ends the broker.

The kernel stores what ``save_state`` returns together with the log offset up to which the plugin has seen the log, in
one file that is replaced as a whole. At the next start the plugin gets it back by ``load_state``, and then every
message from that offset on: each one once, whatever the kernel's checkpoint says. ``docs/format/state-files.md``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import attrs
import structlog
import trio

from gantrymq.kernel.errors import CorruptRange, StartError, blame
from gantrymq.kernel.store.recovery.salvage import find_record
from gantrymq.kernel.store.state_file import load_state

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.batch import DispatchBatch
    from gantrymq.kernel.env import Env
    from gantrymq.kernel.manager import PluginInfo, PluginManager
    from gantrymq.kernel.plugin_faults import PluginFaults
    from gantrymq.kernel.store.log.commitlog import CommitLog
    from gantrymq.kernel.store.store import Store

log = structlog.get_logger("gantrymq.plugins")

FOLDER: Final = "config/plugins"
REPORT_S: Final = 5.0
"""How often a replay that takes long says how far it is."""
_HEAD = struct.Struct(">4sHqI")
_MAGIC: Final = b"GMQP"
_VERSION: Final = 1
_HOOKS: Final = ("save_state", "load_state", "dispatch")

Dispatch = Callable[["DispatchBatch"], object]


@attrs.frozen
class SavedState:
    """What ``load_state`` gets. Offsets are bytes of the log.

    ``data``: what ``save_state`` returned last; None when there is nothing that can be used. ``offset``: ``dispatch``
    goes on there. ``missing``: start and end of what the plugin has not seen and will not see, because the log does not
    have it any more; None when nothing is missing.
    """

    data: bytes | None
    offset: int
    missing: tuple[int, int] | None = None


@attrs.define
class _StatefulPlugin:
    """A plugin with such a state. ``position``: it has seen the log up to there; ``saved``: its file says so."""

    info: PluginInfo
    path: str
    dispatch: Dispatch
    position: int = 0
    saved: int = -1


def encode_state(offset: int, data: bytes) -> bytes:
    """Return the file of a state that holds at this offset of the log."""
    return _HEAD.pack(_MAGIC, _VERSION, offset, _checksum(offset, data)) + data


def decode_state(content: bytes) -> tuple[int, bytes]:
    """Offset and state; ``ValueError`` for what :func:`encode_state` has not written, or not as a whole."""
    magic, version, offset, checksum = _HEAD.unpack(content[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    data = content[_HEAD.size :]
    if magic != _MAGIC or version != _VERSION or offset < 0:
        raise ValueError("it is no state of a plugin, or of another version")
    if checksum != _checksum(offset, data):
        raise ValueError("it is damaged: its checksum is wrong")
    return offset, data


def _checksum(offset: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(offset.to_bytes(8, "big")))


def state_path(root: str, plugin: str) -> str:
    """Return where the state of a plugin lies in the store ``root``."""
    return f"{root}/{FOLDER}/{quote(plugin, safe='')}.state"


class PluginStates:
    """The states of the loaded plugins that implement ``save_state``."""

    def __init__(self, manager: PluginManager, env: Env, root: str, faults: PluginFaults) -> None:
        """:class:`StartError` when a plugin has one of the hooks without the others."""
        self._manager = manager
        self._env = env
        self._is_disabled = faults.is_disabled
        self._stateful: list[_StatefulPlugin] = []
        for info in manager.plugins:
            if not {"save_state", "load_state"} & set(info.hooks):
                continue
            missing = [name for name in _HOOKS if name not in info.hooks]
            dispatch = faults.dispatch_alone(info.name)
            if missing or dispatch is None:
                raise StartError(
                    f"plugin {info.name!r}: save_state, load_state and dispatch belong together: add {missing[0]}"
                )
            self._stateful.append(_StatefulPlugin(info, state_path(root, info.name), dispatch))
        self._folder = f"{root}/{FOLDER}"
        self._position = -1
        """The plugins have seen the log up to there; -1 while they see a batch."""

    @property
    def names(self) -> list[str]:
        """The plugins: a recovery's own replay is not for them."""
        return [plugin.info.name for plugin in self._stateful]

    # ------------------------------------------------------------------------------------------------------ to start

    async def load(self, broker: Broker, store: Store) -> None:
        """Give each plugin its state, and what the recovered log has behind it; then write what is not on the disk.

        Raises :class:`StartError`, and what a plugin's ``dispatch`` leads to.
        """
        if not self._stateful:
            return
        try:
            self._env.mkdirs(self._folder)
            for plugin in self._stateful:
                self._load(plugin, broker, store.log)
        except OSError as error:
            raise blame(error.filename or self._folder, error) from error
        await self._replay(store.log)
        self._position = store.log.end
        for path, content in self.collect(broker).items():
            try:
                self._env.replace(path, content)
            except OSError as error:
                raise blame(path, error) from error

    def _load(self, plugin: _StatefulPlugin, broker: Broker, commit_log: CommitLog) -> None:
        name, start, end = plugin.info.name, commit_log.min_offset, commit_log.end
        saved, is_first = self._read(plugin, end)
        if saved is None:
            # At the first start of a plugin it begins with what comes; a state that is lost is built again.
            state = SavedState(None, end) if is_first else SavedState(None, start, (0, start) if start else None)
        else:
            offset, data = saved
            state = SavedState(data, max(offset, start), (offset, start) if offset < start else None)
            if plugin.saved < 0:
                log.warning("plugin_state_set_back", plugin=name, offset=offset)
        if state.missing is not None:
            log.warning("plugin_state_gap", plugin=name, start=state.missing[0], end=state.missing[1])
        try:
            from_start = self._call(plugin, "load_state", broker=broker, state=state)
        except (StartError, OSError):
            raise
        except Exception as error:
            log.exception("plugin_failed", plugin=name, hook="load_state")
            raise StartError(self._manager.describe_failure(plugin.info, "load_state", error)) from error
        if from_start not in (None, False, True):
            raise StartError(f"plugin {name!r}: load_state returned {from_start!r:.100}, it must be True or None")
        plugin.position = start if from_start else state.offset
        if from_start:
            plugin.saved = -1

    def _read(self, plugin: _StatefulPlugin, end: int) -> tuple[tuple[int, bytes] | None, bool]:
        """Offset and state of the newest file that fits to a log of this ``end``; whether there was no file at all.

        A log that was cut ends before a state that counts what was cut off. Such files go: once the log has grown
        again, the gap would be invisible.
        """
        env, path = self._env, plugin.path
        found = load_state(env, path, decode_state)
        if found is None:
            return None, True
        if found[0] <= end:
            plugin.saved = found[0]
            return found, False
        log.error("plugin_state_ahead", plugin=plugin.info.name, offset=found[0], log_end=end)
        older: tuple[int, bytes] | None = None
        for name in (path, f"{path}.bak"):
            if not env.exists(name):
                continue
            try:
                content = decode_state(env.read_bytes(name))
            except ValueError:
                content = (end + 1, b"")
            if content[0] <= end:
                older = content
            else:
                env.unlink(name)
        env.sync_dir(self._folder)
        return older, False

    async def _replay(self, commit_log: CommitLog) -> None:
        """Let the plugins see the log from their positions to its end; those that are there together see it at once."""
        end = commit_log.end
        bounds = sorted({plugin.position for plugin in self._stateful} | {end})
        next_report = self._env.monotonic() + REPORT_S
        for start, stop in pairwise(bounds):
            plugins = [plugin for plugin in self._stateful if plugin.position == start]
            position = start
            while position < stop:
                for batch in self._scan(commit_log, position, stop):
                    batch.replay = True
                    position = batch.end
                    for plugin in plugins:
                        if not self._is_disabled(plugin.info.name):
                            plugin.dispatch(batch)
                            plugin.position = position
                    await trio.lowlevel.checkpoint()
                    if self._env.monotonic() >= next_report:
                        next_report = self._env.monotonic() + REPORT_S
                        names = [plugin.info.name for plugin in plugins]
                        log.info("plugin_state_replaying", plugins=names, offset=position, log_end=end)
                if position < stop:
                    position = self._skip_unreadable(commit_log, position, stop)
            for plugin in plugins:
                if not self._is_disabled(plugin.info.name):
                    plugin.position = stop

    @staticmethod
    def _scan(commit_log: CommitLog, start: int, stop: int) -> Iterator[DispatchBatch]:
        try:
            yield from commit_log.scan(start, stop)
        except CorruptRange:
            return

    @staticmethod
    def _skip_unreadable(commit_log: CommitLog, position: int, stop: int) -> int:
        """Where the log continues behind the damage at ``position``."""
        found = find_record(commit_log.segments, position + 1)
        after = stop if found is None else min(found[0], stop)
        log.error("plugin_state_range_skipped", start=position, end=after)
        return after

    # --------------------------------------------------------------------------------------------------------- to run

    def follow(self, on_dispatch: Dispatch | None) -> Dispatch | None:
        """``on_dispatch``, which calls ``dispatch`` of all plugins; where there is no state it is that function."""
        if not self._stateful or on_dispatch is None:
            return on_dispatch
        call = on_dispatch

        def dispatch(batch: DispatchBatch) -> None:
            self._position = -1
            call(batch)
            self._position = batch.end

        return dispatch

    @property
    def collected(self) -> int:
        """The highest offset of a state that was collected: it may be written once the log is durable up to there."""
        return max((plugin.saved for plugin in self._stateful), default=0)

    def collect(self, broker: Broker) -> dict[str, bytes]:
        """Return the files, by path, of the states that have changed since the last call.

        A plugin that raises, or gets no batches any more, keeps the state that it has on the disk.
        """
        files: dict[str, bytes] = {}
        position = self._position
        for plugin in self._stateful:
            if position < 0 or plugin.saved == position or self._is_disabled(plugin.info.name):
                continue
            try:
                data = self._call(plugin, "save_state", broker=broker)
                if not isinstance(data, bytes):
                    raise TypeError(f"save_state returned {type(data).__name__}, it must be bytes")
            except Exception as error:
                self._manager.activity.failed(plugin.info.name, "save_state", error)
                log.error("plugin_failed", plugin=plugin.info.name, hook="save_state", exc_info=error)
                continue
            self._manager.activity.wrote(plugin.info.name, plugin.path)
            files[plugin.path] = encode_state(position, data)
            plugin.saved = position
        return files

    def _call(self, plugin: _StatefulPlugin, hook_name: str, **arguments: object) -> object:
        calls = self._manager.calls(hook_name, **arguments)
        return next(call for info, call in calls if info is plugin.info)()
