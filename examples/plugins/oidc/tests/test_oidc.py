"""The plugin in a real broker, seen through clients with tokens of a provider and with forged ones."""

import base64
import datetime
import hashlib
import hmac
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gantrymq_oidc
import jwt
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from gantrymq_oidc import OidcPlugin

import gantrymq
from gantrymq.remoting.channel import open_channel
from gantrymq.remoting.codes import ResponseCode
from gantrymq.sync import connect
from gantrymq.testing import requests

ISSUER = "https://id.example"
AUDIENCE = "gantrymq"
UNUSED = {"access_key": "jwt", "secret_key": "unused"}
SCOPES = "send:orders read:orders group:billing"


class Provider:
    """An OpenID provider: a key pair, its key set, and tokens."""

    def __init__(self, key_id="key-1"):
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.key_id = key_id

    def key_set(self):
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return json.dumps({"keys": [{**key, "kid": self.key_id, "alg": "ES256", "use": "sig"}]})

    def token(self, scope=SCOPES, **changes):
        now = int(time.time())
        claims = {"sub": "order-service", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 60, "scope": scope}
        claims |= changes
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.private, "ES256", headers={"kid": self.key_id})


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def broker(plugin_broker, provider, tmp_path):
    keys = tmp_path / "jwks.json"
    keys.write_text(provider.key_set())
    settings = {"keys": str(keys), "issuer": ISSUER, "audience": AUDIENCE, "interval": "100ms", "leeway": "0s"}
    return plugin_broker(OidcPlugin, settings={f"plugin.oidc.{name}": value for name, value in settings.items()})


def connected(broker, token):
    return connect(broker.cluster.nameserver, **{**UNUSED, "security_token": token})


def refusal(broker, token, command):
    """The end of the remark with which the broker refuses the request."""
    command.ext["SecurityToken"] = token

    async def call():
        async with open_channel(broker.address) as channel:
            return await channel.call(command)

    answer = trio.run(call)
    assert answer.code == ResponseCode.NO_PERMISSION
    return answer.remark.partition(" has ")[2]


def send(broker, token, topic="orders"):
    with connected(broker, token) as client, client.producer() as producer:
        producer.send(topic, b"paid")


def test_a_token_allows_what_its_scopes_say(broker, provider):
    with connected(broker, provider.token("admin")) as client:
        for topic in ("orders", "secrets"):
            client.admin.create_topic(topic)
    token = provider.token()
    send(broker, token)
    with connected(broker, token) as client:
        with client.consumer("orders", "billing", start="first") as messages:
            assert next(messages).body == b"paid"
        with pytest.raises(gantrymq.BrokerError, match="no scope 'admin'"):
            client.admin.create_topic("more")
    with pytest.raises(gantrymq.BrokerError, match="no scope 'send:secrets'"):
        send(broker, token, "secrets")
    with pytest.raises(gantrymq.BrokerError, match="no scope 'send:orders'"):
        send(broker, provider.token("read:orders"))


def test_a_member_reads_the_retries_of_its_group_and_of_no_other(broker, provider):
    with connected(broker, provider.token("admin")) as client:
        for topic in ("orders", "%RETRY%billing", "%RETRY%shipping"):
            client.admin.create_topic(topic, queues=1)
        with client.producer() as producer:
            producer.send("%RETRY%billing", b"again")
    with connected(broker, provider.token()) as client, client.consumer("orders", "billing", start="first") as messages:
        message = next(messages)
        assert message.body == b"again"
        message.ack()
    for topic, group, missing in (
        ("%RETRY%shipping", "billing", "read:%RETRY%shipping"),
        ("orders", "shipping", "group:shipping"),
        ("%DLQ%billing", "billing", "read:%DLQ%billing"),
    ):
        assert refusal(broker, provider.token(), requests.pull(topic, group=group)) == f"no scope {missing!r}"


def test_a_member_sends_to_the_retry_topic_of_its_group_and_of_no_other(broker, provider):
    with connected(broker, provider.token("admin")) as client:
        for topic in ("%RETRY%billing", "%RETRY%shipping"):
            client.admin.create_topic(topic)
    send(broker, provider.token("group:billing"), "%RETRY%billing")
    with pytest.raises(gantrymq.BrokerError, match="no scope 'send:%RETRY%shipping'"):
        send(broker, provider.token("group:billing"), "%RETRY%shipping")


def test_tokens_that_the_provider_did_not_make_for_this_broker_are_refused(broker, provider):
    with connected(broker, provider.token("admin")) as client:
        client.admin.create_topic("orders")
    header, _, signature = provider.token("read:orders").split(".")
    other = provider.token("admin").split(".")[1]
    pem = provider.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    claims = jwt.decode(provider.token("admin"), options={"verify_signature": False})
    forged = {
        "not valid": f"{header}.{other}.{signature}",
        "is not valid": "no token",
        "algorithm is not that of its key": jwt.encode(claims, None, "none", headers={"kid": "key-1"}),
        "algorithm is": symmetric(claims, pem),
        "key is not known": Provider("key-2").token("admin"),
        "Signature verification failed": Provider().token("admin"),
        "expired": provider.token("admin", exp=int(time.time()) - 5),
        "Issuer|issuer": provider.token("admin", iss="https://other.example"),
        "Audience|audience": provider.token("admin", aud="other"),
        '"exp"': provider.token("admin", exp=None),
        "not yet valid": provider.token("admin", nbf=int(time.time()) + 600),
        "too long": "x" * 20_000,
    }
    for reason, token in forged.items():
        with pytest.raises(gantrymq.BrokerError, match=reason):
            send(broker, token)
    with (
        connect(broker.cluster.nameserver) as client,
        client.producer() as producer,
        pytest.raises(gantrymq.BrokerError, match="has no token"),
    ):
        producer.send("orders", b"x")


