"""A certificate that is its own authority, for RocketMQ's test mode of TLS.

Source: RocketMQ 5.3.3 ``TlsHelper``, which uses Netty's ``SelfSignedCertificate``.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from typing import Final

NAME: Final = "gantrymq-test-mode"
"""The subject, which says to whoever looks at it what the certificate is worth."""
DAYS: Final = 365


def load_self_signed(context: ssl.SSLContext) -> None:
    """Let ``context`` show a new certificate, whose key nobody else has; ImportError without ``cryptography``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the clocks of clients may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .sign(key, hashes.SHA256())
    )
    with tempfile.NamedTemporaryFile() as file:  # of mode 600; a context loads from files only
        pem = serialization.Encoding.PEM
        file.write(certificate.public_bytes(pem))
        file.write(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        file.flush()
        context.load_cert_chain(file.name)
