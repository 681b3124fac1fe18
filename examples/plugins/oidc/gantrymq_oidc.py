"""Identifies clients by JSON Web Tokens (JWT), such as the access tokens of an OpenID provider, instead of by keys.

Slot: access_control. Hooks: config_section, configure, register_tasks, authorize. Files: that of the keys, read only.
Config ``[plugin.oidc]``: ``keys``, the provider's JSON Web Key Set, a file or an ``https://`` address (its
``jwks_uri``), read every ``interval``, and soon after a token names a key that is not in it, because providers replace
their keys; ``ca``, the authorities (PEM) of that address instead of the system's; ``issuer`` and ``audience``, which
each token must have; ``algorithms``; ``leeway``, how far the clocks of broker and provider may differ.

A client sends the token as RocketMQ's security token: ``gantrymq.connect(..., access_key="jwt", secret_key="unused",
security_token=token)``, or ``SessionCredentials(accessKey, secretKey, securityToken)`` in Java. Access key and
signature do not count. The claim ``sub`` is the identity. The claim ``scope`` has the permissions, separated by blanks:

- ``send:TOPIC`` and ``read:TOPIC``; ``*`` for all of a kind;
- ``group:GROUP`` to consume as a member of the group. This includes its retry topic: clients read it, and send to it
  the messages that the broker does not take back;
- ``admin``: everything, also requests that name a message by its place in the log (send-backs, transactions).

A token can be used by whoever reads it until it expires: enable the plugin ``tls`` with the mode ``enforcing``. A
request with an expired token is refused; messages that a held pull waits for are still delivered.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import jwt
import structlog
import trio

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import duration
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.names import RETRY_PREFIX

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.processors import Request, RequestBatch

log = structlog.get_logger("gantrymq.oidc")

_C = RequestCode
SENDS = frozenset({_C.SEND_MESSAGE, _C.SEND_MESSAGE_V2, _C.SEND_BATCH_MESSAGE})
READS = frozenset({_C.PULL_MESSAGE, _C.LITE_PULL_MESSAGE, _C.QUERY_CONSUMER_OFFSET, _C.UPDATE_CONSUMER_OFFSET,
                   _C.GET_MAX_OFFSET, _C.GET_MIN_OFFSET, _C.SEARCH_OFFSET_BY_TIMESTAMP})  # fmt: skip
MEMBERS = frozenset({_C.GET_CONSUMER_LIST_BY_GROUP, _C.UNREGISTER_CLIENT})
BODIES = frozenset({_C.HEART_BEAT, _C.LOCK_BATCH_MQ, _C.UNLOCK_BATCH_MQ, _C.CHECK_CLIENT_CONFIG})
REMEMBERED_MAX = 10_000
TOKEN_MAX_CHARACTERS = 16 * 1024
BODY_MAX_BYTES = 256 * 1024
SYMMETRIC = "HS"
PAUSE_S = 5.0
"""The shortest time between two reads of the keys: anybody can send tokens that name unknown keys."""


@attrs.frozen
class OidcConfig:
    """``[plugin.oidc]``."""

    keys: str = ""
    ca: str = ""
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    leeway: float = duration("10s", minimum="0s", maximum="5m")
    interval: float = duration("60s", minimum="100ms", maximum="1d")


@attrs.frozen
class Holder:
    """Who a token identifies, what it allows, and until when (seconds since 1970)."""

    name: str
    scopes: frozenset[str]
    expires: float

    def allows(self, scope: str) -> bool:
        """Whether the token has this scope, all of its kind, or the group whose retry topic the scope is for."""
        kind, _, name = scope.partition(":")
        enough = {"admin", scope, f"{kind}:*"}
        if kind != "group" and name.startswith(RETRY_PREFIX):
            enough |= {f"group:{name.removeprefix(RETRY_PREFIX)}", "group:*"}
        return not enough.isdisjoint(self.scopes)


class Refused(Exception):
    """The token or its scopes do not allow the request."""


class OidcPlugin:
    """One object per broker; it decides about all requests of a turn in one call."""

    name = "oidc"
    version = "1.0.0"
    slot = "access_control"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "oidc", OidcConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the keys; without keys, or with settings that would accept foreign tokens, the broker does not start."""
        self._config = section = config.section(OidcConfig)
        self._env = broker.env
        for name in ("keys", "issuer", "audience"):
            if not getattr(section, name):
                raise StartError(f"plugin.oidc.{name} is missing")
        wrong = [name for name in section.algorithms if name.startswith(SYMMETRIC) or name.lower() == "none"]
        if wrong or not section.algorithms:
            raise StartError(
                f"plugin.oidc.algorithms = {', '.join(wrong)!r}: only algorithms with public keys are safe"
            )
        if urlsplit(section.keys).scheme == "http":
            raise StartError("plugin.oidc.keys: keys are read from a file or from https://")
        self._holders: dict[str, Holder] = {}
        self._key_missing = trio.Event()
        try:
            self._document = self._read_document()
            self._keys = keys_of(self._document)
        except (OSError, jwt.PyJWTError, ValueError) as error:
            raise StartError(f"plugin.oidc.keys = {section.keys!r}: {error}") from None

    def _read_document(self) -> Any:
        if urlsplit(self._config.keys).scheme == "https":
            context = ssl.create_default_context(cafile=self._config.ca or None)
            return jwt.PyJWKClient(self._config.keys, cache_jwk_set=False, timeout=10, ssl_context=context).fetch_data()
        return json.loads(Path(self._config.keys).read_text(encoding="utf-8"))

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The reader of changed keys."""
        return [BackgroundTask("oidc", self._watch)]

    async def _watch(self) -> None:
        while True:
            await trio.sleep(min(PAUSE_S, self._config.interval))
            with trio.move_on_after(max(0.0, self._config.interval - PAUSE_S)):
                await self._key_missing.wait()
            self._key_missing = trio.Event()
            try:
                document = await trio.to_thread.run_sync(self._read_document)
                if document == self._document:
                    continue
                keys = keys_of(document)
            except (OSError, jwt.PyJWTError, ValueError) as error:
                log.error("oidc_keys_refused", reason=str(error))  # those of before stay
                continue
            self._document, self._keys = document, keys
            self._holders.clear()  # tokens of removed keys are verified anew
            log.info("oidc_keys_loaded", keys=len(keys))

    @hookimpl(tryfirst=True)
    def authorize(self, batch: RequestBatch) -> None:
        """Refuse requests without a valid token, and those for which it has no scope."""
        for row in batch.live:
            request = batch.requests[row]
            try:
                holder = self._holder(request.ext.get("SecurityToken", ""))
                for scope in needed_scopes(request):
                    if not holder.allows(scope):
                        raise Refused(f"the token of {holder.name!r} has no scope {scope!r}")
            except Refused as refused:
                batch.refuse(row, ResponseCode.NO_PERMISSION, str(refused))
            else:
                request.connection.identity = holder.name

    def _holder(self, token: str) -> Holder:
        """Who ``token`` identifies. A token is verified once, and compared with the time at each request."""
        holder = self._holders.get(token)
        if holder is None:
            holder = self._verified(token)
            if len(self._holders) >= REMEMBERED_MAX:
                self._holders.clear()
            self._holders[token] = holder
        if self._env.wall_ms() / 1000 > holder.expires + self._config.leeway:
            raise Refused("the token has expired")
        return holder

    def _verified(self, token: str) -> Holder:
        if not token:
            raise Refused("the request has no token (SecurityToken)")
        if len(token) > TOKEN_MAX_CHARACTERS:
            raise Refused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
            key = self._keys.get(header.get("kid"))
            if key is None:
                self._key_missing.set()
                raise Refused("the token's key is not known")
            if header.get("alg") != key.algorithm_name:  # the key decides, not the token
                raise Refused("the token's algorithm is not that of its key")
            claims = jwt.decode(
                token, key, algorithms=list(self._config.algorithms), issuer=self._config.issuer,
                audience=self._config.audience, leeway=self._config.leeway,
                options={"require": ["exp", "sub", "iss", "aud"]},
            )  # fmt: skip
        except (jwt.PyJWTError, UnicodeError) as error:
            raise Refused(f"the token is not valid: {error}") from None
        scope = claims.get("scope", "")
        return Holder(claims["sub"], frozenset(scope.split() if isinstance(scope, str) else ()), float(claims["exp"]))


def keys_of(document: Any) -> dict[str | None, jwt.PyJWK]:
    """The keys of a key set that verify signatures, by their ids; ``PyJWTError`` if it is none."""
    if not isinstance(document, dict):
        raise jwt.PyJWKSetError("it is not a key set")
    return {key.key_id: key for key in jwt.PyJWKSet.from_dict(document).keys if key.public_key_use in (None, "sig")}


def needed_scopes(request: Request) -> list[str]:
    """The scopes that a request needs, by its code and the topic and group that it names."""
    code = request.code
    if code in SENDS:
        return [f"send:{request.topic}"]
    if code in READS:
        group = request.ext.get("consumerGroup")
        return [f"read:{request.topic}", *([f"group:{group}"] if group else [])]
    if code in MEMBERS:
        group = request.ext.get("consumerGroup")
        return [f"group:{group}"] if group else []
    if code in BODIES:
        return scopes_of_body(request.body)
    return ["admin"]


def scopes_of_body(body: bytes) -> list[str]:
    """The scopes of a heartbeat, of locks and of a check of a subscription."""
    try:
        if len(body) > BODY_MAX_BYTES:
            raise ValueError("it is too long")
        found = json.loads(body)
        consumers = found.get("consumerDataSet") or []
        groups = [each["groupName"] for each in consumers]
        topics = [each["topic"] for one in consumers for each in one.get("subscriptionDataSet") or []]
        groups += [found[name] for name in ("consumerGroup", "group") if name in found]
        topics += [each["topic"] for each in found.get("mqSet") or []]
        if found.get("subscriptionData"):
            topics.append(found["subscriptionData"]["topic"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("the request's body cannot be read") from None
    return [*(f"group:{group}" for group in groups), *(f"read:{topic}" for topic in topics)]
