"""Schema registries: who wrote a body by which schema, asked over HTTP."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping, Set
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import attrs

from gantrymq.remoting.tls import FollowedContext
from gantrymq.spark.errors import RegistryFailed, WrongOption
from gantrymq.spark.schemas.bodies import UnreadableBody
from gantrymq.spark.schemas.extras import import_extra

if TYPE_CHECKING:
    import urllib3

MAX_RESPONSE_BYTES = 4 << 20
"""The most bytes of a registry's answer."""
MAX_REFERENCES = 100
"""The most schemas that one schema refers to, directly or not."""
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_UNKNOWN = frozenset({404})
_NO_DESCRIPTOR = frozenset({*range(400, 500), 500} - {401, 403, 408, 425, 429})
"""The statuses of registries that do not return descriptors: 500 is Apicurio's."""
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 5.0
_PIECE = 65536


@attrs.frozen
class FoundSchema:
    """A schema of a registry. ``kind`` is AVRO, PROTOBUF or JSON; ``references`` has the texts of those that it needs.

    ``id`` is None where the answer has none.
    """

    text: str
    kind: str = "AVRO"
    references: tuple[str, ...] = ()
    id: int | None = None


class UnknownSchema(Exception):
    """The registry has no such schema or subject; the text is its own."""


class SchemaRegistry(Protocol):
    """What the functions need of a registry. It is pickled and sent to the Python workers."""

    def split(self, body: bytes) -> tuple[int, int]:
        """The schema's id in the header of ``body``, and where what was written by the schema begins.

        Raises :class:`UnreadableBody`.
        """

    def header(self, schema_id: int) -> bytes:
        """The header of a body that was written by schema ``schema_id``."""

    def by_id(self, schema_id: int) -> FoundSchema:
        """The schema. Raises :class:`UnknownSchema`, :class:`RegistryFailed`."""

    def descriptor(self, schema_id: int, found: FoundSchema) -> bytes | None:
        """The serialized FileDescriptorProto of Protobuf schema ``schema_id``, which ``found`` is.

        None if the registry does not return descriptors. Raises :class:`RegistryFailed`.
        """

    def latest(self, subject: str) -> FoundSchema:
        """The newest schema of ``subject``, with its id. Raises :class:`UnknownSchema`, :class:`RegistryFailed`."""

    def find(self, subject: str, schema: FoundSchema) -> int:
        """The id of ``schema`` in ``subject``. Raises :class:`UnknownSchema`, :class:`RegistryFailed`."""

    def register(self, subject: str, schema: FoundSchema) -> int:
        """The id of ``schema``, which is added to ``subject`` unless it is there. Raises :class:`RegistryFailed`."""


def _positive(instance: Any, attribute: Any, value: float) -> None:
    if not value > 0:
        raise WrongOption(f"{attribute.name} of a schema registry is a positive number of seconds, not {value!r}")


@attrs.frozen(kw_only=True)
class Connection:
    """How to ask an HTTP server for JSON: several addresses, credentials, patience and limits.

    A request waits ``timeout`` seconds for its whole answer. One that fails for a reason that may pass is repeated
    with growing pauses for ``retry_seconds``. Redirects are refused, because credentials would go where they lead.
    """

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout: float = attrs.field(default=10.0, validator=_positive)
    retry_seconds: float = 30.0

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, unknown: Set[int] = _UNKNOWN
    ) -> Any:
        """The JSON of the answer. Raises :class:`UnknownSchema` for a status in ``unknown``, else
        :class:`RegistryFailed`."""
        until, pause = time.monotonic() + self.retry_seconds, _FIRST_PAUSE
        while True:
            failures = []
            for url in self.urls:
                try:
                    return self._once(method, f"{url}{path}", body, unknown)
                except _Temporary as error:
                    failures.append(str(error))
            if time.monotonic() + pause > until:
                raise RegistryFailed("; ".join(failures))
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _once(self, method: str, url: str, body: Mapping[str, Any] | None, unknown: Set[int]) -> Any:
        urllib3 = import_extra("urllib3")
        until = time.monotonic() + self.timeout
        data = bytearray()
        pool = _pool(self)
        try:
            answer = pool.request(
                method, url, body=None if body is None else json.dumps(body), redirect=False, preload_content=False
            )
            try:
                for piece in answer.stream(_PIECE, decode_content=False):
                    data += piece
                    if len(data) > MAX_RESPONSE_BYTES:
                        raise RegistryFailed(f"{url} answers with more than {MAX_RESPONSE_BYTES:,} bytes")
                    if time.monotonic() > until:
                        raise _Temporary(f"{url} did not finish its answer within {self.timeout:g} s")
            finally:
                answer.close()
                pool.clear()  # a worker asks seldom, and nobody closes its connections later
        except urllib3.exceptions.NewConnectionError as error:  # a kind of timeout in this library
            raise _Temporary(f"{url} cannot be reached: {error}") from None
        except urllib3.exceptions.TimeoutError:
            raise _Temporary(f"{url} did not answer within {self.timeout:g} s") from None
        except urllib3.exceptions.LocationValueError as error:
            raise RegistryFailed(f"{url} is not an address: {error}") from None
        except urllib3.exceptions.HTTPError as error:
            raise _Temporary(f"{url} cannot be reached: {error}") from None
        return self._read(answer, url, bytes(data), unknown)

    def _read(self, answer: urllib3.BaseHTTPResponse, url: str, data: bytes, unknown: Set[int]) -> Any:
        status = answer.status
        if 300 <= status < 400:
            where = answer.headers.get("location", "nowhere")
            raise RegistryFailed(f"{url} redirects to {where!r}, which is not followed: give that address instead")
        if status in unknown:
            raise UnknownSchema(f"{url} answers with status {status}{_message(data)}")
        if status in _TEMPORARY:
            raise _Temporary(f"{url} answers with status {status}{_message(data)}")
        if status in (401, 403):
            raise RegistryFailed(f"{url} answers with status {status}{_message(data)}: check user, password and token")
        if status != 200:
            raise RegistryFailed(f"{url} answers with status {status}{_message(data)}")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise RegistryFailed(f"{url} answers with a compressed body, which was not asked for")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise RegistryFailed(f"{url} answers with {data[:60]!r}, which is not the JSON of a registry") from None


