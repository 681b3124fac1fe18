"""The folder that an export writes to, as the user names it."""

from __future__ import annotations

import re
from pathlib import Path

from gantrymq.spark.errors import WrongOption

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_folder(to: str | Path) -> Path:
    """The absolute path of ``to``, which is a path or ``file:///path``, as Spark understands it: % escapes nothing.

    Raises :class:`~gantrymq.spark.errors.WrongOption` for other schemes, ``hdfs://`` among them.
    """
    text = str(to)
    found = _SCHEME.match(text) if isinstance(to, str) else None
    if found is None:
        return Path(to).absolute()
    if found[1].lower() != "file":
        raise WrongOption(
            f"cannot export to {text!r}: the place must be a folder on a file system that is mounted here, such as "
            "/data/export or file:///data/export, or in an object store (s3://, s3a://, gs://, abfs://)"
        )
    path = text[len("file:") :]
    if path.startswith("//"):
        host, _, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise WrongOption(f"cannot export to {text!r}: write file:///path, with three slashes")
        path = f"/{rest}"
    return Path(path)
