"""Ask an HTTP server for the nameservers' addresses, as clients of large sites do instead of being configured.

Source: RocketMQ 4.9.7 ``TopAddressing``, ``MQClientInstance`` (interval).
"""

from __future__ import annotations

import re
from typing import Final

import anyio
import attrs

from gantrymq.client.errors import ConnectFailed

INTERVAL_SECONDS: Final = 120.0
TIMEOUT_SECONDS: Final = 3.0
RESPONSE_MAX_BYTES: Final = 64 * 1024

_UNIT = re.compile(r"[^\s@/?#&]+")


def check_unit_name(unit_name: str | None) -> str | None:
    """``unit_name``, None where it is blank; ValueError for what would not survive in a URL or a client's name."""
    if unit_name is None or (isinstance(unit_name, str) and not unit_name.strip()):
        return None
    if not isinstance(unit_name, str) or not _UNIT.fullmatch(unit_name):
        raise ValueError(f"unit_name {unit_name!r} must be a str without blanks and any of @ / ? # &")
    return unit_name


@attrs.frozen
class Discovery:
    """A URL that answers with nameservers' addresses."""

    url: str

    @classmethod
    def of(cls, url: str, unit_name: str | None) -> Discovery:
        """The question for the nameservers of one unit, or of none."""
        url = url.strip()
        return cls(url if unit_name is None else f"{url}-{unit_name}?nofix=1")

    async def fetch(self) -> str:
        """The addresses as the server has them; :class:`ConnectFailed` when there is no useful answer."""
        return await anyio.to_thread.run_sync(self.fetch_blocking, abandon_on_cancel=True)

    def fetch_blocking(self) -> str:
        """As :meth:`fetch`, for callers that may block."""
        # Few clients ask: the import takes as long as a tenth of the client's own.
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import ProxyHandler, build_opener

        # Proxies of the environment are for the world outside: RocketMQ's clients do not use them here either.
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(self.url, timeout=TIMEOUT_SECONDS) as response:
                body = response.read(RESPONSE_MAX_BYTES + 1)
                status = response.status
        except HTTPError as error:
            error.close()
            error.close()
            raise ConnectFailed(self.url, f"no nameservers: HTTP status {error.code}") from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            raise ConnectFailed(self.url, f"no nameservers: {getattr(error, 'reason', None) or error}") from None
        if status != 200:
            raise ConnectFailed(self.url, f"no nameservers: HTTP status {status}")
        if len(body) > RESPONSE_MAX_BYTES:
            raise ConnectFailed(self.url, f"no nameservers: an answer of more than {RESPONSE_MAX_BYTES} bytes")
        lines = body.decode(errors="replace").strip().splitlines()
        return lines[0] if lines else ""
