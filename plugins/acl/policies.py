"""Decide about requests of RocketMQ 5's users: by their type, their status and their policies.

Source: RocketMQ 5.3.3 ``DefaultAuthenticationHandler``, ``DefaultAuthorizationContextBuilder``,
``AclAuthorizationHandler``: the same texts. More requests need an action here, as for accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.acl.accounts import ANY, PUB, SENDS
from gantrymq.plugins.acl.users import DENIED, DISABLED, NAME_MAX_CHARACTERS, NO_MATCH, SUPER, Decisions, sends_anywhere
from gantrymq.remoting.bodies.access import AclInfo, UserInfo
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.names import RETRY_PREFIX, TRACE_TOPIC, is_retry_topic
from gantrymq.remoting.rights import READING_CODES

if TYPE_CHECKING:
    from gantrymq.kernel.processors import Request
    from gantrymq.plugins.acl.resources import Needs
    from gantrymq.plugins.acl.user_file import UserFile

_C = RequestCode
_FURTHER: Final[Mapping[int, str]] = MappingProxyType({
    _C.QUERY_CONSUMER_OFFSET: "Get",
    _C.GET_CONSUMER_LIST_BY_GROUP: "Get",
    _C.QUERY_MESSAGE: "Get",
    _C.UPDATE_CONSUMER_OFFSET: "Update",
    _C.GET_CONSUMER_CONNECTION_LIST: "Get",
    _C.GET_CONSUME_STATS: "Get",
    _C.QUERY_CONSUME_TIME_SPAN: "Get",
    _C.QUERY_TOPICS_BY_CONSUMER: "Get",
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: "Get",
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: "Get",
    _C.VIEW_MESSAGE_BY_ID: "Get",
})  # fmt: skip
"""The action that allows a request besides ``Pub`` and ``Sub``."""
_ASKED_TOGETHER: Final = frozenset({
    _C.QUERY_CONSUMER_OFFSET, _C.UPDATE_CONSUMER_OFFSET, _C.GET_CONSUMER_LIST_BY_GROUP, _C.QUERY_MESSAGE,
})  # fmt: skip
"""Requests for which RocketMQ asks that action together with ``Sub``; for the others ``@RocketMQAction`` names it
alone."""
_OF_TOPIC_OR_GROUP: Final[Mapping[int, tuple[str, str, str]]] = MappingProxyType({
    _C.UPDATE_AND_CREATE_TOPIC: ("Topic", "topic", "Create"),
    _C.DELETE_TOPIC_IN_BROKER: ("Topic", "topic", "Delete"),
    _C.DELETE_SUBSCRIPTIONGROUP: ("Group", "groupName", "Delete"),
})  # fmt: skip
"""Administrative requests that need an action on a topic or group; the others need one on the cluster."""


ANY_TOPIC: Final = "Topic:*"
Ways = tuple[tuple[str, ...], ...]
"""The ways to be allowed a request: each has actions that are decided together. None: the right to send anywhere."""


class Refused(Exception):
    """A user may not do this; ``reason`` as of ``checks.REASONS``, the text is RocketMQ's."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Policies:
    """The users of ``file``. ``authorization``: whether they need policies."""

    def __init__(self, file: UserFile, cluster: str, authorization: bool) -> None:
        self._file = file
        self._cluster = f"Cluster:{cluster}"
        self._authorization = authorization

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._file.user(name) is not None

    @property
    def document(self) -> object:
        """What is in force: another object after each change."""
        return self._file.document

    def user(self, name: str | None) -> UserInfo:
        """The enabled user of this name; :class:`Refused`."""
        if not name:
            raise Refused("no_key", "username cannot be null.")
        user = self._file.user(name)
        if user is None:
            raise Refused("unknown_key", f"User:{name[:NAME_MAX_CHARACTERS]} is not found.")
        if user.user_status == DISABLED:
            raise Refused("unknown_key", f"User:{name} is disabled.")
        return user

    @staticmethod
    def secret(user: UserInfo) -> bytes:
        """The key of its signatures."""
        return (user.password or "").encode("utf-8", "surrogatepass")

    def is_super(self, name: str) -> bool:
        """Whether the user may do everything, also to other super users."""
        user = self._file.user(name)
        return user is not None and user.user_type == SUPER

    def allows_all(self, user: UserInfo) -> bool:
        """Whether no policy is needed."""
        return user.user_type == SUPER or not self._authorization

    def check(self, name: str, request: Request, needs: Needs | None) -> None:
        """:class:`Refused` unless policies allow ``needs``; None: the request is administrative."""
        host = request.connection.peer[0]
        verdicts = Verdicts(self._file.acl(name), host)
        for resource, ways in needed_ways(int(request.code), request.ext, needs, self._cluster):
            reason = verdicts.why_not(resource, ways)
            if reason:
                raise self._refusal(name, resource, host, reason)

    @staticmethod
    def _refusal(name: str, resource: str, host: str, reason: str) -> Refused:
        shown = resource[:NAME_MAX_CHARACTERS]
        return Refused("permission", f"User:{name} has no permission to access {shown} from {host}, {reason}")


