"""Sign requests for brokers with access control, as RocketMQ's clients do.

Source: RocketMQ 4.9.7 ``AclClientRPCHook``, ``AclUtils``; ``PlainAccessValidator`` and, in 5.3.3,
``DefaultAuthenticationContextBuilder`` (what brokers compare).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import Final

import attrs

from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.query import UNIQUE_KEY_QUERY

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
SIGNATURE: Final = "Signature"

_COPIED_BODY_BYTES: Final = 64 * 1024
_V4_9_3: Final = 399
"""4.9.3, the last version of requests for which 5.x brokers do not verify the field of unique key queries."""


@attrs.frozen
class Credentials:
    """A client's credentials: access key, secret key, and the token of some cloud services."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def checked(cls, access_key: str | None, secret_key: str | None, security_token: str | None) -> Credentials | None:
        """The credentials from a user's values, None without any; ValueError if only one of the keys is given."""
        if access_key is None and secret_key is None and security_token is None:
            return None
        for name, value in (("access_key", access_key), ("secret_key", secret_key), ("security_token", security_token)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a str, not {type(value).__name__}")
        if not access_key or not secret_key:
            missing = "secret_key" if access_key else "access_key"
            raise ValueError(f"{missing} is missing: access_key and secret_key must be given together")
        return cls(access_key, secret_key, security_token or None)

    def sign(self, command: Command) -> Command:
        """A copy of ``command`` with the three fields that identify its sender to a broker."""
        ext = dict(command.ext or {})
        ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            ext[SECURITY_TOKEN] = self.security_token
        version = command.version
        unsigned = ext.pop(UNIQUE_KEY_QUERY, None)
        ext[SIGNATURE] = make_signature(ext, command.body, self.secret_key)
        if unsigned is not None:
            # 4.9.7 never verifies this field; 5.x does not verify it in requests of this version or older ones
            ext[UNIQUE_KEY_QUERY] = unsigned
            version = min(version, _V4_9_3)
        return Command(
            command.code, ext, command.body, command.opaque, command.flag, command.remark, command.language, version,
            command.kind,
        )  # fmt: skip


def make_signature(ext: dict[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a request: HMAC-SHA1, in base64, over the fields' values in order of their names, and the body.

    An existing signature in ``ext`` does not count.
    """
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE]).encode()
    if len(body) <= _COPIED_BODY_BYTES:
        return b64encode(hmac.digest(secret_key.encode(), text + body, "sha1")).decode()
    digest = hmac.new(secret_key.encode(), text, "sha1")
    digest.update(body)
    return b64encode(digest.digest()).decode()
