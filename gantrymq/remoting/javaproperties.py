"""Java properties, the form of RocketMQ's configuration files and of its requests about configuration.

The format: ``java.util.Properties.load`` (ISO 8859-1, ``\\uXXXX``, a backslash at the end continues a line).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE = re.compile(r"[0-9A-Fa-f]{4}")


def read_properties(data: bytes) -> dict[str, str]:
    """Keys and values of a Java properties file, the last of equal keys; ValueError for a broken ``\\u`` escape."""
    found: dict[str, str] = {}
    for line in _logical_lines(data.decode("latin-1")):
        end = 0
        while end < len(line) and line[end] not in "=: \t\f":
            end += 2 if line[end] == "\\" else 1
        value = line[end:].lstrip(" \t\f")
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(" \t\f")
        found[_unescape(line[:end])] = _unescape(value)
    return found


def write_properties(properties: Mapping[str, str]) -> bytes:
    """One line for each key, in order, with characters beyond ASCII escaped. Keys are names, which need no escapes."""
    return "".join(f"{name}={_escape(value)}\n" for name, value in properties.items()).encode("ascii")


def _escape(value: str) -> str:
    value = value.replace("\\", "\\\\")
    for letter, character in _ESCAPES.items():
        value = value.replace(character, f"\\{letter}")
    if value[:1] == " ":
        value = "\\" + value
    if value.isascii():
        return value
    units = value.encode("utf-16-be", "surrogatepass")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in pairs)


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        line = pending + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        pending = ""
        lines.append(line)
    if pending:
        lines.append(pending)
    return lines


def _unescape(text: str) -> str:
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            match = _UNICODE.match(text, position)
            if match is None:
                raise ValueError(f"a \\u needs four hexadecimal digits: {text!r}")
            out.append(chr(int(match[0], 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
