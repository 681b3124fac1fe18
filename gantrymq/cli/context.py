"""``gantrymq context``: keep the addresses and keys of clusters under names."""

from __future__ import annotations

import json
import os

import attrs
import rich_click as click

from gantrymq.cli import contexts
from gantrymq.cli.connecting import check_nameserver
from gantrymq.cli.contexts import ConnectionContext
from gantrymq.cli.options import json_option, print_result


@click.group()
def context() -> None:
    """Keep nameservers, keys and TLS settings of clusters under names.

    Commands use the current context, or the one that `--context` or `GANTRYMQ_CONTEXT` names. A command with
    `--nameserver` uses none, and neither does one with `GANTRYMQ_NAMESERVER` or `NAMESRV_ADDR` unless it names one.
    """


@context.command()
@click.argument("name")
@click.option("--nameserver", required=True, metavar="HOST:PORT[;HOST:PORT]", help="Nameservers of the cluster.")
@click.option("--access-key", default="", metavar="KEY", help="The account; needs --secret-key-file.")
@click.option(
    "--secret-key-file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A file whose first line is the secret key; only its path is kept.",
)
@click.option("--tls", is_flag=True, help="Encrypt all connections.")
@click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Trust the certificates of this file, with TLS.",
)
@click.option("--use", is_flag=True, help="Make it the current context.")
@json_option()
def add(
    name: str, nameserver: str, access_key: str, secret_key_file: str, tls: bool, tls_ca: str, use: bool, as_json: bool
) -> None:
    """Add a context, or replace one."""
    check_nameserver(nameserver)
    if bool(access_key) != bool(secret_key_file):
        raise click.UsageError("--access-key and --secret-key-file must be given together")
    made = ConnectionContext(nameserver, access_key, secret_key_file or "", tls or bool(tls_ca), tls_ca or "")
    path = contexts.save(name, made)
    if use:
        contexts.make_current(name)
    print_result(
        f"context {name} is in {path}{' and is the current one' if use else ''}",
        {"name": name, "file": str(path), "current": contexts.current_name() == name},
        as_json,
    )


@context.command()
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Use no context unless a command names one.")
@json_option()
def use(name: str | None, none: bool, as_json: bool) -> None:
    """Make a context the current one."""
    if (name is None) != none:
        raise click.UsageError("give the name of a context, or --none")
    contexts.make_current(name)
    text = "no context is the current one" if name is None else f"context {name} is the current one"
    print_result(text, {"name": name, "current": name is not None}, as_json)


@context.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per context.")
def list_contexts(as_json: bool) -> None:
    """List the contexts; a star marks the current one."""
    rows = []
    current = os.environ.get(contexts.VARIABLE) or contexts.current_name()
    for name in contexts.names():
        found = contexts.load(name)
        if as_json:
            rows.append({"name": name, "current": name == current, **attrs.asdict(found)})
        else:
            notes = [found.nameserver, *([f"as {found.access_key}"] if found.access_key else ())]
            notes += ["TLS"] if found.tls else []
            click.echo(f"{'*' if name == current else ' '} {name}  {'  '.join(notes)}")
    if as_json:
        click.echo(json.dumps(rows, indent=2))


@context.command()
@click.argument("name")
@json_option()
def remove(name: str, as_json: bool) -> None:
    """Remove a context; the file with its secret key stays."""
    contexts.remove(name)
    print_result(f"context {name} is removed", {"name": name, "removed": True}, as_json)
