"""Merges metrics of several brokers, in Prometheus's text format or in OpenMetrics, into one text.

The series differ by the label ``node_id``, the broker's name. Each family must appear once, with its description first
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

READY: Final = "gantrymq_process_ready"
RESTARTS: Final = "gantrymq_process_restarts_total"
END: Final = b"# EOF"
"""The last line of OpenMetrics."""


def merge(texts: Sequence[bytes], processes: Mapping[str, tuple[bool, int]], cluster: str) -> bytes:
    """One text of ``texts``, which are all of one format, with series of the ``processes`` of brokers of ``cluster``.

    ``processes``: for each broker whether it is ready, and how often it was restarted.
    """
    heads: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    is_open = False
    for text in texts:
        family = b""
        for line in text.splitlines():
            if line == END:
                is_open = True
            elif line.startswith(b"#"):
                words = line.split(b" ", 3)
                family = words[2] if len(words) > 2 else b""
                known = heads.setdefault(family, [])
                if line not in known and not any(each.startswith(b" ".join(words[:3]) + b" ") for each in known):
                    known.append(line)
            elif line:
                series.setdefault(family, []).append(line)
    lines = [line for family in heads | series for line in (*heads.get(family, ()), *series.get(family, ()))]
    lines += _own(processes, cluster, is_open=is_open)
    return b"\n".join([*lines, *([END] if is_open else [])]) + b"\n"


def _own(processes: Mapping[str, tuple[bool, int]], cluster: str, *, is_open: bool) -> list[bytes]:
    restarts = RESTARTS.removesuffix("_total") if is_open else RESTARTS
    labels = {
        name: f'cluster="{_escaped(cluster)}",node_type="broker",node_id="{_escaped(name)}"' for name in processes
    }
    lines = [
        f"# HELP {READY} Whether the process of a broker is ready (--processes)",
        f"# TYPE {READY} gauge",
        *(f"{READY}{{{labels[name]}}} {int(ready)}" for name, (ready, _) in processes.items()),
        f"# HELP {restarts} Restarts of the process of a broker since the start of the unit",
        f"# TYPE {restarts} counter",
        *(f"{RESTARTS}{{{labels[name]}}} {count}" for name, (_, count) in processes.items()),
    ]
    return [line.encode() for line in lines]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
