"""The lock in a real etcd: acquired, kept, lost with its lease or key; with users and with TLS."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from gantrymq.failover.etcd import Credentials, EtcdLock, parse_endpoints
from gantrymq.failover.lock import LockKeeper, StoreUnavailable
from support.etcd import EtcdCluster, EtcdServer

DEAD = "http://127.0.0.1:1"

pytest.importorskip("etcd3gw", reason="etcd3gw is not installed (gantrymq[etcd])")
pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]


@pytest.fixture
def etcd(tmp_path: Path, etcd_program: Path) -> Iterator[EtcdServer]:
    with EtcdServer(etcd_program, tmp_path) as server:
        yield server


def lock(
    address: str, holder: str, lease_s: float = 2.0, credentials: Credentials | None = None, key: str = "/test/a",
    timeout: float = 1.0,
) -> EtcdLock:  # fmt: skip
    return EtcdLock(parse_endpoints(address), key, holder, lease_s, timeout, credentials)


async def take(wanted: EtcdLock) -> int:
    """Its revision, as soon as it is free."""
    with trio.fail_after(20):
        while (revision := await wanted.take()) is None:  # noqa: ASYNC110 - a lease runs out by itself
            await trio.sleep(0.1)
    return revision


async def renewed(held: EtcdLock) -> bool:
    """Whether its lease was renewed; False when the store did not answer. AssertionError when the lock was lost."""
    try:
        assert await held.renew()
    except StoreUnavailable:
        return False
    return True


@pytest.mark.trio
async def test_the_lock_has_one_holder_and_each_holder_a_higher_revision(etcd: EtcdServer) -> None:
    one, two = lock(etcd.address, "one"), lock(etcd.address, "two")
    first = await one.take()
    assert first
    assert await two.take() is None
    assert await one.take() == first, "asked again after an answer that was lost"
    assert await one.read() == b""
    assert await one.write(b"text")
    assert await two.read() == b"text"
    assert await one.renew()
    await one.release()
    second = await two.take()
    assert second is not None
    assert second > first
    assert not await one.renew()
    assert not await one.write(b"late")
    assert await two.read() == b"text"


@pytest.mark.trio
async def test_locks_of_different_names_are_independent(etcd: EtcdServer) -> None:
    assert await lock(etcd.address, "one").take()
    assert await lock(etcd.address, "two", key="/test/b").take()


@pytest.mark.trio
async def test_a_lease_that_is_not_renewed_expires(etcd: EtcdServer) -> None:
    one, two = lock(etcd.address, "one"), lock(etcd.address, "two")
    first = await one.take()
    assert first
    assert await take(two) > first
    assert not await one.renew()


@pytest.mark.trio
async def test_deleting_the_key_releases_the_lock(etcd: EtcdServer) -> None:
    one = lock(etcd.address, "one", 30.0)
    assert await one.take()
    await post(etcd, "/v3/kv/deleterange", key=base64.b64encode(b"/test/a/lock").decode())
    assert not await one.renew()
    assert await lock(etcd.address, "two").take()


@pytest.mark.trio
async def test_the_next_endpoint_is_used_when_one_is_down_and_an_error_lists_all_reasons(etcd: EtcdServer) -> None:
    one = lock(f"{DEAD},{etcd.address}", "one")
    assert await one.take()
    etcd.kill()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        await one.renew()
    etcd.start()
    assert await one.renew(), "its lease outlives etcd's restart"


@pytest.mark.trio
async def test_a_request_to_a_hanging_etcd_times_out(etcd: EtcdServer) -> None:
    one = lock(etcd.address, "one")
    assert await one.take()
    etcd.pause()
    with trio.fail_after(10), pytest.raises(StoreUnavailable, match="timed out"):
        await one.renew()


@pytest.mark.trio
async def test_a_keeper_loses_the_lock_before_its_lease_runs_out_in_the_store(etcd: EtcdServer) -> None:
    keeper = LockKeeper(lock(etcd.address, "one"), trio.current_time, 0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        with trio.fail_after(10):
            while keeper.revision is None:  # noqa: ASYNC110 - a clock tells
                await trio.sleep(0.02)
            etcd.kill()
            while keeper.revision is not None:  # noqa: ASYNC110 - a clock tells
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_etcd_authenticates_a_user_with_a_password(etcd: EtcdServer) -> None:
    await post(etcd, "/v3/auth/user/add", name="root", password="secret")
    await post(etcd, "/v3/auth/user/grant", user="root", role="root")
    await post(etcd, "/v3/auth/enable")
    with pytest.raises(StoreUnavailable, match=r"user name is empty"):
        await lock(etcd.address, "one").take()
    # Checking a password is slow on a busy machine.
    wrong, right = (Credentials(user="root", password=password) for password in ("wrong", "secret"))
    with pytest.raises(StoreUnavailable, match="authentication failed"):
        await lock(etcd.address, "one", 30.0, wrong, timeout=10.0).take()
    one = lock(etcd.address, "one", 30.0, right, timeout=10.0)
    assert await one.take()
    assert await one.write(b"text")
    etcd.kill()  # its tokens are forgotten
    etcd.start()
    with trio.fail_after(30):
        while not await renewed(one):  # noqa: ASYNC110 - a server that has just started may be slow
            await trio.sleep(0.1)
    assert await one.read() == b"text"


@pytest.mark.trio
async def test_etcd_connections_use_mutual_tls(
    tmp_path: Path, etcd_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, cert, key = make_certificates(tmp_path)
    options = ["--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", ca]
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")  # stands not above --etcd-ca
    with EtcdServer(etcd_program, tmp_path, options) as etcd:
        assert etcd.address.startswith("https:")
        assert await lock(etcd.address, "one", credentials=Credentials(ca, cert, key)).take()
        with pytest.raises(StoreUnavailable):
            await lock(etcd.address, "two", credentials=Credentials(ca)).take()
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await lock(etcd.address, "two").take()


def make_certificates(folder: Path) -> tuple[str, str, str]:
    """A certificate that signs itself, for 127.0.0.1, for both sides."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert,
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("openssl is not installed; it is needed to make certificates")
    return cert, cert, key


