"""What a consumer gives out at once: a list of messages that can be acknowledged in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gantrymq.client.puller import Puller
from gantrymq.message import DeliveredRecord, Delivery

R = TypeVar("R", bound=DeliveredRecord)


class MessageBatch(list[R]):
    """A list of messages, each of which can be acknowledged or returned on its own, and :meth:`ack` for all."""

    def __init__(self, messages: Iterable[R] = ()) -> None:
        super().__init__()
        self._parts: list[tuple[Delivery, Sequence[R]]] = []
        for message in messages:
            if message.delivery is not None:
                self._add(message.delivery, (message,))

    async def ack(self) -> None:
        """Acknowledge all messages that the batch was given out with, at less cost than one by one.

        Messages that were acknowledged or returned before stay so; otherwise as :meth:`ReceivedMessage.ack`. Messages
        that were added to the list later are not acknowledged.
        """
        self._acknowledge()

    def _add(self, delivery: Delivery, part: Sequence[R]) -> None:
        """Put further messages at the end, which came with one answer of a broker, one after another."""
        self.extend(part)
        self._parts.append((delivery, part))

    def _acknowledge(self) -> None:
        for delivery, part in self._parts:
            if isinstance(delivery, Puller):
                delivery.acknowledge_pulled(part)
            else:
                for message in part:
                    delivery.acknowledge(message.queue_offset)
