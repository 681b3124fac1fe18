"""The client's errors. All derive from :class:`GantryError`; those of the connection are in ``gantrymq.remoting``."""

from __future__ import annotations

import re
from typing import Final

from gantrymq.remoting.advice import ADVICE
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import CallTimeout, ChannelClosed, ConnectError, ConnectFailed, GantryError, TlsFailed
from gantrymq.remoting.records import BodyError, CompressorMissing

__all__ = [
    "AccessDenied",
    "AllocationFailed",
    "AuthenticationFailed",
    "BadResponse",
    "BodyError",
    "BrokerError",
    "CallTimeout",
    "ChannelClosed",
    "ClientClosed",
    "CompressorMissing",
    "ConnectError",
    "ConnectFailed",
    "DeadLetter",
    "GantryError",
    "InvalidMessage",
    "InvalidName",
    "NoRoute",
    "NotANameserver",
    "ReplyTimeout",
    "RetryLater",
    "SendTimeout",
    "TlsFailed",
    "UnsupportedByBroker",
]

_ADVICE = {
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: send slower, or add a broker",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this peer does not know the request: is it a broker of another version?",
    ResponseCode.MESSAGE_ILLEGAL: "the broker refused the message: look at its size and properties",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker takes no messages now, for the reason given",
    ResponseCode.NO_PERMISSION: "the topic, the group or the broker is closed for this",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic first: gantrymq topic create",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or let the broker create groups",
}


class BrokerError(GantryError):
    """A broker or nameserver answered with an error: its ``code``, its ``remark``, and its ``address``."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        try:
            known: ResponseCode | None = ResponseCode(code)
        except ValueError:
            known = None
        name = f"{code} {known.name}" if known is not None else str(code)
        advice = self._own_advice() or (_ADVICE.get(known) if known is not None else None)
        super().__init__(f"{address} answered {name}: {remark or 'no remark'}" + (f" ({advice})" if advice else ""))
        self.code = code
        self.remark: str = remark or ""
        self.address = address

    def _own_advice(self) -> str | None:
        """Advice that replaces that of the code."""
        return None


class AccessDenied(BrokerError):
    """A broker's access control does not let this client do that. The same request is not sent again."""

    def _own_advice(self) -> str:
        return "give the access key the permission for this topic and group, or use another key"


class AuthenticationFailed(AccessDenied):
    """A broker does not accept the client's credentials: an unknown access key, a wrong secret, or none at all."""

    def _own_advice(self) -> str:
        return f"{ADVICE.get().keys}, and that this broker knows them"


_UNAUTHENTICATED: Final = re.compile(
    # RocketMQ 4.x and 5.0 to 5.2, PlainPermissionManager
    r"No accessKey is configured|No acl config for|Check signature failed|No PlainAccessResource for"
    # RocketMQ 5.3, DefaultAuthenticationHandler and its callers
    r"|^User:\S* is (?:not found|disabled)|^check signature failed|^username cannot be null|^Authentication failed",
)
_UNAUTHORIZED: Final = re.compile(r"AclException|has no permission to access|^User:\S* not found")
_ACCESS_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION})


def broker_error(answer: Command, address: str) -> BrokerError:
    """The error for an ``answer`` of the peer at ``address`` that says that a request failed.

    Brokers have no codes of their own for refused credentials: the remark distinguishes them.
    """
    kind = BrokerError
    if answer.code in _ACCESS_CODES and answer.remark:
        if _UNAUTHENTICATED.search(answer.remark):
            kind = AuthenticationFailed
        elif _UNAUTHORIZED.search(answer.remark):
            kind = AccessDenied
    return kind(answer.code, answer.remark, address)


class BadResponse(GantryError):
    """A peer answered what cannot be read: another protocol, another version, or a fault of its own."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} answered what cannot be read: {reason}")
        self.address = address


class NotANameserver(GantryError):
    """The server at ``address`` answers, but does not know a nameserver's requests: it is probably a broker."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is not a nameserver (is it a broker?): connect to the nameserver's address, "
            "whose port is 9876 unless it was configured"
        )
        self.address = address


class SendTimeout(GantryError):
    """A message was not acknowledged in time. It may be stored all the same: sending it again may duplicate it."""


class ReplyTimeout(GantryError):
    """A request got no reply in time. It is stored, and a consumer may have handled it, or may do so later."""


class UnsupportedByBroker(GantryError):
    """A broker is too old for what was asked of it, or it is switched off there. Nothing was sent."""


class NoRoute(GantryError):
    """No nameserver knows a broker for the topic."""


class AllocationFailed(GantryError):
    """The strategy that a consumer was given as ``allocation`` raised an error, or returned no list of queues."""


class InvalidName(GantryError, ValueError):
    """A topic's or group's name, or a subscription, breaks the rules. Nothing was sent."""


class InvalidMessage(GantryError, ValueError):
    """A message breaks the rules. Nothing was sent."""


class ClientClosed(GantryError):
    """A client, producer or consumer was used after its block had ended."""


class RetryLater(GantryError):
    """A handler raises it to get the message again later, without an error in the log.

    ``reason`` is logged. ``delay_level`` chooses the wait by the brokers' table of levels, from 1 on; 0 lets it grow
    with each attempt. Ordered messages are redelivered after a second, whatever the level. ValueError for a negative
    level.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0) -> None:
        if delay_level < 0:
            raise ValueError(f"delay_level {delay_level} is none: give 0 or more, or raise DeadLetter")
        super().__init__(reason)
        self.delay_level = delay_level


class DeadLetter(GantryError):
    """A handler raises it, with the reason, to make the message a dead letter at once: a retry would not help."""
