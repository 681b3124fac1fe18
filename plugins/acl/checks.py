"""Decide about one request: who signed it, and whether that account may send it.

Source: RocketMQ 4.9.7 ``PlainAccessValidator``, ``PlainPermissionManager.validate``, ``AclUtils``: the same signature,
the same order of checks, the same texts. More requests need a permission here (:mod:`gantrymq.remoting.rights`).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.plugins.acl.accounts import PUB, SENDS, Account, Accounts
from gantrymq.plugins.acl.fast import SignedRequests, SigningKey
from gantrymq.plugins.acl.policies import Policies, Refused
from gantrymq.plugins.acl.resources import Unnamed, needs_of, topic_and_group_fields
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.query import UNIQUE_KEY_QUERY
from gantrymq.remoting.names import RETRY_PREFIX, TRACE_TOPIC, is_retry_topic
from gantrymq.remoting.rights import Right
from gantrymq.remoting.signing import ACCESS_KEY, SIGNATURE

if TYPE_CHECKING:
    from gantrymq.kernel.processors import Request, RequestBatch
    from gantrymq.kernel.store.store import Store
    from gantrymq.plugins.acl.resources import Needs

SHOWN_CHARACTERS: Final = 255
"""How much of a name from a request is repeated to its sender and in the log."""
REASONS: Final = ("no_key", "unknown_key", "signature", "not_admin", "permission", "unnamed")


class Denied(Exception):
    """The request is refused. ``reason``: one of :data:`REASONS`; the text is RocketMQ's."""

    def __init__(self, reason: str, text: str, access_key: str | None = None, *, is_of_user: bool = False) -> None:
        super().__init__(text)
        self.is_of_user = is_of_user
        """Whether the text is that of RocketMQ 5 for users."""
        self.reason = reason
        self.access_key = access_key


