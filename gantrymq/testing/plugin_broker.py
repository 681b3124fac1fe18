"""A broker with the plugins under test, in a thread of the test's process. The fixture ``plugin_broker`` starts it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from gantrymq.kernel.errors import StartError
from gantrymq.remoting.errors import leaves
from gantrymq.sync import Client, connect
from gantrymq.testing.harness import Cluster, cluster_in_thread


class PluginBroker:
    """A running broker, a nameserver, and a connected client.

    ``plugins``: names for ``--enable``, classes or objects; each start creates a new object of a class. The store is in
    ``folder``, which must be empty. ``settings``: see :func:`gantrymq.testing.harness.make_broker`. ``StartError`` and
    ``ConfigError`` if the broker refuses to start.
    """

    def __init__(
        self,
        folder: Path,
        plugins: Sequence[Any],
        *,
        settings: Mapping[str, str] | None = None,
        disable: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._plugins = plugins
        self._settings = dict(settings or {})
        self._disable = disable
        self._running = ExitStack()
        self._lives = 0
        self._start()

    def _start(self) -> None:
        self._lives += 1
        with ExitStack() as stack:
            try:
                cluster: Cluster = stack.enter_context(
                    cluster_in_thread(
                        self._store(), settings=self._settings, enable=self._plugins, disable=self._disable
                    )
                )
            except BaseExceptionGroup as group:
                reasons = [leaf for leaf in leaves(group) if isinstance(leaf, StartError)]
                if not reasons:
                    raise
                raise reasons[0] from None
            self.cluster = cluster
            self.client: Client = stack.enter_context(connect(cluster.nameserver))
            self._running = stack.pop_all()

    def _store(self) -> Path:
        return self._folder / f"store-{self._lives}"

    @property
    def plugin(self) -> Any:
        """The object of the first of the plugins under test, also after :meth:`stop`. Its hooks run in the broker's
        thread: read it, do not change it."""
        wanted = self._plugins[0]
        for info in self.cluster.broker.manager.plugins:
            if info.plugin is wanted or info.origin == wanted or type(info.plugin) is wanted:
                return info.plugin
        raise LookupError(f"{wanted!r} makes objects of another class; see cluster.broker.manager.plugins")

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return self.cluster.address

    @property
    def nameserver(self) -> str:
        """``host:port`` of the nameserver."""
        return self.cluster.nameserver

    def restart(
        self,
        *,
        killed: bool = False,
        settings: Mapping[str, str] | None = None,
        plugins: Sequence[Any] | None = None,
    ) -> None:
        """Stop the broker and start it again on the same store, with a new client; ``settings`` are added.

        ``plugins`` replace those of the last start; an empty sequence starts the broker without a plugin under test.

        ``killed``: the new broker gets the files as they were before the old one stopped, as after ``kill -9``. No
        client may send meanwhile.
        """
        old, new = self._store(), self._folder / f"store-{self._lives + 1}"
        if killed:
            shutil.copytree(old, new, copy_function=_copy_if_there)
        self.stop()
        if not killed:
            old.rename(new)
        self._settings.update(settings or {})
        if plugins is not None:
            self._plugins = plugins
        self._start()

    def stop(self) -> None:
        """Disconnect the client and stop the broker. Raises the error that ended the broker, if one did."""
        self._running.close()


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file of a running store. One that is gone by now was temporary: a table's own name is always there."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
