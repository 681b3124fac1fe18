"""Transactions: how many are open on each broker, those that were discarded, and how their check-backs resume.

A broker discards a half message whose producer answered no check-back: it stores it in ``TRANS_CHECK_MAX_TIME_TOPIC``.
Source: RocketMQ 4.9.7 ``AdminBrokerProcessor.resumeCheckHalfMessage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from gantrymq.operations.brokers import master_addresses, runtime_info
from gantrymq.remoting.address import decode_host, format_address
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.transactions import ResumeCheckHeader
from gantrymq.remoting.message_ids import parse_offset_message_id

if TYPE_CHECKING:
    from gantrymq.client import Client

DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"


@attrs.frozen
class OpenTransactions:
    """The transactions of one master; None if it does not report them, as RocketMQ's brokers."""

    broker: str
    open: int | None
    strategy: str | None


async def open_transactions(client: Client) -> list[OpenTransactions]:
    """Return a row for each master."""
    rows = []
    for broker, address in (await master_addresses(client)).items():
        table = await runtime_info(client, address)
        count = table.get("openTransactions", "")
        rows.append(
            OpenTransactions(broker, int(count) if count.isdecimal() else None, table.get("transactionStrategy"))
        )
    return rows


async def resume_transaction(client: Client, offset_message_id: str) -> None:
    """Let the broker ask the producer again about a discarded half message, whose id of the broker this is.

    ``ValueError`` for an id of no broker of the cluster; :class:`BrokerError` if the broker refuses.
    """
    host, _ = parse_offset_message_id(offset_message_id)
    address = format_address(*decode_host(host))
    if address not in (await master_addresses(client)).values():
        raise ValueError(f"the id {offset_message_id} belongs to {address}, which is not a master of this cluster")
    header = ResumeCheckHeader(msg_id=offset_message_id)
    await client.admin.request(address, Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.to_ext()))
