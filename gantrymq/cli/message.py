"""``gantrymq message``: find out why a group did not get a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.options import topic_parameter
from gantrymq.cli.tables import print_rows

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.operations.why import Reason


@click.group()
def message() -> None:
    """Find out what happened to a message."""


@message.command("why")
@click.argument("message_id", metavar="ID")
@topic_parameter()
@click.option("--group", required=True, metavar="GROUP", help="The consumer group that did not get it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per reason.")
@nameserver_option
def why_command(message_id: str, topic: str, group: str, as_json: bool, nameserver: str) -> None:
    """Say why a consumer group did not get the message with this ID, of the producer or of the broker.

    It checks whether the message is stored, retried or a dead letter, whether the group has members, whether their
    subscriptions exclude it, and how many messages are before it.
    """
    from gantrymq.operations.why import why

    async def work(client: Client) -> list[Reason]:
        return await why(client, topic, message_id, group)

    print_rows(("code", "text"), [attrs.asdict(each) for each in with_client(nameserver, work)], as_json)
