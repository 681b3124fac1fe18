"""``gantrymq doctor``: find problems of this machine for a broker, and name the remedies."""

from __future__ import annotations

import json
from typing import Any

import rich_click as click

from gantrymq.cli.loading import ConfigFlags, config_options, load
from gantrymq.cli.serve import DEFAULT_NAMESERVER


@click.command()
@config_options
@click.option(
    "--nameserver-listen",
    default=DEFAULT_NAMESERVER,
    show_default=True,
    envvar="GANTRYMQ_NAMESERVER_LISTEN",
    show_envvar=True,
    metavar="HOST:PORT",
    help="The address that the nameserver will use.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per check.")
def doctor(nameserver_listen: str, as_json: bool, **flags: Any) -> int:
    """Check whether this machine suits the broker that this configuration describes.

    Each line is ok, warn or fail, with a remedy. The exit code is 1 after a fail. The command starts no server and
    leaves no files.
    """
    import attrs

    from gantrymq.cli.checkup import all_checks
    from gantrymq.cli.findings import FAIL, OK
    from gantrymq.remoting.address import parse_address

    try:
        parse_address(nameserver_listen, any_port=True)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--nameserver-listen") from None
    findings = [check() for check in all_checks(load(ConfigFlags(**flags)), nameserver_listen)]
    if as_json:
        click.echo(json.dumps([attrs.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.state:4}  {finding.check:19} {finding.found}")
            if finding.advice:
                click.echo(f"      {'':19} {'' if finding.state == OK else '-> '}{finding.advice}")
    return 1 if any(finding.state == FAIL for finding in findings) else 0
