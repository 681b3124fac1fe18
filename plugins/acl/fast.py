"""The inner loop of access control. ``KIND`` names the twin in use, ``compiled`` or ``plain``, as in ``kernel/fast``,
whose compiled requests the compiled twin reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.kernel import fast

if TYPE_CHECKING:
    from gantrymq.plugins.acl import plain as twin
else:
    twin = fast.twin_of(__package__)

KIND = twin.KIND
SignedRequests = twin.SignedRequests
SigningKey = twin.SigningKey

__all__ = ["KIND", "SignedRequests", "SigningKey"]
