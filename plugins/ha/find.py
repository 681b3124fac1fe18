"""Find a slave's master, or another master of this name, without a registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.remoting.bodies.routes import ClusterInfo
from gantrymq.remoting.bodies.tables import KVTable
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.epoch import EPOCH_KEY, Epoch, epoch_in
from gantrymq.remoting.errors import ConnectError, RemoteFault
from gantrymq.remoting.javaproperties import read_properties

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker

log = structlog.get_logger("gantrymq.ha")

PROBE_S: Final = 2.0
"""How long a nameserver, and then a possible master, may take to answer before a slave becomes the master."""


async def find_master(broker: Broker) -> str:
    """Return the client address of the master with this broker's name; empty if no nameserver reports it."""
    for nameserver in broker.config.broker.nameservers:
        try:
            address = await _registered_master(broker, nameserver)
        except (ConnectError, RemoteFault):
            continue
        if address:
            return address
    return ""


async def find_live_master(broker: Broker, configured: str, known: Epoch) -> str:
    """Return the address and the epoch of a master of this name that answers; empty if there is none.

    The nameservers and the address ``configured`` (empty for none) lead to it. A fenced master does not count, nor one
    of an epoch below ``known``, the highest one that this broker knows. A master that refuses the question counts.
    """
    addresses = {configured} if configured and configured != broker.address else set()
    found: dict[str, str] = {}

    async def ask_nameserver(nameserver: str) -> None:
        with trio.move_on_after(PROBE_S):
            try:
                addresses.add(await _registered_master(broker, nameserver))
            except (ConnectError, RemoteFault, ValueError) as error:
                log.debug("nameserver_not_asked_for_master", address=nameserver, reason=str(error))

    async def probe(address: str) -> None:
        with trio.move_on_after(PROBE_S):
            try:
                found[address] = await _probe(broker, address, known)
            except (ConnectError, RemoteFault, ValueError) as error:
                log.info("former_master_silent", address=address, reason=str(error) or "no answer")

    async with trio.open_nursery() as nursery:
        for nameserver in broker.config.broker.nameservers:
            nursery.start_soon(ask_nameserver, nameserver)
    async with trio.open_nursery() as nursery:
        for address in addresses - {""}:
            nursery.start_soon(probe, address)
    return next((text for text in found.values() if text), "")


async def _registered_master(broker: Broker, nameserver: str) -> str:
    """Return the address of another broker that is registered as the master of this name; empty if there is none."""
    async with open_channel(nameserver) as channel:
        answer = await channel.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    if answer.code or not answer.body:
        return ""
    known = ClusterInfo.from_bytes(answer.body).broker_addr_table.get(broker.name)
    address = "" if known is None else known.broker_addrs.get(0, "")
    return "" if address == broker.address else address


async def _probe(broker: Broker, address: str, known: Epoch) -> str:
    """Return the text of :func:`find_live_master` for ``address``."""
    async with open_channel(address) as channel:
        settings = await channel.call(Command(RequestCode.GET_BROKER_CONFIG))
        runtime = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    for answer in (settings, runtime):
        if answer.code:
            return f"{address} (it refuses to report its state: {answer.remark or answer.code})"
    says = read_properties(bytes(settings.body or b""))
    named = (says.get("brokerName"), says.get("brokerClusterName"), says.get("brokerId"))
    if named != (broker.name, broker.cluster, "0"):
        return ""
    table = KVTable.from_bytes(runtime.body or b"{}").table
    epoch = epoch_in(table, EPOCH_KEY)
    if table.get("haFenced") or (epoch is not None and known.outranks(epoch)):
        return ""
    return address if epoch is None else f"{address} (epoch {epoch})"
