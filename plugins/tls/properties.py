"""RocketMQ's ``tls.properties``: its keys beside the settings of ``[plugin.tls]``.

Source: RocketMQ 5.3.3 ``TlsSystemConfig``, ``TlsHelper``. There, ``tls.server.mode`` is a property of the JVM, clients'
certificates are not verified unless ``tls.server.authClient`` is true, and without ``tls.test.mode.enable=false`` the
server makes a certificate of its own and ignores the files. Here the test mode must be set, and a demanded certificate
is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gantrymq.remoting.javaproperties import read_properties
from gantrymq.remoting.tls import ServerTls, TlsUnusable

FILE_MAX_BYTES: Final = 64 * 1024
_MODES: Final = ("disabled", "permissive", "enforcing")
_CLIENT_CERTIFICATES: Final = {"": "none", "none": "none", "optional": "optional", "require": "required"}
_FILES: Final = {
    "certificate": "tls.server.certPath",
    "key": "tls.server.keyPath",
    "ca": "tls.server.trustCertPath",
}


def read_tls(values: Mapping[str, Any], read: Callable[[str], bytes]) -> tuple[str, ServerTls]:
    """The mode and the files of ``[plugin.tls]``, whose fields are ``values``; the keys of ``properties`` replace them.

    :class:`TlsUnusable` names the key, and never the password; OSError of ``read``.
    """
    path = values["properties"]
    given = {name: values[name] for name in ("certificate", "key", "ca", "client_certificates", "names", "test_mode")}
    if not path:
        return values["mode"], ServerTls(**given)
    data = read(path)
    if len(data) > FILE_MAX_BYTES:
        raise TlsUnusable(f"{path!r} has {len(data)} bytes, {FILE_MAX_BYTES} are the limit")
    try:
        found = read_properties(data)
    except ValueError:
        raise TlsUnusable(f"{path!r} is not a properties file") from None
    if "tls.test.mode.enable" in found:
        given["test_mode"] = found["tls.test.mode.enable"].strip().lower() == "true"
    mode = _mode(found, values["mode"], path)
    if given["test_mode"]:
        if found.get("tls.server.need.client.auth", "").strip().lower() not in ("", "none", "optional"):
            raise TlsUnusable(
                f"{path!r}: tls.server.need.client.auth: the test mode verifies no certificate: remove one of the two"
            )
        return mode, ServerTls(**given)  # RocketMQ ignores the files too
    given |= {name: found[key].strip() for name, key in _FILES.items() if key in found}
    if "tls.server.need.client.auth" in found:
        given["client_certificates"] = _client_certificates(found, given["ca"], path)
    return mode, ServerTls(**given, password=found.get("tls.server.keyPassword", ""))


def _mode(found: Mapping[str, str], default: str, path: str) -> str:
    mode = found.get("tls.server.mode", default).strip().lower()
    if mode not in _MODES:
        raise TlsUnusable(f"{path!r}: tls.server.mode = {mode!r}: one of {', '.join(_MODES)} is expected")
    return mode


def _client_certificates(found: Mapping[str, str], ca: str, path: str) -> str:
    text = found["tls.server.need.client.auth"].strip().lower()
    if text not in _CLIENT_CERTIFICATES:
        expected = ", ".join(name for name in _CLIENT_CERTIFICATES if name)
        raise TlsUnusable(f"{path!r}: tls.server.need.client.auth = {text!r}: one of {expected} is expected")
    if text == "require" and not ca:
        raise TlsUnusable(
            f"{path!r}: tls.server.need.client.auth = require needs tls.server.trustCertPath: GantryMQ verifies"
            " clients' certificates, also without tls.server.authClient"
        )
    return _CLIENT_CERTIFICATES[text] if ca else "none"
