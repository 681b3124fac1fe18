"""The blocking client has the same methods, parameters and defaults as the async one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import gantrymq
import gantrymq.sync
from gantrymq.client.admin import Admin
from gantrymq.client.reader import Reader

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (gantrymq.Client, gantrymq.sync.Client),
    (gantrymq.Producer, gantrymq.sync.Producer),
    (gantrymq.TransactionalProducer, gantrymq.sync.TransactionalProducer),
    (gantrymq.Consumer, gantrymq.sync.Consumer),
    (Reader, gantrymq.sync.Reader),
    (Admin, gantrymq.sync.Admin),
    (gantrymq.PendingSend, gantrymq.sync.PendingSend),
    (gantrymq.ReceivedMessage, gantrymq.sync.ReceivedMessage),
]
NOT_FOR_USERS = {
    "Client": {"consumer_of", "run_worker", "worker_of"},
    "TransactionalProducer": {"end", "send_half", "take_check"},
    "Consumer": {
        "acknowledged", "begin_again", "consume_directly", "describe", "failed", "fetched", "offsets", "rebalance_soon",
        "refused", "reset_offsets", "returned", "running_info", "suspend", "take", "wake",
    },
    "PendingSend": {"when_done"},
}  # fmt: skip
"""Names that the parts of the client and the blocking client itself use."""
OF_INSTANCES = {"Producer": {"group"}, "TransactionalProducer": {"group"}, "Consumer": {"group", "topics"}}
INSTEAD = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
ALSO = {("connect", "backend"), ("result", "timeout")}
"""Parameters that only blocking calls need."""


def public_names(kind: type[Any]) -> set[str]:
    """The names of what users may call or read, those that stand for ``async with`` and ``async for`` among them."""
    hidden = NOT_FOR_USERS.get(kind.__name__, set()) | {"ends_with"}
    found = {name for name in dir(kind) if not name.startswith("_") or name in INSTEAD}
    return found - hidden


def check_parameters(name: str, wanted: Any, offered: Any) -> None:
    """AssertionError unless both take the same, but for what only a blocking call needs."""
    one, other = (inspect.signature(function).parameters for function in (wanted, offered))
    more = {parameter for also, parameter in ALSO if also == name}
    found = [(each.name, each.kind, each.default) for each in other.values() if each.name not in more]
    assert found == [(each.name, each.kind, each.default) for each in one.values()], name


@pytest.mark.parametrize(("kind", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_blocking_classes_have_all_methods_of_the_async_ones(kind: type[Any], blocking: type[Any]) -> None:
    wanted_names = public_names(kind) | OF_INSTANCES.get(kind.__name__, set())
    missing = {INSTEAD.get(name, name) for name in wanted_names} - set(dir(blocking))
    assert not missing
    for name in public_names(kind) - set(INSTEAD):
        wanted, offered = getattr(kind, name), getattr(blocking, name)
        assert callable(wanted) == callable(offered), name
        if inspect.isfunction(wanted):
            check_parameters(name, wanted, offered)


def test_both_connect_functions_take_the_same_options() -> None:
    check_parameters("connect", gantrymq.connect, gantrymq.sync.connect)
