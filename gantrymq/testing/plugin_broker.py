"""A broker with the plugins under test, in a thread of the test's process. The fixture ``plugin_broker`` starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gantrymq.sync import Client, connect
from gantrymq.testing.harness import ClusterInThread, cluster_in_thread, single_start_error


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
        self._plugins = plugins
        self._connected = ExitStack()
        with single_start_error(), ExitStack() as stack:
            store = folder / "store"
            running = cluster_in_thread(store, settings=settings, enable=plugins, disable=disable)
            self.cluster: ClusterInThread = stack.enter_context(running)
            self._connect()
            self._running = stack.pop_all()

    def _connect(self) -> None:
        self.client: Client = self._connected.enter_context(connect(self.cluster.nameserver))

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
        """Stop the broker and start it again at the same address and on the same store, with a new client; ``settings``
        are added.

        ``plugins`` replace those of the last start; an empty sequence starts the broker without a plugin under test.

        ``killed``: the new broker gets the files as they were before the old one stopped, and clients get no response
        to what these files lack, as after ``kill -9``.
        """
        if not killed:
            self._connected.close()
        self.cluster.restart_broker(killed=killed, settings=settings, enable=plugins)
        self._connected.close()
        if plugins is not None:
            self._plugins = plugins
        self._connect()

    def stop(self) -> None:
        """Disconnect the client and stop the broker. Raises the error that ended the broker, if one did."""
        with self._running:
            self._connected.close()
