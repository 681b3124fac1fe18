"""Requests of administrators about accounts: 50 to 54, those of mqadmin ``updateAclConfig`` and its family.

Source: RocketMQ 4.9.7 ``AdminBrokerProcessor``, ``PlainPermissionManager``. Secret keys are never part of a response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gantrymq.kernel.processors import Handler, Request
from gantrymq.plugins.acl.account_file import AccountFile
from gantrymq.plugins.acl.accounts import check_permissions, flag_of, list_of, read_account, text_of, texts_of
from gantrymq.plugins.acl.addresses import parse_rule
from gantrymq.remoting import fastjson
from gantrymq.remoting.bodies.access import AccountConfig, AclConfigBody
from gantrymq.remoting.codes import RequestCode, ResponseCode
from gantrymq.remoting.command import Command
from gantrymq.remoting.errors import RemoteFault
from gantrymq.remoting.headers.access import (
    AclVersionResponse,
    DeleteAccountHeader,
    UpdateAccountHeader,
    UpdateAddressesHeader,
)

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker


class AccountRequests:
    """Handlers of the five codes. ``is_super`` says whether a super user, or an admin account, sent a request."""

    def __init__(self, broker: Broker, file: AccountFile, is_super: Callable[[Request], bool]) -> None:
        self._broker = broker
        self._file = file
        self._is_super = is_super

    def processors(self) -> dict[int, Handler]:
        """Request code to handler."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.update_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.config,
        }

    async def update(self, request: Request) -> Command:
        """50: create an account, or change what the header has of it."""
        header = request.header(UpdateAccountHeader)
        given = _entry_of(header)

        def change(document: dict[str, Any]) -> None:
            for key in ("topicPerms", "groupPerms"):
                check_permissions(given.get(key, []))
            accounts = list_of(document, "accounts")
            at = next((row for row, each in enumerate(accounts) if _key_of(each) == header.access_key), len(accounts))
            entry = {**(accounts[at] if at < len(accounts) else {}), **given}
            read_account(entry, "the account")
            # the first entry of a key counts: none of the others may remain, of which one could come into force
            others = [each for each in accounts[at + 1 :] if _key_of(each) != header.access_key]
            document["accounts"] = [*accounts[:at], entry, *others]

        return await self._change(request, change, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)

    async def delete(self, request: Request) -> Command:
        """51: delete an account."""
        access_key = request.header(DeleteAccountHeader).access_key

        def change(document: dict[str, Any]) -> None:
            accounts = list_of(document, "accounts")
            kept = [each for each in accounts if _key_of(each) != access_key]
            # another broker of a unit may have deleted it from the file already, and it is still in force here
            if len(kept) == len(accounts) and access_key not in self._file.accounts.by_key:
                raise ValueError(f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed.")
            document["accounts"] = kept

        return await self._change(request, change, ResponseCode.DELETE_ACL_CONFIG_FAILED)

    async def update_addresses(self, request: Request) -> Command:
        """53: replace the addresses that need no key. Only the broker's own file can be named."""
        header = request.header(UpdateAddressesHeader)

        def change(document: dict[str, Any]) -> None:
            if header.acl_file_full_path not in (None, "", self._file.path):
                raise ValueError(
                    f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed: the file of this"
                    f" broker is {self._file.path}"
                )
            addresses = [each.strip() for each in header.global_white_addrs.split(",") if each.strip()]
            for address in addresses:
                parse_rule(address)
            document["globalWhiteRemoteAddresses"] = addresses

        return await self._change(request, change, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED)

    def version(self, request: Request) -> Command:
        """52: the data version of the file."""
        broker, version = self._broker, self._file.accounts.version
        response = AclVersionResponse(
            version=version.to_bytes().decode(),
            all_acl_file_version=fastjson.dumps({self._file.path: version}).decode(),
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
        )
        return request.command.answer(ResponseCode.SUCCESS, None, response.to_ext())

    def config(self, request: Request) -> Command:
        """54: all accounts without their secret keys, and the addresses that need no key."""
        document = self._file.accounts.document
        body = AclConfigBody(
            global_white_addrs=texts_of(document, "globalWhiteRemoteAddresses", "the file"),
            plain_access_configs=[_shown(each) for each in list_of(document, "accounts")],
        )
        return request.command.answer(ResponseCode.SUCCESS, body=body.to_bytes())

    async def _change(self, request: Request, change: Any, failed: int) -> Command:
        if not self._is_super(request):
            # accounts and addresses have no policies: with them, a user could give itself the rights of a super user
            raise RemoteFault(ResponseCode.NO_PERMISSION, "accounts can only be changed by a super user")
        try:
            await self._file.change(change, self._broker.env.wall_ms())
        except (ValueError, OSError) as error:
            raise RemoteFault(failed, str(error)) from None
        return request.command.answer(ResponseCode.SUCCESS)


def _key_of(entry: dict[str, Any]) -> str | None:
    return text_of(entry, "accessKey", "an account")


def _entry_of(header: UpdateAccountHeader) -> dict[str, Any]:
    """The keys of an account in the file that the request gives."""
    entry: dict[str, Any] = {"accessKey": header.access_key}
    if header.secret_key:
        entry["secretKey"] = header.secret_key
    if header.white_remote_address is not None:
        entry["whiteRemoteAddress"] = header.white_remote_address
    entry["admin"] = header.admin
    if header.default_topic_perm:
        entry["defaultTopicPerm"] = header.default_topic_perm
    if header.default_group_perm:
        entry["defaultGroupPerm"] = header.default_group_perm
    if header.topic_perms is not None:
        entry["topicPerms"] = [each for each in header.topic_perms.split(",") if each]
    if header.group_perms is not None:
        entry["groupPerms"] = [each for each in header.group_perms.split(",") if each]
    return entry


def _shown(entry: dict[str, Any]) -> AccountConfig:
    where = "an account"
    return AccountConfig(
        access_key=text_of(entry, "accessKey", where) or "",
        white_remote_address=text_of(entry, "whiteRemoteAddress", where),
        admin=flag_of(entry, "admin", where),
        default_topic_perm=text_of(entry, "defaultTopicPerm", where),
        default_group_perm=text_of(entry, "defaultGroupPerm", where),
        topic_perms=texts_of(entry, "topicPerms", where) or None,
        group_perms=texts_of(entry, "groupPerms", where) or None,
    )