def symmetric(claims, secret):
    """A token with the public key as the secret of an HMAC: PyJWT itself refuses to make one."""

    def encoded(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head = encoded(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "key-1"}).encode())
    signed = head + b"." + encoded(json.dumps(claims).encode())
    return (signed + b"." + encoded(hmac.new(secret.encode(), signed, hashlib.sha256).digest())).decode()


def test_a_token_ends_with_its_time_on_an_open_connection(broker, provider):
    with connected(broker, provider.token("admin")) as client:
        client.admin.create_topic("orders")
    with connected(broker, provider.token(exp=int(time.time()) + 2)) as client, client.producer() as producer:
        producer.send("orders", b"before")
        time.sleep(2.1)
        with pytest.raises(gantrymq.BrokerError, match="the token has expired"):
            producer.send("orders", b"after")


def test_a_replaced_key_set_is_in_force_without_a_restart(broker, provider, tmp_path):
    with connected(broker, provider.token("admin")) as client:
        client.admin.create_topic("orders")
    later = Provider("key-2")
    (tmp_path / "jwks.json").write_text(later.key_set())
    deadline = time.monotonic() + 10
    while True:
        try:
            send(broker, later.token())
            break
        except gantrymq.BrokerError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with pytest.raises(gantrymq.BrokerError, match="key is not known"):
        send(broker, provider.token())


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost with its key, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "provider.pem"
    file.write_bytes(
        made.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return file


@pytest.fixture
def https(certificate, provider):
    """The provider's web server: ``document`` is its key set, ``reads`` counts how often it was read."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.reads += 1
            self.send_response(200 if self.server.document else 503)
            self.end_headers()
            self.wfile.write(self.server.document.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.reads, server.document = 0, provider.key_set()
    server.address = f"https://localhost:{server.server_port}/jwks.json"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_keys_behind_https_are_read_again_when_a_token_names_a_new_one(
    plugin_broker, provider, https, certificate, monkeypatch
):
    monkeypatch.setattr(gantrymq_oidc, "PAUSE_S", 0.5)
    settings = {"keys": https.address, "ca": str(certificate), "issuer": ISSUER, "audience": AUDIENCE, "interval": "1h"}
    broker = plugin_broker(OidcPlugin, settings={f"plugin.oidc.{name}": value for name, value in settings.items()})
    with connected(broker, provider.token("admin")) as client:
        client.admin.create_topic("orders")
    send(broker, provider.token())
    assert https.reads == 1, "the keys are kept"
    later = Provider("key-2")
    https.document = later.key_set()
    begun, deadline = time.monotonic(), time.monotonic() + 10
    while True:
        try:
            send(broker, later.token())
            break
        except gantrymq.BrokerError:
            assert time.monotonic() < deadline
    assert 2 <= https.reads <= 2 + (time.monotonic() - begun) / 0.5, "not once for each unknown key"
    with pytest.raises(gantrymq.BrokerError, match="key is not known"):
        send(broker, provider.token())
    https.document, seen = "", https.reads
    while https.reads == seen:  # the provider fails, and the broker continues with the keys that it has
        with pytest.raises(gantrymq.BrokerError, match="key is not known"):
            send(broker, provider.token())
        assert time.monotonic() < deadline + 10
    send(broker, later.token())


def test_a_key_set_of_a_server_that_another_authority_signed_refuses_the_start(plugin_broker, https):
    settings = {"keys": https.address, "issuer": ISSUER, "audience": AUDIENCE}
    with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
        plugin_broker(OidcPlugin, settings={f"plugin.oidc.{name}": value for name, value in settings.items()})
    assert https.reads == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"audience": ""}, "plugin.oidc.audience is missing"),
        ({"algorithms": "HS256"}, "only algorithms with public keys"),
        ({"keys": "http://id.example/keys"}, "a file or from https://"),
        ({"keys": "nothing-here.json"}, "nothing-here.json"),
    ],
)
def test_settings_that_are_not_safe_refuse_the_start(plugin_broker, provider, tmp_path, settings, reason):
    keys = tmp_path / "jwks.json"
    keys.write_text(provider.key_set())
    given = {"keys": str(keys), "issuer": ISSUER, "audience": AUDIENCE} | settings
    with pytest.raises(Exception, match=reason):
        plugin_broker(OidcPlugin, settings={f"plugin.oidc.{name}": value for name, value in given.items()})
