"""Checks where an exporter is to write, before a broker starts."""

from __future__ import annotations


def find_fault(to: str) -> str:
    """Why no export can be at ``to``: the scheme of its URL, or a package that is missing; empty if nothing is wrong.

    Nothing is read or made, and no store is asked.
    """
    # Not above: the broker imports this module, and needs no part of the client as long as it does not export.
    from gantrymq.spark.errors import SparkError
    from gantrymq.spark.exports.destinations import find_destination

    try:
        find_destination(to)
    except SparkError as error:
        return str(error)
    return ""
