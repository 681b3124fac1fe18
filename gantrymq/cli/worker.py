"""``gantrymq worker``: run the handlers of an app."""

from __future__ import annotations

from typing import Literal, cast

import rich_click as click

from gantrymq.cli.logs import configure_logs, log_level_option


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    show_default=True,
    help="The event loop that coroutine functions run in.",
)
@log_level_option()
def worker(app: str, backend: str, log_level: str) -> None:
    """Run the handlers of a gantrymq.App until SIGTERM or Ctrl-C.

    MODULE:APP is a module in this folder or an installed one, and its App object. After the signal the worker takes no
    further message, gives running handlers the app's drain timeout, and commits the offsets. Then, or at a second
    signal, the process ends, even if a plain handler still runs.
    """
    from gantrymq.cli.failures import CommandFailed, report
    from gantrymq.client.app_loading import load_app
    from gantrymq.client.app_process import run_as_process

    configure_logs(log_level)
    found = load_app(app)
    try:
        run_as_process(found, cast(Literal["asyncio", "trio"], backend), report)
    except ValueError as error:  # of a wrong address, or half of the credentials
        raise CommandFailed(str(error)) from error
