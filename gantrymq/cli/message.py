"""``gantrymq message``: print a message, its traces, and why a group did not get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import rich_click as click

from gantrymq.cli.connecting import nameserver_option, with_client
from gantrymq.cli.failures import CommandFailed, warn
from gantrymq.cli.options import topic_parameter
from gantrymq.cli.tables import print_rows
from gantrymq.operations.clock import clock
from gantrymq.remoting.names import TRACE_TOPIC

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.message import DeliveredRecord
    from gantrymq.operations.why import Reason


@click.group()
def message() -> None:
    """Find out what happened to a message."""


@message.command("get")
@click.argument("message_id", metavar="ID")
@topic_parameter()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message, with properties and offsets.")
@nameserver_option
def get_command(message_id: str, topic: str, as_json: bool, nameserver: str) -> None:
    """Print the message with this ID, of the producer or of the broker; `gantrymq query` finds it by key or offset.

    Several messages have one ID if a producer sent its message again. The exit code is 1 without a message.
    """
    from gantrymq.cli.query import print_found

    async def work(client: Client) -> list[DeliveredRecord]:
        return await client.admin.find_by_id(topic, message_id)

    print_found(with_client(nameserver, work), topic, as_json)


@message.command("trace")
@click.argument("message_id", metavar="ID")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, metavar="TOPIC", help="Where the traces are.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per event.")
@nameserver_option
def trace_command(message_id: str, trace_topic: str, as_json: bool, nameserver: str) -> None:
    """Print who sent the message with this ID and which groups got it, from the traces of clients.

    ID is the producer's id of the message, or the broker's while the message is stored. Clients record traces if they
    are set to: RocketMQ's with `enableMsgTrace`, Python's with `trace=True`. The exit code is 1 without a trace.
    """
    from gantrymq.client.errors import NoRoute
    from gantrymq.operations.traces import MessageTraces, message_traces

    async def work(client: Client) -> MessageTraces:
        try:
            return await message_traces(client, message_id, trace_topic)
        except NoRoute:
            raise CommandFailed(
                f"the cluster has no trace topic {trace_topic}: brokers create it with plugin.topics.trace_topic "
                "(RocketMQ: traceTopicEnable), or name another one with --trace-topic"
            ) from None

    found = with_client(nameserver, work)
    if found.unreadable:
        warn(f"{found.unreadable} traces are not in a form that this version reads")
    if not found.complete:
        warn("the message may have older traces, which are not shown: brokers return the newest ones only")
    if not found.events:
        raise CommandFailed(
            f"no trace of message {message_id} in {trace_topic}: its clients do not trace, the traces are not there "
            "yet (some seconds), or they have expired"
        )
    columns = ("event", "group", "client", "duration_ms", "retries", "result")
    if as_json:
        print_rows(columns, [attrs.asdict(each) for each in found.events], as_json)
        return
    sent = next((each for each in found.events if each.event == "sent"), None)
    if sent is not None:
        click.echo(f"topic {sent.topic}, tags {sent.tags or '-'}, keys {sent.keys or '-'}, {sent.body_bytes} bytes")
    rows = [
        {"time": None if each.time_ms is None else clock(each.time_ms), **attrs.asdict(each)} for each in found.events
    ]
    print_rows(("time", *columns), rows)


@message.command("why")
@click.argument("message_id", metavar="ID")
@topic_parameter()
@click.option("--group", required=True, metavar="GROUP", help="The consumer group that did not get it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object per reason.")
@nameserver_option
def why_command(message_id: str, topic: str, group: str, as_json: bool, nameserver: str) -> None:
    """Say why a consumer group did not get the message with this ID, of the producer or of the broker.

    It checks whether the message is stored, expired, delayed, retried or a dead letter, whether the group may consume
    and has members, whether their subscriptions exclude it, which member has its queue and the lock of the queue, and
    how many messages are before it. docs/howto/operate.md lists the codes.
    """
    from gantrymq.operations.why import why

    async def work(client: Client) -> list[Reason]:
        return await why(client, topic, message_id, group)

    print_rows(("code", "text"), [attrs.asdict(each) for each in with_client(nameserver, work)], as_json)
