"""Serve the dashboard of the cluster in the browser, from the process of this broker.

Slot: none; not in the default set: ``--enable dashboard``, with the extra ``gantrymq[dashboard]``.
Hooks: config_section, configure, register_tasks, runtime_info.
Config ``[plugin.dashboard]``: ``listen``, ``tokens``, ``role``, ``hosts``, ``certificate``, ``key``.
Files: those of tokens and certificate, which it only reads.
Replaces ``rocketmq-dashboard``, a program of its own.

:mod:`gantrymq.dashboard` has the pages and the API; ``gantrymq dashboard`` serves the same without a broker.
``docs/howto/dashboard.md``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import address
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.remoting.tls import ServerTls

if TYPE_CHECKING:
    import socket

    from gantrymq.dashboard.access import Access
    from gantrymq.dashboard.server import Certificates
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config

log = structlog.get_logger("gantrymq.dashboard")


@attrs.frozen(kw_only=True)
class DashboardConfig:
    """Listen address and who may use it."""

    listen: str = address("127.0.0.1:8559", optional=True, any_port=True)
    """Empty: no dashboard."""
    tokens: str = ""
    """The file of tokens; without it, every peer that can connect has the role ``role``."""
    role: Literal["viewer", "admin"] = "admin"
    """The role without tokens."""
    hosts: list[str] = attrs.field(factory=list)
    """Further names of this server, for browsers that use one."""
    certificate: str = ""
    """The certificate with its chain, PEM, with which the port serves https; empty: http."""
    key: str = ""
    """The private key, PEM, not encrypted; empty if it is in the certificate's file."""


class DashboardPlugin:
    """The dashboard in the broker's process: a client like any other, through the nameservers of the broker."""

    name = "dashboard"
    on_error = "skip"
    _access: Access  # these from configure on
    _socket: socket.socket | None = None
    _certificates: Certificates | None = None
    address = ""
    """The listen address, ``host:port``; empty without one."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.dashboard]``."""
        return "dashboard", DashboardConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the tokens and take the address."""
        section = config.section(DashboardConfig)
        if not section.listen:
            return
        try:
            from gantrymq.dashboard import server
            from gantrymq.dashboard.access import Access, read_tokens
        except ImportError as error:
            raise StartError(
                f"plugin 'dashboard': {error}; install it with `pip install 'gantrymq[dashboard]'`"
            ) from None
        try:
            tokens = read_tokens(section.tokens) if section.tokens else {}
            self._access = Access(tokens, section.role, tuple(section.hosts))
            if section.certificate:
                self._certificates = server.Certificates(ServerTls(section.certificate, section.key))
            self._socket = server.listen(section.listen, self._access)
        except ValueError as error:
            raise StartError(f"plugin.dashboard: {error}") from None
        except OSError as error:
            what = f"{error.filename or section.listen}: {error.strerror or error}"
            raise StartError(
                f"plugin.dashboard: {what}; set plugin.dashboard.listen, .tokens or .certificate"
            ) from None
        self.address = server.address_of(self._socket)

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The web server."""
        if self._socket is None:
            return []
        from gantrymq.dashboard import server

        log.info("dashboard_listening", url=f"{'http' if self._certificates is None else 'https'}://{self.address}")
        nameservers = ";".join(broker.config.broker.nameservers)
        serve = partial(server.run, self._socket, nameservers, self._access, certificates=self._certificates)
        return [BackgroundTask("dashboard", serve)]

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Where it is."""
        return {"dashboardAddress": self.address}
