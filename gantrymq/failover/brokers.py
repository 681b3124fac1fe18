"""The brokers of a cluster and the state that each reports: for ``gantrymq cluster``, promotions and the watcher."""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gantrymq.client import Client
    from gantrymq.remoting.bodies.routes import ClusterInfo

RESPONSE_S: Final = 3.0
"""The default of ``--response-timeout``: how long a broker may take to answer."""
UNREACHABLE: Final = "unreachable"
REFUSING: Final = "refusing"
"""The role of a broker that answers, but with an error, or whose TLS handshake fails (``refusal`` in the row has the
reason): it is alive, and its state unknown."""
_COPY: Final = re.compile(r"haSlave_\d+")
"""The connection of a slave in the report of GantryMQ's master."""
_COPY_LAG: Final = re.compile(r"address=(?P<host>\S*):\d+, .*lagBytes=(?P<bytes>\d+), lagSeconds=(?P<seconds>[\d.]+)")
FENCED: Final = "fenced"
COLUMNS: Final = (
    "cluster",
    "broker",
    "id",
    "role",
    "address",
    "ha_address",
    "offset",
    "lag_bytes",
    "lag_seconds",
    "epoch",
    "not_ready",
    "not_promotable",
)


async def query_brokers(
    client: Client,
    timeout: float,
    name: str,
    more: Mapping[str, int] | None = None,
    without: Collection[str] = (),
) -> list[dict[str, Any]]:
    """As :func:`broker_rows` of one broker name, with ``timeout`` seconds for each nameserver and each broker.

    A nameserver that hangs costs ``timeout`` once, and is then the last one to be asked. ``trio.TooSlowError`` if no
    nameserver answers in time.
    """
    import trio

    with trio.fail_after((len(client.admin.nameservers) + 2) * timeout):
        return await broker_rows(client, timeout, name, more, without, timeout)


async def _ask_nameservers(client: Client, timeout: float) -> ClusterInfo:
    import trio

    for _ in client.admin.nameservers:
        with trio.move_on_after(timeout):
            return await client.admin.cluster()
    raise trio.TooSlowError(f"no nameserver answered within {timeout:g} s")


async def broker_rows(
    client: Client,
    response_timeout: float = RESPONSE_S,
    only: str | None = None,
    more: Mapping[str, int] | None = None,
    without: Collection[str] = (),
    nameserver_timeout: float = math.inf,
) -> list[dict[str, Any]]:
    """One row per broker with the keys of :data:`COLUMNS`, masters before their slaves; None for unknown values.

    All brokers are asked concurrently, each with ``response_timeout`` seconds. ``only`` selects one broker name.
    ``more``: ids by address of further brokers of that name, which may be unknown to the nameserver. ``without``:
    addresses that are not asked and count as unreachable. ``nameserver_timeout``: seconds that each nameserver has, at
    most those of the client; ``trio.TooSlowError`` if none answers in that time.
    """
    import trio

    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    info = await _ask_nameservers(client, nameserver_timeout)
    asked = [
        (data.cluster, name, broker_id, address)
        for name, data in info.broker_addr_table.items()
        for broker_id, address in data.broker_addrs.items()
        if only in (None, name)
    ]
    known = {address for *_, address in asked}
    asked += [("", only or "", number, address) for address, number in (more or {}).items() if address not in known]
    async with trio.open_nursery() as nursery:
        for cluster_name, name, broker_id, address in asked:
            row = found[name, broker_id, address] = dict.fromkeys(COLUMNS) | {
                "not_promotable": "",
                "refusal": "",
                "log_epoch": None,
                "log_lacks_before": 0,
                "log_kept_from": 0,
                "master_silent_s": None,
                "copies": [],
                "is_registered": address in known,
                "cluster": cluster_name,
                "broker": name,
                "id": broker_id,
                "address": address,
            }
            if address in without:
                row["role"] = UNREACHABLE
            else:
                nursery.start_soon(ask_broker, row, address, response_timeout)
    rows = [found[key] for key in sorted(found)]
    for row in rows:
        if row["role"] in (UNREACHABLE, REFUSING):
            continue
        if row["role"] != "slave":  # a nameserver that it cannot reach may list its id from before its promotion
            row["id"] = 0
        elif not row["is_registered"]:  # its id may have changed
            row["id"] = max(row["id"], 1)
    rows.sort(key=lambda row: (row["broker"], row["id"]))
    masters = {row["broker"]: row for row in rows if row["id"] == 0}
    for row in rows:
        master = masters.get(row["broker"])
        if row["id"] and row["offset"] is not None and master is not None and master["offset"] is not None:
            row["lag_bytes"] = max(master["offset"] - row["offset"], 0)
    return rows


