"""The renewal and expiry of a lease, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.plugins.ha.lease import Lease


class Clocks:
    """Both clocks of a machine."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.wall * 1000)

    def go(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def lease_of(clocks: Any, *, nameservers: bool = True) -> Lease:
    return Lease(clocks, 10.0, has_nameservers=nameservers)


def test_the_lease_starts_with_the_first_response_and_counts_from_its_request(clocks: Clocks) -> None:
    lease = lease_of(clocks)
    assert "plugin.ha.lease" in lease.refusal
    asked_at = clocks.now
    clocks.go(4)
    lease.nameserver_answered(asked_at)
    assert lease.refusal == ""
    clocks.go(5.9)
    assert lease.refusal == ""
    clocks.go(0.2)
    assert lease.refusal


def test_a_response_delayed_by_a_pause_does_not_renew_the_lease(clocks: Clocks) -> None:
    lease = lease_of(clocks)
    lease.nameserver_answered(clocks.now)
    asked_at = clocks.now
    clocks.go(14)
    lease.nameserver_answered(asked_at)
    assert lease.refusal
    lease.nameserver_answered(clocks.now)
    assert not lease.refusal


def test_a_slave_keeps_the_lease_and_cannot_restore_it_beside_nameservers(clocks: Clocks) -> None:
    lease = lease_of(clocks)
    lease.nameserver_answered(clocks.now)
    connected_at = clocks.now
    for _ in range(5):
        clocks.go(6)
        assert lease.slave_reported(connected_at)
        assert not lease.refusal
    clocks.go(11)
    assert lease.slave_reported(connected_at)
    assert lease.slave_reported(clocks.now)
    assert lease.refusal


def test_the_lease_of_a_master_without_nameservers_depends_on_slave_connections(clocks: Clocks) -> None:
    lease = lease_of(clocks, nameservers=False)
    clocks.go(1000)
    assert not lease.refusal, "no slave that could be promoted was ever connected"
    connected_at = clocks.now
    assert lease.slave_reported(connected_at)
    clocks.go(11)
    assert not lease.slave_reported(connected_at), "it may have been said before the pause"
    assert lease.refusal
    clocks.go(1)
    assert lease.slave_reported(clocks.now)
    assert not lease.refusal


def test_a_suspended_machine_is_detected_by_its_wall_clock(clocks: Clocks) -> None:
    lease = lease_of(clocks)
    lease.nameserver_answered(clocks.now)
    clocks.wall += 3600
    assert lease.refusal
    clocks.wall -= 7200
    lease.nameserver_answered(clocks.now)
    assert not lease.refusal


@pytest.mark.parametrize("seconds", [8, 3600])
def test_a_response_to_a_request_from_before_a_suspension_does_not_renew_the_lease(
    clocks: Clocks, seconds: float
) -> None:
    """Another broker may have been promoted meanwhile; the response waited in the socket."""
    lease = lease_of(clocks)
    lease.nameserver_answered(clocks.now)
    clocks.go(3.3)
    asked_at = clocks.now
    clocks.go(0.01)
    clocks.wall += seconds
    lease.nameserver_answered(asked_at)
    assert lease.refusal
    lease.nameserver_answered(clocks.now)
    assert not lease.refusal


def test_a_suspension_shorter_than_the_lease_does_not_extend_it(clocks: Clocks) -> None:
    """It lasts from the request on."""
    lease = lease_of(clocks)
    lease.nameserver_answered(clocks.now)
    clocks.go(3.3)
    asked_at = clocks.now
    clocks.go(0.01)
    clocks.wall += 6
    assert not lease.refusal
    lease.nameserver_answered(asked_at)
    clocks.go(1)
    assert lease.refusal


def test_a_clock_that_is_corrected_in_small_steps_does_not_prevent_a_renewal(clocks: Clocks) -> None:
    lease = lease_of(clocks)
    for _ in range(100):
        asked_at = clocks.now
        clocks.wall += 0.01
        clocks.go(3.3)
        lease.nameserver_answered(asked_at)
        assert not lease.refusal
