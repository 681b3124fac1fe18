"""Check-backs: ask producers for the outcome of open transactions, CHECK_TRANSACTION_STATE (39).

Source: RocketMQ 4.9.7 ``TransactionalMessageCheckService``, ``AbstractTransactionalMessageCheckListener``,
``ProducerManager.getAvailableChannel``.
"""

from __future__ import annotations

import math

import attrs
import structlog
import trio

from gantrymq.kernel.delivery import Deliveries
from gantrymq.kernel.env import Env
from gantrymq.kernel.network.connection import Connection
from gantrymq.kernel.store.log.record import Record, encode
from gantrymq.plugins.interfaces import ProducerGroups
from gantrymq.plugins.transaction.strategy import Strategy
from gantrymq.remoting.codes import ONEWAY_FLAG, RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.transactions import CheckTransactionHeader
from gantrymq.remoting.properties import find_property
from gantrymq.remoting.property_bytes import UNIQ_KEY

SLICE_S = 0.05
"""A scan works in slices and sleeps this long between them."""
TRIES = 4
"""The most producers of a group that are tried for a check-back."""

log = structlog.get_logger("gantrymq.transaction")


def slice_limits(checks_per_second: int) -> tuple[int, int]:
    """Return the most check-backs of one slice, and the number of sleeps after a slice with a check-back: more than one
    if the rate is lower than one check-back in ``SLICE_S``."""
    in_a_slice = checks_per_second * SLICE_S
    return max(int(in_a_slice), 1), max(math.ceil(1 / in_a_slice), 1)


class CheckBackSender:
    """Finds a producer and sends the check-back."""

    def __init__(self, env: Env, producers: ProducerGroups, deliveries: Deliveries | None = None) -> None:
        self._env = env
        self._producers = producers
        self._deliveries = deliveries
        self._opaque = 0

    def find(self, group: str) -> Connection | None:
        """Return the connection of a random live producer of the group; None if none can receive a check-back."""
        members = self._producers.producers_of(group)
        if not members:
            return None
        first = self._env.random_int(len(members))
        for step in range(min(TRIES, len(members))):
            connection = members[(first + step) % len(members)].connection
            if not connection.closed and not connection.is_congested():
                return connection
        return None

    def ask(self, connection: Connection, record: Record) -> None:
        """Send the check-back of the half message ``record`` to its producer. Does not wait for an answer.

        ``record`` must have its real topic and queue. The producer's answer must have its queue offset and log offset.
        There is no check-back this time if a plugin withholds the message, or fails to deliver it.
        """
        data: bytes | None = encode(record)
        if self._deliveries is not None:
            try:
                data = self._deliveries.deliver_one(encode(record), "check", connection)
            except RemoteFault:
                return  # delivery_failed is logged
        if data is None:
            return
        unique = find_property(record.properties, UNIQ_KEY)
        name = None if unique is None else unique.decode("utf-8", "replace")
        header = CheckTransactionHeader(
            tran_state_table_offset=record.queue_offset,
            commit_log_offset=record.offset,
            msg_id=name,
            transaction_id=name,
            offset_msg_id=record.message_id,
        )
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        connection.send(
            Command(
                RequestCode.CHECK_TRANSACTION_STATE,
                header.to_ext(),
                data,
                opaque=self._opaque,
                flag=ONEWAY_FLAG,
            )
        )


@attrs.define
class CheckBack:
    """The task: a scan every ``interval`` seconds. After :meth:`stop` it begins no new scan."""

    strategy: Strategy
    interval: float
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Scan until stopped or cancelled; a failed scan is logged, and the next one begins as scheduled."""
        while not self._stopping.is_set():
            await trio.sleep(self.interval)
            try:
                for _ in self.strategy.scan():
                    await trio.sleep(SLICE_S)
                    if self._stopping.is_set():
                        break
            except Exception:
                log.exception("transaction_check_failed")

    def stop(self) -> None:
        """Begin no new scan."""
        self._stopping.set()
