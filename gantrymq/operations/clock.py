"""Times as people read them."""

from __future__ import annotations

from datetime import datetime


def clock(milliseconds: int) -> str:
    """A time in ms since 1970 in ISO 8601, in the local time zone; as ``<number> ms`` outside the years 1 to 9999, as
    clients may record any number."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
