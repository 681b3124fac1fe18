"""What can go wrong between a RocketMQ cluster, Spark and a folder: every message says what to do next."""

from __future__ import annotations

import re

from gantrymq.remoting.errors import GantryError


class SparkError(GantryError):
    """Base of all errors of :mod:`gantrymq.spark`; its text is meant for the user."""


class WrongOption(SparkError):
    """An option is unknown, missing, or has a value that makes no sense."""


class Unreachable(SparkError):
    """No nameserver, or no broker that holds a queue, answered."""


class UnknownTopic(SparkError):
    """No broker serves the topic, or none serves it for reading."""


class Refused(SparkError):
    """A server answered with an error code of the protocol."""

    def __init__(self, address: str, what: str, code: int, remark: str | None) -> None:
        super().__init__(f"{address} refused {what}: [{code}] {remark or 'no remark'}")
        self.code = code


class DataLoss(SparkError):
    """Messages inside the wanted range are no longer there."""


class BrokenRecord(SparkError):
    """A stored record cannot be read: its lengths, checksum or compressed body are wrong."""


class FolderInUse(SparkError):
    """The target folder holds something that must not be overwritten."""


class SparkMissing(SparkError):
    """Spark cannot run here: the text names what to install."""


def reason(error: BaseException) -> str:
    """The one line that matters of what Spark raises: our own error from inside it, else Spark's first line."""
    own = re.findall(r"gantrymq\.spark\.errors\.\w+: (.+)", str(error))
    return str(own[-1]) if own else next(iter(str(error).strip().splitlines()), type(error).__name__)
