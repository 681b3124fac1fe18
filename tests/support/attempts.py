"""A clean start for a test that runs again: CI gives a failed test a second attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

T = TypeVar("T")


def shared_or_new(
    request: pytest.FixtureRequest, shared: str, new: Callable[[], AbstractContextManager[T]]
) -> Iterator[T]:
    """Yield what the fixture ``shared`` of the module has; in a second attempt what ``new`` opens, because the shared
    one has what the first attempt left there.

    pytest-rerunfailures counts the attempts of an item from 1.
    """
    if getattr(request.node, "execution_count", 1) > 1:
        with new() as own:
            yield own
    else:
        yield request.getfixturevalue(shared)
