"""Received messages for threads of the application: calls of their methods go to the event loop and block."""

from __future__ import annotations

from gantrymq.client.errors import ClientClosed
from gantrymq.message import DeliveredRecord, Delivery, V_co


class DeliveryToThread:
    """Replaces the delivery ``inner`` of a message while code outside of the event loop works on the message."""

    __slots__ = ()

    @property
    def inner(self) -> Delivery:
        """The delivery that the event loop may call."""
        raise NotImplementedError

    def send_back_and_wait(self, record: DeliveredRecord, delay_level: int) -> None:
        """As :meth:`Delivery.send_back`, for a thread."""
        raise NotImplementedError

    def reply_and_wait(self, record: DeliveredRecord, body: bytes) -> None:
        """As :meth:`Delivery.reply`, for a thread."""
        raise NotImplementedError


class ReceivedMessage(DeliveredRecord[V_co]):
    """A message from a blocking consumer: :class:`gantrymq.ReceivedMessage` with blocking calls."""

    __slots__ = ()

    def ack(self) -> None:
        """As :meth:`gantrymq.ReceivedMessage.ack`.

        Outside of handlers it takes effect later, see :class:`gantrymq.sync.Consumer`.
        """
        self._acknowledge()

    def retry(self, delay_level: int = 0) -> None:
        """As :meth:`gantrymq.ReceivedMessage.retry`."""
        self._delivery_to_thread().send_back_and_wait(self, delay_level)

    def reply(self, body: bytes) -> None:
        """As :meth:`gantrymq.ReceivedMessage.reply`."""
        self._delivery_to_thread().reply_and_wait(self, body)

    def _delivery_to_thread(self) -> DeliveryToThread:
        delivery = self._delivered()
        if not isinstance(delivery, DeliveryToThread):
            raise ClientClosed("the message did not come from a blocking consumer")
        return delivery
