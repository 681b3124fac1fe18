"""Work in steps: a generator that yields between its steps, and returns the result."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def run_steps(steps: Generator[None, None, T]) -> T:
    """Run all steps of the generator; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


def in_one_go(function: Callable[P, Generator[None, None, T]]) -> Callable[P, T]:
    """The function of a generator function that runs all steps at once and returns the result."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_steps(function(*args, **kwargs))

    return run
