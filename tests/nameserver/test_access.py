"""A nameserver with a file of identities, which by key or certificate may register given broker names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.nameserver import server as server_module
from gantrymq.nameserver.access import read_identities
from gantrymq.nameserver.requests import CHANGES
from gantrymq.remoting.bodies.registration import RegisterBrokerBody
from gantrymq.remoting.bodies.routes import QueueData, TopicRouteData
from gantrymq.remoting.bodies.tables import DataVersion
from gantrymq.remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper, TopicQueueMapping
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.headers.nameserver import BrokerHeader, RegisterBrokerHeader
from gantrymq.remoting.signing import ACCESS_KEY, SIGNATURE, Credentials
from gantrymq.remoting.tls import ServerTls
from support.authority import Authority

pytestmark = pytest.mark.trio

A = Credentials("broker-a", "secret-of-a")
B = Credentials("broker-b", "secret-of-b")
ADMIN = Credentials("administrator", "secret-of-admin")
FILE = """\
[identities.broker-a]
secret = "secret-of-a"
brokers = ["a", "orders-*"]

[identities.broker-b]
secret = "secret-of-b"
brokers = ["b"]

[identities.administrator]
secret = "secret-of-admin"
admin = true

[identities."CN=c,O=GantryMQ tests"]
brokers = ["c"]
"""
AT_A, AT_B = "10.0.0.1:10911", "10.0.0.2:10911"


def register(name: str, address: str = AT_A) -> Command:
    header = RegisterBrokerHeader(
        broker_name=name, broker_addr=address, cluster_name="C", ha_server_addr="", broker_id=0
    )
    return Command(RequestCode.REGISTER_BROKER, header.to_ext())


def about(code: RequestCode, name: str, address: str) -> Command:
    header = BrokerHeader(broker_name=name, broker_addr=address, cluster_name="C", broker_id=0)
    body = b'{"counter":1,"timestamp":1}' if code == RequestCode.QUERY_DATA_VERSION else b""
    return Command(code, header.to_ext(), body)


@asynccontextmanager
async def guarded(folder: Path, text: str = FILE, **options: Any) -> AsyncIterator[NameServer]:
    file = folder / "access.toml"
    file.write_text(text)
    server = NameServer(NameServerConfig(port=0, access=file, **options))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()


async def ask(server: NameServer, command: Command, keys: Credentials | None = None, tls: Any = None) -> Command:
    async with open_channel(server.address, sign=None if keys is None else keys.sign, tls=tls) as channel:
        return await channel.call(command, 10.0)


async def test_an_identity_registers_only_its_broker_names(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        async with open_channel(server.address, sign=A.sign) as a, open_channel(server.address, sign=B.sign) as b:
            for name, address in (("a", AT_A), ("orders-1", "10.0.0.3:10911")):
                assert (await a.call(register(name, address))).code == ResponseCode.SUCCESS
            assert (await b.call(register("b", AT_B))).code == ResponseCode.SUCCESS
            refused = await b.call(register("a", AT_B))
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "broker-b may not register the broker a" in (refused.remark or "")
            assert server.routes.member_group("a") == {0: AT_A}


@pytest.mark.parametrize("code", [RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_no_identity_touches_the_registration_of_another_broker(
    tmp_path: Path, code: RequestCode, name: str
) -> None:
    """Neither by its name nor, under the own name, by its address."""
    async with guarded(tmp_path) as server, open_channel(server.address, sign=A.sign) as a:
        assert (await a.call(register("a", AT_A))).code == ResponseCode.SUCCESS
        before = server.routes._live[AT_A].deadline
        assert (await ask(server, about(code, name, AT_A), B)).code == ResponseCode.NO_PERMISSION
        assert (await ask(server, register(name, AT_A), B)).code == ResponseCode.NO_PERMISSION
        assert server.routes.member_group("a") == {0: AT_A}
        assert server.routes._live[AT_A].deadline == before
        assert (await a.call(about(code, "a", AT_A))).code == ResponseCode.SUCCESS


async def test_topics_are_added_only_to_own_brokers(tmp_path: Path) -> None:
    row = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6, topic_sys_flag=0)
    body = TopicRouteData(queue_datas=[row]).to_bytes()
    command = Command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, body)
    async with guarded(tmp_path) as server, open_channel(server.address, sign=A.sign) as a:
        assert (await a.call(register("a"))).code == ResponseCode.SUCCESS
        assert (await ask(server, command, B)).code == ResponseCode.NO_PERMISSION
        assert server.routes.route("T") is None
        assert (await a.call(command)).code == ResponseCode.SUCCESS
        assert server.routes.route("T") is not None


async def test_static_topics_are_mapped_only_for_own_brokers(tmp_path: Path) -> None:
    mapping = TopicQueueMapping("T", total_queues=1, bname="a", curr_id_map={0: 0})
    forged = TopicQueueMapping("T", total_queues=9, bname="a", curr_id_map={0: 8})

    def with_mapping(name: str, address: str, row: TopicQueueMapping) -> Command:
        wrapper = TopicConfigSerializeWrapper({"T": TopicConfig("T")}, DataVersion(1, 7), {"T": row})
        return Command(103, register(name, address).ext, RegisterBrokerBody(wrapper).encode(compressed=False))

    async with guarded(tmp_path) as server, open_channel(server.address, sign=A.sign) as a:
        assert (await a.call(with_mapping("a", AT_A, mapping))).code == ResponseCode.SUCCESS
        assert (await ask(server, with_mapping("b", AT_B, forged), B)).code == ResponseCode.SUCCESS
        route = server.routes.route("T")
        assert route is not None
        assert route.topic_queue_mapping_by_broker == {"a": mapping}


async def test_every_change_needs_an_identity_and_reading_needs_none(tmp_path: Path) -> None:
    """This holds on loopback too, and a broker's identity is refused where an administrator is needed."""
    of_brokers = {103, 104, 217, 322, 904}
    put = Command(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"})
    async with guarded(tmp_path) as server:
        for code in CHANGES:
            assert (await ask(server, Command(code))).code == ResponseCode.NO_PERMISSION, code
            if code not in of_brokers:
                assert (await ask(server, Command(code), A)).code == ResponseCode.NO_PERMISSION, code
        assert (await ask(server, put, ADMIN)).code == ResponseCode.SUCCESS
        read = Command(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"})
        assert (await ask(server, read)).code == ResponseCode.SUCCESS


async def test_altered_signatures_and_unknown_keys_are_refused(tmp_path: Path) -> None:
    signed = A.sign(register("a"))
    assert signed.ext is not None
    altered = [
        attrs.evolve(A, secret_key="another-secret").sign(register("a")),
        Credentials("stranger", "secret-of-a").sign(register("a")),
        Credentials("CN=c,O=GantryMQ tests", "any").sign(register("c")),
        Command(103, {**signed.ext, "brokerName": "orders-1"}),
        Command(103, {**signed.ext, SIGNATURE: ""}),
        Command(103, {**signed.ext, SIGNATURE: "\u00e9" * 28}),
        Command(103, {**signed.ext, ACCESS_KEY: "broker-b"}),
        Command(103, signed.ext, b"more"),
    ]
    async with guarded(tmp_path) as server:
        for command in altered:
            answer = await ask(server, command)
            assert answer.code == ResponseCode.NO_PERMISSION, command
            assert "AclException" in (answer.remark or "")
        assert not server.routes.cluster_info().broker_addr_table


async def test_the_subject_of_a_certificate_is_an_identity(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = ServerTls(str(authority.issue("server")), ca=str(authority.file), client_certificates="required")
    async with guarded(tmp_path, tls=files, plain=False) as server:
        for name, accepted in (("c", True), ("d", False)):
            context = ServerTls(str(authority.issue(name)), ca=str(authority.file)).make_client_context()
            answer = await ask(server, register("c"), tls=context)
            assert (answer.code == ResponseCode.SUCCESS) is accepted, answer.remark
            answer = await ask(server, register("a"), tls=context)
            assert answer.code == ResponseCode.NO_PERMISSION


async def eventually(logs: list[Any], event: str) -> None:
    while not [each for each in logs if each["event"] == event]:  # noqa: ASYNC110 - a file that a thread reads
        await trio.sleep(0.02)


async def test_a_changed_file_is_put_in_force_and_a_wrong_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "WATCH_SECONDS", 0.05)
    file = tmp_path / "access.toml"
    with capture_logs() as logs, trio.fail_after(20):
        async with guarded(tmp_path) as server:
            file.write_text("[identities")
            await eventually(logs, "access_file_refused")
            assert (await ask(server, register("a"), A)).code == ResponseCode.SUCCESS
            file.write_text(FILE.replace('"secret-of-a"', '"renewed-secret"'))
            await eventually(logs, "access_file_loaded")
            assert (await ask(server, register("a"), A)).code == ResponseCode.NO_PERMISSION
    assert "renewed-secret" not in str(logs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "is not a TOML file"),
        ("x = 1", "tables"),
        ("[identities]\na = 1", "secret, brokers and admin are expected"),
        ("[identities.a]\nadmin = true", "a secret is missing"),
        ("[identities.a]\nsecret = 'short'\nadmin = true", "at least 7"),
        ("[identities.a]\nsecret = 'long-enough'", "it may do nothing"),
        ("[identities.a]\nsecret = 'long-enough'\nbrokers = 'a'", "must be a list"),
        ("[identities.a]\nsecret = 'long-enough'\nright = 1", "nothing else"),
        ("#" * 2**20 + "##", "more than"),
    ],
)
async def test_a_wrong_file_refuses_the_start_without_its_secrets(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason) as failed:
        read_identities(file)
    assert "long-enough" not in str(failed.value)
