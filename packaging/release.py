"""Build what a release consists of: ``python packaging/release.py DIST [--wheels DIR] [--sign KEY]``.

DIST gets the source distribution, wheels, ``sbom.cdx.json`` (CycloneDX, of an environment with all extras for users),
and ``SHA256SUMS`` with the hashes of all of them, for ``sha256sum --check``. ``--sign`` adds ``SHA256SUMS.asc``.
Wheels for users come from cibuildwheel (``[tool.cibuildwheel]``); without ``--wheels``, one is built here from the
source distribution. Dates in archives are those of the commit, so that everybody who builds it gets the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "spark,spark-schemas,delta,iceberg,acl,tls,metrics,dashboard,compression,objectstore,backup,etcd,otel"
"""Of the environment that the SBOM describes: what users install."""


def version_of(root: Path) -> str:
    """The version, which stands in one file. :class:`SystemExit` unless the changelog begins with it."""
    found: dict[str, str] = {}
    exec((root / "gantrymq" / "_version.py").read_text(), found)  # noqa: S102 - our own file
    version = found["__version__"]
    heading = next(line for line in (root / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    if heading.removeprefix("## ").partition(",")[0] != version:
        raise SystemExit(f"the version is {version}, but CHANGELOG.md begins with {heading!r}")
    return version


def commit_date(root: Path) -> str:
    """The date of the last commit, in seconds since 1970."""
    return _run("git", "-C", str(root), "log", "-1", "--format=%ct").strip()


def build_sdist(root: Path, folder: Path, date: str) -> Path:
    """Build the source distribution. Two builds of the same source have the same bytes."""
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(root), date=date)
    (built,) = folder.glob("gantrymq-*.tar.gz")
    return built


def write_sbom(wheel: Path, path: Path) -> None:
    """Install the wheel with the extras for users into a new environment, and describe its packages."""
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", folder)
        python = f"{folder}/bin/python"
        _run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]")
        _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
        describe_environment(python, path)


def describe_environment(python: str, path: Path) -> None:
    """Write the packages of an interpreter's environment as CycloneDX. The file has no date and no serial number."""
    _run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", str(path), python)


def write_checksums(folder: Path) -> Path:
    """Hash all files of the folder."""
    path = folder / "SHA256SUMS"
    files = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("SHA256SUMS"))
    path.write_text("".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files))
    return path


def sign(path: Path, key: str) -> None:
    """Add a detached signature of the file."""
    _run("gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", str(path))


def _run(*command: str, date: str | None = None) -> str:
    environment = os.environ | ({} if date is None else {"SOURCE_DATE_EPOCH": date})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - ours
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build everything into an empty folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="a new or empty folder")
    parser.add_argument("--wheels", type=Path, help="the folder with the wheels of cibuildwheel")
    parser.add_argument("--sign", metavar="KEY", help="the GnuPG key that signs SHA256SUMS")
    given = parser.parse_args()
    version, date, dist = version_of(ROOT), commit_date(ROOT), given.dist.resolve()
    dist.mkdir(parents=True, exist_ok=True)
    if any(dist.iterdir()):
        raise SystemExit(f"{dist} is not empty")
    sdist = build_sdist(ROOT, dist, date)
    if given.wheels is None:
        _run(
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--outdir",
            str(dist),
            *_unpacked(sdist, dist / "source"),
            date=date,
        )
        shutil.rmtree(dist / "source")
    else:
        for wheel in given.wheels.glob(f"gantrymq-{version}-*.whl"):
            shutil.copy(wheel, dist)
    write_sbom(next(dist.glob("*.whl")), dist / "sbom.cdx.json")
    sums = write_checksums(dist)
    if given.sign:
        sign(sums, given.sign)
    sys.stdout.write(sums.read_text())


def _unpacked(sdist: Path, folder: Path) -> list[str]:
    shutil.unpack_archive(sdist, folder, filter="data")
    return [str(each) for each in folder.iterdir()]


if __name__ == "__main__":
    main()
