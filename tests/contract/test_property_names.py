"""The name of a message's property is spelled once, in ``gantrymq/remoting/properties.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.remoting import properties, property_bytes

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
HOME = "gantrymq/remoting/properties.py"
CONSTANTS = {name: value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str)}
NAMES = {value for name, value in CONSTANTS.items() if name == value} | properties.RESERVED
SEPARATORS = re.compile(r"[\x01\x02]")
SOMETHING_ELSE = {
    ("gantrymq/cli/topics.py", "CLUSTER"): "how the help calls a value",
    ("gantrymq/failover/etcd.py", "TTL"): "a field of etcd's answers",
    ("plugins/topics/attributes.py", "DELAY"): "a kind of topic",
}
COMPILED = re.compile(r'b"([A-Z][A-Z_]+)(?:\\x01[a-z]*)?"')


def literals_of(path: Path) -> Iterator[str]:
    """The pieces of the strings of a module, without docstrings."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in prose:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from SEPARATORS.split(text)


def is_beside_compiled_loops(path: Path) -> bool:
    """A plain twin spells names as its compiled loop does, which cannot import them."""
    return any(path.parent.glob("*.pyx")) and (path.name.startswith("plain") or path.parent.name == "fast")


@pytest.mark.slow
def test_a_property_is_spelled_in_one_module() -> None:
    found = set()
    for folder in ("kernel", "plugins", "gantrymq"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(part.is_symlink() for part in path.parents) and not is_beside_compiled_loops(path):
                place = path.relative_to(ROOT).as_posix()
                found |= {(place, name) for name in NAMES & set(literals_of(path))}
    elsewhere = {spelled for spelled in found if spelled[0] != HOME and not spelled[0].startswith("gantrymq/testing/")}
    assert elsewhere == set(SOMETHING_ELSE)


def test_compiled_code_uses_only_defined_property_names() -> None:
    spelled = set()
    for folder in ("kernel", "plugins"):
        for suffix in ("pyx", "pxi", "pxd"):
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                spelled |= {match[1] for match in COMPILED.finditer(path.read_text())}
    assert {"WAIT", "TRAN_MSG", "UNIQ_KEY", "KEYS", "TAGS"} <= spelled
    assert spelled <= NAMES | {properties.TIMER_PREFIX}


def test_the_bytes_are_those_of_the_names() -> None:
    found = {name: value for name, value in vars(property_bytes).items() if name.isupper()}
    assert found == {name: CONSTANTS[name].encode() for name in found}
    assert len(found) > 20
