"""RocketMQ's clients and mqadmin of 4.9.7 at our broker with accounts, compared with RocketMQ's own.

mqadmin signs with the keys in ``conf/tools.yml``, by RocketMQ's ``AclClientRPCHook``; its commands that send and read
messages use RocketMQ's producer and consumer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.signing import Credentials
from gantrymq.testing.requests import pull, send
from support.accounts import ACL, ADMIN, NOBODY, WORKER
from support.authority import Authority
from support.certificates import CA, FOLDER, client_context
from support.foreign import SMALL_BROKER, Java, ask, mqadmin_with_keys, start_broker, start_nameserver
from support.mqadmin import KeyedMqAdmin
from support.processes import free_ports, gantrymq_child, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(240)]

Homes = Callable[[str], Path]
ACCOUNTS = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- accessKey: the-worker
  secretKey: worker-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB|SUB, sent=PUB]
  groupPerms: [billing=SUB, TOOLS_CONSUMER=SUB]
- {accessKey: the-nobody, secretKey: nobody-secret}
"""


@attrs.frozen
class Guarded:
    """Our nameserver and broker, whose accounts are those of ``ACCOUNTS``."""

    nameserver: str
    broker: str
    accounts: Path


@pytest.fixture(scope="module")
def guarded(homes: Homes) -> Iterator[Guarded]:
    home = homes("guarded")
    home.mkdir()
    accounts = home / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
             "--enable", ACL, "--set", f"plugin.acl.file={accounts}", "--set", "plugin.flush.mode=async")  # fmt: skip
    with gantrymq_child(serve, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        with gantrymq.sync.connect(nameserver, **keys(ADMIN)) as client:
            for topic in ("orders", "sent", "secrets"):
                client.admin.create_topic(topic, 1)
        yield Guarded(nameserver, broker, accounts)


def keys(credentials: Credentials) -> dict[str, str]:
    return {"access_key": credentials.access_key, "secret_key": credentials.secret_key}


def test_rocketmqs_client_is_limited_to_the_rights_of_its_account(guarded: Guarded, mqadmin4: KeyedMqAdmin) -> None:
    at = ("-n", guarded.nameserver)
    assert "SEND_OK" in mqadmin4(
        WORKER, "sendMessage", *at, "-t", "orders", "-p", "by-rocketmq", "-k", "key", "-c", "tag"
    )
    assert "by-rocketmq" in mqadmin4(WORKER, "consumeMessage", *at, "-t", "orders", "-c", "1", "-g", "billing")
    with gantrymq.sync.connect(guarded.nameserver, **keys(WORKER)) as client:
        with client.consumer("orders", "billing", start="first") as messages:
            assert next(message for message in messages if message.body == b"by-rocketmq")
    refused = mqadmin4(WORKER, "sendMessage", *at, "-t", "secrets", "-p", "x")
    assert "AclException: No default permission for topic:secrets" in refused
    wrong = Credentials(WORKER.access_key, "not-the-secret")
    assert "Check signature failed for accessKey=the-worker" in mqadmin4(
        wrong, "sendMessage", *at, "-t", "orders", "-p", "x"
    )


def test_mqadmin_reads_and_changes_the_accounts(guarded: Guarded, mqadmin4: KeyedMqAdmin) -> None:
    at = ("-n", guarded.nameserver, "-b", guarded.broker)
    newcomer = Credentials("newcomer", "newcomer-secret")
    done = mqadmin4(
        ADMIN, "updateAclConfig", *at, "-a", "newcomer", "-s", "newcomer-secret", "-t", "orders=PUB", "-m", "false"
    )
    assert "success" in done
    assert "SEND_OK" in mqadmin4(
        newcomer, "sendMessage", "-n", guarded.nameserver, "-t", "orders", "-p", "by-the-newcomer"
    )
    shown = mqadmin4(ADMIN, "getAclConfig", *at)
    assert "newcomer" in shown
    assert "orders=PUB" in shown
    assert "secret\n" not in shown.replace(":", "\n")
    assert guarded.broker in mqadmin4(ADMIN, "clusterAclConfigVersion", *at)
    assert "orders" in mqadmin4(ADMIN, "topicList", "-n", guarded.nameserver)
    assert "success" in mqadmin4(
        ADMIN, "updateGlobalWhiteAddr", *at, "-g", "10.1.1.1,10.1.2.*", "-p", str(guarded.accounts)
    )
    assert "- 10.1.2.*\n" in guarded.accounts.read_text()
    assert "success" in mqadmin4(ADMIN, "deleteAclConfig", *at, "-a", "newcomer")
    assert "newcomer" not in guarded.accounts.read_text()
    refused = mqadmin4(WORKER, "deleteAclConfig", *at, "-a", "the-admin")
    assert "Need admin permission for request code=51" in refused
    assert "the-admin" in guarded.accounts.read_text()


@pytest.fixture(scope="module")
def oracle(java: Java, homes: Homes) -> Iterator[str]:
    """The address of RocketMQ's own broker with the same accounts."""
    home = homes("oracle")
    conf = home / "rocketmq" / "conf"
    shutil.copytree(java.conf, conf)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    with ExitStack() as stack:
        nameserver = start_nameserver(java, homes("nameserver"))
        stack.callback(nameserver.discard)
        broker = start_broker(java, home, nameserver.address, aclEnable="true")
        stack.callback(broker.discard)
        yield broker.address


def altered(command: Command) -> Command:
    command.body += b"!"
    return command


STRANGER = Credentials("the-stranger", "stranger-secret")
REQUESTS = {
    "unsigned": lambda: send("orders", b"x"),
    "of a stranger": lambda: STRANGER.sign(send("orders", b"x")),
    "with the wrong secret": lambda: Credentials("the-worker", "guessed-secret").sign(send("orders", b"x")),
    "altered": lambda: altered(WORKER.sign(send("orders", b"x"))),
    "allowed": lambda: WORKER.sign(send("orders", b"x", properties="KEYS\x01grün")),
    "to a topic of others": lambda: WORKER.sign(send("secrets", b"x")),
    "to a topic, by nobody": lambda: NOBODY.sign(send("orders", b"x")),
    "to the topic of traces": lambda: NOBODY.sign(send("RMQ_SYS_TRACE_TOPIC", b"x")),
    "a pull without SUB": lambda: WORKER.sign(pull("sent", group="billing")),
    "a pull for a group of others": lambda: WORKER.sign(pull("orders", group="others")),
    "an administrator's": lambda: WORKER.sign(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "x"})),
    "the members of a group": lambda: WORKER.sign(
        Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "others"})
    ),
}


