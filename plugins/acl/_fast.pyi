from typing import Final

from gantrymq.plugins.acl.plain import SignedRequests as SignedRequests
from gantrymq.plugins.acl.plain import SigningKey as SigningKey

KIND: Final[str]
