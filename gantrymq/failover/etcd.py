"""The lock in etcd v3, through its JSON gateway: a key that is bound to the lease of its holder.

The key's create revision is the lock's revision: it grows with each change of the store, hence with each holder. Only
the holder writes the text, in a transaction that checks the key.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import trio

from gantrymq.failover.lock import StoreUnavailable

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

T = TypeVar("T")

LEASE_LEAST_S: Final = 2
"""etcd gives no shorter one with its default election timeout."""
TRIES: Final = 2
"""Each endpoint in turn, once more when there is one only: its old connection may be dead."""
UNAUTHORIZED: Final = ("invalid auth token", "user name is empty", "Unauthorized")


@attrs.frozen
class Endpoint:
    """Where one member of etcd listens for clients."""

    protocol: str
    host: str
    port: int


@attrs.frozen
class Credentials:
    """``ca``, ``cert``, ``key``: files for TLS. ``user`` and ``password``: for etcd's own authentication."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str = ""
    password: str = attrs.field(default="", repr=False)


def parse_endpoints(text: str) -> list[Endpoint]:
    """The addresses of ``http://HOST:PORT,https://HOST:PORT``; ValueError for any other text."""
    found = []
    for item in text.split(","):
        try:
            parts = urlsplit(item.strip())
            is_one = parts.scheme in ("http", "https") and parts.path in ("", "/")
            host, port = parts.hostname, parts.port or 2379
        except ValueError:  # of the port, or of brackets
            is_one, host = False, None
        if not is_one or not host:
            raise ValueError(f"{item.strip()[:100]!r} is not an address of etcd: http://HOST:PORT or https://HOST:PORT")
        found.append(Endpoint(parts.scheme, host, port))
    return found


class EtcdLock:
    """A :class:`gantrymq.failover.lock.LockStore`. ``holder``: a text that is unique to this process.

    The lock is the key ``KEY/lock``, the text ``KEY/members``. ``timeout``: seconds for one request.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        key: str,
        holder: str,
        lease_s: float,
        timeout: float,
        credentials: Credentials | None = None,
    ) -> None:
        """ModuleNotFoundError without the extra ``gantrymq[etcd]``."""
        from etcd3gw.client import Etcd3Client

        self.lease_s = lease_s
        self._credentials = credentials or Credentials()
        self._clients = [
            Etcd3Client(
                each.host, each.port, each.protocol, timeout=timeout, ca_cert=self._credentials.ca,
                cert_cert=self._credentials.cert, cert_key=self._credentials.key,
            )
            for each in endpoints
        ]  # fmt: skip
        if self._credentials.ca is not None:
            for client in self._clients:
                client.session.trust_env = False  # REQUESTS_CA_BUNDLE would stand above the authority that was given
        self._current = 0
        self._lock_key = _encode(f"{key}/lock")
        self._text_key = _encode(f"{key}/members")
        self._holder = _encode(holder)
        self._lease = ""
        self._revision = 0

    async def take(self) -> int | None:
        """As the interface says."""
        return await self._call(self._take)

    async def renew(self) -> bool:
        """As the interface says."""
        return await self._call(self._renew)

    async def release(self) -> None:
        """As the interface says."""
        await self._call(self._revoke)

    async def read(self) -> bytes:
        """As the interface says."""
        return await self._call(self._read)

    async def write(self, text: bytes) -> bool:
        """As the interface says."""
        return await self._call(partial(self._write, text))

    # ------------------------------------------------------------------------------------------- in a thread

    def _take(self, client: Etcd3Client) -> int | None:
        found = self._entry(client)
        if found is None:
            lease = str(_post(client, "/lease/grant", TTL=max(math.ceil(self.lease_s), LEASE_LEAST_S), ID=0)["ID"])
            absent = {"key": self._lock_key, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
            put = {"request_put": {"key": self._lock_key, "value": self._holder, "lease": lease}}
            client.transaction({"compare": [absent], "success": [put]})
            found = self._entry(client)
        if found is None or found.get("value") != self._holder:
            return None
        # Whose answer was lost has taken it all the same, maybe with the lease of an earlier attempt.
        self._lease, self._revision = str(found.get("lease", "0")), int(found["create_revision"])
        return self._revision if self._renew(client) else None

    def _renew(self, client: Etcd3Client) -> bool:
        answer = _post(client, "/lease/keepalive", ID=self._lease)
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            return False
        found = self._entry(client)
        return found is not None and int(found["create_revision"]) == self._revision

    def _entry(self, client: Etcd3Client) -> dict[str, Any] | None:
        found = _post(client, "/kv/range", key=self._lock_key).get("kvs")
        return dict(found[0]) if found else None

    def _revoke(self, client: Etcd3Client) -> None:
        _post(client, "/lease/revoke", ID=self._lease)

    def _read(self, client: Etcd3Client) -> bytes:
        found = _post(client, "/kv/range", key=self._text_key).get("kvs")
        return base64.b64decode(found[0].get("value", "")) if found else b""

    def _write(self, text: bytes, client: Etcd3Client) -> bool:
        ours = {
            "key": self._lock_key, "target": "CREATE", "result": "EQUAL", "create_revision": self._revision,
        }  # fmt: skip
        put = {"request_put": {"key": self._text_key, "value": base64.b64encode(text).decode()}}
        return bool(client.transaction({"compare": [ours], "success": [put]}).get("succeeded", False))

    # -------------------------------------------------------------------------------------- endpoints and users

    async def _call(self, work: Callable[[Etcd3Client], T]) -> T:
        # Abandoned: its requests end by their timeout, and what they took ends with its lease.
        return await trio.to_thread.run_sync(self._try_all, work, abandon_on_cancel=True)

    def _try_all(self, work: Callable[[Etcd3Client], T]) -> T:
        from etcd3gw.exceptions import Etcd3Exception

        reason = ""
        for _ in range(max(len(self._clients), TRIES)):
            client = self._clients[self._current]
            try:
                return self._authorized(client, work)
            except Etcd3Exception as error:
                reason = error.detail_text or str(error)
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:  # requests' errors are OSErrors
                reason = f"{type(error).__name__}: {error}"
            self._current = (self._current + 1) % len(self._clients)
            reason = f"{client.base_url}: {reason.strip():.300}"
        raise StoreUnavailable(reason)

    def _authorized(self, client: Etcd3Client, work: Callable[[Etcd3Client], T]) -> T:
        """With a token from etcd if there is a user; an expired one is replaced."""
        from etcd3gw.exceptions import Etcd3Exception

        if not self._credentials.user:
            return work(client)
        if "Authorization" not in client.session.headers:
            self._log_in(client)
        try:
            return work(client)
        except Etcd3Exception as error:
            if not any(text in f"{error} {error.detail_text}" for text in UNAUTHORIZED):
                raise
            self._log_in(client)
            return work(client)

    def _log_in(self, client: Etcd3Client) -> None:
        client.session.headers.pop("Authorization", None)
        answer = _post(client, "/auth/authenticate", name=self._credentials.user, password=self._credentials.password)
        client.session.headers["Authorization"] = str(answer["token"])


def _post(client: Etcd3Client, path: str, **fields: object) -> dict[str, Any]:
    answer = client.post(client.get_url(path), json=fields)
    return dict(answer)


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
