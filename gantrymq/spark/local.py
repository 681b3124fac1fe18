"""Starts a local Spark session for the data source, and checks whether Spark can run here."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from gantrymq.spark.errors import SparkMissing
from gantrymq.spark.events import log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS_MIN = 8
"""The least partitions of a shuffle. Spark's default of 200 suits clusters: a stream with an aggregation writes files
for each partition in each batch. On one machine a batch of 1,500 rows took 2.5 times as much processor time as with
8."""
JAVA_MIN = 17
"""The oldest Java version for Spark 4."""
PYSPARK_MIN = (4, 2)
_ADVICE = "pip install 'gantrymq[spark]'"

_FIND_MODULES = """
from importlib.util import find_spec
print(next((name for name in ("gantrymq", "trio", "pyarrow") if find_spec(name) is None), ""))
"""

_LOG4J = """\
rootLogger.level = {level}
# Spark sets the root's level to this logger's, and says so, where the two differ.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} spark %p %c{{1}}: %m%n{trace}
"""
_FIRST_LINE = "%throwable{1}"
"""Instead of a stack trace: Python gets the exception, and a trace of a failed stream has a hundred lines."""


@attrs.frozen
class SparkStatus:
    """Whether Spark can run here, as a truth value; ``reason`` has the found version, or what to do."""

    available: bool
    reason: str

    def __bool__(self) -> bool:
        return self.available


def java_available() -> SparkStatus:
    """Whether Spark can use Java: ``$JAVA_HOME/bin/java``, else ``java`` on the path, as Spark searches it.

    Starts ``java -version``, which takes a tenth of a second.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"install a JDK or JRE of version {JAVA_MIN} or later, or point JAVA_HOME to one"
    if java is None:
        return SparkStatus(False, f"no Java was found: {advice}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return SparkStatus(False, f"{java} does not run ({error}): {advice}")
    text = done.stderr + done.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if done.returncode != 0 or found is None:
        return SparkStatus(False, f"{java} does not print its version: {advice}")
    if int(found[1]) < JAVA_MIN:
        return SparkStatus(False, f"{java} is Java {found[1]}: {advice}")
    return SparkStatus(True, f"Java {found[1]} ({java})")


def arrow_status() -> SparkStatus:
    """Whether Parquet files can be written without Spark: pyarrow is there."""
    if importlib.util.find_spec("pyarrow") is None:
        return SparkStatus(False, f"pyarrow is not installed: {_ADVICE}")
    return SparkStatus(True, f"pyarrow {metadata.version('pyarrow')}")


def spark_status() -> SparkStatus:
    """Whether Spark can run here: pyspark and pyarrow are installed, and Java unless a session runs already."""
    if importlib.util.find_spec("pyspark") is None:
        return SparkStatus(False, f"pyspark is not installed: {_ADVICE}")
    if not (arrow := arrow_status()):
        return arrow
    if not (pyspark := _pyspark_status(_pyspark_version())):
        return pyspark
    if "pyspark.sql" in sys.modules and find_running() is not None:  # its Java may be one that only Spark finds
        return pyspark
    java = java_available()
    return SparkStatus(True, f"{pyspark.reason}, {java.reason}") if java else java


def check_pyspark() -> None:
    """Raise :class:`SparkMissing` if the pyspark that runs here lacks what the data source needs."""
    import pyspark

    if not (status := _pyspark_status(pyspark.__version__)):
        raise SparkMissing(status.reason)


def _pyspark_version() -> str:
    try:
        return metadata.version("pyspark")  # without the import, which takes longer than most commands
    except metadata.PackageNotFoundError:  # spark-submit adds the cluster's own, which is not installed by pip
        import pyspark

        return pyspark.__version__


def _pyspark_status(version: str) -> SparkStatus:
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < PYSPARK_MIN:
        return SparkStatus(False, f"pyspark {version} is too old: {_ADVICE}")
    return SparkStatus(True, f"pyspark {version}")


def session(
    app_name: str = "gantrymq",
    *,
    cores: int | None = None,
    memory: str = "1g",
    log_level: str = "error",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A local Spark session with the format ``gantrymq``: a running one if there is any, else a new one.

    It uses only this machine: loopback, no web page, no downloads. ``cores`` is the number of concurrent tasks (all
    cores by default), ``memory`` the JVM's heap, ``log_level`` the level of Spark's log on stderr (error, warn, info,
    off); at error, the log has the first line of an exception only. A shuffle has as many partitions as there are
    concurrent tasks, at least 8, where Spark's default is 200. ``config`` adds or overrides settings of Spark. Spark's
    Python workers use this interpreter, not ``python3`` on the path; therefore the function sets ``PYSPARK_PYTHON`` and
    ``PYSPARK_DRIVER_PYTHON`` of this process. A start takes about five seconds. The caller stops the session. The JVM
    outlives it: a later session of this process keeps the heap of the first one; if that is smaller than
    ``memory``, a warning is logged (``jvm_heap_not_changed``).

    Raises :class:`SparkMissing` if Spark cannot run.
    """
    status = spark_status()
    if not status:
        raise SparkMissing(status.reason)
    running = find_running() or _start(app_name, cores, memory, log_level, config or {})
    register(running)
    return running


def find_running() -> SparkSession | None:
    """The session of this process, if any, from any thread."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("gantrymq")`` known in ``spark``.

    Sets ``spark.sql.python.filterPushdown.enabled`` in it, so that a ``where()`` on queues, offsets,
    times and tags reads less.
    Raises :class:`SparkMissing` if the session's Python workers run an interpreter that lacks GantryMQ.
    """
    from gantrymq.spark.source import GantryDataSource

    check_interpreter(spark.sparkContext.pythonExec)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(GantryDataSource)


def check_interpreter(python: str) -> None:
    """Raise :class:`SparkMissing` unless ``python``, which runs Spark's Python workers, can import the data source.

    It starts ``python`` unless that is this interpreter. Spark runs it on the driver as well, to plan reads.
    """
    if shutil.which(python) == sys.executable:
        return
    command = [python, "-c", _FIND_MODULES]
    advice = f"start the session with PYSPARK_PYTHON set to an interpreter that has it, such as {sys.executable}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissing(
            f"Spark's Python workers run {python!r}, which does not start on this machine ({error}): {advice}"
        ) from None
    if done.returncode or done.stdout.strip():
        missing = done.stdout.strip() or "gantrymq"
        raise SparkMissing(f"Spark's Python workers run {python!r}, which has no module {missing}: {advice}")


def _start(app_name: str, cores: int | None, memory: str, log_level: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # They exist as long as this process, because the JVM outlives the session and uses them.
    folder = Path(tempfile.mkdtemp(prefix="gantrymq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    trace = _FIRST_LINE if log_level in ("error", "off") else "%throwable"  # a later session may set off to error
    (folder / "log4j2.properties").write_text(_LOG4J.format(level=log_level, trace=trace), encoding="ascii")
    settings = _settings(folder, cores, memory) | dict(config)
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    has_jvm = SparkContext._gateway is not None
    started = builder.getOrCreate()
    if has_jvm:
        _set_up_jvm_again(started, memory, log_level)
    return started


def _set_up_jvm_again(spark: SparkSession, memory: str, log_level: str) -> None:
    """Set what can be changed in the JVM of an earlier session of this process, and log what cannot."""
    spark.sparkContext.setLogLevel(log_level.upper())
    jvm: Any = spark.sparkContext._jvm
    heap = jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20
    wanted = jvm.org.apache.spark.network.util.JavaUtils.byteStringAsMb(memory)
    if heap < wanted * 0.9:  # some garbage collectors do not count all of it
        log.warning("jvm_heap_not_changed", heap_mb=heap, wanted_mb=wanted)


def _settings(folder: Path, cores: int | None, memory: str) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(SHUFFLE_PARTITIONS_MIN, cores or os.cpu_count() or 1)),
        # Few other readers of Parquet support Spark's default, INT96.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