def test_refusals_have_rocketmqs_codes_and_texts(guarded: Guarded, oracle: str) -> None:
    def said(address: str) -> dict[str, tuple[int, str]]:
        answers = {name: ask(address, make()) for name, make in REQUESTS.items()}
        # behind the text RocketMQ has the line of its own source
        return {name: (each.code, (each.remark or "").partition(", org.apache")[0]) for name, each in answers.items()}

    ours, theirs = said(guarded.broker), said(oracle)
    assert ours == theirs
    assert ours["allowed"] == (0, "")


@pytest.fixture(scope="module")
def encrypted(homes: Homes) -> Iterator[str]:
    """The address of our nameserver, which takes TLS only, as its broker does; the broker also has accounts."""
    home = homes("encrypted")
    home.mkdir()
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    serve = ("serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
             "--enable", "gantrymq.plugins.tls:TlsPlugin", "--enable", ACL,
             "--set", f"plugin.acl.file={home / 'plain_acl.yml'}",
             "--set", f"plugin.tls.certificate={FOLDER / 'server.pem'}")  # fmt: skip
    with gantrymq_child(serve, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        with gantrymq.sync.connect(nameserver, tls=client_context(), **keys(ADMIN)) as client:
            for topic in ("orders", "secrets"):
                client.admin.create_topic(topic, 1)
        yield nameserver


@pytest.mark.soak(1)
@pytest.mark.parametrize("release", ["java", "java5"])
def test_rocketmqs_clients_connect_with_tls_and_keys(
    request: pytest.FixtureRequest, homes: Homes, encrypted: str, release: str
) -> None:
    java: Java = request.getfixturevalue(release)
    tls = ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true",
           f"-Dtls.client.trustCertPath={CA}")  # fmt: skip
    secured = attrs.evolve(java, common=(*java.common, *tls))
    body = f"by-rocketmq-{java.version}"

    def run(client: Java, credentials: Credentials, *arguments: str) -> str:
        return mqadmin_with_keys(client, homes("mqadmin"), credentials, *arguments)

    def send_to(topic: str, client: Java = secured) -> str:
        return run(client, WORKER, "sendMessage", "-n", encrypted, "-t", topic, "-p", body)

    # RocketMQ waits three seconds for a connection with its handshake, which a busy machine can exceed
    assert any("SEND_OK" in send_to("orders") for _ in range(4))
    read = ("consumeMessage", "-n", encrypted, "-t", "orders", "-g", "billing", "-c", "9")
    assert any(body in run(secured, WORKER, *read) for _ in range(4))
    refused = "AclException: No default permission for topic:secrets"
    assert any(refused in send_to("secrets") for _ in range(4))
    if release == "java":
        assert "SEND_OK" not in send_to("orders", java), "in plain text"
    with gantrymq.sync.connect(encrypted, tls=client_context(), **keys(WORKER)) as client:
        with client.consumer("orders", "billing", start="first") as messages:
            bodies = iter(message.body.decode() for message in messages)
            assert next(each for each in bodies if each == body)


