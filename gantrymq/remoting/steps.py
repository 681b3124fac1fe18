"""Work in steps: a generator that yields where it may rest, and returns what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def run_steps(steps: Generator[None, None, T]) -> T:
    """What the generator returns: all of its steps in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


def in_one_go(function: Callable[P, Generator[None, None, T]]) -> Callable[P, T]:
    """The same function without rests: it returns what its generator returns."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_steps(function(*args, **kwargs))

    return run
