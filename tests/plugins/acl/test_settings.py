"""The configuration of access control: RocketMQ's switch, and keys for the broker's own requests."""

from __future__ import annotations

import gc
import json
import re
import secrets
from pathlib import Path

import pytest
import trio

from gantrymq.cli.loading import ConfigFlags, load
from gantrymq.kernel.broker import Broker
from gantrymq.kernel.config.broker_conf import translate, write_keys
from gantrymq.kernel.config.declarations import plugin_sections
from gantrymq.kernel.config.sources import read_settings
from gantrymq.kernel.env.system import SystemEnv
from gantrymq.kernel.errors import StartError
from gantrymq.nameserver import NameServer, NameServerConfig
from gantrymq.plugins import optional_plugins
from gantrymq.plugins.acl.accounts import Accounts
from gantrymq.plugins.acl.config import AclConfig
from gantrymq.plugins.interfaces import Registration
from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.javaproperties import write_properties
from gantrymq.remoting.signing import make_signature
from gantrymq.testing.harness import make_broker, run_broker
from support.accounts import ACCOUNTS, ACL, ADMIN, MakeBroker
from support.certificates import FOLDER


@pytest.mark.parametrize(
    ("properties", "file"),
    [
        ({"aclEnable": "true"}, "conf/plain_acl.yml"),
        ({"aclEnable": " TRUE ", "rocketmqHome": "/opt/rocketmq"}, "/opt/rocketmq/conf/plain_acl.yml"),
    ],
)
def test_rocketmqs_switch_enables_it(properties: dict[str, str], file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    values = read_settings("broker.conf", write_properties(properties), optional=optional_plugins).values
    assert values["plugins", "enable"].value == "acl"
    assert values["plugin.acl", "file"].value == file


@pytest.mark.trio
@pytest.mark.parametrize("name", ["more.yml", "more.yaml", "team/more.yml"])
async def test_rocketmqs_folder_of_further_account_files_refuses_the_start(tmp_path: Path, name: str) -> None:
    """RocketMQ 4.9.7 reads them too: without them, addresses and accounts would be missing silently."""
    folder = tmp_path / "conf" / "acl"
    (folder / name).parent.mkdir(parents=True)
    (folder / "README").touch()
    write(tmp_path / "conf" / "plain_acl.yml", ACCOUNTS)
    properties = {"aclEnable": "true", "rocketmqHome": str(tmp_path)}
    found = translate(properties, plugin_sections(optional_plugins())).settings["plugin.acl", "file"]

    def make() -> Broker:
        return make_broker(tmp_path / "store", settings={"plugin.acl.file": found}, enable=[ACL])

    async with run_broker(make()):
        pass
    write(folder / name, ACCOUNTS)
    with pytest.raises(ExceptionGroup) as failed:
        async with run_broker(make()):
            pytest.fail("it serves")
    reason = rf"{re.escape(str(folder / name))} is not read: merge its accounts and addresses into .*plain_acl\.yml"
    assert failed.group_contains(StartError, match=reason)


def test_the_file_is_found_below_the_home_of_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", "/srv/rocketmq")
    found = translate({"aclEnable": "true"}, plugin_sections(optional_plugins()))
    assert found.settings == {("plugin.acl", "file"): "/srv/rocketmq/conf/plain_acl.yml"}


def test_the_switch_turned_off_enables_nothing() -> None:
    found = translate({"aclEnable": "false"}, plugin_sections(optional_plugins()))
    assert (found.settings, found.unmapped) == ({}, ())
    assert write_keys({"plugin.acl": AclConfig()}) == {"aclEnable": "true"}


def test_the_switches_of_rocketmq_5_enable_users() -> None:
    sections = plugin_sections(optional_plugins())
    found = translate({"authenticationEnabled": "true", "storePathRootDir": "/store"}, sections).settings
    users = {("plugin.acl", "users"): "/store/config/users.json", ("plugin.acl", "authorization"): "false"}
    assert {key: text for key, text in found.items() if key[0] == "plugin.acl"} == users
    both = {"authenticationEnabled": "true", "authorizationEnabled": "true", "authConfigPath": "/auth"}
    assert translate(both, sections).settings == {
        ("plugin.acl", "users"): "/auth/users.json", ("plugin.acl", "authorization"): "true",
    }  # fmt: skip
    assert translate({"authenticationEnabled": "false"}, sections).settings == {}
    shown = write_keys({"plugin.acl": AclConfig(users="/auth/users.json", authorization=False)})
    assert shown == {
        "aclEnable": "true",
        "authenticationEnabled": "true",
        "authorizationEnabled": "false",
        "authConfigPath": "/auth",
    }


INNER = json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key})


def test_rocketmq_5s_first_user_and_the_keys_of_the_broker_are_read_where_they_are_used() -> None:
    sections = plugin_sections(optional_plugins())
    secrets = {"initAuthenticationUser": '{"username":"u","password":"p"}',
               "innerClientAuthenticationCredentials": INNER}  # fmt: skip
    found = translate({"authenticationEnabled": "true", **secrets}, sections).settings
    assert found["plugin.acl", "first_user"] == secrets["initAuthenticationUser"]
    assert found["plugin.acl", "inner_credentials"] == INNER
    with_accounts = {"aclEnable": "true", "innerClientAuthenticationCredentials": INNER}
    assert translate(with_accounts, sections).settings["plugin.acl", "inner_credentials"] == INNER
    for key, value in secrets.items():
        unused = translate({key: value}, sections)
        assert (unused.settings, unused.unmapped) == ({}, (key,))
    assert translate(secrets, sections).unmapped == tuple(secrets)
    only_accounts = translate({"aclEnable": "true", **secrets}, sections)
    assert only_accounts.settings["plugin.acl", "inner_credentials"] == INNER
    assert only_accounts.unmapped == ("initAuthenticationUser",)
    shown = write_keys({"plugin.acl": AclConfig(users="/u.json", first_user="hush", inner_credentials="hush")})
    assert "hush" not in str(shown)


