"""The packages that only the functions for schemas need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gantrymq.spark.errors import SparkMissing

ADVICE = "pip install 'gantrymq[spark-schemas]' on the driver and on every machine that runs Python workers"


def import_extra(name: str) -> Any:
    """The module ``name``. Raises :class:`SparkMissing` if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise SparkMissing(f"the Python package {package!r} is not installed: {ADVICE}") from None
