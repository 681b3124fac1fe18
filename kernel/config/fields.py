"""Configuration values: durations, sizes, addresses and numbers in a range, and their errors.

A plugin declares its section as an attrs class with these helpers; the attribute then has seconds (float) or bytes
(int)::

    @attrs.frozen
    class FlushConfig:
        mode: Literal["sync", "async"] = "sync"
        interval: float = duration("500ms", minimum="1ms", maximum="1h")

``rocketmq=`` is the setting's name in RocketMQ's ``broker.conf``, if it has one (:mod:`...config.rocketmq_keys`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from gantrymq.kernel.config.rocketmq_keys import RocketmqKey, in_milliseconds, named
from gantrymq.remoting.address import parse_address

HIDDEN = "(hidden)"
"""What is shown instead of a secret."""
UNLIMITED = 1 << 62
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
DURATION_ALLOWED = 'a number with a unit (ms, s, m, h, d), such as "500ms" or "30s", or a number of seconds'
SIZE_ALLOWED = 'whole bytes, or a number with a unit (KiB, MiB, GiB, KB, MB, GB), such as "64 MiB"'
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_QUANTITY = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)", re.ASCII)
_LONGEST = 64
"""Characters of a quantity: Python converts no text of thousands of digits to a number."""
_WHOLE = re.compile(r"[+-]?[0-9][0-9_]*", re.ASCII)


def parse_duration(value: object) -> float:
    """Convert ``"500ms"``, ``"30s"``, ``"5m"``, ``"1h"`` or ``"2d"`` to seconds. A number, also one written as text, is
    in seconds. ValueError otherwise."""
    match = _match(value)
    factor = DURATION_UNITS.get(match[2] or "s") if match else None
    if match is not None and factor is not None:
        value = float(match[1]) * factor
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < UNLIMITED:
        raise ValueError(f"allowed: {DURATION_ALLOWED}")
    return float(value)


def parse_size(value: object) -> int:
    """Convert ``1024``, ``"1024"``, ``"64 MiB"`` or ``"1GiB"`` to bytes; ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _match(value)
    factor = SIZE_UNITS.get(match[2].upper() or "B") if match else None
    if match is None or factor is None or ("." in match[1] and factor == 1):
        raise ValueError(f"allowed: {SIZE_ALLOWED}")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def _match(value: object) -> re.Match[str] | None:
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    return _QUANTITY.fullmatch(value.strip())


def duration(
    default: str, minimum: str = "0s", maximum: str = "365d", rocketmq: str | RocketmqKey | None = None
) -> Any:
    """Return an attrs field of seconds, written with a unit; both ends of the range are allowed.

    RocketMQ's value is in milliseconds unless ``rocketmq`` says otherwise (``in_hours("auditKeepHours")``).
    """
    low, high = parse_duration(minimum), parse_duration(maximum)
    key = in_milliseconds(rocketmq) if isinstance(rocketmq, str) else rocketmq
    return _quantity(default, parse_duration, low, high, f"{minimum} to {maximum}", key)


def size(
    default: str | int,
    minimum: str | int = 0,
    maximum: str | int = UNLIMITED,
    rocketmq: str | RocketmqKey | None = None,
) -> Any:
    """Return an attrs field of bytes, written as a number or with a unit; both ends of the range are allowed."""
    low, high = parse_size(minimum), parse_size(maximum)
    text = f"{minimum} to {maximum}" if high < UNLIMITED else f"{minimum} and more"
    return _quantity(default, parse_size, low, high, text, rocketmq)


def number(default: int, minimum: int = 0, maximum: int = UNLIMITED, rocketmq: str | RocketmqKey | None = None) -> Any:
    """Return an attrs field of a whole number; both ends of the range are allowed."""
    text = f"{minimum} to {maximum}" if maximum < UNLIMITED else f"{minimum} and more"
    return plain(default, rocketmq, _in_range(minimum, maximum, text))


