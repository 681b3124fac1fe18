"""State that a plugin builds from ``dispatch``, which stays exact after a crash.

The kernel stores the bytes that ``save_state`` returns and the log offset up to which ``dispatch`` was called, in one
file that is replaced atomically. At the next start ``load_state`` gets the bytes back, and ``dispatch`` is called
exactly once for every message from that offset on, independently of the kernel's checkpoint.
``docs/format/state-files.md``.
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
"""The interval at which a long replay logs its progress."""
_HEAD = struct.Struct(">4sHqI")
_MAGIC: Final = b"GMQP"
_VERSION: Final = 1
_HOOKS: Final = ("save_state", "load_state", "dispatch")

Dispatch = Callable[["DispatchBatch"], object]


@attrs.frozen
class SavedState:
    """The argument of ``load_state``. Offsets are bytes of the log.

    ``data``: the last result of ``save_state``; None if there is none, or it is unusable. ``offset``: ``dispatch``
    continues there. ``missing``: start and end of the part of the log that was deleted before the plugin got its
    messages; None if there is no such part.
    """

    data: bytes | None
    offset: int
    missing: tuple[int, int] | None = None


@attrs.define
class _StatefulPlugin:
    """A plugin with a state. ``position``: the log offset up to which it got messages; ``saved``: the one in its
    file."""

    info: PluginInfo
    path: str
    dispatch: Dispatch
    position: int = 0
    saved: int = -1


def encode_state(offset: int, data: bytes) -> bytes:
    """Return the content of the file for a state at this offset of the log."""
    return _HEAD.pack(_MAGIC, _VERSION, offset, _checksum(offset, data)) + data


def decode_state(content: bytes) -> tuple[int, bytes]:
    """Return offset and state from the content of a file; ``ValueError`` if it is damaged or of another format."""
    magic, version, offset, checksum = _HEAD.unpack(content[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    data = content[_HEAD.size :]
    if magic != _MAGIC or version != _VERSION or offset < 0:
        raise ValueError("it is not the state of a plugin, or has another version")
    if checksum != _checksum(offset, data):
        raise ValueError("it is damaged: its checksum is wrong")
    return offset, data


def _checksum(offset: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(offset.to_bytes(8, "big")))


def state_path(root: str, plugin: str) -> str:
    """Return the path of a plugin's state in the store ``root``."""
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
        """The log offset up to which the plugins got messages; -1 while they get a batch."""

    @property
    def names(self) -> list[str]:
        """The plugins with a state, which recovery leaves out of its own replay."""
        return [plugin.info.name for plugin in self._stateful]

    # ------------------------------------------------------------------------------------------------------ to start

    async def load(self, broker: Broker, store: Store) -> None:
        """Load each plugin's state, replay the recovered log behind it, and write the new states.

        Raises :class:`StartError`, and errors of the plugins' ``dispatch`` by their policies.
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
            # At its first start a plugin begins at the log's end; a lost state is rebuilt from the whole log.
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
        """Return offset and state of the newest file that is not ahead of the log's ``end``, and whether no file
        existed.

        A state is ahead if the log was truncated after it was saved. Such files are deleted: after the log has grown
        again, the state would seem valid.
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
        """Dispatch the log to the plugins from their positions to its end, reading each part once for all plugins."""
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
        """Return the offset at which the log continues behind the damage at ``position``."""
        found = find_record(commit_log.segments, position + 1)
        after = stop if found is None else min(found[0], stop)
        log.error("plugin_state_range_skipped", start=position, end=after)
        return after

    # --------------------------------------------------------------------------------------------------------- to run

    def follow(self, on_dispatch: Dispatch | None) -> Dispatch | None:
        """Return ``on_dispatch``, which calls ``dispatch`` of all plugins, wrapped so that its position is tracked; the
        function itself if no plugin has a state."""
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
        """The highest offset of a collected state, which may be written when the log is durable up to there."""
        return max((plugin.saved for plugin in self._stateful), default=0)

    def collect(self, broker: Broker) -> dict[str, bytes]:
        """Return the files, by path, of the states that have changed since the last call.

        The file of a plugin that raises, or is disabled after an error, does not change.
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
