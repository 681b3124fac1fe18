"""Programs for tests from Debian's packages: the one that is installed, or else a package that is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.foreign import ToolMissing, hold_lock

DOWNLOAD_S = 300.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_unpacked(cache: Path, program: str, package: str) -> Path:
    """The program of this name; its package is unpacked into ``cache`` once, which needs no root.

    The program must need no other package. ToolMissing if it is not installed and cannot be fetched.
    """
    installed = shutil.which(program)
    if installed is not None:
        return Path(installed)
    target = (cache / package).absolute()
    with hold_lock(cache / f"{package}.lock"):
        found = _program(target, program)
        if found is None:
            apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
            if apt is None or unpack is None:
                raise ToolMissing(f"{program} is not installed (Debian: apt install {package})")
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            try:
                _run(target, apt, "download", package)
                _run(target, unpack, "-x", str(next(target.glob("*.deb"))), str(target))
            except (subprocess.SubprocessError, StopIteration) as error:
                raise ToolMissing(f"{package} cannot be fetched: {error}") from None
            found = _program(target, program)
    if found is None:
        raise ToolMissing(f"{package} of this system has no {program}")
    return found


def _program(target: Path, name: str) -> Path | None:
    return next((path for folder in ("bin", "sbin") if (path := target / "usr" / folder / name).exists()), None)


def find_browser(cache: Path) -> Path:
    """Chromium or Chrome. With ``CI=true`` root installs Debian's package, which needs a hundred others.

    ToolMissing if it is not installed otherwise.
    """
    apt = shutil.which("apt-get")
    with hold_lock(cache / "chromium.lock"):
        found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if found is None and apt is not None and os.environ.get("CI") == "true" and os.geteuid() == 0:
            try:
                _run(cache, apt, "install", "--yes", "--no-install-recommends", "chromium")
            except subprocess.SubprocessError as error:
                raise ToolMissing(f"chromium cannot be installed: {error}") from None
            found = shutil.which("chromium")
    if found is None:
        raise ToolMissing("no browser is installed (Debian: apt install chromium)")
    return Path(found)


def find_system(cache: Path) -> Path:
    """A small Debian with Python, systemd and logrotate, made once by debootstrap, which needs root and some minutes.

    ToolMissing if it cannot be made.
    """
    if os.geteuid() != 0:
        raise ToolMissing("a system in a folder needs root")
    made = shutil.which("debootstrap")
    if made is None:
        raise ToolMissing("debootstrap is not installed (Debian: apt install debootstrap)")
    target = (cache / "system").absolute()
    packages = "ca-certificates,dbus,logrotate,python3,python3-dev,python3-venv,systemd,systemd-sysv"
    with hold_lock(cache / "system.lock"):
        if not target.exists():
            unfinished = target.with_name("system.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            command = [made, "--variant=minbase", f"--include={packages}", "bookworm", str(unfinished)]
            try:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, timeout=4 * DOWNLOAD_S, check=True
                )
            except subprocess.SubprocessError as error:
                raise ToolMissing(f"debootstrap failed: {error}") from None
            (unfinished / "usr" / "bin" / "python").symlink_to("python3")
            unfinished.rename(target)
    return target


def _run(folder: Path, *command: str) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOWNLOAD_S, check=True
    )
