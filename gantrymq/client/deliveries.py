"""What stands in a message for the consumer's side of its queue while a thread of the user has the message."""

from __future__ import annotations

from gantrymq.message import Delivery


class DeliveryToThread:
    """What a message has in place of its delivery, ``inner``, while code outside of the event loop works on it."""

    __slots__ = ()

    @property
    def inner(self) -> Delivery:
        """The delivery that the event loop may call."""
        raise NotImplementedError
