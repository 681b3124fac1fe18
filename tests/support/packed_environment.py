"""The packed environment of the how-to guide for Spark clusters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 600.0


def pack_environment(wheel: Path, folder: Path) -> Path:
    """``environment.tar.gz`` in ``folder``, beside the ``environment`` that it has: by the commands of the guide.

    It has obstore as well, for exports to object stores.
    """
    archive = folder / "environment.tar.gz"
    environment = install(wheel, folder, "pyarrow", "obstore", "venv-pack")
    _run(folder, str(environment / "bin" / "venv-pack"), "-q", "-p", "environment", "-o", str(archive))
    return archive


def install(wheel: Path, folder: Path, *packages: str) -> Path:
    """The new ``environment`` in ``folder`` with GantryMQ from ``wheel``, and the rest from the package index.

    The compiled modules of a wheel of the tests are empty files: those of this tree replace them. Raises RuntimeError
    with the words of pip.
    """
    environment = folder / "environment"
    _run(folder, sys.executable, "-m", "venv", str(environment))
    _run(folder, str(environment / "bin" / "pip"), "install", "-q", str(wheel), *packages)
    [site] = environment.glob("lib/python*/site-packages")
    for path in (site / "gantrymq").rglob("*.so"):
        built = ROOT / path.relative_to(site)
        if built.is_file():
            shutil.copy(built, path)
        else:  # a module that is not compiled here has its plain twin
            path.unlink()
    return environment


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=INSTALL_S
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
