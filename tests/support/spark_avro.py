"""Spark's own connector for Avro, by name from Maven Central, for comparison with ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.foreign import ToolMissing, cache_folder, hold_lock

ARTIFACT = "org.apache.spark:spark-avro_2.13:4.2.0"
"""The newest one that Maven Central has for Scala 2.13; it runs in later releases of Spark 4 as well."""


def fetch_spark_avro() -> Path:
    """The jar, fetched unless it is in the cache. Raises ToolMissing without Maven, RuntimeError with its words."""
    folder = cache_folder(Path(__file__).parents[1] / "interop" / ".cache") / "spark-avro"
    _, name, version = ARTIFACT.split(":")
    jar = folder / f"{name}-{version}.jar"
    with hold_lock(folder.with_suffix(".lock")):
        if not jar.exists():
            if (maven := shutil.which("mvn")) is None:
                raise ToolMissing(f"mvn is not installed; it is needed to fetch {ARTIFACT}")
            command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
            if done.returncode:
                raise RuntimeError(f"Maven could not fetch {ARTIFACT}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return jar
