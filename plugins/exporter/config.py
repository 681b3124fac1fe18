"""Section ``[plugin.exporter]``."""

from __future__ import annotations

from typing import Literal

import attrs

from gantrymq.kernel.config.fields import duration, number, plain, secret, size


def _check_to(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if "{" in value.replace("{broker}", "") or "}" in value.replace("{broker}", ""):
        raise ValueError(f"the only placeholder is {{broker}}, not what {value!r} has")


@attrs.frozen(kw_only=True)
class ExporterConfig:
    """What is exported, where, and when. ``topics`` and ``to`` must be set."""

    topics: list[str] = attrs.field(factory=list)
    """Topics or shell patterns (``orders``, ``log-*``). A pattern matches no system, retry or dead letter topic."""
    to: str = plain("", validator=_check_to)
    """The folder of the export, from the working directory, a URL in an object store, or the table; ``{broker}`` stands
    for the broker's name."""
    every: float = duration("1h", minimum="1s")
    """The time from the start of one run to the start of the next."""
    at_bytes: int = size(0)
    """Start a run earlier when the log has grown by so many bytes since the start of the last one; 0: never."""
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    """``delta`` and ``iceberg`` are tables; ``to`` is then a folder or URL, or ``catalog.namespace.table``."""
    engine: Literal["local", "spark"] = "local"
    """``local``: pyarrow alone, for runs of minutes; ``spark``: a local Spark session, which needs Java and writes no
    tables."""
    cores: int = number(1, 1, 1024)
    """Engine ``spark``: how many tasks run at a time."""
    memory: str = "1g"
    """Engine ``spark``: the heap of the JVM."""
    file_rows: int = number(500_000, 1, 100_000_000)
    """The most messages of a file."""
    file_bytes: int = size("256 MiB", minimum="1 KiB")
    """The most bytes of the bodies in a file, before Parquet compresses them."""
    skip_lost: bool = True
    """Whether a run exports what is left when messages were deleted before they were exported; else it fails."""
    bad_bodies: Literal["fail", "null"] = "fail"
    """What a run does with a body that cannot be decompressed: ``fail``, or export ``null`` instead."""
    hold_bytes: int = size("16 GiB")
    """Keep log files with messages that are not exported yet, at most so many bytes of the log; 0: do not."""
    hold_age: float = duration("7d")
    """Do not keep log files for messages that are older than this."""
    retry: float = duration("10s", minimum="100ms", maximum="1d")
    """The time from a failed run to the next one; it doubles with each failure in a row, up to ``every``."""
    timeout: float = duration("30m", minimum="1s")
    """End a run that has reported no progress for so long."""
    nice: int = number(10, 0, 19)
    """By how much the process of a run lowers its priority."""
    access_key: str = ""
    """The account with which the run pulls, if the broker has access control. It needs SUB on the topics and on the
    group ``CID_GANTRYMQ_SPARK``."""
    secret_key: str = secret()
    tls: bool = False
    """Whether the run connects with TLS."""
    tls_ca_file: str = ""
    """A PEM file with the authorities to trust instead of the system's."""
