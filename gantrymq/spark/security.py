"""Access keys, TLS and namespaces of the data source's connections, with the meaning that they have in the client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gantrymq.client.connect_options import ConnectOptions
from gantrymq.remoting.command import Command
from gantrymq.remoting.tls import UNVERIFIED, FollowedContext, client_context
from gantrymq.spark.errors import WrongOption

SECURITY_OPTIONS = (
    "accessKey", "secretKey", "securityToken", "namespace", "namespaceV2", "tls", "tlsCaFile", "tlsCertFile",
    "tlsKeyFile",
)  # fmt: skip


@attrs.frozen
class Security:
    """Plain values, so that they pickle. ``tls_ca_file`` has the authorities to trust instead of the system's.

    ``tls_cert_file`` has the certificate that the connections show, and its key unless ``tls_key_file`` has it.
    """

    access_key: str | None = attrs.field(default=None, repr=False)
    secret_key: str | None = attrs.field(default=None, repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)
    namespace: str | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    namespace_v2: str | None = None
    tls_is_verified: bool = True
    """Whether TLS checks the certificates of servers."""

    def as_arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``gantrymq.connect``. Raises :class:`WrongOption` for an unreadable file."""
        return self._names_and_keys() | {"tls": self.context() or False}

    def context(self) -> ssl.SSLContext | None:
        """The TLS context, None without TLS. Raises :class:`WrongOption` for an unreadable file."""
        return self._make_context() if self.tls else None

    def followed_context(self) -> FollowedContext | None:
        """As :meth:`context`, for connections that are made again after the files have changed."""
        files = filter(None, (self.tls_ca_file, self.tls_cert_file, self.tls_key_file))
        return FollowedContext(self._make_context, *files) if self.tls else None

    def _make_context(self) -> ssl.SSLContext:
        try:
            context = client_context(self.tls_ca_file or "", verify=self.tls_is_verified)
        except OSError as error:
            raise WrongOption(f"tlsCaFile {self.tls_ca_file!r} cannot be read: {error.strerror or error}") from None
        if self.tls_cert_file is not None:
            try:
                # An encrypted key would ask for its password where nobody can answer.
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file, password="")
            except OSError as error:
                files = " and ".join(repr(name) for name in (self.tls_cert_file, self.tls_key_file) if name)
                what = f"tlsCertFile: no certificate with a key without password can be read from {files}"
                raise WrongOption(f"{what}: {error.strerror or error}") from None
        return context

    def outgoing(self) -> Callable[[Command], Command] | None:
        """What each request goes through before it leaves, if anything. Raises :class:`WrongOption`."""
        return self._checked().outgoing

    def group(self, name: str) -> str:
        """The name of a group as brokers know it. Raises :class:`WrongOption` if it is too long with the namespace."""
        namespace = self._checked().namespace
        try:
            return name if namespace is None else namespace.group(name)
        except ValueError as error:
            raise WrongOption(str(error)) from None

    def _names_and_keys(self) -> dict[str, Any]:
        return {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "security_token": self.security_token,
            "namespace": self.namespace,
            "namespace_v2": self.namespace_v2,
        }

    def _checked(self) -> ConnectOptions:
        try:
            return ConnectOptions.checked(
                "127.0.0.1:9876", unit_name=None, tls=False, environment={}, **self._names_and_keys()
            )
        except ValueError as error:
            raise WrongOption(str(error)) from None


NO_SECURITY = Security()
"""Plain connections, unsigned requests, no namespace."""


def read_security(values: Mapping[str, str]) -> Security:
    """The security options in ``values``, by their names. Raises :class:`WrongOption`."""
    tls = values.get("tls", "false").lower()
    if tls not in ("true", "false", UNVERIFIED):
        raise WrongOption(f"tls is true, false or {UNVERIFIED}, not {tls!r}")
    for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        if name in values and tls == "false":
            raise WrongOption(f"{name} is for tls=true only")
    if "tlsCaFile" in values and tls == UNVERIFIED:
        raise WrongOption(f"tls={UNVERIFIED} verifies nothing: leave out tlsCaFile")
    if "tlsKeyFile" in values and "tlsCertFile" not in values:
        raise WrongOption("tlsKeyFile needs tlsCertFile, whose key it has")
    security = Security(
        values.get("accessKey"), values.get("secretKey"), values.get("securityToken"), values.get("namespace"),
        tls != "false", values.get("tlsCaFile"), values.get("tlsCertFile"), values.get("tlsKeyFile"),
        values.get("namespaceV2"), tls != UNVERIFIED,
    )  # fmt: skip
    security.outgoing()
    security.context()
    return security
