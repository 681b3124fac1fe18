"""HDFS and YARN of Hadoop itself, of the version that pyspark has, in one process on loopback."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from support.foreign import BUILD_SECONDS, ToolMissing, cache_folder, hold_lock
from support.processes import Child

SOURCE = Path(__file__).parents[1] / "interop" / "hadoop"
START_SECONDS = 300.0


@attrs.frozen
class Hadoop:
    """A running cluster: ``url`` is that of HDFS, ``conf`` the folder for HADOOP_CONF_DIR."""

    url: str
    conf: Path
    home: Path


@contextmanager
def run_hadoop(home: Path, *, yarn: bool) -> Iterator[Hadoop]:
    """One datanode, and with ``yarn`` two node managers, whose logs and files are below ``home``.

    Raises ToolMissing without a JDK or Maven.
    """
    jars = _fetch()
    java = shutil.which("java")
    assert java is not None
    home.mkdir()
    options = ("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
    log = f"-Dlog4j.configuration=file:{SOURCE / 'log4j.properties'}"
    # The containers of YARN inherit from this process: nothing of the environment of the tests.
    clean = ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", f"HOME={home}"]
    command = [*clean, java, *options, log, "-cp", f"{jars}/*", str(SOURCE / "MiniCluster.java"), str(home)]
    with Child(command + ["yarn"] * yarn, home / "hadoop.log", cwd=home) as child:
        started = child.wait_event("started", timeout=START_SECONDS)
        yield Hadoop(str(started["url"]), home / "conf", home)


def _fetch() -> Path:
    """The folder with Hadoop's jars, fetched by name from Maven Central unless they are in the cache."""
    import pyspark

    [api] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    found = re.search(r"-(\d[\d.]*)\.jar", api.name)
    assert found is not None
    project = SOURCE / "pom.xml"
    target = (cache_folder(SOURCE.parent / ".cache") / f"hadoop-{found[1]}").absolute()
    mark = target / "complete"
    with hold_lock(target.with_name(f"{target.name}.lock")):
        if not mark.exists() or mark.read_text() != project.read_text():
            for tool in ("java", "javac", "mvn"):
                if shutil.which(tool) is None:
                    raise ToolMissing(f"{tool} is not installed; it is needed to run Hadoop")
            shutil.rmtree(target, ignore_errors=True)
            settings = (f"-Dhadoop.version={found[1]}", f"-Dcache={target}")
            command = ["mvn", "-q", "-B", "-f", str(project), *settings, "dependency:copy-dependencies"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
            )
            if done.returncode:
                raise RuntimeError(f"Maven could not fetch Hadoop: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            mark.write_text(project.read_text())
    return target / "lib"
