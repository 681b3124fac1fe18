"""A broker with accounts of ``plain_acl.yml``, for tests of access control."""

from __future__ import annotations

from typing import Final, Protocol

from gantrymq.kernel.broker import Broker
from gantrymq.remoting.signing import Credentials

ADMIN: Final = Credentials("the-admin", "admin-secret")
WORKER: Final = Credentials("the-worker", "worker-secret")
NOBODY: Final = Credentials("the-nobody", "nobody-secret")
ACCOUNTS: Final = """\
accounts:
- {accessKey: the-admin, secretKey: admin-secret, admin: true}
- accessKey: the-worker
  secretKey: worker-secret
  defaultTopicPerm: DENY
  topicPerms: [T=PUB|SUB, sent=PUB, read=SUB]
  groupPerms: [g=SUB]
- {accessKey: the-nobody, secretKey: nobody-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY}
"""
ACL: Final = "gantrymq.plugins.acl:AclPlugin"


class MakeBroker(Protocol):
    """Makes a broker whose file of accounts has this text."""

    def __call__(self, text: str = ACCOUNTS, **settings: str) -> Broker: ...