@pytest.mark.trio
@pytest.mark.parametrize("setting", ["keys", "inner_credentials"])
async def test_the_broker_signs_its_own_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    write(tmp_path / "plain_acl.yml", ACCOUNTS)
    write(tmp_path / "tools.yml", f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    server = NameServer(NameServerConfig(port=0))
    seen: list[Command] = []
    answer = server.requests.answer

    async def spy(request: Command, connection: object) -> Command:
        seen.append(request)
        return await answer(request, connection)

    monkeypatch.setattr(server.requests, "answer", spy)
    own = f"{tmp_path}/tools.yml" if setting == "keys" else INNER
    settings = {"plugin.acl.file": f"{tmp_path}/plain_acl.yml", f"plugin.acl.{setting}": own}
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        broker = make_broker(tmp_path / "store", [server.address], settings=settings, enable=[ACL])
        async with run_broker(broker):
            await broker.registry.get(Registration).wait_first(20.0)
        nursery.cancel_scope.cancel()
    assert {request.code for request in seen} >= {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
    for request in seen:
        ext = dict(request.ext or {})
        assert ext["AccessKey"] == ADMIN.access_key
        assert ext.pop("Signature") == make_signature(ext, request.body, ADMIN.secret_key)


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "cannot be read: No such file"), ("accessKey: only-this", "accessKey and secretKey are expected"),
     ("{hush-hush", "it is not YAML")],
)  # fmt: skip
async def test_keys_that_cannot_be_used_refuse_the_start(
    guarded: MakeBroker, tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        write(tmp_path / "tools.yml", text)
    with pytest.raises(ExceptionGroup) as failed:
        async with run_broker(guarded(plugin__acl__keys=f"{tmp_path}/tools.yml")):
            pytest.fail("it serves")
    assert failed.group_contains(StartError, match=reason)
    assert "hush" not in str(failed.value.exceptions)


NOWHERE = "127.0.0.1:1"
MARK = "-".join(("marked", "secret"))
"""Joined at run time, so that no constant of this module is found."""


def secrets_in_memory() -> set[str]:
    """The secrets of :func:`write_conf` in texts and bytes that some object of this process refers to."""
    pattern = re.compile(rf"{MARK}-(\w+)-[0-9a-f]{{16}}")
    found: set[str] = set()
    containers, seen = gc.get_objects(), set[int]()
    while containers:
        for each in gc.get_referents(containers.pop()):
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, bytes | bytearray):
                found |= set(pattern.findall(each.decode("latin-1")))
            elif isinstance(each, str):
                found |= set(pattern.findall(each))
            elif not gc.is_tracked(each):
                containers.append(each)
    return found


def write_conf(folder: Path) -> ConfigFlags:
    """A ``broker.conf`` with a first user, whom ``users.json`` has with another password, and inner credentials; an
    account of RocketMQ 4; and a certificate, whose private key has a secret in a line that OpenSSL skips."""

    def secret(name: str) -> str:
        return f"{MARK}-{name}-{secrets.token_hex(8)}"

    (folder / "auth").mkdir()
    users = {"users": {"root": {"password": secret("user"), "userType": "Super"}}}
    (folder / "auth" / "users.json").write_text(json.dumps(users))
    (folder / "plain_acl.yml").write_text(f"accounts: [{{accessKey: the-account, secretKey: {secret('account')}}}]\n")
    properties = {
        "authenticationEnabled": "true", "authConfigPath": str(folder / "auth"),
        "initAuthenticationUser": json.dumps({"username": "root", "password": secret("first")}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "root", "secretKey": secret("inner")}),
    }  # fmt: skip
    (folder / "broker.conf").write_bytes(write_properties(properties))
    (folder / "key.pem").write_text(f"{secret('key')}\n{(FOLDER / 'server.pem').read_text()}")
    sets = [f"plugin.acl.file={folder}/plain_acl.yml", "plugin.http.listen=", f"broker.nameservers={NOWHERE}",
            f"plugin.tls.certificate={FOLDER}/server.pem", f"plugin.tls.key={folder}/key.pem"]  # fmt: skip
    return ConfigFlags(
        config=str(folder / "broker.conf"), data=str(folder / "data"), listen="127.0.0.1:0", enable=["tls"], sets=sets,
    )  # fmt: skip


@pytest.mark.trio
async def test_secrets_stay_in_memory_only_if_signatures_need_them(tmp_path: Path) -> None:
    """The keys of users and accounts and the broker's own: HMAC needs them. The first user's is not used: one of this
    name exists. OpenSSL has the private key of the certificate, and no object of Python."""
    loaded = load(write_conf(tmp_path))
    assert secrets_in_memory() == {"first", "inner"}
    async with run_broker(Broker(loaded.config, loaded.manager, SystemEnv())) as broker:
        gc.collect()
        assert secrets_in_memory() == {"inner", "user", "account"}
        section = broker.config.section(AclConfig)
        assert (section.first_user, section.inner_credentials) == ("", "")
        shown = {row.key: row.value for row in broker.config.explain() if row.section == "plugin.acl"}
        assert (shown["first_user"], shown["inner_credentials"]) == ("(hidden)", "(hidden)")
        accounts = next(each for each in gc.get_objects() if isinstance(each, Accounts) and each.by_key)
        assert "secretKey" not in accounts.document["accounts"][0]
