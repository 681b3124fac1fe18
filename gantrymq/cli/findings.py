"""What a check of ``gantrymq doctor`` found."""

from __future__ import annotations

from typing import Literal

import attrs

OK: Literal["ok"] = "ok"
WARN: Literal["warn"] = "warn"
FAIL: Literal["fail"] = "fail"


@attrs.frozen
class Finding:
    """One line of the doctor: the subject, ok, warn or fail, the result, and the remedy."""

    check: str
    state: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""
