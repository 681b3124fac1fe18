"""Named clusters: a context has the nameservers, the keys and the TLS settings of one cluster in a file of the user.

A context is a TOML file ``contexts/NAME.toml`` in ``$GANTRYMQ_CONFIG_HOME``, or else in ``$XDG_CONFIG_HOME/gantrymq``
(default ``~/.config/gantrymq``). It has no secret: it names the file that has the secret key. The file ``context``
beside that folder has the name of the current context.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import rich_click as click
from click.core import ParameterSource

VARIABLE = "GANTRYMQ_CONTEXT"
NAMESERVER_VARIABLES = ("GANTRYMQ_NAMESERVER", "NAMESRV_ADDR")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE_BYTES_MAX = 64 * 1024
_META = "gantrymq.context"


@attrs.frozen
class ConnectionContext:
    """How to connect to one cluster; an empty text stands for no value."""

    nameserver: str
    access_key: str = ""
    secret_key_file: str = ""
    tls: bool = False
    tls_ca: str = ""

    def environment(self) -> dict[str, str]:
        """The settings as the environment variables that have the same meaning. UsageError without the secret."""
        found = {"GANTRYMQ_TLS": "1"} if self.tls else {}
        if self.tls_ca:
            found["GANTRYMQ_TLS_CA"] = self.tls_ca
        if self.access_key:
            found["GANTRYMQ_ACCESS_KEY"] = self.access_key
            found["GANTRYMQ_SECRET_KEY"] = self._secret()
        return found

    def _secret(self) -> str:
        try:
            with open(self.secret_key_file, encoding="utf-8") as stream:
                secret = stream.readline(_FILE_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise click.UsageError(
                f"the context's secret key cannot be read: {self.secret_key_file}: {reason}"
            ) from None
        if not secret:
            raise click.UsageError(f"the context's secret key is missing: {self.secret_key_file} is empty")
        return secret


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the user's configuration."""
    own = environment.get("GANTRYMQ_CONFIG_HOME")
    return Path(own) if own else Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gantrymq"


def check_name(name: str) -> None:
    """UsageError for a name that cannot be a file's."""
    if not _NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} cannot name a context: use up to 64 letters, digits, dots, hyphens and underscores"
        )


def names() -> list[str]:
    """The names of all contexts, in order."""
    return sorted(path.stem for path in (home() / "contexts").glob("*.toml") if _NAME.fullmatch(path.stem))


def current_name() -> str | None:
    """The name that ``context use`` has written."""
    try:
        return (home() / "context").read_text(encoding="utf-8")[:_FILE_BYTES_MAX].strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{home() / 'context'}: {error}; choose with: gantrymq context use NAME") from None


def load(name: str) -> ConnectionContext:
    """The context of this name. UsageError if there is none, or if its file cannot be read."""
    check_name(name)
    path = home() / "contexts" / f"{name}.toml"
    try:
        with path.open("rb") as stream:
            found: dict[str, Any] = tomllib.loads(stream.read(_FILE_BYTES_MAX).decode())
    except FileNotFoundError:
        known = ", ".join(names()) or "none"
        raise click.UsageError(f"there is no context {name!r}; known: {known}; add it: gantrymq context add") from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"context {name!r} cannot be read: {path}: {error}") from None
    fields = attrs.fields_dict(ConnectionContext)
    for key, value in found.items():
        wanted = bool if key == "tls" else str
        if key not in fields or not isinstance(value, wanted):
            raise click.UsageError(f"context {name!r}: {path}: {key} = {value!r:.60} is not a setting of a context")
    if not found.get("nameserver"):
        raise click.UsageError(f"context {name!r}: {path}: 'nameserver' is missing")
    return ConnectionContext(**found)


def save(name: str, context: ConnectionContext) -> Path:
    """Write the context's file, which only its user may read; returns its path. UsageError if it cannot have a
    value."""
    from gantrymq.kernel.config.sources import show  # commands of clients start without the kernel

    check_name(name)
    values = attrs.asdict(context, filter=lambda _field, value: bool(value))
    text = "".join(f"{key} = {show(value)}\n" for key, value in values.items())
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"context {name!r} cannot be saved: a path or another value is not UTF-8") from None
    return _write(f"contexts/{name}.toml", data)


def make_current(name: str | None) -> None:
    """Make ``name`` the current context; None: no context is the current one."""
    if name is None:
        (home() / "context").unlink(missing_ok=True)
    else:
        load(name)
        _write("context", f"{name}\n".encode())


def remove(name: str) -> None:
    """Remove the context, which is then not the current one either. UsageError if there is none."""
    check_name(name)
    try:
        (home() / "contexts" / f"{name}.toml").unlink()
    except FileNotFoundError:
        load(name)
    if current_name() == name:
        make_current(None)


def _write(relative: str, data: bytes) -> Path:
    path = home() / relative
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data)
    os.replace(temporary, path)
    return path


# ------------------------------------------------------------------------------------------------ in a command


def choose(ctx: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """The callback of ``--context``, before that of ``--nameserver``: note the name of the context, if any.

    The first of these decides: ``--nameserver`` or ``--context``; ``GANTRYMQ_CONTEXT``; an environment variable with
    nameservers; the current context.
    """
    if name is None and not any(os.environ.get(variable) for variable in NAMESERVER_VARIABLES):
        name = current_name()
    if name:
        ctx.meta[_META] = name


def choose_connection(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """The callback of ``--context`` where there is no ``--nameserver``: load the context."""
    choose(ctx, parameter, name)
    chosen = ctx.meta.pop(_META, None)
    if chosen is not None and not ctx.resilient_parsing:
        ctx.meta[_META] = load(chosen)


def chosen_nameserver(ctx: click.Context, parameter: click.Parameter, nameserver: str | None) -> str | None:
    """The callback of ``--nameserver``: the chosen context's nameservers, unless the option was given."""
    name = ctx.meta.pop(_META, None)
    if name is None or ctx.resilient_parsing:  # a shell asks for completions
        return nameserver
    given = ParameterSource.COMMANDLINE
    if ctx.get_parameter_source(parameter.name or "") is given:
        if ctx.get_parameter_source("context") is given:
            raise click.UsageError("--nameserver and --context exclude each other", ctx)
        return nameserver
    context = ctx.meta[_META] = load(name)
    return context.nameserver


def given_nameserver(ctx: click.Context, parameter: click.Parameter, nameserver: str | None) -> str | None:
    """The callback of a ``--nameserver`` without default: as :func:`chosen_nameserver` if it or ``--context`` is on the
    command line, else None."""
    found = chosen_nameserver(ctx, parameter, nameserver)
    sources = {ctx.get_parameter_source(name) for name in (parameter.name or "", "context")}
    return found if ParameterSource.COMMANDLINE in sources else None


def chosen_environment() -> dict[str, str] | None:
    """The chosen context's settings as environment variables; None outside a command or without a context."""
    ctx = click.get_current_context(silent=True)
    context: ConnectionContext | None = None if ctx is None else ctx.meta.get(_META)
    return None if context is None else context.environment()
