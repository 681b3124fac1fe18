"""``gantrymq dashboard``: the pages in the browser, for a cluster of GantryMQ or RocketMQ."""

from __future__ import annotations

from typing import Literal

import rich_click as click

from gantrymq.cli.connecting import check_nameserver, connect_settings, nameserver_option
from gantrymq.cli.failures import CommandFailed
from gantrymq.cli.signals import ending_by_signal


@click.command()
@click.option(
    "--listen", default="127.0.0.1:8559", show_default=True, metavar="HOST:PORT", help="The address to serve."
)
@click.option("--tokens", metavar="FILE", help="Lines of 'viewer TOKEN' and 'admin TOKEN'; needed beyond this machine.")
@click.option(
    "--role",
    type=click.Choice(["viewer", "admin"]),
    default="admin",
    show_default=True,
    help="The role without tokens.",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name of this server in browsers. Repeatable.")
@click.option("--tls-certificate", metavar="FILE", help="Serve https with this certificate (PEM, with its chain).")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key, if it is in another file.")
@nameserver_option
def dashboard(
    listen: str,
    tokens: str | None,
    role: Literal["viewer", "admin"],
    hosts: tuple[str, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    nameserver: str,
) -> None:
    """Serve the dashboard of a cluster until a signal.

    It needs `pip install 'gantrymq[dashboard]'`. The plugin `dashboard` serves the same from a broker.
    """
    try:
        from gantrymq.dashboard import server
        from gantrymq.dashboard.access import Access, read_tokens
    except ImportError as error:
        raise CommandFailed(f"{error}; install it with `pip install 'gantrymq[dashboard]'`") from None
    import trio

    from gantrymq.remoting.tls import ServerTls

    if tls_key and not tls_certificate:
        raise click.UsageError("--tls-key needs --tls-certificate")
    check_nameserver(nameserver)
    settings = connect_settings()
    try:
        files = ServerTls(tls_certificate, tls_key or "") if tls_certificate else None
        certificates = None if files is None else server.Certificates(files)
        access = Access(read_tokens(tokens) if tokens else {}, role, hosts)
        sock = server.listen(listen, access, has_credentials=bool(settings.get("access_key")))
    except ValueError as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or listen}: {error.strerror or error}") from None

    async def main() -> None:
        scope = trio.CancelScope()
        with ending_by_signal(scope.cancel), scope:
            scheme = "http" if certificates is None else "https"
            click.echo(f"ready dashboard={scheme}://{server.address_of(sock)}")
            await server.run(sock, nameserver, access, settings, certificates)

    trio.run(main)