class Checks:
    """Checks requests against the accounts that are in force, and counts the refusals by reason."""

    def __init__(
        self,
        store: Store,
        cluster: str,
        rights: Mapping[int, Right],
        accounts: Callable[[], Accounts],
        policies: Policies | None = None,
    ) -> None:
        self._policies = policies
        self._store = store
        self._cluster = cluster
        self._rights = rights
        self._accounts = accounts
        self._signed = SignedRequests(self._find_key, self._allows, topic_and_group_fields(rights))
        self._in_force: tuple[object, object] = (None, None)
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def take_allowed(self, batch: RequestBatch) -> list[int]:
        """Allow the requests of ``batch`` that need no more than a verified signature and a permission for the topic
        and group that they name, set the identities of their connections, and return the rows that remain for
        :meth:`check`."""
        accounts, document = self._accounts(), None if self._policies is None else self._policies.document
        if self._in_force[0] is not accounts or self._in_force[1] is not document:
            self._in_force = (accounts, document)
            self._signed.forget()
        return self._signed.take(batch.requests, batch.live)

    def _find_key(self, host: str, access_key: str) -> SigningKey | None:
        """The key with which a request from ``host`` must be signed; None where :meth:`check` needs no signature, or
        refuses."""
        accounts = self._accounts()
        if accounts.addresses.matches(host):
            return None
        if self._policies is not None and (access_key in self._policies or not accounts.by_key):
            try:
                secret = self._policies.secret(self._policies.user(access_key))
            except Refused:
                return None
        else:
            account = accounts.by_key.get(access_key)
            if account is None or account.addresses.matches(host):
                return None
            secret = account.secret
        return SigningKey(secret)

    def _allows(self, request: Request, access_key: str) -> bool:
        """Whether :meth:`check` allows this request, whose signature was verified."""
        accounts = self._accounts()
        try:
            if self._policies is not None and (access_key in self._policies or not accounts.by_key):
                self._check_policies(self._policies, request, access_key)
            else:
                self._check_account(request, accounts.by_key[access_key])
        except (Denied, Refused, Unnamed, RemoteFault):
            return False  # check says why
        return True

    def check(self, request: Request) -> str | None:
        """The access key of the sender; None for an address that needs none. :class:`Denied` otherwise."""
        accounts = self._accounts()
        host = request.connection.peer[0]
        if accounts.addresses.matches(host):
            return None
        ext = request.ext
        access_key = ext.get(ACCESS_KEY)
        if self._policies is not None and (access_key in self._policies or not accounts.by_key):
            return self._check_user(self._policies, request, access_key)
        if access_key is None:
            subject = getattr(request.connection.sock, "subject", None)
            account = accounts.by_subject.get(subject) if subject else None
            if account is None:
                raise Denied("no_key", "No accessKey is configured")
            access_key = account.access_key
        else:
            account = accounts.by_key.get(access_key)
            if account is None:
                raise Denied("unknown_key", f"No acl config for {access_key[:SHOWN_CHARACTERS]}")
            if account.addresses and account.addresses.matches(host):
                return access_key
            if not _is_signed(request, ext, account.secret):
                raise Denied("signature", f"Check signature failed for accessKey={access_key}", access_key)
        self._check_account(request, account)
        return access_key

    def _check_account(self, request: Request, account: Account) -> None:
        """:class:`Denied` unless the account has the right.

        As in RocketMQ 4.9.7, each account may query offsets: a 4.9.7 client takes a refusal for "never committed",
        begins at the end of the queue, and skips messages.
        """
        right = self._rights.get(request.code)
        if right is Right.ADMIN:
            if not account.admin:
                raise Denied(
                    "not_admin",
                    f"Need admin permission for request code={request.code}, but accessKey={account.access_key} is not",
                    account.access_key,
                )
        elif right is not None and right is not Right.OFFSET:  # a code that is not served is answered as such
            self._check_needs(right, request, account)

    def _check_user(self, policies: Policies, request: Request, name: str | None) -> str:
        """As :meth:`check`, for a user of RocketMQ 5."""
        try:
            user = policies.user(name)
            if not _is_signed(request, request.ext, policies.secret(user)):
                raise Refused("signature", "check signature failed.")
            self._check_policies(policies, request, str(name))
        except Refused as refused:
            known = name if name in policies else None  # an unknown name would be a subject of its own in the log
            raise Denied(refused.reason, str(refused), known, is_of_user=True) from None
        except Unnamed as error:
            raise Denied("unnamed", str(error), name, is_of_user=True) from None
        except RemoteFault as fault:
            raise Denied("unnamed", str(fault.remark), name, is_of_user=True) from None
        return str(name)

    def _check_policies(self, policies: Policies, request: Request, name: str) -> None:
        right = self._rights.get(request.code)
        if right is not None and not policies.allows_all(policies.user(name)):
            policies.check(name, request, None if right is Right.ADMIN else self._needs(right, request))

    def _needs(self, right: Right, request: Request) -> Needs:
        return needs_of(right, request, self._store, self._cluster)

    def is_super(self, request: Request) -> bool:
        """Whether an admin account, a super user or a trusted address sent ``request``, which was allowed.

        The accounts and users of now decide: a request may wait after it was allowed, and its sender may be deleted
        meanwhile.
        """
        name = request.ext.get(ACCESS_KEY)
        if not name:
            return True  # an address that needs no key, or the certificate of an admin account
        if self._policies is not None and name in self._policies:
            return self._policies.is_super(name)
        accounts, host = self._accounts(), request.connection.peer[0]
        if accounts.addresses.matches(host):
            return True
        account = accounts.by_key.get(name)
        return account is not None and (account.admin or account.addresses.matches(host))

    def _check_needs(self, right: Right, request: Request, account: Account) -> None:
        try:
            needs = self._needs(right, request)
        except Unnamed as error:
            raise Denied("unnamed", str(error), account.access_key) from None
        except RemoteFault as fault:
            raise Denied("unnamed", str(fault.remark), account.access_key) from None
        if right is Right.SEND and needs == [(TRACE_TOPIC, PUB)]:
            return  # every account may send its traces
        for resource, needed in needs:
            if not account.allows(resource, needed):
                shown = "sending" if needed == SENDS else _shown(resource)
                raise Denied("permission", f"No default permission for {shown}", account.access_key)


def _is_signed(request: Request, ext: Mapping[str, str], secret: bytes) -> bool:
    given = ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    names = sorted(ext)
    leave_out: set[str] = {SIGNATURE, UNIQUE_KEY_QUERY}
    if hmac.compare_digest(_signature(ext, names, leave_out, request.body, secret), given):
        return True
    # Some clients sign the field that RocketMQ leaves out.
    return (
        request.code == RequestCode.QUERY_MESSAGE
        and UNIQUE_KEY_QUERY in ext
        and hmac.compare_digest(_signature(ext, names, {SIGNATURE}, request.body, secret), given)
    )


def _signature(ext: Mapping[str, str], names: list[str], leave_out: set[str], body: bytes, secret: bytes) -> bytes:
    text = "".join([ext[name] for name in names if name not in leave_out])
    return b64encode(hmac.digest(secret, text.encode("utf-8", "surrogatepass") + body, "sha1"))


def _shown(resource: str) -> str:
    if is_retry_topic(resource):
        return f"group:{resource.removeprefix(RETRY_PREFIX)[:SHOWN_CHARACTERS]}"
    return f"topic:{resource[:SHOWN_CHARACTERS]}"
