"""RocketMQ's producers and push consumers, 4.9.7 and 5.3.3, with keys and TLS at our broker.

The combinations of TLS and plain connections are those of RocketMQ's own integration tests: both over TLS (``TLS_IT``),
a plain producer with a consumer over TLS (``TLS_Mix_IT``), and the other way round (``TLS_Mix2_IT``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import gantrymq.sync
from support.accounts import ACL, ADMIN, WORKER
from support.certificates import CA, FOLDER, client_context
from support.clients import ForeignClient
from support.foreign import SMALL_BROKER, Java, start_broker
from support.processes import LATE_DISK, free_ports, gantrymq_child
from support.transactions import Transactor

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
Names = Callable[[str], str]
ACCOUNTS = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- accessKey: the-worker
  secretKey: worker-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [secrets=DENY]
"""
TLS = "gantrymq.plugins.tls:TlsPlugin"
KEYS = {"accessKey": WORKER.access_key, "secretKey": WORKER.secret_key}
MESSAGES = 16
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins"
WITH_TLS = (
    "-Dtls.enable=true", "-Dtls.server.mode=enforcing", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true",
    f"-Dtls.client.trustCertPath={CA}", f"-Dtls.server.certPath={FOLDER / 'server.pem'}",
    f"-Dtls.server.keyPath={FOLDER / 'server.pem'}",
)  # fmt: skip


@contextmanager
def serving(home: Path, mode: str, *more: str) -> Iterator[str]:
    """The address of our nameserver; it and its broker have TLS in this mode, and the broker has accounts.

    ``more``: further options.
    """
    home.mkdir()
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "plugin.acl.file": home / "plain_acl.yml",
        "plugin.tls.certificate": FOLDER / "server.pem",
        "plugin.tls.mode": mode,
        "plugin.transaction.check_interval": "500ms",
        "plugin.transaction.timeout": "1s",
    }
    arguments = ["serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
                 "--enable", TLS, "--enable", ACL, *LATE_DISK]  # fmt: skip
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with gantrymq_child([*arguments, *more], home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        yield nameserver


@pytest.fixture(scope="module")
def enforcing(homes: Homes) -> Iterator[str]:
    with serving(homes("enforcing"), "enforcing") as nameserver:
        yield nameserver


@pytest.fixture(scope="module")
def permissive(homes: Homes) -> Iterator[str]:
    with serving(homes("permissive"), "permissive") as nameserver:
        yield nameserver


def create_topic(nameserver: str, topic: str) -> None:
    options: dict[str, Any] = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}
    with gantrymq.sync.connect(nameserver, tls=client_context(), **options) as client:
        client.admin.create_topic(topic, 2)


@pytest.mark.parametrize(
    ("mode", "produces", "consumes"),
    [("enforcing", True, True), ("permissive", False, True), ("permissive", True, False)],
    ids=["both-tls", "plain-producer", "plain-consumer"],
)
def test_producers_and_push_consumers_with_keys_exchange_messages_over_tls_and_plain_connections(
    request: pytest.FixtureRequest, java_client: ForeignClient, names: Names, mode: str, produces: bool, consumes: bool
) -> None:
    nameserver: str = request.getfixturevalue(mode)
    topic = names("t")
    create_topic(nameserver, topic)
    with java_client.consumer(nameserver, topic, names("g"), tls=str(consumes).lower(), **KEYS) as consumer:
        sent = java_client.produce(
            nameserver, topic, MESSAGES, modes="sync,async,batch", tls=str(produces).lower(), **KEYS
        )
        assert {each.status for each in sent} == {"SEND_OK"}
        consumer.wait(3 * MESSAGES, 60.0)
        received = consumer.close()
    assert sorted(each.index for each in received) == list(range(3 * MESSAGES))


def test_transactions_with_keys_end_over_tls(java_client: ForeignClient, enforcing: str, names: Names) -> None:
    topic = names("t")
    create_topic(enforcing, topic)
    with Transactor.start(java_client, enforcing, topic, names("p"), tls="true", **KEYS) as transactor:
        for index, (local, checked) in enumerate([("commit", "commit"), ("rollback", "commit"), ("unknown", "commit")]):
            assert transactor.send(index, local, checked).status == "SEND_OK"
        transactor.wait_checks(1)
        received = java_client.consume_all(enforcing, topic, names("g"), 2, tls="true", **KEYS)
    assert sorted(each.index for each in received) == [0, 2]


def test_a_send_with_a_wrong_key_over_tls_fails(java_client: ForeignClient, enforcing: str, names: Names) -> None:
    topic = names("t")
    create_topic(enforcing, topic)
    wrong = {**KEYS, "secretKey": "not-the-secret"}
    with java_client.run("produce", f"namesrv={enforcing}", f"topic={topic}", "count=1", "tls=true",
                         *(f"{name}={value}" for name, value in wrong.items())) as child:  # fmt: skip
        assert child.wait(60.0) != 0
        assert "Check signature failed for accessKey=the-worker" in child.log.read_text()


