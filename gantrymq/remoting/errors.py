"""What can go wrong on the wire, by whose fault it is and how far it reaches.

Two ranks of the peer's fault: :class:`RemoteFault` is answered with a response code and the connection lives on;
:class:`FatalRemoteFault` cannot be answered (the stream can no longer be trusted) and closes that connection only.
Any other exception is ours.
"""

from __future__ import annotations


class RemoteFault(Exception):
    """The peer asked for something it cannot have: answered with ``code`` and ``remark``."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"[{code}] {remark}")
        self.code = int(code)
        self.remark = remark


class FatalRemoteFault(Exception):
    """The peer's bytes cannot be followed any further: the connection is closed, nobody else is harmed."""
