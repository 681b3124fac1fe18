"""TLS of servers: certificates, the settings of connections, and the subject of a client's certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs

from gantrymq.remoting.handshakes import CountedHandshake
from gantrymq.remoting.logs import LibraryLog

HANDSHAKE_BYTE: Final = 0x16
"""The first byte of a TLS connection. A frame that begins with it would have 352 MiB, more than any limit allows."""
CIPHERS: Final = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:"
    "DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305"
)
"""Mozilla's intermediate configuration, for TLS 1.2; TLS 1.3 has its own."""
CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
IN_TEST_MODE: Final = "the certificate is made by the server itself, so clients cannot tell it from another server's"
"""What logs say about a server in test mode."""
VERIFIED: Final = "verified"
UNVERIFIED: Final = "unverified"
"""Whether a command or a load verifies the certificates of servers; ``unverified`` is for servers in test mode."""
_SHORT_NAMES: Final = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC",
}  # fmt: skip


_SPECIAL: Final = frozenset('"+,;<>\\')

log: LibraryLog = LibraryLog()


class TlsUnusable(ValueError):
    """The certificates or the key cannot be used; the text names the file and the reason."""


def _lower_names(names: Mapping[str, str]) -> Mapping[str, str]:
    return {name.lower(): certificate for name, certificate in names.items()}