@pytest.mark.soak(1)
@pytest.mark.parametrize("release", ["java", "java5"])
def test_the_certificate_of_rocketmqs_client_is_its_account(
    request: pytest.FixtureRequest, homes: Homes, tmp_path: Path, release: str
) -> None:
    """Without keys: the subject is listed at the account. The client trusts the authority, as the servers do."""
    java: Java = request.getfixturevalue(release)
    home = homes("mutual")
    home.mkdir()
    authority = Authority(home)
    worker, mallory, server = (authority.issue(name) for name in ("worker", "mallory", "server"))
    (home / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: the-admin, secretKey: admin-secret, admin: true}\n- accessKey: the-worker\n"
        "  secretKey: worker-secret\n  subjects: ['CN=worker,O=GantryMQ tests']\n  topicPerms: [orders=PUB]\n"
    )
    broker, nameserver = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {"acl.file": home / "plain_acl.yml", "tls.certificate": server, "tls.ca": authority.file,
                "tls.client_certificates": "required"}  # fmt: skip
    serve = ["serve", "--data", str(home / "data"), "--listen", broker, "--nameserver-listen", nameserver,
             "--enable", "tls", "--enable", "acl"]  # fmt: skip
    serve += [word for name, value in settings.items() for word in ("--set", f"plugin.{name}={value}")]

    def send_as(certificate: Path) -> str:
        tls = {
            "tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
            "tls.client.trustCertPath": authority.file, "tls.client.certPath": certificate,
            "tls.client.keyPath": certificate,
        }  # fmt: skip
        client = attrs.evolve(java, common=(*java.common, *(f"-D{name}={value}" for name, value in tls.items())))
        return client.mqadmin(homes("mqadmin"), "sendMessage", "-n", nameserver, "-t", "orders", "-p", "x")

    with gantrymq_child(serve, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        context = client_context(authority.file)
        context.load_cert_chain(worker)
        with gantrymq.sync.connect(nameserver, tls=context, **keys(ADMIN)) as client:
            client.admin.create_topic("orders", 1)
        # RocketMQ waits three seconds for a connection with its handshake, which a busy machine can exceed
        assert any("SEND_OK" in send_as(worker) for _ in range(4))
        assert "No accessKey is configured" in send_as(mallory)


@pytest.mark.soak(1)
@pytest.mark.parametrize("release", ["java", "java5"])
def test_rocketmqs_brokers_register_at_a_nameserver_that_demands_identities(
    request: pytest.FixtureRequest, homes: Homes, release: str
) -> None:
    """4.9.7 cannot sign, so its broker shows a certificate; 5.3.3 signs with its inner credentials."""
    java: Java = request.getfixturevalue(release)
    home = homes("identities")
    home.mkdir()
    authority = Authority(home)
    server, broker = authority.issue("server"), authority.issue("broker")
    (home / "access.toml").write_text(
        "[identities.\"CN=broker,O=GantryMQ tests\"]\nbrokers = ['by-certificate']\n"
        "[identities.inner]\nsecret = 'inner-password'\nbrokers = ['by-key']\n"
    )
    (port,) = free_ports()
    address = f"127.0.0.1:{port}"
    arguments = ["nameserver", "--listen", address, "--access", str(home / "access.toml")]
    if release == "java":
        name, settings = "by-certificate", {}
        arguments += ["--tls-certificate", str(server), "--tls-ca", str(authority.file)]
        tls = {
            "tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
            "tls.client.trustCertPath": authority.file, "tls.client.certPath": broker, "tls.client.keyPath": broker,
        }  # fmt: skip
        options = tuple(f"-D{key}={value}" for key, value in tls.items())
    else:
        inner = {"accessKey": "inner", "secretKey": "inner-password"}
        name, options = "by-key", ()
        settings = {
            "innerClientAuthenticationCredentials": json.dumps(inner),
            "authenticationMetadataProvider":
                "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
            "authConfigPath": str(home / "auth"),
        }  # fmt: skip
    with gantrymq_child(arguments, home / "log") as child:
        child.wait_line(lambda line: line.startswith("ready"))
        # the broker is not waited for: the question whether it is registered needs TLS
        java_broker = start_broker(
            java, homes("java"), "", name=name, memory=(*SMALL_BROKER, *options), namesrvAddr=address, **settings
        )
        try:
            wait_for(lambda: f'"broker": "{name}"' in (home / "log").read_text(), 60)
        finally:
            java_broker.discard()
        text = (home / "log").read_text()
    assert "broker_registered" in text
    assert '"answer": 16' not in text