def add_lags_of_silent_slaves(rows: list[dict[str, Any]]) -> None:
    """Give unreachable slaves the lag that their master reports, if it can only be theirs: the master knows the hosts
    of the slaves that are connected to it, not their addresses, so each must be alone on its host."""
    for row in rows:
        if not row["id"] or row["role"] != UNREACHABLE:
            continue
        host = row["address"].rpartition(":")[0]
        family = [other for other in rows if (other["cluster"], other["broker"]) == (row["cluster"], row["broker"])]
        slaves = [other for other in family if other["id"] and other["address"].rpartition(":")[0] == host]
        texts = [text for other in family if not other["id"] for text in other["copies"]]
        lags = [lag for text in texts if (lag := _COPY_LAG.match(text)) and lag["host"] == host]
        if len(slaves) == len(lags) == 1:
            row["lag_bytes"], row["lag_seconds"] = int(lags[0]["bytes"]), float(lags[0]["seconds"])


async def ask_broker(row: dict[str, Any], address: str, timeout: float) -> None:
    """Fill in the broker's own status (GET_BROKER_RUNTIME_INFO)."""
    import trio

    from gantrymq.remoting.bodies.tables import KVTable
    from gantrymq.remoting.channel import NO_TLS, open_channel
    from gantrymq.remoting.codes import RequestCode
    from gantrymq.remoting.command import Command
    from gantrymq.remoting.epoch import LOG_EPOCH_KEY, LOG_KEPT_KEY, LOG_LACKS_KEY
    from gantrymq.remoting.errors import ConnectError, RemoteFault, TlsFailed

    try:
        with trio.fail_after(timeout):
            async with open_channel(address) as channel:
                answer = await channel.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), timeout)
        if answer.code:
            row["role"], row["refusal"] = REFUSING, answer.remark or f"code {answer.code}"
            return
        table = KVTable.from_bytes(answer.body).table
    except (ConnectError, RemoteFault, trio.TooSlowError) as error:
        row["role"] = UNREACHABLE
        failure = error.__cause__
        if isinstance(error, TlsFailed) and isinstance(failure, ssl.SSLError) and failure.reason not in NO_TLS:
            row["role"], row["refusal"] = REFUSING, error.reason  # it has answered, perhaps with an expired certificate
        return
    row["role"] = table.get("brokerRole", "MASTER" if row["id"] == 0 else "SLAVE").lower()
    row["offset"] = int(table["commitLogMaxOffset"]) if "commitLogMaxOffset" in table else None
    row["ha_address"] = table.get("haServerAddr") or table.get("haMasterAddress") or None
    row["lag_seconds"] = float(table["haLagSeconds"]) if "haLagSeconds" in table else None
    row["epoch"] = table.get("haEpoch")
    row["not_ready"] = table.get("notReady") or None
    row["copies"] = [text for name, text in table.items() if _COPY.fullmatch(name)]
    row["not_promotable"] = table.get("haNotPromotable", "")
    row["log_epoch"] = table.get(LOG_EPOCH_KEY)
    row["log_lacks_before"] = int(table.get(LOG_LACKS_KEY, 0))
    row["log_kept_from"] = int(table.get(LOG_KEPT_KEY, 0))
    row["master_silent_s"] = float(table.get("haMasterSilentSeconds", -1)) if table.get("haMasterAddress") else None
    if table.get("haFenced"):
        row["role"] = FENCED