def address(
    default: str, optional: bool = False, any_port: bool = False, rocketmq: str | RocketmqKey | None = None
) -> Any:
    """Return an attrs field of ``host:port`` kept as text; ``optional`` allows the empty text, ``any_port`` the port
    0."""

    def check(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
        if value or not optional:
            check_address(value, any_port)

    return plain(default, rocketmq, check)


def plain(
    default: Any,
    rocketmq: str | RocketmqKey | None = None,
    validator: Callable[[Any, attrs.Attribute[Any], Any], None] | None = None,
) -> Any:
    """Return an attrs field that is converted by its type only."""
    return attrs.field(default=default, validator=validator, metadata=named(rocketmq))


def secret() -> Any:
    """Return an attrs field of text that no command, response, log or error shows; empty by default."""
    return attrs.field(default="", repr=False, validator=_refuse_hidden)


def _refuse_hidden(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value == HIDDEN:
        raise ValueError("this is what commands show instead of a secret; set the secret itself, or remove the key")


def forget_secrets(section: attrs.AttrsInstance) -> None:
    """Empty the :func:`secret` fields of a section when the plugin has used them: the configuration keeps no copy."""
    for field in attrs.fields(type(section)):
        if not field.repr:
            object.__setattr__(section, field.name, "")  # a section is frozen for everybody else


def check_address(value: str, any_port: bool = False) -> None:
    """ValueError unless ``value`` is ``host:port``."""
    host, _ = parse_address(value, any_port=any_port)
    if any(character.isspace() or ord(character) < 32 for character in host) or (":" in host and "[" not in value):
        raise ValueError(f"{value!r} is not an address: host:port is expected, an IPv6 host in brackets")


def filled(default: str, rocketmq: str | RocketmqKey | None = None) -> Any:
    """Return an attrs field of text that is not empty and has no control characters."""

    def check(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
        if not value.strip() or any(ord(character) < 32 for character in value):
            raise ValueError("allowed: a text that is not empty, without control characters")

    return plain(default, rocketmq, check)


def shown_default(field: attrs.Attribute[Any]) -> object:
    """Return a field's default as a user would write it (``"5s"``, not ``5.0``)."""
    default: Any = field.default
    return default.factory() if hasattr(default, "factory") else default


def coerce(value: object, hint: Any, field: attrs.Attribute[Any], from_text: bool) -> object:
    """Convert ``value`` to the field's type ``hint``; ``from_text``: it comes from a flag, the environment or
    properties.

    Raises ValueError that says what is allowed. The field's own validator checks ranges, its converter units.
    """
    if "quantity" in field.metadata:
        return value
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            raise ValueError("allowed: " + ", ".join(str(choice) for choice in get_args(hint)))
        return value
    if origin in (Union, UnionType):
        return coerce(value, next(arm for arm in get_args(hint) if arm is not type(None)), field, from_text)
    reader = _READERS.get(origin or hint)
    if reader is None:
        raise TypeError(f"a configuration field cannot have the type {hint!r}")
    return reader(value, from_text)


def _quantity(
    default: str | int,
    parse: Callable[[object], float],
    low: float,
    high: float,
    text: str,
    rocketmq: str | RocketmqKey | None,
) -> Any:
    metadata = {"quantity": True} | named(rocketmq)
    return attrs.field(default=default, converter=parse, validator=_in_range(low, high, text), metadata=metadata)


def _in_range(low: float, high: float, text: str) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_instance: object, _attribute: attrs.Attribute[Any], value: Any) -> None:
        if not low <= value <= high:
            raise ValueError(f"out of range; allowed: {text}")

    return check


def _read_str(value: object, _from_text: bool) -> str:
    if not isinstance(value, str):
        raise ValueError("allowed: a text in quotes")
    return value


def _read_bool(value: object, from_text: bool) -> bool:
    if from_text and isinstance(value, str) and value.strip().lower() in BOOLEANS:
        return BOOLEANS[value.strip().lower()]
    if not isinstance(value, bool):
        raise ValueError("allowed: true or false")
    return value


def _read_int(value: object, from_text: bool) -> int:
    # 64 bits have at most 20 digits; Python refuses int() of a longer text with an error that users do not understand
    if from_text and isinstance(value, str) and len(value) <= 20 and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("allowed: a whole number")
    return value


def _read_float(value: object, from_text: bool) -> float:
    if from_text and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("allowed: a number") from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("allowed: a number")
    return float(value)


def _read_list(value: object, from_text: bool) -> list[str]:
    if from_text and isinstance(value, str):
        value = [part.strip() for part in re.split(r"[;,]", value) if part.strip()]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('allowed: a list of texts, such as ["a", "b"]')
    return value


def _read_tuple(value: object, from_text: bool) -> tuple[str, ...]:
    return tuple(_read_list(value, from_text))


def _read_table(value: object, from_text: bool) -> dict[str, str]:
    if from_text and isinstance(value, str):
        value = dict(part.strip().partition("=")[::2] for part in value.split(",") if "=" in part)
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError('allowed: a table of texts, such as { name = "value" }')
    return dict(value)


_READERS: dict[Any, Callable[[object, bool], object]] = {
    str: _read_str,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    list: _read_list,
    tuple: _read_tuple,
    dict: _read_table,
}
