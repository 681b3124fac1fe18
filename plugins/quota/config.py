"""Section ``[plugin.quota]``."""

from __future__ import annotations

import attrs

from gantrymq.kernel.config.fields import duration, number, parse_size, size
from gantrymq.kernel.errors import StartError
from gantrymq.plugins.quota.usage import Quota


@attrs.frozen(kw_only=True)
class QuotaConfig:
    """The quotas of each identity that ``identities`` does not name; 0: none."""

    requests_per_second: int = number(0)
    """Requests of an identity, over all its connections."""
    bytes_per_second: int = size(0)
    """Bytes of the requests of an identity."""
    connections: int = number(0)
    """Connections of an identity on which requests are served."""
    burst: float = duration("2s", minimum="100ms", maximum="1h")
    """How many seconds' worth of its rates an identity may use at once after it was idle."""
    pause: float = duration("1s", maximum="10s")
    """How long requests beyond a rate are slowed down before they are refused: they are served, and the connection is
    not read until the token bucket of its identity has refilled. 0: they are refused."""
    identities: dict[str, str] = attrs.field(factory=dict)
    """Quotas of identities: ``requests=1000 bytes=10MiB connections=20``, of which each is optional; an empty text:
    none."""


def read_quota(name: str, text: str) -> Quota:
    """The quota that a text of ``identities`` has; :class:`StartError`."""
    found = {"requests": 0, "bytes": 0, "connections": 0}
    for word in text.replace(",", " ").split():
        key, _, value = word.partition("=")
        try:
            if key not in found:
                raise ValueError
            found[key] = parse_size(value) if key == "bytes" else int(value)
            if found[key] < 0:
                raise ValueError
        except ValueError:
            raise StartError(
                f"plugin.quota.identities: {name} = {text!r}: expected requests=NUMBER, bytes=SIZE without a space and"
                " connections=NUMBER, each at most once"
            ) from None
    return Quota(found["requests"], found["bytes"], found["connections"])
