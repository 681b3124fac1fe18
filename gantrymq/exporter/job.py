"""Messages between the broker and the process of a run, as lines of JSON."""

from __future__ import annotations

import attrs


@attrs.frozen
class Job:
    """What to export: ``topics`` with the number of their queues, from the broker at ``address``.

    ``security`` has options of the data source, such as ``accessKey``. ``nice`` lowers the priority of the process.
    ``cores`` and ``memory`` (of the JVM's heap) are for the engine ``spark``. ``ahead`` has topics whose export had
    these ends, by queue, when their queues had lower ones: they fail until the export has other ends. ``starts`` has
    topics whose export fails if it is further than these ends, which their queues had at the start of the broker; a
    missing queue had 0. With ``null_bad_bodies`` a body that cannot be decompressed is null. ``last`` is the topic to
    export after the others, because the process of the last run ended while it exported that one. With
    ``compares_only`` the process compares the exports with ``starts`` and exports nothing.
    """

    broker: str
    address: str
    topics: dict[str, int]
    to: str
    format: str
    engine: str
    file_rows: int
    file_bytes: int
    skip_lost: bool
    security: dict[str, str] = attrs.field(repr=False)
    nice: int
    cores: int
    memory: str
    ahead: dict[str, dict[int, int]] = attrs.field(factory=dict)
    starts: dict[str, dict[int, int]] = attrs.field(factory=dict)
    null_bad_bodies: bool = False
    last: str = ""
    compares_only: bool = False


@attrs.frozen
class Report:
    """Progress of one topic: finished tasks and all tasks, and ``rows`` of ``rows_total`` messages; once it has ended
    (``ended``), the exported part. After a report that ``waits``, the process continues when stdin gets a line: nothing
    of the topic is exported yet, and its export is not further than ``starts`` of the job.

    ``ends``: the offset up to which the export has each queue. ``error`` is empty unless the topic failed.
    ``is_ahead``: it failed because ``ends`` are further than ``starts`` of the job.
    """

    topic: str
    done: int = 0
    total: int = 0
    ended: bool = False
    waits: bool = False
    rows: int = 0
    rows_total: int = 0
    bytes: int = 0
    files: int = 0
    lost: int = 0
    manifest: int = 0
    error: str = ""
    is_ahead: bool = False
    ends: dict[int, int] = attrs.field(factory=dict)
