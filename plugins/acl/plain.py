"""The inner loop of access control: find the requests of a turn that are signed and allowed.

This twin is the reference; ``_fast`` is the compiled one.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gantrymq.remoting.headers.query import UNIQUE_KEY_QUERY
from gantrymq.remoting.signing import ACCESS_KEY, SIGNATURE

if TYPE_CHECKING:
    from gantrymq.kernel.processors import Request

KIND: Final = "plain"
ACCESS_KEY_BYTES: Final = ACCESS_KEY.encode()
SIGNATURE_BYTES: Final = SIGNATURE.encode()
KNOWN_MAX: Final = 16_384
"""How many keys and decisions are remembered before all are forgotten."""
UNSIGNED_BYTES: Final = UNIQUE_KEY_QUERY.encode()


class SigningKey:
    """A secret key, made ready for signatures: HMAC-SHA1 in base64."""

    def __init__(self, secret: bytes, *, abilities: int = -1) -> None:
        self._secret = secret

    def sign(self, data: bytes) -> bytes:
        """The signature of ``data``."""
        return b64encode(hmac.digest(self._secret, data, "sha1"))


class SignedRequests:
    """Finds requests that are signed and allowed, and remembers which requests are allowed.

    ``find_key`` has the key for an address and an access key; None: such requests are not decided here. ``allows``
    decides about a signed request with its access key. Its decision must depend on nothing but address, access key,
    code and the fields that ``named`` has for the code, in the order in which the header has them.
    """

    def __init__(
        self,
        find_key: Callable[[str, str], SigningKey | None],
        allows: Callable[[Request, str], bool],
        named: Mapping[int, tuple[bytes, ...]],
    ) -> None:
        self._find_key = find_key
        self._allows = allows
        self._named = {code: frozenset(name.decode() for name in names) for code, names in named.items()}
        self.forget()

    def forget(self) -> None:
        """Forget keys and decisions: other accounts are in force."""
        self._keys: dict[tuple[str, str], SigningKey] = {}
        self._allowed: set[tuple[object, ...]] = set()

    def take(self, requests: list[Request], rows: Iterable[int]) -> list[int]:
        """Set the identity of connections whose requests are signed and allowed, and return the other rows. They are
        either not decided here, or refused."""
        rest = [row for row in rows if not self._take_one(requests[row])]
        if len(self._keys) + len(self._allowed) > KNOWN_MAX:
            self.forget()
        return rest

    def _take_one(self, request: Request) -> bool:
        names = self._named.get(request.code)
        ext = request.ext if names is not None else {}
        access_key, signature = ext.get(ACCESS_KEY), ext.get(SIGNATURE)
        if names is None or not access_key or not signature or UNIQUE_KEY_QUERY in ext:
            return False
        host = request.connection.peer[0]
        key = self._keys.get((host, access_key))
        if key is None:
            key = self._find_key(host, access_key)
            if key is None:
                return False
            self._keys[host, access_key] = key
        if not _is_signed(key, ext, request.body, signature):
            return False
        asked = (host, access_key, request.code, *[field for field in ext.items() if field[0] in names])
        if asked not in self._allowed:
            if not self._allows(request, access_key):
                return False
            self._allowed.add(asked)
        request.connection.identity = access_key
        return True


def _is_signed(key: SigningKey, ext: Mapping[str, str], body: bytes, signature: str) -> bool:
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    expected = key.sign(text.encode("utf-8", "surrogatepass") + body)
    return hmac.compare_digest(expected, signature.encode("utf-8", "surrogatepass"))