@attrs.frozen
class ServerTls:
    """The files of a server, all PEM.

    ``key``: empty if it is in the certificate's file. ``ca``: the authorities of clients' certificates.
    ``client_certificates``: ``none``, ``optional`` or ``required``. ``password``: of an encrypted key.
    """

    certificate: str
    key: str = ""
    ca: str = ""
    client_certificates: str = "none"
    password: str = attrs.field(default="", repr=False)
    names: Mapping[str, str] = attrs.field(factory=dict, converter=_lower_names)
    """Further certificates with their keys, by the server's name for which a client asks (SNI), in lower case."""
    test_mode: bool = False
    """Whether the server makes its certificate itself, and accepts every certificate of other servers; then there are
    no files."""

    def make_context(self) -> ssl.SSLContext:
        """The settings of new connections: TLS 1.2 or 1.3; :class:`TlsUnusable`."""
        context = self._make_context(self.certificate, self.key)
        others = {name: self._make_context(certificate, "") for name, certificate in self.names.items()}

        def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = others.get((name or "").lower(), context)

        if others:
            context.sni_callback = choose
        return context

    def _make_context(self, certificate: str, key: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = CountedHandshake
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 1  # for TLS 1.3: a client has one connection to a broker, to resume after it ended
        if self.test_mode:
            self._load_test_certificate(context)
            return context
        if not certificate:
            raise TlsUnusable("no certificate is configured")
        try:
            context.load_cert_chain(certificate, key or None, password=self._password)
        except (OSError, ValueError) as error:
            raise TlsUnusable(f"{certificate!r} with the key {key!r}: {_reason(error)}") from None
        if self.client_certificates != "none":
            if not self.ca:
                raise TlsUnusable("clients' certificates need the authority that signs them (ca)")
            try:
                context.load_verify_locations(self.ca)
            except (OSError, ValueError) as error:
                raise TlsUnusable(f"{self.ca!r}: {_reason(error)}") from None
            context.verify_mode = CLIENT_CERTIFICATES[self.client_certificates]
        return context

    def _load_test_certificate(self, context: ssl.SSLContext) -> None:
        if self.certificate or self.key or self.ca or self.names or self.client_certificates != "none":
            raise TlsUnusable(
                "the test mode makes a certificate and verifies none: remove the settings of certificates, or the mode"
            )
        try:
            from gantrymq.remoting.self_signed import load_self_signed

            load_self_signed(context)
        except ImportError as error:
            raise TlsUnusable(f"test mode: {error}; install it with `pip install 'gantrymq[tls]'`") from None

    def make_client_context(self) -> ssl.SSLContext:
        """The settings of this server's own connections to others: it shows its certificate, and trusts certificates
        for servers of ``ca``, or without one the same certificate as its own. Names are not checked, as in RocketMQ:
        servers are reached by address. In test mode it shows none and trusts all. :class:`TlsUnusable`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        if self.test_mode:
            context.verify_mode = ssl.CERT_NONE
            return context
        if not self.certificate:
            raise TlsUnusable("no certificate is configured")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.ca or self.certificate)
            context.load_cert_chain(self.certificate, self.key or None, password=self._password)
        except (OSError, ValueError) as error:
            raise TlsUnusable(f"{self.ca or self.certificate!r}: {_reason(error)}") from None
        return context

    def _password(self) -> str:
        if not self.password:
            raise ValueError("the key is encrypted: decrypt it, and let only the server's user read it")
        return self.password

    def fingerprint(self) -> tuple[bytes, ...]:
        """The digests of the files; OSError. If one changes, a new context is due."""
        paths = (self.certificate, self.key, self.ca, *self.names.values())
        return tuple(sha256(Path(path).read_bytes()).digest() for path in paths if path)  # keys are in the files


class FileChanges:
    """Whether the files of a :class:`ServerTls` have changed since they were put in force. A load that fails is due
    until it succeeds."""

    def __init__(self, files: ServerTls) -> None:
        """The files as they are now are in force; OSError."""
        self.files = files
        self._in_force = self._found = files.fingerprint()
        self._refused: tuple[tuple[bytes, ...], str] | None = None

    def is_load_due(self) -> bool:
        """Whether the files are others than those in force; OSError."""
        self._found = ()
        self._found = self.files.fingerprint()
        if self._found == self._in_force:
            self._refused = None
        return self._found != self._in_force

    def loaded(self) -> None:
        """The files are in force, as :meth:`is_load_due` has found them."""
        self._in_force, self._refused = self._found, None

    def refused(self, reason: str) -> bool:
        """The files cannot be used; return whether that is new: other files, or another reason, than the last time."""
        before, self._refused = self._refused, (self._found, reason)
        return before != self._refused


def client_context(authority: str = "", *, verify: bool = True) -> ssl.SSLContext:
    """The settings of a client's connections. ``authority``: a file with the certificate of the servers' authority,
    PEM; empty: the system's authorities. OSError if it cannot be used. Without ``verify`` every certificate is
    accepted."""
    if verify:
        return ssl.create_default_context(cafile=authority or None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class FollowedContext:
    """The settings of a client's connections, made of files. Call it for each new connection: it makes them again if
    a file has changed. While changed files cannot be used, the last settings stay in force."""

    def __init__(self, make: Callable[[], ssl.SSLContext], *paths: str) -> None:
        """``make`` reads the files at ``paths``. Raises its errors."""
        self._make = make
        self._paths = paths
        self._in_force = self._identify()
        self._refused = self._in_force
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        """The settings for one new connection."""
        found = self._identify()
        if found != self._in_force:
            try:
                self._context = self._make()
                self._in_force = self._refused = found
            except Exception as error:  # that of ``make``
                if found != self._refused:
                    self._refused = found
                    log.warning("client_tls_files_refused", files=", ".join(self._paths), reason=_reason(error))
        return self._context

    def _identify(self) -> list[tuple[int, ...] | None]:
        """What differs in each file after a change, also after a replacement of the same size and time."""
        return [_identity(path) for path in self._paths]


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def subject_of(certificate: dict[str, Any] | None) -> str | None:
    """The subject of a certificate of :meth:`ssl.SSLObject.getpeercert`, such as ``CN=worker,O=Example``.

    Source: RFC 4514. Without its escapes, the name ``worker,O=Example`` would be equal to the name ``worker`` of the
    organization ``Example``.
    """
    names: Iterable[Any] = () if certificate is None else certificate.get("subject", ())
    parts = ["+".join(f"{_SHORT_NAMES.get(key, key)}={_escaped(value)}" for key, value in row) for row in names]
    return ",".join(reversed(parts)) or None


def _escaped(value: str) -> str:
    """``value`` as RFC 4514 writes it in a name."""
    text = "".join("\\00" if each == "\0" else f"\\{each}" if each in _SPECIAL else each for each in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(value) > 1 else text


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM file with a certificate and its key").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
