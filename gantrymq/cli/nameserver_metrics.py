"""The metrics of a nameserver: a page of its own, or a part of the page of brokers that run with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import trio

from gantrymq.cli.failures import CommandFailed
from gantrymq.kernel.metrics import Metrics

if TYPE_CHECKING:
    from gantrymq.cli.own_nameserver import NameserverTls
    from gantrymq.nameserver import NameServer
    from gantrymq.plugins.metrics.exposition import Text

SERIES_MAX = 1000


def exposed(server: NameServer, accept: str, *, with_process: bool) -> Text:
    """The metrics in the format that ``accept`` (the header) selects; ``with_process``: those of its process too."""
    from gantrymq.plugins.metrics.exposition import expose
    from gantrymq.plugins.metrics.process import report_process

    metrics = Metrics(SERIES_MAX)
    server.collect_metrics(metrics)
    if with_process:
        report_process(metrics)
    return expose(metrics, {"node_type": "nameserver", "node_id": server.address}, accept)


async def serve_metrics(
    server: NameServer,
    listen: str,
    tls: NameserverTls | None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page until cancelled, with TLS as the nameserver has it; reports its address.

    :class:`CommandFailed` if it cannot be served.
    """
    from gantrymq.cli.processes.encryption import PagesEncryption
    from gantrymq.kernel.env.system import SystemEnv
    from gantrymq.kernel.errors import StartError

    try:
        from gantrymq.plugins.metrics.config import MetricsConfig
        from gantrymq.plugins.metrics.server import MetricsServer

        async def render(accept: str) -> Text:
            return exposed(server, accept, with_process=True)

        pages = MetricsServer(SystemEnv(), MetricsConfig(listen=listen), render)
    except ImportError as error:
        raise CommandFailed(f"--metrics: {error}; install it with `pip install 'gantrymq[metrics]'`") from None
    except StartError as error:
        raise CommandFailed(f"--metrics {listen}: {error}") from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from None
    pages.encryption = None if tls is None else PagesEncryption(tls)
    task_status.started(pages.address)
    await pages.run()
