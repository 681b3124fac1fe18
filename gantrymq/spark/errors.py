"""The errors of :mod:`gantrymq.spark`; each text says what to do."""

from __future__ import annotations

import re

from gantrymq.remoting.errors import GantryError


class SparkError(GantryError):
    """Base of all errors of :mod:`gantrymq.spark`; its text is meant for the user."""


class WrongOption(SparkError):
    """An option is unknown, missing, or has an invalid value."""


class Unreachable(SparkError):
    """No nameserver, or no broker of a queue, answered, or only with SYSTEM_BUSY: later it may."""


class UnknownTopic(SparkError):
    """No broker serves the topic, or none serves it for reading."""


class Refused(SparkError):
    """A server answered with an error code of the protocol other than SYSTEM_BUSY."""

    def __init__(self, address: str, what: str, code: int, remark: str | None) -> None:
        super().__init__(f"{address} refused {what}: [{code}] {remark or 'no remark'}")
        self.code = code


class DataLoss(SparkError):
    """Messages in the requested range no longer exist."""


class BrokenRecord(SparkError):
    """A stored record cannot be read: its lengths, checksum or compressed body are wrong."""


class WrongSchema(SparkError):
    """A schema cannot be read, has no type in Spark, or does not fit the schema that a body was written with."""


class BadBody(SparkError):
    """A body cannot be decoded by its schema, or a row cannot be encoded."""


class RegistryFailed(SparkError):
    """A schema registry cannot be reached, or answers with something else than asked for."""


class SendFailed(SparkError):
    """A row could not be sent: no message can be made of it, or no broker stored it."""


class FolderInUse(SparkError):
    """The target folder has files that must not be overwritten."""


class FolderLocked(FolderInUse):
    """Another process on this machine is writing to the target folder: an export or a compaction."""


class ExportDamaged(SparkError):
    """A record or file of an export is missing or is not what its manifest says."""


class ExportFenced(SparkError):
    """Another writer published first; nothing of this run counts."""


class SparkMissing(SparkError):
    """Spark cannot run here; the text says what to install."""


_OWN = re.compile(r"gantrymq\.spark\.errors\.(\w+): (.+)")
_TASK_ERRORS: dict[str, type[SparkError]] = {
    kind.__name__: kind
    for kind in (WrongOption, Unreachable, UnknownTopic, DataLoss, BrokenRecord, ExportDamaged, ExportFenced)
}
"""What a task may raise whose kind callers look at. :class:`Refused` is not among them: its code is lost."""
_TRACEBACK = "Traceback (most recent call last):"
_INTERPRETER_ADVICE = (
    " in a Python worker of Spark: install gantrymq[spark] for the interpreter that the machine's workers run, or set "
    "PYSPARK_PYTHON (with spark-submit: spark.pyspark.python) to one that has it"
)
_WHILE_HANDLING = "During handling of the above exception, another exception occurred:"
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: (.+))?$", re.MULTILINE)


def reason(error: BaseException) -> str:
    """The line with the reason why Spark failed.

    Our own error from inside ``error``, else what the last Python traceback in it raised, else its first line.
    """
    text = str(error).strip()
    if own := _OWN.findall(text):
        return str(own[-1][1])
    # What failed while an exception was handled came of it: Spark's own workers do that.
    before, found, traceback = text.partition(_WHILE_HANDLING)[0].rpartition(_TRACEBACK)
    if found and (raised := _RAISED.search(traceback)):
        line = f"{raised[1]}: {raised[2]}" if raised[2] else raised[1]
        return f"{line}{_INTERPRETER_ADVICE}" if raised[1] == "ModuleNotFoundError" else line
    return next(iter((before if found else text).strip().splitlines()), type(error).__name__)


def own_error(error: BaseException) -> SparkError:
    """Why Spark failed, with the text of :func:`reason`: of the kind that a task raised, so that what the caller does
    about it is the same as without Spark."""
    own = _OWN.findall(str(error))
    kind = _TASK_ERRORS.get(own[-1][0], SparkError) if own else SparkError
    return kind(reason(error))
