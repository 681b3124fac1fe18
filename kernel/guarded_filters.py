"""The filters of plugins that are not shipped with GantryMQ: an error in one is the response to one pull.

A filter runs for a pull wherever that is read, in the calls of other plugins. Its error must not count as theirs, and
concerns this pull only, whatever the plugin's error policy is.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

import structlog

from gantrymq.kernel.errors import LogPoisoned, PluginError
from gantrymq.kernel.filters import (
    EXTENSION_ADDRESSES_END,
    CodeFilter,
    FilterCompiler,
    FilterSteps,
    MessageFilter,
    RecordFilter,
)
from gantrymq.kernel.manager import PluginInfo, PluginManager
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.rare_warnings import RareWarnings

log = structlog.get_logger("gantrymq.plugins")

HOOK: Final = "register_filters"
_RAISED: Final = (RemoteFault, LogPoisoned, PluginError, MemoryError)
"""Errors that are not replaced."""

Explain = Callable[[Exception], RemoteFault]
"""Reports an error of a filter, and returns what to answer."""


class FilterGuards:
    """Replaces compilers by ones that raise, like their filters, ``RemoteFault`` in place of any other error."""

    def __init__(self, manager: PluginManager, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds (``env.monotonic``)."""
        self._manager = manager
        self._warnings = RareWarnings(clock)

    def guard(self, info: PluginInfo, kind: str, compiler: FilterCompiler) -> FilterCompiler:
        """Return the compiler of expressions of type ``kind`` to use in place of the plugin's; the same one for a
        shipped plugin."""
        return compiler if info.is_shipped else guard_compiler(compiler, partial(self._explain, info, kind))

    def _explain(self, info: PluginInfo, kind: str, error: Exception) -> RemoteFault:
        self._manager.activity.failed(info.name, HOOK, error)
        if self._warnings.is_due(f"{info.name} {kind} {type(error).__name__}"):
            reason = self._manager.describe_failure(info, f"its filter {kind!r}", error)
            log.error("filter_failed", plugin=info.name, expression_type=kind, reason=reason, exc_info=error)
        remark = f"the filter {kind!r} of the plugin {info.name!r} failed; the broker's log has the reason"
        return RemoteFault(ResponseCode.SYSTEM_ERROR, remark)


def guard_compiler(compiler: FilterCompiler, explain: Explain) -> FilterCompiler:
    """Return the compiler to use in place of a plugin's."""

    def compile_guarded(expression: str) -> MessageFilter | FilterSteps:
        try:
            made = compiler(expression)
            return _in_steps(made, explain) if isinstance(made, Generator) else _guarded(made, explain)
        except _RAISED:
            raise
        except Exception as error:
            raise explain(error) from error

    return compile_guarded


def _in_steps(steps: FilterSteps, explain: Explain) -> FilterSteps:
    try:
        return _guarded((yield from steps), explain)
    except _RAISED:
        raise
    except Exception as error:
        raise explain(error) from error


def _guarded(made: MessageFilter, explain: Explain) -> MessageFilter:
    if isinstance(made, CodeFilter):
        return _Codes(made)
    return _Records(made, explain) if isinstance(made, RecordFilter) else _Entries(made, explain)


class _Codes(CodeFilter):
    """A copy of a filter of tag codes. It runs no code of the plugin."""

    def __init__(self, made: CodeFilter) -> None:
        self.codes = frozenset(array("q", made.codes))
        self.matches_all = not self.codes

    def matches(self, tag_code: int) -> bool:
        """See :class:`CodeFilter`."""
        return self.matches_all or tag_code in self.codes or tag_code < EXTENSION_ADDRESSES_END


class _Matching:
    """The test of entries."""

    def __init__(self, made: MessageFilter, explain: Explain) -> None:
        self._matches, self._explain = made.matches, explain

    def matches(self, tag_code: int) -> bool:
        """See :class:`MessageFilter`."""
        try:
            return bool(self._matches(tag_code))
        except _RAISED:
            raise
        except Exception as error:
            raise self._explain(error) from error


class _Entries(_Matching):
    """A filter that tests entries only."""

    def __init__(self, made: MessageFilter, explain: Explain) -> None:
        super().__init__(made, explain)
        self.matches_all = bool(made.matches_all)


class _Records(_Matching, RecordFilter):
    """A filter of records, which returns a result for each message, and a cost above 0."""

    def __init__(self, made: RecordFilter, explain: Explain) -> None:
        super().__init__(made, explain)
        self._made = made

    def select(self, properties: Sequence[bytes]) -> list[bool]:
        """See :class:`RecordFilter`."""
        try:
            answers = [bool(answer) for answer in self._made.select(properties)]
            if len(answers) != len(properties):
                raise ValueError(f"select returned {len(answers)} results for {len(properties)} messages")
            return answers
        except _RAISED:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def cost(self, size: int) -> int:
        """See :class:`RecordFilter`."""
        try:
            cost = math.ceil(self._made.cost(size))
            if cost <= 0:
                raise ValueError(f"the cost for {size} bytes is {cost}, it must be above 0")
            return cost
        except _RAISED:
            raise
        except Exception as error:
            raise self._explain(error) from error
