"""Access control with RocketMQ 4's accounts (``plain_acl.yml``) and RocketMQ 5's users, who sign their requests.

Slot: access_control; not in the default set: ``--enable acl``, with the extra ``gantrymq[acl]``, or ``aclEnable`` in
RocketMQ's ``broker.conf``.
Hooks: authorize, collect_metrics, config_section, configure, register_processors, register_tasks.
Config ``[plugin.acl]``: ``file``, ``users``, ``authorization``, ``interval``, ``keys``,
``first_user``, ``inner_credentials``, ``codes``.
Files: that of the accounts, which requests 50, 51 and 53 change, that of the users, which 3001 to 3010 change, and that
of ``keys``, which it reads.
Replaces RocketMQ's ``PlainAccessValidator`` and ``PlainPermissionManager``: codes 50 to 54;
and RocketMQ 5's ``AuthenticationMetadataManager`` and ``AuthorizationMetadataManager``: codes 3001 to 3010.

``accounts`` reads the file and ``addresses`` its patterns, ``account_file`` watches and changes it, ``checks`` decides
about a request (``fast`` about many that are signed), ``resources`` says which topics and groups it names,
``explain`` what ``gantrymq acl`` prints, ``users``, ``user_file``, ``user_admin`` and ``policies`` are about the users
of RocketMQ 5. ``docs/howto/secure.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import structlog

from gantrymq.kernel import hookimpl
from gantrymq.kernel.config.fields import forget_secrets
from gantrymq.kernel.errors import StartError
from gantrymq.kernel.tasks import BackgroundTask
from gantrymq.plugins.acl.account_file import AccountFile, parse_credentials, read_keys
from gantrymq.plugins.acl.admin import AccountRequests
from gantrymq.plugins.acl.checks import Checks, Denied
from gantrymq.plugins.acl.config import AclConfig
from gantrymq.plugins.acl.policies import Policies
from gantrymq.plugins.acl.user_admin import UserRequests
from gantrymq.plugins.acl.user_file import UserFile
from gantrymq.remoting.channel import OUTGOING
from gantrymq.remoting.codes import ResponseCode
from gantrymq.remoting.rare_warnings import RareWarnings
from gantrymq.remoting.rights import BROKER_RIGHTS, Right

if TYPE_CHECKING:
    from gantrymq.kernel.api import Broker
    from gantrymq.kernel.config.sections import Config
    from gantrymq.kernel.metrics import Metrics
    from gantrymq.kernel.processors import Processor, Request, RequestBatch
    from gantrymq.remoting.signing import Credentials

log = structlog.get_logger("gantrymq.acl")

EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
"""How the text of every refusal begins, as that of RocketMQ's brokers; clients know it by this."""
NAMED_RIGHTS = ("admin", "send", "read", "topic", "consume", "group")
"""The rights that ``plugin.acl.codes`` can give to a request code."""


