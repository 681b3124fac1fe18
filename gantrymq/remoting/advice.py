"""What errors advise about keys and TLS: the names of the settings differ between the client, commands and servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class Advice(NamedTuple):
    """Clauses of errors; each names a setting of the program that shows the error."""

    encrypt: str
    """For a peer that seems to speak TLS only."""
    do_not_encrypt: str
    """For a peer that does not speak TLS."""
    trust: str
    """For a certificate whose authority is not trusted."""
    accept_name: str
    """For a certificate that does not name the peer's address."""
    keys: str
    """For a request whose keys are not accepted."""


CLIENT: Final = Advice(
    encrypt="connect with tls=True",
    do_not_encrypt="connect without tls=",
    trust="tls= takes an ssl.SSLContext that trusts its authority",
    accept_name="tls= be an ssl.SSLContext whose check_hostname is False",
    keys="check access_key and secret_key",
)
COMMAND: Final = Advice(
    encrypt="set GANTRYMQ_TLS_CA (or GANTRYMQ_TLS=1), or name a context that has --tls-ca or --tls",
    do_not_encrypt="unset GANTRYMQ_TLS and GANTRYMQ_TLS_CA, or name a context without --tls and --tls-ca",
    trust="GANTRYMQ_TLS_CA, or --tls-ca of the context, must be a file with the certificate of its authority",
    accept_name="GANTRYMQ_TLS be `unverified`, which accepts every certificate",
    keys="check GANTRYMQ_ACCESS_KEY and GANTRYMQ_SECRET_KEY, or the keys of the context",
)
SERVER: Final = Advice(
    encrypt='set plugin.tls.outgoing = "tls"',
    do_not_encrypt='set plugin.tls.outgoing = "plain"',
    trust="plugin.tls.ca (of a nameserver --tls-ca) must have the certificate of its authority",
    accept_name="the name not be compared",
    keys="check plugin.acl.keys",
)
ADVICE: ContextVar[Advice] = ContextVar("gantrymq_advice", default=CLIENT)


@contextmanager
def use_advice(advice: Advice) -> Iterator[None]:
    """Let errors of this task, and of those that it starts, have this advice."""
    token = ADVICE.set(advice)
    try:
        yield
    finally:
        ADVICE.reset(token)
