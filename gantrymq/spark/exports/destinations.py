"""From what a user names to the destination of an export."""

from __future__ import annotations

from pathlib import Path

from gantrymq.spark.exports.destination import Destination
from gantrymq.spark.exports.folder_destination import FolderDestination
from gantrymq.spark.exports.object_destination import ObjectDestination
from gantrymq.spark.exports.object_store import is_object_url, open_store
from gantrymq.spark.exports.target import local_folder


def find_destination(to: str | Path) -> Destination:
    """The destination that a path, ``file:///path`` or the URL of an object store names.

    Raises :class:`~gantrymq.spark.errors.WrongOption` for other schemes, ``hdfs://`` among them, and
    :class:`~gantrymq.spark.errors.SparkMissing` if the package for object stores is not installed.
    """
    if isinstance(to, str) and is_object_url(to):
        return ObjectDestination(open_store(to))
    return FolderDestination(local_folder(to))
