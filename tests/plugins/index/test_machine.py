"""After any sequence of messages, saves, stops, crashes and expiry, a caught-up index finds every key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gantrymq.testing.memory_env import MemoryEnv
from support.machines import machine_settings

KEYS = st.lists(st.sampled_from(["a", "b", "Aa", "BB", "c#d"]), max_size=3, unique=True)
"""``Aa`` and ``BB`` have one hash in Java."""


def machine(open_indexed: Callable[..., Any]) -> type[RuleBasedStateMachine]:
    """The machine over stores that ``open_indexed`` opens."""

    class IndexMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.env = MemoryEnv()
            self._open()

        def _open(self) -> None:
            self.indexed = open_indexed(self.env)
            self.indexed.level()

        @rule(messages=st.lists(KEYS, min_size=1, max_size=6))
        def send(self, messages: list[list[str]]) -> None:
            self.env.advance(1700)
            self.indexed.send(*messages)

        @rule()
        def save(self) -> None:
            assert self.indexed.save()

        @rule()
        def flush_queues(self) -> None:
            self.indexed.store.flush_queues()

        @rule()
        def expire(self) -> None:
            log = self.indexed.store.log
            log.discard(log.detach_before(log.end - 3000))
            self.indexed.store.queues.correct_min(log.min_offset)
            self.indexed.index.delete_before(log.min_offset)

        @rule()
        def stop(self) -> None:
            assert self.indexed.save(settle=True)
            self.indexed.index.close()
            self.indexed.store.close()
            self._open()

        @rule(lost=st.none() | st.integers(0, 1000) | st.just("kill"))
        def end(self, lost: int | str | None) -> None:
            self.env = self.env.kill() if isinstance(lost, str) else self.env.power_cut(lost)
            self._open()

        @invariant()
        def finds_everything(self) -> None:
            self.indexed.check_whole()

    return IndexMachine


@pytest.mark.slow
def test_every_key_finds_its_messages_after_whatever_happened(open_indexed: Callable[..., Any]) -> None:
    run_state_machine_as_test(machine(open_indexed), settings=machine_settings(25, are_checked=True))