class AclPlugin:
    """One object a broker; it decides about all requests of a turn in one call."""

    name = "acl"
    slot = "access_control"
    _config: AclConfig  # these are set by configure
    _file: AccountFile
    _rights: dict[int, Right]
    _checks: Checks
    _warnings: RareWarnings
    _users: UserFile | None = None

    @hookimpl
    def config_section(self) -> tuple[str, type[Any]]:
        """``[plugin.acl]``."""
        return "acl", AclConfig

    @hookimpl
    def configure(self, broker: Broker, config: Config) -> None:
        """Read the accounts; the broker refuses to start if the file is unreadable or wrong."""
        try:
            import yaml  # noqa: F401 - the parser of the file
        except ImportError as error:
            raise StartError(f"plugin 'acl': {error}; install it with `pip install 'gantrymq[acl]'`") from None
        self._config = config.section(AclConfig)
        self._rights = {**_rights_of(self._config.codes), **BROKER_RIGHTS}
        self._file = AccountFile(broker.env, self._config.file, optional=bool(self._config.users))
        own = self._own_credentials(broker)
        if own is not None:
            OUTGOING.set(attrs.evolve(OUTGOING.get(), sign=own.sign))
        if self._config.users:
            first = [] if own is None else [own]
            if self._config.first_user:
                first.insert(0, parse_credentials("first_user", self._config.first_user))
            self._users = UserFile(broker.env, self._config.users, first)
        forget_secrets(self._config)
        policies = None if self._users is None else Policies(self._users, broker.cluster, self._config.authorization)
        self._checks = Checks(broker.store, broker.cluster, self._rights, lambda: self._file.accounts, policies)
        self._warnings = RareWarnings(broker.env.monotonic)

    def _own_credentials(self, broker: Broker) -> Credentials | None:
        if self._config.keys and self._config.inner_credentials:
            raise StartError("plugin.acl.keys and plugin.acl.inner_credentials are the same: set one of them")
        if self._config.inner_credentials:
            return parse_credentials("inner_credentials", self._config.inner_credentials)
        return read_keys(broker.env, self._config.keys) if self._config.keys else None

    @hookimpl
    def register_processors(self, broker: Broker) -> dict[int, Processor]:
        """50 to 54, and with users 3001 to 3010."""
        found: dict[int, Processor] = dict(AccountRequests(broker, self._file, self._checks.is_super).processors())
        if self._users is not None:
            found |= UserRequests(self._users, self._checks.is_super, self._has_account).processors()
        return found

    def _has_account(self, access_key: str) -> bool:
        return access_key in self._file.accounts.by_key

    @hookimpl
    def register_tasks(self, broker: Broker) -> list[BackgroundTask]:
        """The watcher of the file. All codes are registered: each must have a right."""
        without = [str(code) for code in broker.request_codes if code not in self._rights]
        if without:
            raise StartError(
                f"plugin 'acl': request codes {', '.join(without)} are served and no right is known for them; name it,"
                f' such as plugin.acl.codes = {{ {without[0]} = "admin" }} (or {", ".join(NAMED_RIGHTS[1:])})'
            )
        return [BackgroundTask("acl", self._watch)]

    async def _watch(self) -> None:
        await self._file.watch(self._config.interval)

    @hookimpl(tryfirst=True)
    def authorize(self, batch: RequestBatch) -> None:
        """Refuse requests that are not signed, and those for which the account has no right."""
        for row in self._checks.take_allowed(batch):
            request = batch.requests[row]
            try:
                access_key = self._checks.check(request)
            except Denied as denied:
                self._note(request, denied)
                if denied.is_of_user:
                    batch.refuse(row, ResponseCode.NO_PERMISSION, str(denied))
                else:
                    batch.refuse(row, ResponseCode.SYSTEM_ERROR, EXCEPTION + str(denied))
            else:
                if access_key is not None:
                    request.connection.identity = access_key

    def _note(self, request: Request, denied: Denied) -> None:
        self._checks.refused[denied.reason] += 1
        host = request.connection.peer[0]
        if self._warnings.is_due(f"{host} {denied.reason} {denied.access_key}"):
            log.warning(
                "request_denied", peer=host, access_key=denied.access_key, code=request.code, reason=str(denied)
            )

    @hookimpl
    def collect_metrics(self, broker: Broker, metrics: Metrics) -> None:
        """Accounts, refusals by reason, and files that could not be put in force."""
        users = 0 if self._users is None else len(self._users.document.users)
        metrics.gauge(
            "gantrymq_acl_accounts", "Accounts and users that are in force", len(self._file.accounts.by_key) + users
        )
        for reason, count in self._checks.refused.items():
            metrics.counter(
                "gantrymq_acl_refused_requests_total", "Requests that access control refused", count, reason=reason
            )
        metrics.counter(
            "gantrymq_acl_failed_reloads_total",
            "Changes of the file of accounts that could not be put in force",
            self._file.failed_reloads,
        )


def _rights_of(codes: dict[str, str]) -> dict[int, Right]:
    """``plugin.acl.codes``, typed."""
    found = {}
    for code, name in codes.items():
        if not (code.isascii() and code.isdigit()) or name not in NAMED_RIGHTS:
            raise StartError(
                f"plugin.acl.codes: {code} = {name!r}: a request code with one of {', '.join(NAMED_RIGHTS)} is expected"
            )
        found[int(code)] = Right[name.upper()]
    return found
