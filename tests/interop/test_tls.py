"""Our client at RocketMQ's servers that take TLS only: with certificates of an authority, and with their own."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import attrs
import pytest

import gantrymq
import gantrymq.sync
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.spark.errors import SendFailed
from support.certificates import CA, FOLDER, OTHER_CA, client_context
from support.foreign import SMALL_BROKER, SMALL_NAMESERVER, Java, JavaServer, start_broker, start_nameserver
from support.processes import gantrymq_child
from support.spark_streams import check_security

pytestmark = [pytest.mark.interop, pytest.mark.once, pytest.mark.anyio, pytest.mark.slow]

Homes = Callable[[str], Path]
ENFORCING = ("-Dtls.server.mode=enforcing", "-Dtls.enable=true")
WITH_AUTHORITY = (
    "-Dtls.test.mode.enable=false",
    f"-Dtls.server.certPath={FOLDER / 'server.pem'}",
    f"-Dtls.server.keyPath={FOLDER / 'server.pem'}",
)
SELF_SIGNED = ("-Dtls.test.mode.enable=true", "--add-exports=java.base/sun.security.x509=ALL-UNNAMED")


@attrs.frozen
class Secured:
    """A nameserver with a broker, and what a client must trust to speak with them."""

    nameserver: str
    trust: Callable[[], ssl.SSLContext]
    self_signed: bool


def trust_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["4.9.7-authority", "4.9.7-self-signed", "5.3.3-authority"])
def secured(request: pytest.FixtureRequest, homes: Homes) -> Iterator[Secured]:
    """Servers that refuse plaintext."""
    version, _, kind = request.param.partition("-")
    java: Java = request.getfixturevalue("java" if version == "4.9.7" else "java5")
    options = (*ENFORCING, *(WITH_AUTHORITY if kind == "authority" else SELF_SIGNED))
    nameserver = start_nameserver(java, homes("nameserver"), memory=(*SMALL_NAMESERVER, *options))
    try:
        broker = _start_broker(java, homes("secured"), nameserver, options)
        try:
            trust = client_context if kind == "authority" else trust_all
            _wait_registered(nameserver.address, broker.address, trust())
            with gantrymq.sync.connect(nameserver.address, tls=trust()) as client:
                client.admin.create_topic("T", 2)
            yield Secured(nameserver.address, trust, kind != "authority")
        finally:
            broker.discard()
    finally:
        nameserver.discard()


def _start_broker(java: Java, home: Path, nameserver: JavaServer, options: tuple[str, ...]) -> JavaServer:
    # no nameserver to wait for: the question whether it knows the broker is a plaintext one
    return start_broker(java, home, "", memory=(*SMALL_BROKER, *options), namesrvAddr=nameserver.address)


def _wait_registered(nameserver: str, broker: str, context: ssl.SSLContext) -> None:
    until = time.monotonic() + 60
    with gantrymq.sync.connect(nameserver, tls=context) as client:
        # 5.3.3 registers ten seconds after its start, or after such a change (support.foreign)
        client.admin.request(broker, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6"))
        while not client.admin.cluster().broker_addr_table:
            assert time.monotonic() < until, "the broker has not registered"
            time.sleep(0.1)


async def test_messages_are_sent_and_received_over_tls(secured: Secured) -> None:
    async with gantrymq.connect(secured.nameserver, tls=secured.trust()) as client:
        await client.admin.create_topic("T", 2)  # the same again
        async with client.producer() as producer, client.consumer("T", "g", start="first") as messages:
            sent = {(await producer.send("T", b"%d" % number * 5000)).message_id for number in range(20)}
            with anyio.fail_after(60):
                while sent:
                    message = await anext(messages)
                    sent.discard(message.message_id)
                    await message.ack()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_blocking_client_behaves_like_the_async_client(secured: Secured, backend: str) -> None:
    with gantrymq.sync.connect(secured.nameserver, tls=secured.trust(), backend=backend) as client:  # type: ignore[arg-type]
        with client.producer() as producer:
            producer.send("T", b"x")


def test_spark_reads_and_writes_over_tls(secured: Secured) -> None:
    pytest.importorskip("pyarrow", reason="the columns are Arrow's: pip install 'gantrymq[spark]'")
    given = {"nameserver": secured.nameserver, "tls": "true", "tlsCaFile": str(CA)}
    if secured.self_signed:
        with pytest.raises(SendFailed, match="certificate"):
            check_security(given, "T")
        return
    check_security(given, "spark")


async def test_a_certificate_of_another_authority_is_refused(secured: Secured) -> None:
    with anyio.fail_after(30), pytest.raises(gantrymq.TlsFailed, match="its certificate is not accepted"):
        async with gantrymq.connect(secured.nameserver, tls=client_context(OTHER_CA)):
            pass


async def test_a_client_without_tls_gets_an_error_that_names_the_setting(secured: Secured) -> None:
    with anyio.fail_after(30), pytest.raises(gantrymq.ConnectError, match="connect with tls=True"):
        async with gantrymq.connect(secured.nameserver) as client:
            await client.admin.topics()


def test_the_command_line_reads_the_ca_file_from_the_environment(secured: Secured, homes: Homes) -> None:
    if secured.self_signed:
        return  # the command line has no way to trust everybody
    home = homes("topics")
    home.mkdir()
    env = {"GANTRYMQ_TLS_CA": str(CA)}
    with gantrymq_child(["topic", "list", "--nameserver", secured.nameserver], home / "log", env=env) as child:
        assert child.wait_line(lambda line: line == "T")
