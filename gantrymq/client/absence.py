"""How brokers answer that they do not have the group or the topic of a request, as opposed to refusing the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.client.errors import BrokerError
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command

if TYPE_CHECKING:
    from gantrymq.client.admin import Admin

ABSENT_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)


def is_absent(error: BrokerError) -> bool:
    """Return whether the broker has no such topic or group, or no member of the group.

    SYSTEM_ERROR is no such answer: brokers also refuse credentials with it, and report their own failures. Brokers of
    RocketMQ 4.9.7 and 5.3.3 answer requests for lags, times and connections (208, 303, 203) with a code of
    :data:`ABSENT_CODES`, or with an empty table (``AdminBrokerProcessor``). Where they answer SYSTEM_ERROR for an
    unknown group, as to a reset of offsets, the caller has to find out about the group by another request.
    """
    return error.code in ABSENT_CODES


async def ask_if_present(admin: Admin, address: str, code: RequestCode, ext: dict[str, str]) -> Command | None:
    """Return the answer of the broker at ``address``; None if it does not have the group or topic (:func:`is_absent`).

    Raises the other :class:`BrokerError`, and what :meth:`Admin.request` raises.
    """
    try:
        return await admin.request(address, Command(code, ext))
    except BrokerError as error:
        if is_absent(error):
            return None
        raise
