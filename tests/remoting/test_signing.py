"""Signatures of requests: a published vector, covered fields, and hidden secrets."""

from __future__ import annotations

import pytest

from gantrymq.remoting.command import VERSION, Command
from gantrymq.remoting.signing import Credentials, make_signature

JEFE = "7/zfauXrL6LSdBbV8YTfnCWafHk="
"""RFC 2202, HMAC-SHA1, test case 2: key "Jefe", data "what do ya want for nothing?"."""


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({"b": "for nothing?", "a": "what do ya want "}, b""),
        ({"b": "do ya ", "a": "what ", "Signature": "of before"}, b"want for nothing?"),
        ({}, b"what do ya want for nothing?"),
    ],
)
def test_signatures_cover_values_in_the_order_of_their_names_and_the_body(ext: dict[str, str], body: bytes) -> None:
    assert make_signature(ext, body, "Jefe") == JEFE


def test_a_large_body_is_signed_as_a_small_one_is() -> None:
    body = bytes(1_000_000)
    assert make_signature({"a": "grün"}, body, "s") == make_signature({}, "grün".encode() + body, "s")


def test_a_signed_request_has_three_more_fields() -> None:
    request = Command(10, {"topic": "T"}, b"body", opaque=7, flag=2, remark="why")
    signed = Credentials("me", "secret", "token").sign(request)
    assert request.ext == {"topic": "T"}
    expected = {"topic": "T", "AccessKey": "me", "SecurityToken": "token"}
    expected["Signature"] = make_signature(expected, b"body", "secret")
    assert signed == Command(10, expected, b"body", opaque=7, flag=2, remark="why")
    assert Credentials("me", "secret").sign(Command(34)).ext.keys() == {"AccessKey", "Signature"}


def test_the_field_of_unique_key_queries_is_sent_unsigned_as_an_old_version() -> None:
    query = {"topic": "T", "key": "k"}
    marked = Credentials("me", "secret").sign(Command(12, {**query, "_UNIQUE_KEY_QUERY": "true"}))
    plain = Credentials("me", "secret").sign(Command(12, query))
    assert marked.ext == {**(plain.ext or {}), "_UNIQUE_KEY_QUERY": "true"}
    assert (marked.version, plain.version) == (399, VERSION)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("me", None, None), "secret_key is missing"),
        ((None, "secret", None), "access_key is missing"),
        (("me", "", None), "secret_key is missing"),
        ((None, None, "token"), "access_key is missing"),
        (("me", b"secret", None), "secret_key must be a str, not bytes"),
    ],
)
def test_half_of_the_credentials_is_an_error_that_shows_no_secret(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Credentials.checked(*given)
    assert "'secret'" not in str(caught.value)


def test_empty_credentials_mean_no_credentials() -> None:
    assert Credentials.checked(None, None, None) is None
    assert Credentials.checked("me", "s", "") == Credentials("me", "s")


def test_secrets_are_not_shown() -> None:
    shown = repr(Credentials("me", "secret", "token"))
    assert "'me'" in shown
    assert "secret'" not in shown
    assert "token'" not in shown
