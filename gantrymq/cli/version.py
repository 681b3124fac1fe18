"""``gantrymq version``: the version, the interpreter, the twin of the inner loops, and installed extras."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Final

import rich_click as click

from gantrymq._version import __version__

OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "spark": ("pyspark", "pyarrow"),
    "spark-schemas": ("fastavro", "protobuf", "pyarrow", "pyspark", "urllib3"),
    "delta": ("deltalake", "pyarrow"),
    "iceberg": ("pyarrow", "pyiceberg"),
    "acl": ("pyyaml",),
    "tls": ("cryptography",),
    "metrics": ("h11", "prometheus-client"),
    "dashboard": ("h11", "hypercorn", "starlette"),
    "compression": ("lz4", "zstandard"),
    "objectstore": ("obstore", "pyarrow"),
    "backup": ("fsspec", "obstore"),
    "etcd": ("etcd3gw",),
    "otel": ("opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
}
"""Extras for users, and the packages of each, which ``setup.cfg`` lists. An extra is installed when all of them are."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Show the version, Python's version, the kind of inner loops, and which extras are installed."""
    from gantrymq.kernel.fast import KIND

    found = {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine()}",
        "loops": KIND,
        "extras": [extra for extra, packages in OPTIONAL.items() if all(map(_is_installed, packages))],
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        click.echo(f"{name:9} {', '.join(value) or 'none' if isinstance(value, list) else value}")


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