class Verdicts:
    """What the policies ``acl`` of a user say about the resources of one request from ``address``."""

    def __init__(self, acl: AclInfo | None, address: str) -> None:
        self._acl = acl
        self._address = address
        self._decisions: dict[tuple[str, ...], Decisions] = {}

    def why_not(self, resource: str, ways: Ways) -> str:
        """Why none of ``ways`` is allowed; empty if one is."""
        if not ways:
            return "" if sends_anywhere(self._acl) else NO_MATCH
        reasons = [self._of(actions).of(resource) for actions in ways]
        return "" if "" in reasons else DENIED if DENIED in reasons else NO_MATCH

    def _of(self, actions: tuple[str, ...]) -> Decisions:
        found = self._decisions.get(actions)
        if found is None:
            found = self._decisions[actions] = Decisions(self._acl, actions, self._address)
        return found


def missing_name(code: int, ext: Mapping[str, str]) -> str:
    """``topic`` or ``group`` if the request needs an action on one and does not name it; otherwise empty."""
    kind, field, _ = _OF_TOPIC_OR_GROUP.get(code, ("", "", ""))
    return "" if not kind or ext.get(field) else kind.lower()


def needed_ways(code: int, ext: Mapping[str, str], needs: Needs | None, cluster: str) -> list[tuple[str, Ways]]:
    """The resources of a request, each with the ways of which one must be allowed.

    ``needs``: as of ``needs_of``; None: the request is administrative. ``cluster``: the resource ``Cluster:name``.
    """
    if needs is None:
        kind, field, action = _OF_TOPIC_OR_GROUP.get(code, ("", "", ""))
        if kind and ext.get(field):
            return [(_resource(ext[field]) if kind == "Topic" else f"{kind}:{ext[field]}", ((action,),))]
        return [(cluster, (("Get", "List") if code in READING_CODES else ("Update",),))]
    return [
        (ANY_TOPIC, ()) if needed == SENDS else (_resource(resource), _ways(code, needed))
        for resource, needed in needs
        if (resource, needed) != (TRACE_TOPIC, PUB)  # every user may send its traces
    ]


def _resource(name: str) -> str:
    return f"Group:{name.removeprefix(RETRY_PREFIX)}" if is_retry_topic(name) else f"Topic:{name}"


def _ways(code: int, needed: int) -> Ways:
    """A denied ``Pub`` or ``Sub`` does not count where RocketMQ asks ``Get`` alone, but a denied ``Get`` does."""
    names = ("Pub", "Sub") if needed & ANY else ("Pub",) if needed & PUB else ("Sub",)
    further = "Get" if needed & ANY else _FURTHER.get(code)
    if further is None:
        return (names,)
    if code in _ASKED_TOGETHER:
        return ((*names, further),)
    return ((further,), *((name, further) for name in names))
