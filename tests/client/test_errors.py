"""Errors can be pickled, as ``multiprocessing``, joblib and Celery do."""

from __future__ import annotations

import copy
import pickle

import pytest

from gantrymq.client import errors
from gantrymq.client.errors import BrokerError, ConnectError, GantryError

ARGUMENTS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("BrokerError", "AccessDenied", "AuthenticationFailed"), (2, "the quota is used up", "h:1")),
    **dict.fromkeys(("ConnectError", "ConnectFailed", "TlsFailed", "ChannelClosed", "CallTimeout"), ("h:1", "refused")),
    "BadResponse": ("h:1", "no JSON"),
    "NotANameserver": ("h:1",),
}


def error_of(name: str) -> GantryError:
    error: GantryError = getattr(errors, name)(*ARGUMENTS.get(name, ("a reason",)))
    error.add_note("the first 3 of 4 messages are stored")
    return error


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_is_the_same_after_pickling(name: str, protocol: int) -> None:
    error = error_of(name)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_can_be_copied(name: str) -> None:
    error = error_of(name)
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_errors_of_users_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(TooMany(3)))
    assert (str(again), again.count) == ("3 are too many", 3)


class TooMany(GantryError):
    def __init__(self, count: int) -> None:
        super().__init__(f"{count} are too many")
        self.count = count


def test_the_parts_of_an_error_are_kept() -> None:
    broker = pickle.loads(pickle.dumps(BrokerError(2, None, "h:1")))
    assert (broker.code, broker.remark, broker.address) == (2, "", "h:1")
    peer = pickle.loads(pickle.dumps(ConnectError("h:1", "refused")))
    assert (peer.address, peer.reason) == ("h:1", "refused")
