"""The checks of ``gantrymq doctor``: each examines one subject, changes nothing, and returns a remedy.

Source of the shares of a full disk: RocketMQ 4.9.7 ``diskMaxUsedSpaceRatio`` (75, it deletes old files) and
``diskSpaceWarningLevelRatio`` (90, it refuses messages).
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.cli import machine_checks
from gantrymq.cli.findings import FAIL, OK, WARN, Finding
from gantrymq.cli.processes.layout import stores_of
from gantrymq.kernel.config.fields import HIDDEN
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.peers import is_loopback

if TYPE_CHECKING:
    from gantrymq.cli.loading import Loaded
    from gantrymq.remoting.tls import ServerTls

WAIT_SECONDS = 2.0
SYNCS = 50
SYNC_BYTES = 4096
SYNC_SLOW_US = 10_000
SYNC_UNLIKELY_US = 15
USED_WARN = 0.75
USED_HIGH = 0.90
DESCRIPTORS_LOW = 4096
CLOCK_EARLIEST = 1_735_689_600
"""The start of 2025: an earlier time is wrong, because this program is newer."""
CLOCK_BEHIND_SECONDS = 5.0
STORE_FOLDERS = (
    "commitlog", "config", "consumequeue", "consumequeue_ext", "index", "lost+found", "staging", "timerlog",
    "transaction",
)  # fmt: skip
_FOLDER_ACCESS = os.R_OK | os.W_OK | os.X_OK
STORE_FILES = (
    "abort", "checkpoint", "gantrymq.deleted", "gantrymq.reserve", "gantrymq.watermark", "lock", "timerwheel",
)  # fmt: skip
"""Files that the broker opens for writing. It only reads and replaces the others whose names begin with
:data:`STORE_PREFIX`."""
STORE_PREFIX = "gantrymq."
EXPIRY_DAYS = 30
"""A certificate that ends sooner is due for replacement."""
SPARK_JAVA = 17
"""The oldest Java for PySpark 4."""


def hot_path() -> Finding:
    """Which twin of the inner loops is in use."""
    from gantrymq.kernel.fast import KIND

    if KIND != "plain":
        return Finding("hot path", OK, f"{KIND}")
    if os.environ.get("GANTRYMQ_PURE") == "1":
        return Finding("hot path", WARN, "plain, because GANTRYMQ_PURE=1", "unset it to use the compiled one")
    advice = "install a wheel that has it, or install from source with a C compiler; the plain one works, more slowly"
    return Finding("hot path", WARN, "plain: the compiled one is not installed", advice)


def python() -> Finding:
    """The interpreter and the system."""
    text = f"Python {sys.version.split()[0]} on {sys.platform}, {os.cpu_count()} cores"
    if sys.platform != "linux":
        return Finding("system", FAIL, text, "the broker needs Linux; the client and the nameserver run elsewhere too")
    return Finding("system", OK, text)


def port(what: str, address: str) -> Finding:
    """Whether a server can listen at ``address``."""
    check = f"{what} port"
    host, number = parse_address(address, any_port=True)
    if number == 0:
        return Finding(check, OK, f"{address}: any free one")
    try:
        family, _, _, _, where = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        from gantrymq.cli.failures import advice_for

        if _answers(host, number):
            found = f"{address}: a server that speaks RocketMQ's protocol runs there"
            return Finding(check, WARN, found, "nothing, if it is this broker; else choose another address")
        reason, _, advice = advice_for(error).partition("; ")
        return Finding(check, FAIL, f"{address}: {reason}", advice or "choose another address")
    return Finding(check, OK, f"{address} is free")


def advertised(advertise: str, listen: str) -> Finding:
    """Whether the advertised address leads to this machine."""
    check = "advertised address"
    host, _ = parse_address(advertise or listen, any_port=True)
    if not advertise and host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return Finding(check, OK, "found from this machine's routes when the broker starts", "")
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        advice = "set broker.advertise to a name or address that clients can reach"
        return Finding(check, FAIL, f"{host}: cannot be resolved ({error.strerror})", advice)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind(where)
            listener.listen(1)
            with socket.create_connection(listener.getsockname()[:2], WAIT_SECONDS):
                pass
    except OSError as error:
        advice = "right behind a NAT or a proxy that leads here; else set broker.advertise to this machine's address"
        return Finding(check, WARN, f"{host} is not an address of this machine ({error.strerror or error})", advice)
    if str(where[0]).startswith("127.") or where[0] == "::1":
        advice = "for others set broker.listen, and broker.advertise where clients see another address"
        return Finding(check, OK, f"{host}: only clients on this machine reach it", advice)
    return Finding(check, OK, f"{host} leads to this machine")


def protected(loaded: Loaded) -> Finding:
    """Whether the broker would refuse its listen address because no plugin controls access."""
    from gantrymq.kernel.broker import ACCESS_CONTROL_SLOT

    check = "protected mode"
    broker = loaded.config.broker
    host, _ = parse_address(broker.listen, any_port=True)
    try:
        numeric = str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return Finding(check, WARN, f"{host} cannot be resolved", "choose another address")
    if is_loopback(numeric):
        return Finding(check, OK, f"{host}: only this machine can connect")
    holders = [info.name for info in loaded.manager.plugins if info.slot == ACCESS_CONTROL_SLOT]
    if holders:
        return Finding(check, OK, f"{host}: {', '.join(holders)} controls access")
    if broker.insecure:
        advice = "nothing, if every machine on that network is trusted"
        return Finding(check, WARN, f"{host}: every machine that can connect has full access (--insecure)", advice)
    advice = "listen on 127.0.0.1, enable a plugin that controls access, or start with --insecure on a trusted network"
    return Finding(check, FAIL, f"{host}: the broker refuses to start unless a plugin controls access", advice)


def access_control(values: Mapping[str, Any], secrets: Collection[str] = ()) -> Finding:
    """Whether the files of the plugin ``acl`` can be used, and only by this user.

    ``values``: of its section; ``secrets``: configuration files with secrets.
    """
    check = "access control"
    try:
        import yaml  # noqa: F401 - the parser of the accounts
    except ModuleNotFoundError:
        return Finding(check, FAIL, "the parser of accounts is missing", "pip install 'gantrymq[acl]'")
    from gantrymq.kernel.env.system import SystemEnv
    from gantrymq.kernel.errors import StartError
    from gantrymq.plugins.acl.account_file import AccountFile, read_keys
    from gantrymq.plugins.acl.explain import warnings_of, warnings_of_users
    from gantrymq.plugins.acl.users import SUPER, UserDocument

    path, users, keys = (str(values[name]) for name in ("file", "users", "keys"))
    env = SystemEnv()
    try:
        accounts = AccountFile(env, path, optional=bool(users)).accounts
        if keys:
            read_keys(env, keys)
        document = UserDocument.parse(Path(users).read_bytes()) if users and Path(users).exists() else UserDocument()
    except StartError as error:
        return Finding(check, FAIL, str(error), "correct the file, or the setting")
    except (ValueError, OSError) as error:
        return Finding(check, FAIL, f"plugin.acl.users = {users!r}: {error}", "correct the file, or the setting")
    is_created = bool(keys or values["first_user"] or values["inner_credentials"])
    if users and not is_created and not any(user.user_type == SUPER for user in document.users.values()):
        advice = "set plugin.acl.keys to a file with accessKey and secretKey of the first super user"
        return Finding(check, FAIL, f"plugin.acl.users = {users!r} has no super user", advice)
    exposed = [
        each
        for each in (path, users, keys, *secrets)
        if each and Path(each).exists() and Path(each).stat().st_mode & 0o77
    ]
    if exposed:
        found = f"other users can read or change {', '.join(exposed)}"
        return Finding(check, WARN, found, f"chmod 600 {' '.join(exposed)}")
    texts = [*(warnings_of(accounts) if accounts.by_key else ()), *warnings_of_users(document)]
    counts = f"{len(accounts.by_key)} accounts, {len(document.users)} users"
    if texts:
        return Finding(check, WARN, f"{counts}; {'; '.join(texts)}", "correct what is not meant (gantrymq acl check)")
    return Finding(check, OK, counts)


def encryption(values: Mapping[str, Any]) -> Finding:
    """Whether clients that trust the certificate of the plugin ``tls`` can connect, also in a month, and whether only
    this user can read its key. ``values``: of its section."""
    from gantrymq.plugins.tls.properties import read_tls
    from gantrymq.remoting.tls import IN_TEST_MODE, TlsUnusable

    check = "TLS"
    try:
        mode, files = read_tls(values, lambda path: Path(path).read_bytes())
        if "disabled" in (values["mode"], mode):
            return Finding(check, OK, "plugin.tls.mode is disabled")
        files.make_context()
        if files.test_mode:
            return Finding(check, WARN, IN_TEST_MODE, "set plugin.tls.certificate instead of the test mode")
        days = (_expiry(files) - time.time()) / 86_400
    except ssl.SSLCertVerificationError as error:
        return Finding(check, FAIL, f"{files.certificate}: {error.verify_message}", "make a new certificate")
    except (TlsUnusable, OSError) as error:
        return Finding(check, FAIL, str(error), "correct the file, or the setting")
    secrets = [
        files.key or files.certificate,
        *files.names.values(),
        *([values["properties"]] if files.password else []),
    ]
    exposed = [each for each in secrets if Path(each).stat().st_mode & 0o77]
    if exposed:
        found = f"other users can read or change {', '.join(exposed)}"
        return Finding(check, WARN, found, f"chmod 600 {' '.join(exposed)}")
    found = f"{files.certificate} is valid for {days:.0f} days"
    if days < EXPIRY_DAYS:
        return Finding(check, WARN, found, "make a new certificate; the broker reads it without a restart")
    if mode == "permissive":
        return Finding(check, WARN, f"{found}; plain connections are served too", "set plugin.tls.mode = enforcing")
    return Finding(check, OK, found)


def _expiry(files: ServerTls) -> float:
    """When the certificate ends, in seconds since 1970: a client that trusts it shakes hands with the server.

    :class:`ssl.SSLCertVerificationError` if that fails.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(files.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    own = attrs.evolve(files, ca="", client_certificates="none", names={}).make_context()
    server = own.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    for each in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            each.do_handshake()
    return ssl.cert_time_to_seconds(str((client.getpeercert() or {})["notAfter"]))


def folder(data: str) -> Finding:
    """Whether the data folder and what the broker has written there can be read and written."""
    place = nearest(data)
    if not place.is_dir():
        return Finding("data folder", FAIL, f"{place} is not a folder", "choose another folder (--data)")
    closed = next(_without_access(place, stores_of(Path(data).absolute())), None)
    if closed is not None:
        advice = "run this as the broker's user, give this user the right, or choose another folder (--data)"
        return Finding("data folder", FAIL, f"{closed} cannot be read and written by this user", advice)
    made = "" if place == Path(data).absolute() else f"; it will be made in {place}"
    return Finding("data folder", OK, f"{Path(data).absolute()}{made}")


def _without_access(place: Path, stores: Sequence[Path]) -> Iterator[str]:
    """``place``, and stores, their folders and files, to which this user lacks a right that the broker needs."""
    for path in dict.fromkeys((place, *stores)):
        if os.path.exists(path) and not os.access(path, _FOLDER_ACCESS):
            yield str(path)
    for store in stores:
        yield from _closed_in(store)


def _closed_in(store: Path) -> Iterator[str]:
    for root, folders, files in os.walk(store):
        is_top = Path(root) == store
        if is_top:  # it may have others that are not the broker's
            folders[:] = [name for name in folders if name in STORE_FOLDERS]
            files = [name for name in files if name in STORE_FILES or name.startswith(STORE_PREFIX)]
        is_config = Path(root).is_relative_to(store / "config")
        needed = dict.fromkeys(folders, _FOLDER_ACCESS)
        for name in files:
            is_replaced = is_config or (is_top and name not in STORE_FILES)  # not opened for writing
            needed[name] = os.R_OK if is_replaced else os.R_OK | os.W_OK
        for name, access in needed.items():
            if not os.access(f"{root}/{name}", access):
                yield f"{root}/{name}"


def disk(data: str, file_bytes: int) -> Finding:
    """How full the disk is, and whether the next file of the commit log fits."""
    usage = shutil.disk_usage(nearest(data))
    used = 1 - usage.free / usage.total if usage.total else 1.0
    text = f"{used:.0%} used, {_size(usage.free)} free; a file of the commit log takes {_size(file_bytes)}"
    if usage.free < file_bytes:
        return Finding(
            "disk", FAIL, text, "free disk space, choose another folder, or lower store.commit_log_file_bytes"
        )
    if usage.free < 2 * file_bytes or used >= USED_HIGH:
        return Finding("disk", WARN, text, "free disk space soon: a RocketMQ broker refuses messages from 90% on")
    if used >= USED_WARN:
        return Finding("disk", WARN, text, "keep an eye on it: a RocketMQ broker deletes old files from 75% on")
    return Finding("disk", OK, text)


def fdatasync(data: str) -> Finding:
    """How long an fdatasync of one page takes in the data folder: the least wait of a synchronous sender."""
    check = "fdatasync"
    try:
        with tempfile.TemporaryFile(dir=nearest(data), buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, SYNCS * SYNC_BYTES)
            times = sorted(_sync_times(file.fileno()))
    except OSError as error:
        from gantrymq.cli.failures import advice_for

        reason, _, advice = advice_for(error).partition("; ")
        other = "check the disk, or choose another folder" if error.errno == errno.EIO else "choose another folder"
        return Finding(check, FAIL, f"{nearest(data)}: {reason}", advice or other)
    middle = statistics.median(times)
    text = f"median {middle:.0f} us, worst {times[-1]:.0f} us of {len(times)}"
    if middle >= SYNC_SLOW_US:
        advice = 'a synchronous send waits so long; a faster disk, or plugin.flush.mode = "async" and what it risks'
        return Finding(check, WARN, text, advice)
    if middle < SYNC_UNLIKELY_US:
        advice = "no disk is so fast: the folder is in memory, or the disk acknowledges writes that it has not stored"
        return Finding(check, WARN, text, advice)
    return Finding(check, OK, text)


def open_files(connections: int) -> Finding:
    """Whether the limit of open files allows ``limits.connections``: half of it is for connections."""
    import resource

    from gantrymq.kernel.network.admission import DESCRIPTOR_SHARE
    from gantrymq.remoting.descriptors import OWN_DESCRIPTORS

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", OK, "no limit")
    text = f"limit {hard} (now {soft}; a server raises it to {hard}), limits.connections is {connections}"
    wanted = max(DESCRIPTORS_LOW, DESCRIPTOR_SHARE * connections + OWN_DESCRIPTORS)
    if hard < wanted:
        return Finding("open files", WARN, text, f"raise the hard limit (ulimit -Hn, LimitNOFILE=) to {wanted}")
    return Finding("open files", OK, text)


def clock(data: str) -> Finding:
    """Whether the wall clock is plausible: later than the release of this program and the store's newest file."""
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    advice = "set the clock (NTP): it gives messages their timestamps, which searches by time use"
    if now < CLOCK_EARLIEST:
        return Finding("clock", FAIL, f"{text} is in the past", advice)
    files = (path for store in stores_of(Path(data)) for path in _store_files(store))
    newest = max((path.stat().st_mtime for path in files), default=0.0)
    if newest > now + CLOCK_BEHIND_SECONDS:
        return Finding("clock", WARN, f"{text} is {newest - now:.0f} s behind the store's newest file", advice)
    return Finding("clock", OK, text)


def java() -> Finding:
    """Whether there is a Java for Spark. The broker needs none."""
    advice = f"nothing, unless you export or read with Spark: that needs Java {SPARK_JAVA} or later"
    found = shutil.which("java")
    if found is None:
        return Finding("java", WARN, "not installed", advice)
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java, as the shell finds it
            [found, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", WARN, f"{found} does not run: {error}", advice)
    first = (done.stderr or done.stdout).partition("\n")[0]
    number = java_version(first)
    if done.returncode or number is None:
        return Finding("java", WARN, f"{found} says {first or 'nothing'}", advice)
    return Finding("java", OK if number >= SPARK_JAVA else WARN, first, "" if number >= SPARK_JAVA else advice)


def java_version(text: str) -> int | None:
    """The feature release in the first line of ``java -version``; ``1.8.0`` is 8."""
    _, _, rest = text.partition('"')
    parts = rest.partition('"')[0].replace("-", ".").split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    if not numbers:
        return None
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def pyspark() -> Finding:
    """Whether pyspark and pyarrow are installed. The broker needs neither."""
    from importlib import metadata

    found = []
    for name in ("pyspark", "pyarrow"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            advice = "nothing, unless you export or read with Spark: pip install 'gantrymq[spark]'"
            return Finding("pyspark", WARN, f"{name} is not installed", advice)
    return Finding("pyspark", OK, ", ".join(found))


def plugins(loaded: Loaded) -> Finding:
    """The installed plugins, with versions."""
    return Finding("plugins", OK, ", ".join(f"{info.name} {info.version}" for info in loaded.manager.plugins))


def all_checks(loaded: Loaded, nameserver_listen: str) -> Iterator[Callable[[], Finding]]:
    """Every check, to be called one after the other."""
    broker = loaded.config.broker
    file_bytes = loaded.config.store.commit_log_file_bytes
    connections = loaded.config.limits.connections
    yield python
    yield hot_path
    yield lambda: plugins(loaded)
    yield lambda: port("broker", broker.listen)
    yield lambda: port("nameserver", nameserver_listen)
    yield lambda: advertised(broker.advertise, broker.listen)
    yield lambda: protected(loaded)
    rows = [row for row in loaded.config.explain() if row.section == "plugin.acl"]
    if rows:
        secrets = sorted({row.source for row in rows if row.value == HIDDEN and row.origin in ("file", "override")})
        yield lambda: access_control({row.key: row.value for row in rows}, secrets)
    tls = {row.key: row.value for row in loaded.config.explain() if row.section == "plugin.tls"}
    if tls:
        yield lambda: encryption(tls)
    yield lambda: folder(broker.data)
    yield lambda: disk(broker.data, file_bytes)
    yield lambda: fdatasync(broker.data)
    yield lambda: machine_checks.file_system(nearest(broker.data))
    yield lambda: machine_checks.block_device(nearest(broker.data))
    yield machine_checks.memory
    yield machine_checks.kernel_settings
    yield lambda: open_files(connections)
    yield lambda: clock(broker.data)
    yield java
    yield pyspark


def nearest(data: str) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    place = Path(data).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _answers(host: str, number: int) -> bool:
    """Whether a server that speaks the remoting protocol listens there."""
    from gantrymq.remoting.command import Command, decode, encode
    from gantrymq.remoting.errors import FatalRemoteFault
    from gantrymq.remoting.frame import cut_frames

    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    try:
        with socket.create_connection((target, number), WAIT_SECONDS) as connection:
            connection.settimeout(WAIT_SECONDS)
            connection.sendall(encode(Command(-1, opaque=1)))
            frames, _ = cut_frames(connection.recv(65_536))
            return bool(frames) and decode(frames[0]).is_response
    except (OSError, FatalRemoteFault):
        return False


def _sync_times(descriptor: int) -> Iterator[float]:
    """The time of each fdatasync in microseconds, for at most two seconds."""
    page = b"x" * SYNC_BYTES
    began = time.perf_counter()
    for number in range(SYNCS):
        os.pwrite(descriptor, page, number * SYNC_BYTES)
        before = time.perf_counter()
        os.fdatasync(descriptor)
        now = time.perf_counter()
        yield (now - before) * 1e6
        if now - began > WAIT_SECONDS:
            return


def _store_files(data: Path) -> Iterator[Path]:
    for place in (data, data / "commitlog", data / "config"):
        if place.is_dir() and os.access(place, os.R_OK | os.X_OK):
            yield from (path for path in place.iterdir() if path.is_file())


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count //= 1024
    return f"{count / 1024:.1f} TiB" if count >= 1024 else f"{count} GiB"
