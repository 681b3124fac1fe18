"""The file of the users of RocketMQ 5: read at the start, changed by administrators' requests, never edited by hand.

Each change writes a new file and puts it in force; if it cannot be written, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gantrymq.kernel.errors import StartError
from gantrymq.plugins.acl.users import ENABLED, SUBJECT_PREFIX, SUPER, USERS_MAX, UserDocument, check_user
from gantrymq.remoting.bodies.access import AclInfo, UserInfo

if TYPE_CHECKING:
    from gantrymq.kernel.env import Env
    from gantrymq.remoting.signing import Credentials

log = structlog.get_logger("gantrymq.acl")

_NO_FILE: Final = b""


class UserFile:
    """The users in force, ``document``, and their file."""

    def __init__(self, env: Env, path: str, first: Sequence[Credentials]) -> None:
        """Reads the file, or creates it; ``first`` become super users if there are no users of these names.

        :class:`StartError` says what is wrong."""
        self._env = env
        self.path = path
        self._turn = trio.Lock()
        try:
            data = env.read_bytes(path) if env.exists(path) else _NO_FILE
            self.document = UserDocument.parse(data)
            missing = {each.access_key: each for each in first if each.access_key not in self.document.users}
            for name, each in missing.items():
                self.document.users[name] = UserInfo(name, each.secret_key, SUPER, ENABLED)
                check_user(name, self.document.users[name])
            if missing:
                folder = path.rpartition("/")[0]
                if folder:
                    env.mkdirs(folder)
                env.replace(path, self.document.encode())
        except OSError as error:
            raise StartError(f"plugin.acl.users = {path!r}: {error.strerror or error}") from None
        except ValueError as error:
            raise StartError(f"plugin.acl.users = {path!r}: {error}") from None
        if not any(user.user_type == SUPER for user in self.document.users.values()):
            raise StartError(
                f"plugin.acl.users = {path!r} has no super user: set plugin.acl.keys to a file with accessKey and"
                " secretKey of the first one, or plugin.acl.first_user"
            )

    def user(self, name: str) -> UserInfo | None:
        """The user of this name."""
        return self.document.users.get(name)

    def acl(self, name: str) -> AclInfo | None:
        """The policies of the user of this name."""
        return self.document.acls.get(SUBJECT_PREFIX + name)

    async def change(self, change: Callable[[UserDocument], None]) -> None:
        """Apply ``change`` to a copy of the document, write it, and put it in force. ``ValueError`` (from ``change``
        too, or if the result is not valid) or OSError: then nothing has changed."""
        async with self._turn:
            self.document = await trio.to_thread.run_sync(self._changed, change)
        log.info("acl_users_changed", path=self.path, users=len(self.document.users))

    def _changed(self, change: Callable[[UserDocument], None]) -> UserDocument:
        document = UserDocument.parse(self.document.encode())
        change(document)
        if len(document.users) > USERS_MAX:
            raise ValueError(f"at most {USERS_MAX} users are kept")
        if not any(user.user_type == SUPER and user.user_status == ENABLED for user in document.users.values()):
            raise ValueError("the last super user must stay, and stay enabled")
        data = document.encode()
        document = UserDocument.parse(data)
        self._env.replace(self.path, data)
        return document
