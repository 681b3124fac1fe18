"""Requests of administrators about users and policies: 3001 to 3010, those of mqadmin ``createUser`` and its family.

Source: RocketMQ 5.3.3 ``AdminBrokerProcessor``, ``AuthenticationMetadataManagerImpl``,
``AuthorizationMetadataManagerImpl``: the same codes and texts. Passwords are never part of a response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gantrymq.kernel.processors import Handler, Request
from gantrymq.plugins.acl.user_file import UserFile
from gantrymq.plugins.acl.users import (
    CUSTOM,
    DEFAULT,
    SUBJECT_PREFIX,
    SUPER,
    UserDocument,
    by_name,
    check_policies,
    merge,
    read_resource,
    shown,
    spelled,
    subject_name,
    without,
)
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.access import AclInfo, PolicyInfo, UserInfo
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.access import (
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    SubjectHeader,
    UserHeader,
)

if TYPE_CHECKING:
    from gantrymq.kernel.processors import Processor


class UserRequests:
    """Handlers of the ten codes. ``is_super`` says whether a super user, or an admin account, sent a request;
    ``has_account`` whether an account of RocketMQ 4 has this access key."""

    def __init__(self, file: UserFile, is_super: Callable[[Request], bool], has_account: Callable[[str], bool]) -> None:
        self._file = file
        self._is_super = is_super
        self._has_account = has_account

    def processors(self) -> dict[int, Processor]:
        """Request code to handler."""
        handlers: dict[int, Handler] = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.get_user,
            RequestCode.AUTH_LIST_USER: self.list_users,
            RequestCode.AUTH_CREATE_ACL: self.set_acl,
            RequestCode.AUTH_UPDATE_ACL: self.set_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.get_acl,
            RequestCode.AUTH_LIST_ACL: self.list_acls,
        }
        return dict(handlers)

    async def create_user(self, request: Request) -> Command:
        """3001."""
        name, given = request.header(UserHeader).username, UserInfo.from_request(request.body)
        self._check_super(request, given, "create")
        # the broker would check the account's requests with the password of this user
        if self._has_account(name) and not self._is_super(request):
            raise RemoteFault(
                ResponseCode.SYSTEM_ERROR, "A user with the name of an account can only be created by super user"
            )

        def change(document: UserDocument) -> None:
            if name in document.users:
                raise ValueError("The user is existed")
            document.users[name] = UserInfo(name, given.password, given.user_type, given.user_status)

        return await self._change(request, change)

    async def update_user(self, request: Request) -> Command:
        """3002: change what the body has."""
        name, given = request.header(UserHeader).username, UserInfo.from_request(request.body)
        self._check_super(request, given, "update")
        self._check_super(request, self._file.user(name), "update")

        def change(document: UserDocument) -> None:
            old = document.users.get(name)
            if old is None:
                raise ValueError("The user is not exist")
            document.users[name] = UserInfo(
                name, given.password or old.password, given.user_type or old.user_type,
                given.user_status or old.user_status,
            )  # fmt: skip

        return await self._change(request, change)

    async def delete_user(self, request: Request) -> Command:
        """3003: delete a user with its policies; one that does not exist is not an error."""
        name = request.header(UserHeader).username
        self._check_super(request, self._file.user(name), "update")

        def change(document: UserDocument) -> None:
            document.users.pop(name, None)
            document.acls.pop(SUBJECT_PREFIX + name, None)

        return await self._change(request, change)

    def get_user(self, request: Request) -> Command:
        """3004: no body if there is none."""
        user = self._file.user(request.header(UserHeader).username)
        return request.command.answer(ResponseCode.SUCCESS, body=b"" if user is None else shown(user).to_bytes())

    def list_users(self, request: Request) -> Command:
        """3005."""
        users = by_name(self._file.document.users, request.header(ListUsersHeader).filter)
        return request.command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(users) if users else b"")

    async def set_acl(self, request: Request) -> Command:
        """3006 and 3007: the entries of the body replace those of the same policy and resource."""
        name = _user_in(request.header(SubjectHeader).subject)
        given = AclInfo.from_request(request.body)
        subject = SUBJECT_PREFIX + name

        def change(document: UserDocument) -> None:
            if name not in document.users:
                raise ValueError(f"The subject of {subject} is not exist.")
            policies = given.policies or []
            check_policies(policies)
            document.acls[subject] = merge(document.acls.get(subject), subject, policies)

        return await self._change(request, change)

    async def delete_acl(self, request: Request) -> Command:
        """3008."""
        header = request.header(DeleteAclHeader)
        subject = SUBJECT_PREFIX + _user_in(header.subject)

        def change(document: UserDocument) -> None:
            acl = document.acls.get(subject)
            if acl is None:
                raise ValueError("The acl is not exist.")
            if header.resource:
                policy_type = spelled(header.policy_type or CUSTOM, (CUSTOM, DEFAULT), "policyType")
                document.acls[subject] = without(acl, policy_type, read_resource(header.resource))
            else:
                del document.acls[subject]

        return await self._change(request, change)

    def get_acl(self, request: Request) -> Command:
        """3009."""
        name = _user_in(request.header(SubjectHeader).subject)
        if self._file.user(name) is None:
            raise RemoteFault(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        acl = self._file.acl(name)
        return request.command.answer(ResponseCode.SUCCESS, body=b"" if acl is None else acl.to_bytes())

    def list_acls(self, request: Request) -> Command:
        """3010."""
        header = request.header(ListAclsHeader)
        wanted = header.resource_filter or ""
        found = []
        for subject, acl in sorted(self._file.document.acls.items()):
            if (header.subject_filter or "") in subject:
                policies = [
                    PolicyInfo(policy.policy_type, [row for row in policy.entries or () if wanted in str(row.resource)])
                    for policy in acl.policies or ()
                ]
                kept = [policy for policy in policies if policy.entries]
                found += [AclInfo(subject, kept)] if kept else []
        return request.command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(found) if found else b"")

    def _check_super(self, request: Request, user: UserInfo | None, what: str) -> None:
        if user is not None and (user.user_type or "").lower() == SUPER.lower() and not self._is_super(request):
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"The super user can only be {what} by super user")

    async def _change(self, request: Request, change: Callable[[UserDocument], None]) -> Command:
        try:
            await self._file.change(change)
        except ValueError as error:
            raise RemoteFault(ResponseCode.NO_PERMISSION, str(error)) from None
        except OSError as error:
            raise RemoteFault(ResponseCode.SYSTEM_ERROR, f"the users cannot be written: {error}") from None
        return request.command.answer(ResponseCode.SUCCESS)


def _user_in(subject: str) -> str:
    try:
        return subject_name(subject)
    except ValueError as error:
        raise RemoteFault(ResponseCode.NO_PERMISSION, str(error)) from None
