"""Takes only requests that a known key has signed, as RocketMQ's clients sign them (``AclClientRPCHook``).

Slot: none. Hooks: config_section, configure, authorize. Files: the one of the keys, which it only reads.
Config ``[plugin.signed]``: ``keys``, a file with an access key and its secret key in each line; ``readers``, access
keys that may send nothing.

A signature covers the header's fields and the body. It does not hide them, and it can be sent again by whoever sees it:
that takes TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import filled
from gantrymq.kernel.errors import StartError
from gantrymq.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.processors import Request, RequestBatch

SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)  # fmt: skip
NOT_SIGNED = "the request is not signed by a key that this broker knows"
UNSIGNED = frozenset({"Signature", "_UNIQUE_KEY_QUERY"})
"""Fields that a signature does not cover; clients add the second one behind it."""


@attrs.frozen
class SignedConfig:
    """``[plugin.signed]``."""

    keys: str = filled("keys.txt")
    readers: tuple[str, ...] = ()


class SignedPlugin:
    """One object a broker; it decides about all requests of a turn in one call."""

    name = "signed"
    version = "1.0.0"

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """The section's name and type."""
        return "signed", SignedConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the keys; the broker refuses to start if the file is missing or invalid."""
        section = config.section(SignedConfig)
        self._readers = frozenset(section.readers)
        self._secrets: dict[str, bytes] = {}
        try:
            lines = Path(section.keys).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"plugin.signed.keys = {section.keys!r}: cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            words = line.split()
            if len(words) not in (0, 2):
                raise StartError(f"plugin.signed.keys: line {number} of {section.keys!r} must be two words")
            if words:
                self._secrets[words[0]] = words[1].encode()

    @hookimpl(tryfirst=True)
    def authorize(self, batch: RequestBatch) -> None:
        """Refuse requests that are not signed, and those for which the signer has no right."""
        for row in batch.live:
            request = batch.requests[row]
            key = self._signer(request)
            if key is None:
                batch.refuse(row, ResponseCode.NO_PERMISSION, NOT_SIGNED)
                continue
            request.connection.identity = key
            if key in self._readers and request.code in SENDS:
                batch.refuse(row, ResponseCode.NO_PERMISSION, f"{key!r} may not send to {request.topic!r}")

    def _signer(self, request: Request) -> str | None:
        """The access key that signed the request, or None."""
        ext = request.ext
        key = ext.get("AccessKey", "")
        secret = self._secrets.get(key)
        if secret is None:
            return None
        covered = "".join(ext[name] for name in sorted(ext) if name not in UNSIGNED)
        digest = hmac.new(secret, covered.encode("utf-8", "surrogatepass") + request.body, hashlib.sha1).digest()
        # Compared as bytes: a text that is not ASCII cannot be compared in constant time.
        given = ext.get("Signature", "").encode("utf-8", "surrogatepass")
        return key if hmac.compare_digest(base64.b64encode(digest), given) else None
