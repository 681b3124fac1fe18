"""A faster start of Spark in tests, with half of its usual processor time.

- An archive of the classes that Spark loads at its start takes off a third of a JVM's. ``make foreign`` makes it, and
  the tests use it where it is. Run as a program this module is what a JVM does while its classes are recorded.
- Spark's Python processes import ``pyspark`` from a zip file, which each of them compiles again, and each stream
  starts several. A home of Spark without the zip file makes them import the installed, compiled package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.foreign import BUILD_SECONDS, ToolMissing, hold_lock

SPARK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the JVMs that tests of Spark start: they end before the optimizing compiler has paid off, which would take
half of their processor time."""
SILENT = "-Xlog:disable -Xlog:all=error:stderr"
"""A JVM that cannot use the archive says so on stdout, where Spark's scripts expect their own words."""
ROOT = Path(__file__).resolve().parents[2]


def archive_of(cache: Path) -> Path | None:
    """The path of the archive for this Java and this Spark, whether or not it exists; None without one of them.

    The JVM compares the paths and times of the jars: another environment has an archive of its own.
    """
    from gantrymq.spark import spark_status

    if not spark_status() or not (java := shutil.which("java")):
        return None
    import pyspark

    paths = (Path(java).resolve(), Path(pyspark.__file__).parent / "jars")
    kind = " ".join([*(f"{path} {path.stat().st_mtime_ns}" for path in paths), "home without Python"])
    return cache / "spark" / f"{hashlib.sha256(kind.encode()).hexdigest()[:16]}.jsa"


def environment_of(cache: Path) -> dict[str, str]:
    """The environment variables of a Spark in tests; only options of the JVM where the archive was not made."""
    archive = archive_of(cache)
    if archive is None or not archive.exists():
        return {"JDK_JAVA_OPTIONS": SPARK_JAVA}
    options = f"{SPARK_JAVA} -XX:SharedArchiveFile={archive.absolute()} {SILENT}"
    return {"JDK_JAVA_OPTIONS": options, "SPARK_HOME": str(_home_of(archive))}


def _home_of(archive: Path) -> Path:
    return archive.with_suffix(".home").absolute()


def make_archive(cache: Path) -> None:
    """Make the archive, unless it is there. Raises ToolMissing without Spark or Java.

    A JVM that cannot make one does without it.
    """
    archive = archive_of(cache)
    if archive is None:
        raise ToolMissing("Spark or Java is not installed; the tests of Spark need both")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(cache / "spark.lock"):
        if archive.exists():
            return
        import pyspark

        home = _home_of(archive)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        for name in ("bin", "jars"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
        made = archive.with_suffix(".new")
        options = f"{SPARK_JAVA} -XX:ArchiveClassesAtExit={made.absolute()} {SILENT}"
        places = {"SPARK_HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        # The JVM ends after its Python process; it has the pipes as long.
        subprocess.run(
            [sys.executable, "-m", "support.spark_classes", str(archive.with_suffix(".rows"))],
            env={**os.environ, "JDK_JAVA_OPTIONS": options, **places},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_SECONDS, check=False,
        )  # fmt: skip
        shutil.rmtree(archive.with_suffix(".rows"), ignore_errors=True)
        if made.exists():
            made.rename(archive)


def use_spark(folder: str) -> None:
    """Run the usual parts of tests: Python workers, SQL, Parquet, a stream."""
    from gantrymq.spark import session

    spark = session("gantrymq-tests", cores=2, memory="512m", config={"spark.sql.shuffle.partitions": "2"})
    rows = spark.createDataFrame([(number, f"body {number}") for number in range(10)], "id long, body string")
    rows.selectExpr("id % 2 AS part", "*").write.partitionBy("part").parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows")
    assert read.groupBy("part").count().orderBy("part").collect()[0][1] == 5
    stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows").writeStream.trigger(availableNow=True)
    stream.option("checkpointLocation", f"{folder}/check").format("memory").queryName("rows").start().awaitTermination()
    assert spark.sql("SELECT count(*) FROM rows").collect()[0][0] == 10
    spark.stop()


if __name__ == "__main__":
    use_spark(sys.argv[1])
