"""The file of the accounts: read at the start, watched, and changed by administrators.

If the file later becomes unreadable or invalid, the previous accounts remain in force.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.acl.accounts import Accounts, read_document, text_of, write_document
from gantrymq.plugins.acl.config import FILE
from gantrymq.remoting import fastjson
from gantrymq.remoting.signing import Credentials

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env

log = structlog.get_logger("gantrymq.acl")

EMPTY: Final = "the file is empty: write `accounts: []` for no accounts"
"""The error for an empty file, which an editor may be writing. Source: RocketMQ 4.9.7
``PlainPermissionManager.load``: "No data in {}, skip it"."""


class AccountFile:
    """The accounts in force, ``accounts``, and their file."""

    def __init__(self, env: Env, path: str, *, optional: bool = False) -> None:
        """Reads the file; :class:`StartError` says what is wrong with it. ``optional``: it need not exist."""
        self._env = env
        self.path = path
        self._turn = trio.Lock()
        is_missing = optional and not env.exists(path)
        try:
            _refuse_further_files(env, path)
            data = b"" if is_missing else env.read_bytes(path)
        except OSError as error:
            raise StartError(f"plugin.acl.file = {path!r}: cannot be read: {error.strerror or error}") from None
        try:
            self.accounts = Accounts.parse(data)
        except ValueError as error:
            raise StartError(f"plugin.acl.file = {path!r}: {error}") from None
        # A digest, because the file has secret keys; None if there is no file that can be read.
        self._seen: bytes | None = None if is_missing else sha256(data).digest()
        self.failed_reloads = 0

    async def watch(self, interval: float) -> None:
        """Put changes of the file in force until cancelled; looks every ``interval`` seconds."""
        while True:
            await trio.sleep(interval)
            async with self._turn:
                await self._reload()

    async def _reload(self) -> None:
        try:
            data = await trio.to_thread.run_sync(self._env.read_bytes, self.path)
        except OSError as error:
            if self._seen is not None:
                self._refuse(error.strerror or str(error))
            self._seen = None
            return
        digest = sha256(data).digest()
        if digest == self._seen:
            return
        self._seen = digest
        try:
            accounts = await trio.to_thread.run_sync(Accounts.parse, data)
            if not accounts.document:
                raise ValueError(EMPTY)
        except ValueError as error:
            self._refuse(str(error))
        else:
            self.accounts = accounts
            log.info("acl_file_loaded", path=self.path, accounts=len(self.accounts.by_key))

    def _refuse(self, reason: str) -> None:
        self.failed_reloads += 1
        log.error("acl_file_refused", path=self.path, reason=reason)

    async def change(self, change: Callable[[dict[str, Any]], None], now_ms: int) -> None:
        """Apply ``change`` to the file's document, write it with the next data version, and put it in force.

        ``ValueError`` (from ``change`` too, or if the result is not a valid file) or OSError: then nothing has changed.
        """
        async with self._turn:
            self._seen, self.accounts = await trio.to_thread.run_sync(partial(self._changed, change, now_ms))
        log.info("acl_file_changed", path=self.path, accounts=len(self.accounts.by_key))

    def _changed(self, change: Callable[[dict[str, Any]], None], now_ms: int) -> tuple[bytes, Accounts]:
        before = self._env.read_bytes(self.path) if self._env.exists(self.path) else b""
        document = read_document(before)
        if self.accounts.document and not document:
            raise ValueError("the file is empty or missing, and the accounts in force are not in it: write it again")
        version = Accounts.parse(before).version.next(now_ms)
        change(document)
        document["dataVersion"] = [{"counter": version.counter, "timestamp": version.timestamp}]
        data = write_document(document)
        accounts = Accounts.parse(data)
        folder = self.path.rpartition("/")[0]
        if folder:
            self._env.mkdirs(folder)
        self._env.replace(self.path, data)
        return sha256(data).digest(), accounts


def _refuse_further_files(env: Env, path: str) -> None:
    """:class:`StartError` if RocketMQ would read further files beside ``path``; OSError.

    Source: RocketMQ 4.9.7 ``PlainPermissionManager.getAllAclFiles``.
    """
    if path != FILE and not path.endswith(f"/{FILE}"):
        return
    folders = [f"{path.rpartition('/')[0]}/acl"]
    for folder in folders:  # their folders follow
        for name in env.listdir(folder) if env.is_dir(folder) else ():
            found = f"{folder}/{name}"
            if name.endswith((".yml", ".yaml")):
                raise StartError(
                    f"plugin.acl.file = {path!r}: {found} is not read: merge its accounts and addresses into {path} and"
                    f" move it away; RocketMQ reads every .yml and .yaml file below {folders[0]}"
                )
            if env.is_dir(found):
                folders.append(found)


def read_keys(env: Env, path: str) -> Credentials:
    """The keys in RocketMQ's ``tools.yml``; :class:`StartError` says what is wrong, without them."""
    try:
        entry = read_document(env.read_bytes(path))
        access_key, secret_key = (text_of(entry, name, "the file") for name in ("accessKey", "secretKey"))
    except OSError as error:
        raise StartError(f"plugin.acl.keys = {path!r}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise StartError(f"plugin.acl.keys = {path!r}: {error}") from None
    if not access_key or not secret_key:
        raise StartError(f"plugin.acl.keys = {path!r}: accessKey and secretKey are expected")
    return Credentials(access_key, secret_key)


def parse_credentials(setting: str, text: str) -> Credentials:
    """The keys in the JSON of RocketMQ 5's settings; :class:`StartError` names ``setting``, and shows nothing of it."""
    names = ("username", "password") if setting == "first_user" else ("accessKey", "secretKey")
    try:
        entry = fastjson.loads(text)
    except ValueError:
        entry = None
    values = entry if isinstance(entry, dict) else {}
    name, secret = (values.get(each) for each in names)
    if not (isinstance(name, str) and name.strip() and isinstance(secret, str) and secret.strip()):
        raise StartError(f"plugin.acl.{setting}: JSON with {names[0]} and {names[1]} is expected, both texts")
    token = values.get("securityToken")
    return Credentials(name, secret, token if isinstance(token, str) and token else None)
