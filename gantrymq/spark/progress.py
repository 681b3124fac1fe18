"""The lag of a stream, from the progress that Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gantrymq.spark.errors import WrongOption
from gantrymq.spark.planner import unpack


def lag(progress: Mapping[str, Any] | None) -> int | None:
    """The messages that a query had not read when Spark made ``progress`` (``query.lastProgress``), of all its topics.

    None without progress, if no source has offsets of this format, or if the lag is not known: Spark does not ask for
    the latest offsets when it runs a batch again after a restart.
    """
    total = None
    for source in (progress or {}).get("sources", ()):
        try:
            latest, end = (unpack(_parse(source[name])) for name in ("latestOffset", "endOffset"))
        except (WrongOption, ValueError):
            continue  # of another format: Spark does not tell which one a Python source has
        if not end or not latest:
            continue
        total = (total or 0) + sum(max(offset - end.get(key, 0), 0) for key, offset in latest.items())
    return total


def _parse(offsets: Any) -> dict[str, Any]:
    return json.loads(offsets) if isinstance(offsets, str) else offsets or {}
