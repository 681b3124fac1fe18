"""The account file: RocketMQ's own is read unchanged, and errors are reported without secrets."""

from __future__ import annotations

import re

import pytest

from gantrymq.plugins.acl.accounts import ANY, PUB, SENDS, SUB, Accounts, check_permissions

DISTRIBUTED = b"""\
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
"""``conf/plain_acl.yml`` of RocketMQ 4.9.7."""


def test_the_file_that_rocketmq_comes_with_is_read_as_it_is() -> None:
    accounts = Accounts.parse(DISTRIBUTED)
    assert accounts.addresses.matches("10.10.103.7")
    assert not accounts.addresses.matches("10.10.104.7")
    user, admin = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
    assert user.secret == b"12345678"
    assert [user.allows(f"topic{letter}", PUB) for letter in "ABCD"] == [False, True, False, False]
    assert [user.allows(f"topic{letter}", SUB) for letter in "ABCD"] == [False, True, True, False]
    assert [user.allows(f"topic{letter}", ANY) for letter in "ABCD"] == [False, True, True, False]
    assert [user.allows(f"%RETRY%group{letter}", SUB) for letter in "ABCD"] == [False, True, True, True]
    assert user.allows("", SENDS)
    assert (user.admin, admin.admin) == (False, True)
    assert admin.allows("anything", PUB)
    assert admin.addresses.matches("192.168.1.1")


def test_an_admin_with_permissions_of_its_own_has_no_others() -> None:
    account = Accounts.parse(
        b"accounts: [{accessKey: adminadmin, secretKey: secretsecret, admin: true, topicPerms: [a=SUB]}]"
    )
    assert account.by_key["adminadmin"].allows("a", SUB)
    assert not account.by_key["adminadmin"].allows("b", SUB)


def test_nothing_is_allowed_by_default() -> None:
    account = Accounts.parse(b"accounts: [{accessKey: nobody1, secretKey: secret1}]").by_key["nobody1"]
    assert not any(account.allows(name, right) for name in ("T", "%RETRY%g") for right in (PUB, SUB, ANY, SENDS))
    assert not account.addresses.matches("127.0.0.1")


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n", "globalWhiteRemoteAddresses: []\n"])
def test_a_file_without_accounts_has_none(text: str) -> None:
    assert Accounts.parse(text.encode()).by_key == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts: {", "line 2: it is not YAML"),
        ("accounts:\n- {accessKey: userone, secretKey: 'hush-hush, admin: true}\n", "it is not YAML"),
        ("just a text", "it is not a mapping"),
        ("accounts: {a: hush-hush}", "accounts is not a list"),
        ("accounts: [hush-hush]", "account 1 is not a mapping"),
        ("accounts: [{accessKey: short, secretKey: hush-hush}]", "accessKey=short .* longer than 6"),
        ("accounts: [{accessKey: userone, secretKey: short1}]", "secretKey=\\*\\*\\* cannot be null"),
        ("accounts: [{accessKey: userone}]", "cannot be null"),
        ("accounts: [{accessKey: userone, secretKey: 1.5}]", "secretKey must be a text: put it in quotes"),
        ("accounts: [{accessKey: userone, secretKey: hush-hush, admin: maybe}]", "admin must be true or false"),
        ("accounts: [{accessKey: userone, secretKey: hush-hush, topicPerms: [a]}]", "failed for topic:a"),
        ("accounts: [{accessKey: userone, secretKey: hush-hush, groupPerms: a=SUB}]", "groupPerms is not a list"),
        ("accounts: [{accessKey: userone, secretKey: hush-hush, whiteRemoteAddress: 1.2.3}]", "is not an address"),
        ("globalWhiteRemoteAddresses: [1.2.3.x]", "is not an address"),
        ("!!python/object/apply:os.system [hush-hush]", "it is not YAML"),
        ("dataVersion: [{counter: x}]", "dataVersion must have"),
        ("accounts: [{accessKey: userone, secretKey: hush-hush, admin: !!bool hush-hush}]", "it is not YAML"),
        ("accounts: !!timestamp hush-hush", "it is not YAML"),
        ("accounts: !!int ''", "it is not YAML"),
        (f"accounts: !!float {'1:' * 200}1.5", "it is not YAML"),
    ],
)
def test_errors_in_the_account_file_show_no_secret(text: str, reason: str) -> None:
    try:
        Accounts.parse(text.encode())
        found = ""
    except ValueError as error:
        found = str(error)
    assert re.search(reason, found), found
    assert "hush" not in found
    assert "short1" not in found


def test_a_file_beyond_the_limit_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="1048576 are the limit"):
        Accounts.parse(b"#" * (1024 * 1024 + 1))


def test_secrets_are_not_part_of_what_is_printed() -> None:
    accounts = Accounts.parse(b"accounts: [{accessKey: userone, secretKey: hush-hush}]")
    assert "hush" not in repr(accounts)


def test_permissions_of_administrators_must_be_known() -> None:
    check_permissions(["a=PUB", "b=DENY", "c= SUB|PUB "])
    with pytest.raises(ValueError, match="The expected permissions are"):
        check_permissions(["a=WRITE"])
    with pytest.raises(ValueError, match="The expected resource format is 'Res=Perm'"):
        check_permissions(["a"])


@pytest.mark.parametrize("subjects", ["['']", "[' ']", "[~]"])
def test_an_empty_subject_is_refused_because_connections_without_certificates_have_none(subjects: str) -> None:
    with pytest.raises(ValueError, match="account 'worker-key': a subject is empty"):
        Accounts.parse(f"accounts: [{{accessKey: worker-key, secretKey: secretsecret, subjects: {subjects}}}]".encode())