def test_producers_at_their_quota_send_more_slowly_and_no_send_fails(
    java_client: ForeignClient, homes: Homes, names: Names
) -> None:
    home, topic, sends = homes("paced"), names("t"), 40
    quota = ("--enable", "quota", "--set", "plugin.quota.identities=the-worker=requests=20", "--set",
             "plugin.quota.burst=500ms")  # fmt: skip
    with serving(home, "permissive", *quota) as nameserver:
        create_topic(nameserver, topic)
        begun = time.monotonic()
        sent = java_client.produce(nameserver, topic, sends, modes="sync", **KEYS)
        assert [each.status for each in sent] == ["SEND_OK"] * sends
        assert time.monotonic() - begun >= (sends - 11) / 20
        assert "quota_exceeded" not in (home / "log").read_text()


@pytest.mark.soak(1)
def test_push_consumers_beyond_their_quota_pull_again_later_and_miss_nothing(
    java_client: ForeignClient, homes: Homes, names: Names
) -> None:
    home, topic = homes("quota"), names("t")
    quota = ("--enable", "quota", "--set", "plugin.quota.identities=the-worker=requests=2", "--set",
             "plugin.quota.burst=500ms", "--set", "plugin.quota.pause=0s")  # fmt: skip
    with serving(home, "permissive", *quota) as nameserver:
        create_topic(nameserver, topic)
        admin = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        java_client.produce(nameserver, topic, 4 * MESSAGES, modes="batch", **admin)
        received = java_client.consume_all(nameserver, topic, names("g"), 4 * MESSAGES, timeout=90.0, **KEYS)
        assert sorted(each.index for each in received) == list(range(4 * MESSAGES))
        assert "quota_exceeded" in (home / "log").read_text()


@pytest.mark.soak(1)
@pytest.mark.parametrize("release", ["java", "java5"])
def test_rocketmqs_brokers_register_over_tls_at_our_nameserver_beside_our_broker(
    request: pytest.FixtureRequest, homes: Homes, names: Names, release: str
) -> None:
    java: Java = request.getfixturevalue(release)
    topic = names("t")
    with serving(homes("mixed"), "enforcing") as nameserver:
        theirs = start_broker(java, homes("java-broker"), "", memory=(*SMALL_BROKER, *WITH_TLS), namesrvAddr=nameserver)
        try:
            options: dict[str, Any] = {"access_key": WORKER.access_key, "secret_key": WORKER.secret_key}
            admin: dict[str, Any] = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}
            with gantrymq.sync.connect(nameserver, tls=client_context(), **admin) as client:
                end = time.monotonic() + 60
                while len(client.admin.cluster().broker_addr_table) < 2:
                    assert time.monotonic() < end, "the Java broker has not registered"
                    time.sleep(0.1)
                client.admin.create_topic(topic, 1)
            end = time.monotonic() + 60
            with gantrymq.sync.connect(nameserver, tls=client_context(), **options) as client:
                places: list[str] = []
                with client.producer() as producer:
                    # a send avoids a broker for a while to which the connection takes too long
                    while len(places) < 8 or len(set(places)) < 2:
                        assert time.monotonic() < end, "messages go to one of the brokers only"
                        places.append(producer.send(topic, b"%d" % len(places)).queue.broker_name)
                        time.sleep(0.02)
                unread = {b"%d" % number for number in range(len(places))}
                with client.consumer(topic, names("g"), start="first") as messages:
                    while unread:
                        assert time.monotonic() < end, unread
                        for message in messages.next_batch(8, timeout=1):
                            unread.discard(message.body)
                            message.ack()
        finally:
            theirs.discard()


@pytest.mark.soak(1)
def test_tokens_of_a_provider_identify_rocketmqs_clients(
    java_client: ForeignClient, homes: Homes, names: Names
) -> None:
    """With the example plugin ``oidc``: a token is a client's security token."""
    jwt = pytest.importorskip("jwt", reason="the example oidc needs it: pip install 'pyjwt[crypto]'")
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    home, topic, group = homes("tokens"), names("t"), names("g")
    home.mkdir()
    (home / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "1", "alg": "ES256", "use": "sig"}]}))

    def keys(scope: str) -> dict[str, str]:
        claims = {"sub": "java", "iss": "https://id.example", "aud": "gantrymq", "exp": time.time() + 600}
        token = jwt.encode({**claims, "scope": scope}, key, "ES256", headers={"kid": "1"})
        return {"accessKey": "unused", "secretKey": "unused", "securityToken": token}

    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"keys": home / "jwks.json", "issuer": "https://id.example", "audience": "gantrymq"}
    arguments = ["serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
                 "--plugin", str(EXAMPLES / "oidc" / "gantrymq_oidc.py:OidcPlugin"), *LATE_DISK]  # fmt: skip
    arguments += [word for name, value in settings.items() for word in ("--set", f"plugin.oidc.{name}={value}")]
    with gantrymq_child(arguments, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        may = keys(f"send:{topic} read:{topic} group:{group} send:* read:*")
        with java_client.consumer(nameserver, topic, group, **may) as consumer:
            java_client.produce(nameserver, topic, MESSAGES, modes="sync,batch", **may)
            consumer.wait(2 * MESSAGES, 60.0)
            consumer.close()
        pairs = [f"namesrv={nameserver}", f"topic={topic}", "count=1"]
        pairs += [f"{name}={value}" for name, value in keys("read:*").items()]
        with java_client.run("produce", *pairs) as producer:
            assert producer.wait(60.0) != 0
            assert f"has no scope 'send:{topic}'" in producer.log.read_text()