class _Temporary(Exception):
    """An answer that may be another one a moment later."""


def _message(data: bytes) -> str:
    try:
        found = json.loads(data)
        return f" ({str(found['message'])[:200]})"
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""


@lru_cache(maxsize=16)
def _followed_context(connection: Connection) -> FollowedContext:
    """The settings of TLS for the many requests of a worker."""
    files = filter(None, (connection.ca_file, connection.cert_file, connection.key_file))
    return FollowedContext(partial(_make_context, connection), *files)


def _make_context(connection: Connection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=connection.ca_file)
        if connection.cert_file:
            # An encrypted key would ask for its password where nobody can answer.
            context.load_cert_chain(connection.cert_file, connection.key_file, password="")
    except OSError as error:
        files = [name for name in (connection.ca_file, connection.cert_file, connection.key_file) if name]
        names = " and ".join(map(repr, files))
        raise RegistryFailed(f"{names} of a schema registry cannot be read: {error.strerror or error}") from None
    return context


def _pool(connection: Connection) -> urllib3.PoolManager:
    library = import_extra("urllib3")
    headers = {
        "Accept": "application/vnd.schemaregistry.v1+json, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if connection.token is not None:
        headers["Authorization"] = f"Bearer {connection.token}"
    elif connection.user is not None:
        pair = base64.b64encode(f"{connection.user}:{connection.password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    context = _followed_context(connection)()
    pool: urllib3.PoolManager = library.PoolManager(
        headers=headers, ssl_context=context, timeout=connection.timeout, retries=False
    )
    return pool


def connect(url: str, **given: Any) -> Connection:
    """The connection to ``url``, which may be several separated by commas. Raises :class:`WrongOption`."""
    urls = tuple(each.strip().rstrip("/") for each in url.split(",") if each.strip())
    for each in urls:
        if not each.startswith(("http://", "https://")) or "@" in each.partition("://")[2].partition("/")[0]:
            raise WrongOption(
                f"the address of a schema registry is http://host:port or https://host:port, not {each!r}; user and "
                "password are arguments of their own"
            )
    if not urls:
        raise WrongOption("a schema registry needs an address, such as http://127.0.0.1:8081")
    if given.get("user") is not None and given.get("token") is not None:
        raise WrongOption("a schema registry takes user and password, or a token, not both")
    return Connection(urls=urls, **given)


def _text(answer: Any, key: str, what: str) -> str:
    found = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(found, str):
        raise RegistryFailed(f"{what} answers without a {key!r}")
    return found


def _number(answer: Any, key: str, what: str) -> int:
    found = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise RegistryFailed(f"{what} answers without a number {key!r}")
    return found


@attrs.frozen(init=False)
class Registry:
    """A registry with the REST API of Confluent's, which Apicurio (at ``/apis/ccompat/v7``) and Karapace have too.

    ``url`` may be several addresses, separated by commas. ``user`` and ``password``, or a bearer ``token``, go with
    each request; ``ca_file``, ``cert_file`` and ``key_file`` are PEM files for https, which every machine that runs
    Python workers must have. ``timeout`` and ``retry_seconds`` are in seconds.
    Bodies begin with a zero byte and the schema's id in four bytes, big-endian.
    """

    connection: Connection

    def __init__(
        self, url: str, *, user: str | None = None, password: str | None = None, token: str | None = None,
        ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None,
        timeout: float = 10.0, retry_seconds: float = 30.0,
    ) -> None:  # fmt: skip
        connection = connect(
            url, user=user, password=password, token=token, ca_file=ca_file, cert_file=cert_file, key_file=key_file,
            timeout=timeout, retry_seconds=retry_seconds,
        )  # fmt: skip
        self.__attrs_init__(connection=connection)

    def split(self, body: bytes) -> tuple[int, int]:
        """See :class:`SchemaRegistry`."""
        if len(body) < 5:
            raise UnreadableBody(f"the body of {len(body)} bytes is shorter than the header of a schema registry")
        if body[0] != 0:
            what = f"the body begins with byte {body[0]}, the header of a schema registry with 0"
            if body[0] == 1:
                what += " (a header with a GUID is not supported)"
            raise UnreadableBody(what)
        return int.from_bytes(body[1:5], "big"), 5

    def header(self, schema_id: int) -> bytes:
        """See :class:`SchemaRegistry`."""
        return b"\0" + schema_id.to_bytes(4, "big")

    def by_id(self, schema_id: int) -> FoundSchema:
        """See :class:`SchemaRegistry`."""
        return self._found(self.connection.ask("GET", f"/schemas/ids/{schema_id}"), f"schema {schema_id}")

    def descriptor(self, schema_id: int, found: FoundSchema) -> bytes | None:
        """See :class:`SchemaRegistry`."""
        # Some serializers register descriptors, and Apicurio then fails at the request below.
        if (data := _descriptor(found.text)) is not None:
            return data
        path = f"/schemas/ids/{schema_id}?format=serialized"
        try:
            answer = self.connection.ask("GET", path, unknown=_NO_DESCRIPTOR)
        except UnknownSchema:  # an addition to the API that not all registries have
            return None
        return _descriptor(_text(answer, "schema", f"schema {schema_id}"))

    def latest(self, subject: str) -> FoundSchema:
        """See :class:`SchemaRegistry`."""
        answer = self.connection.ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        found = self._found(answer, f"subject {subject!r}")
        return attrs.evolve(found, id=_number(answer, "id", f"subject {subject!r}"))

    def find(self, subject: str, schema: FoundSchema) -> int:
        """See :class:`SchemaRegistry`."""
        answer = self.connection.ask("POST", f"/subjects/{quote(subject, safe='')}", _request(schema))
        return _number(answer, "id", f"subject {subject!r}")

    def register(self, subject: str, schema: FoundSchema) -> int:
        """See :class:`SchemaRegistry`."""
        answer = self.connection.ask("POST", f"/subjects/{quote(subject, safe='')}/versions", _request(schema))
        return _number(answer, "id", f"subject {subject!r}")

    def _found(self, answer: Any, what: str) -> FoundSchema:
        text = _text(answer, "schema", what)
        kind = answer.get("schemaType") or "AVRO"
        texts: dict[tuple[str, int], str] = {}
        self._collect(answer.get("references") or [], what, texts)
        return FoundSchema(text, str(kind), tuple(texts.values()))

    def _collect(self, references: Any, what: str, texts: dict[tuple[str, int], str], depth: int = 0) -> None:
        """Add the schemas of ``references`` to ``texts``, each after those that it needs itself."""
        if not isinstance(references, list) or depth > MAX_REFERENCES:
            raise RegistryFailed(f"{what} has references that cannot be read")
        for reference in references:
            subject, version = _text(reference, "subject", what), _number(reference, "version", what)
            if (subject, version) in texts:
                continue
            if len(texts) >= MAX_REFERENCES:
                raise RegistryFailed(f"{what} refers to more than {MAX_REFERENCES} schemas")
            answer = self.connection.ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
            text = _text(answer, "schema", what)
            self._collect(answer.get("references") or [], what, texts, depth + 1)
            texts.setdefault((subject, version), text)


def _descriptor(text: str) -> bytes | None:
    protobuf = import_extra("google.protobuf.descriptor_pb2")
    errors = import_extra("google.protobuf.message")
    try:
        data = base64.b64decode(text, validate=True)
        return data if protobuf.FileDescriptorProto.FromString(data).message_type else None
    except (ValueError, errors.DecodeError):
        return None


def _request(schema: FoundSchema) -> dict[str, Any]:
    return {"schema": schema.text} if schema.kind == "AVRO" else {"schema": schema.text, "schemaType": schema.kind}
