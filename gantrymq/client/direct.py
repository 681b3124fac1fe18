"""Consume one message because an administrator wants it now (``mqadmin consumeMessageDirectly``, code 309)."""

from __future__ import annotations

from typing import Final

import anyio

from gantrymq.client.errors import GantryError
from gantrymq.message import DeliveredRecord, Delivery
from gantrymq.remoting.bodies.running import DirectlyConsumed

RESPONSE_SECONDS: Final = 9.0
"""How long the application may take; brokers wait ten seconds."""


class DirectDelivery:
    """Takes the place of the queue: what the application does with the message is the administrator's answer."""

    def __init__(self) -> None:
        self.dropped: bool = False
        self._settled = anyio.Event()
        self._result = "CR_LATER"
        self._remark: str | None = None

    def acknowledge(self, queue_offset: int) -> None:
        """The message is done."""
        self._settle("CR_SUCCESS", None)

    async def send_back(self, record: DeliveredRecord, delay_level: int) -> None:
        """Report CR_LATER. The message is not sent back, because its queue still has it."""
        self._settle("CR_LATER", "sent back with retry()")

    async def reply(self, record: DeliveredRecord, body: bytes) -> None:
        """An administrator has the message consumed: its requester no longer waits."""
        raise GantryError("the message is consumed for an administrator, so that no reply is sent")

    async def verdict(self) -> DirectlyConsumed:
        """Wait for the application, ``RESPONSE_SECONDS`` at most."""
        began = anyio.current_time()
        with anyio.move_on_after(RESPONSE_SECONDS):
            await self._settled.wait()
        if not self._settled.is_set():
            self._remark = f"not acknowledged within {RESPONSE_SECONDS:g} s"
        self.dropped = True
        spent = int((anyio.current_time() - began) * 1000)
        return DirectlyConsumed(consume_result=self._result, remark=self._remark, spent_time_mills=spent)

    def _settle(self, result: str, remark: str | None) -> None:
        if not self._settled.is_set():
            self._result, self._remark = result, remark
            self._settled.set()


def is_direct(delivery: Delivery) -> bool:
    """Return whether ``delivery`` is a :class:`DirectDelivery`, or contains one."""
    while (inner := getattr(delivery, "inner", None)) is not None:
        delivery = inner
    return isinstance(delivery, DirectDelivery)
