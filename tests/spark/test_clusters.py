"""Jobs on Spark clusters whose executors share nothing with the driver but the interpreter and a file system."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gantrymq.spark import reason, spark_status
from gantrymq.testing.harness import cluster_in_thread
from support import spark_job
from support.processes import Child, free_ports

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
DEDUP = ROOT / "examples" / "plugins" / "dedup" / "gantrymq_dedup.py"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """All variables of the processes of the cluster."""
    status = spark_status()
    if not status:
        pytest.skip(f"Spark cannot run here: {status.reason}")
    import pyspark

    return {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_HOME": str(Path(pyspark.__file__).parent), "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],
    }  # fmt: skip


@contextmanager
def standalone(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    (port,) = free_ports(1)
    program = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    program += [f"{environment['SPARK_HOME']}/bin/spark-class"]
    classes = "org.apache.spark.deploy"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> None:
            # Its log is what it says on stderr, and the only place where it says that it is ready.
            log = folder / f"{name}.log"
            stack.enter_context(Child([*program, *arguments, "--host", "127.0.0.1", "--webui-port", "0"], log))

        start("master", f"{classes}.master.Master", "--port", str(port))
        address = f"spark://127.0.0.1:{port}"
        for name in ("worker-1", "worker-2"):
            start(name, f"{classes}.worker.Worker", "--cores", "1", "--memory", "700m", "--work-dir",
                  str(folder / name), address)  # fmt: skip
        yield address


@pytest.mark.soak(1)
@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_a_job_reads_streams_exports_and_writes_once_though_a_worker_is_killed(
    tmp_path: Path, environment: dict[str, str], s3: str, kind: str
) -> None:
    """The job's module says what it does. GantryMQ is found because the interpreter of the workers has it."""
    dedup = runpy.run_path(str(DEDUP))["DedupPlugin"]
    settings = {"plugin.dedup.property": "DEDUP_KEY"}
    found_by = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}  # as an installed wheel is found
    keys = {
        "AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_in_thread(tmp_path / "store", enable=[dedup], settings=settings))
        master = "local-cluster[2,1,1024]"
        if kind == "standalone":
            master = stack.enter_context(standalone(tmp_path, environment))
        url = f"s3a://bucket/cluster/{kind}"
        command = [sys.executable, spark_job.__file__, master, cluster.nameserver, str(tmp_path), url]
        done = subprocess.run(
            command,
            env=environment | found_by | keys,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    (tmp_path / "job.err").write_text(done.stderr)
    assert done.returncode == 0, reason(Exception(done.stderr)) + f" ({tmp_path}/job.err)"
    found = json.loads(done.stdout.splitlines()[-1])
    rows = spark_job.ROWS
    assert found["once"] == {"rows": rows, "distinct": rows}
    assert found["again"]["distinct"] == rows
    assert found["again"]["rows"] > rows, "the killed task had sent some"
    assert (found["executors"], found["read"], found["copied"]) == (2, rows, rows)
    assert found["exported"] == [[rows, rows, 0]] * 2, "to a folder and to an object store"
