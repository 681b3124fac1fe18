"""The kernel's inner loops, compiled ones included, know requests, rows and records, and no request of a plugin.

What a feature leaves behind is looked for by its substance: codes of requests, names of their header fields and of
message properties, and identifiers that name a feature.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gantrymq.remoting.codes import RequestCode
from gantrymq.remoting.headers.table import REQUESTS

pytestmark = pytest.mark.once  # it reads the source

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path for path in sorted((ROOT / "kernel" / "fast").iterdir())
    if path.suffix in (".py", ".pyi", ".pyx", ".pxi", ".pxd")
]  # fmt: skip

FEATURES = {
    "consumer", "delay", "delayed", "half", "halves", "producer", "pull", "pulled", "pulls", "retry", "send", "sends",
    "slave", "slaves", "suggest", "suggested", "transaction", "transactions",
}  # fmt: skip
"""Words of identifiers. What a connection is asked for (``connection.send``) is none, and a sender is whoever rows come
from."""
FRAME_KEYS = {"code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"}
"""The keys in the header of every frame."""
PROPERTY = re.compile(r"(WAIT|TRAN_MSG|PGROUP|REAL_TOPIC|REAL_QID|DELAY|TIMER_\w+|CLUSTER|UNIQ_KEY|KEYS|RETRY_TOPIC)\b")
"""A message's properties; TAGS is what entries of consume queues store a hash of."""
LEAST_CODE = 100
"""Smaller numbers are sizes and offsets as well."""

_DOCSTRINGS = re.compile(r'"""(?:.|\n)*?"""')
_STRINGS = re.compile(r"""[bc]?("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""")
_COMMENTS = re.compile(r"#[^\n]*")
_NAMES = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NUMBERS = re.compile(r"(?<![.\w])\d+(?![.\w])")


def field_names() -> set[str]:
    """Names of header fields of requests, on the wire and in Python; single letters do not count."""
    kinds = [kind for one in REQUESTS.values() for kind in (one.header, one.response) if kind is not None]
    names = {name for kind in kinds for name in (*kind.__struct_fields__, *kind.__struct_encode_fields__)}
    return {name for name in names if len(name) > 1} - FRAME_KEYS


def features_in(text: str) -> set[str]:
    """The traces of features in a source."""
    text = _DOCSTRINGS.sub(" ", text)
    strings = [found[1][1:-1] for found in _STRINGS.finditer(text)]
    code = _COMMENTS.sub(" ", _STRINGS.sub(" ", text))
    names = _NAMES.findall(code)
    found = {name for name in names if {word.lower() for word in _WORDS.findall(name)} & FEATURES}
    found |= {name for name in names if name == "RequestCode" or name in RequestCode.__members__}
    found |= {number for number in _NUMBERS.findall(code) if int(number) >= LEAST_CODE and int(number) in CODES}
    found |= {one for one in strings if one in FIELDS or PROPERTY.match(one)}
    return found


CODES = {int(code) for code in RequestCode}
FIELDS = field_names()


def test_the_names_of_the_check_are_those_of_the_headers() -> None:
    assert {"consumerGroup", "queueOffset", "commitOrRollback"} <= FIELDS
    assert not FIELDS & FRAME_KEYS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_compiled_kernel_code_contains_no_feature_code(path: Path) -> None:
    assert features_in(path.read_text()) == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cdef enum:\n    SEND_V2 = 310", {"SEND_V2", "310"}),
        ("from gantrymq.remoting.codes import RequestCode", {"RequestCode"}),
        ("cdef class PullRequest(HotRequest):\n    cdef int x", {"PullRequest"}),
        ("cdef SendRequest read_send(Field* fields): pass", {"SendRequest", "read_send"}),
        ('if is_word(at, size, b"consumerGroup", 13): return 7', {"consumerGroup"}),
        (r'if memcmp(at, b"WAIT\x01", 5) == 0: pass', {r"WAIT\x01"}),
        ("def add_sends(batch): pass", {"add_sends"}),
        ("connection.send_bytes(data)  # what a pull sends", set()),
        ('def senders_of(batch):\n    """Who sends, by pull."""', set()),
    ],
)
def test_the_check_finds_feature_code(text: str, found: set[str]) -> None:
    assert features_in(text) == found