async def post(etcd: EtcdServer, path: str, **fields: Any) -> None:
    from etcd3gw.client import Etcd3Client

    client = Etcd3Client("127.0.0.1", int(etcd.address.rpartition(":")[2]), timeout=5.0)
    try:
        await trio.to_thread.run_sync(lambda: client.post(f"{etcd.address}{path}", json=fields))
    finally:
        client.session.close()


@pytest.mark.parametrize("text", ["127.0.0.1:2379", "http://", "ftp://a", "http://a/path", "http://a:b:c", ""])
def test_invalid_etcd_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_endpoints(text)


def test_etcd_addresses_are_parsed() -> None:
    found = parse_endpoints("http://a:1, https://[::1]/")
    assert [(each.protocol, each.host, each.port) for each in found] == [("http", "a", 1), ("https", "::1", 2379)]


@pytest.fixture
def three(tmp_path: Path, etcd_program: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(etcd_program, tmp_path) as cluster:
        yield cluster


@pytest.mark.trio
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_the_lock_survives_the_loss_of_etcds_leader(
    three: EtcdCluster, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its holder keeps it, with its revision; nobody else gets it meanwhile; and it can be given on afterwards.

    A leader that was paused may revoke the lease when it returns (etcd's issue 15247, mended in 3.4.31 and 3.5.13; the
    test's etcd may be older). The holder then notices, and takes the lock again.
    """
    keeper = LockKeeper(lock(three.address, "one", 5.0), trio.current_time, 0.1)
    two = lock(three.address, "two", 5.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        first = await held(keeper)
        leader = await trio.to_thread.run_sync(three.leader)
        await trio.to_thread.run_sync(leader.kill if how == "kill" else leader.pause)
        await answers_again(two, other_than=first)
        await trio.sleep(5)  # as long as the lease
        assert await held(keeper) == first
        assert await two.take() is None
        await trio.to_thread.run_sync(leader.start if how == "kill" else leader.resume)
        await trio.sleep(2)
        last = await held(keeper)
        assert last == first or (how == "pause" and last > first)
        nursery.cancel_scope.cancel()
    assert await take(two) > last
    assert "lock_lost" not in capsys.readouterr().out or how == "pause"


async def held(keeper: LockKeeper) -> int:
    with trio.fail_after(20):
        while (revision := keeper.revision) is None:  # noqa: ASYNC110 - a clock tells
            await trio.sleep(0.02)
    return revision


async def answers_again(other: EtcdLock, other_than: int) -> None:
    """Returns when most members have elected a leader; the lock is held meanwhile."""
    with trio.fail_after(30):
        while True:
            try:
                assert await other.take() is None, f"the lock of revision {other_than} is held"
            except StoreUnavailable:
                continue
            return


@pytest.mark.trio
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_the_lock_needs_two_of_three_etcd_members(three: EtcdCluster, how: str) -> None:
    one, two = lock(three.address, "one"), lock(three.address, "two")
    first = await one.take()
    assert first
    lost = three.members[:2]
    for member in lost:
        await trio.to_thread.run_sync(member.kill if how == "kill" else member.pause)
    with trio.fail_after(10), pytest.raises(StoreUnavailable):
        await one.renew()
    with trio.fail_after(10), pytest.raises(StoreUnavailable):
        await two.take()
    await trio.to_thread.run_sync(lost[0].spawn if how == "kill" else lost[0].resume)
    with trio.fail_after(30):
        while True:
            try:
                second = await two.take()
            except StoreUnavailable:
                continue
            if second is not None:  # the lease of the first one has run out
                break
            await trio.sleep(0.1)
    assert second > first
    assert not await one.renew()


@pytest.mark.trio
async def test_losing_each_etcd_member_in_turn_keeps_the_lock(three: EtcdCluster) -> None:
    """A rolling restart of etcd."""
    keeper = LockKeeper(lock(three.address, "one", 5.0), trio.current_time, 0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        first = await held(keeper)
        for member in three.members:
            await trio.to_thread.run_sync(member.kill)
            await trio.sleep(1)
            await trio.to_thread.run_sync(member.start)
            assert await held(keeper) == first
        nursery.cancel_scope.cancel()
