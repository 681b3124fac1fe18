"""Serve the broker's health over HTTP, for load balancers, Kubernetes and people.

Slot: none.
Hooks: config_section, configure, register_tasks, runtime_info, started, stopping.
Config ``[plugin.http]``: ``listen``, ``connections_max``, ``timeout``.
Files: none.
Replaces nothing: RocketMQ's broker has no such pages.

``/healthz``: does the process work; ``/readyz``: can clients work with it; ``/status.json``: the state with reasons.
``health`` collects the reasons, which other plugins add (``interfaces.Health``); ``server`` is the web server; other
plugins add pages to it (``interfaces.HttpPages``). ``docs/howto/health.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import address, duration, number
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.http.health import BrokerHealth
from gantrymq.plugins.http.pages import Pages, health_pages
from gantrymq.plugins.interfaces import Encryption, Health, HttpPages
from gantrymq.remoting.address import parse_address

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.plugins.http.server import HttpServer

log = structlog.get_logger("gantrymq.http")


@attrs.frozen(kw_only=True)
class HttpConfig:
    """Listen address and limits."""

    listen: str = address("127.0.0.1:8558", optional=True, any_port=True)
    """Empty: no pages. Any peer that can connect can read the broker's state."""
    connections_max: int = number(64, 1, 1024)
    """The most connections at the same time; further ones are closed at once."""
    timeout: float = duration("10s", minimum="100ms", maximum="10m")
    """How long a connection may take to send its request, and to read the response."""


class HttpPlugin:
    """The state of one broker, and the pages that show it."""

    name = "http"

    def __init__(self) -> None:
        self.server: HttpServer | None = None
        """None while no page is served."""

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.http]``."""
        return "http", HttpConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Take the address. Only one that the user has set stops the start if it is in use."""
        section = config.section(HttpConfig)
        self._health = BrokerHealth(broker)
        pages = Pages(health_pages(self._health))
        broker.registry.provide(Health, self._health)
        broker.registry.provide(HttpPages, pages)
        if not section.listen:
            return
        from gantrymq.plugins.http.server import HttpServer

        host, port = parse_address(section.listen, any_port=True)
        try:
            self.server = HttpServer(broker.env, host, port, pages, section.connections_max, section.timeout)
            pages.address = self.server.address
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            if any(row.origin != "default" for row in config.explain() if (row.section, row.key) == _LISTEN):
                raise StartError(
                    f"the health pages cannot be served on {section.listen}: {reason}; set plugin.http.listen to"
                    " another address, or to nothing"
                ) from None
            log.info("http_not_served", listen=section.listen, reason=str(reason), todo="set plugin.http.listen")

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The web server."""
        if self.server is not None:
            self.server.encryption = broker.registry.find(Encryption)
        return [] if self.server is None else [BackgroundTask("http", self.server.run)]

    @hookimpl
    def runtime_info(self, broker: Broker) -> dict[str, str]:
        """Where it is, and whether clients can work with this broker."""
        reasons = "; ".join(self._health.not_ready().values())
        return {"httpAddress": "" if self.server is None else self.server.address, "notReady": reasons}

    @hookimpl
    def started(self, broker: Broker) -> None:
        """Clients can connect."""
        self._health.is_serving = True

    @hookimpl
    def stopping(self, broker: Broker) -> None:
        """Load balancers send clients elsewhere while the broker drains."""
        self._health.is_serving = False


_LISTEN = ("plugin.http", "listen")
