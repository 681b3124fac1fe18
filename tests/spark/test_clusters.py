"""Jobs on Spark clusters whose executors share only the interpreter and a file system with the driver."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gantrymq.spark import reason, spark_status
from gantrymq.testing.harness import cluster_in_thread
from support import packed_job, spark_job
from support.foreign import ToolMissing
from support.hadoop import run_hadoop
from support.object_storage import s3_settings
from support.packed_environment import pack_environment
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
    keys = s3_settings(s3)
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


@pytest.fixture(scope="module")
def packed(gantrymq_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``environment`` and its archive, from where jobs are submitted."""
    folder = tmp_path_factory.mktemp("packed")
    pack_environment(gantrymq_wheel, folder)
    return folder


def submit_packed_job(
    packed: Path, folder: Path, environment: dict[str, str], job: list[str], options: list[str]
) -> dict[str, Any]:
    """The results of the packed job, run by ``spark-submit`` with these options; ``folder`` gets its logs.

    ``job`` are its nameserver, its place and where it exports to.
    """
    result = folder / "result.json"
    settings = {
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.executor.cores": "1",
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", *options]
    command += ["--archives", "environment.tar.gz#environment"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += [packed_job.__file__, *job, str(result)]
    done = subprocess.run(
        command, env=environment, cwd=packed, capture_output=True, text=True, check=False, timeout=800
    )  # fmt: skip
    (folder / "job.log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, f"{done.stdout[-2000:]} ({folder}/job.log)"
    found: dict[str, Any] = json.loads(result.read_text())
    rows = packed_job.ROWS
    assert (found["read"], found["parquet"], found["copied"]) == (rows, rows, rows)
    assert found["batches"] > 1
    assert found["exported"] == [rows, rows, 0]
    for container, interpreter, module in found["executors"]:
        assert Path(interpreter).is_relative_to(f"{container}/environment"), "not of the folder of the driver"
        assert Path(module).is_relative_to(f"{container}/environment")
    return found


@pytest.mark.soak(0)
def test_a_packed_environment_is_all_that_executors_have_of_gantrymq(
    tmp_path: Path, environment: dict[str, str], packed: Path
) -> None:
    """The commands of the how-to guide run from an installed wheel, without other access to GantryMQ."""
    with cluster_in_thread(tmp_path / "store") as cluster, standalone(tmp_path, environment) as master:
        job = [cluster.nameserver, f"file://{tmp_path}/place", str(tmp_path / "export")]
        variables = environment | {"PYSPARK_PYTHON": "./environment/bin/python"}
        options = ["--master", master, "--conf", "spark.driver.host=127.0.0.1"]
        found = submit_packed_job(packed, tmp_path, variables, job, options)
    assert found["driver"][0] == str(packed)
    workers = {Path(container).relative_to(tmp_path).parts[0] for container, _, _ in found["executors"]}
    assert workers == {"worker-1", "worker-2"}


@pytest.mark.soak(0)
@pytest.mark.interop
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_yarn_runs_a_job_that_brings_its_environment_along(
    tmp_path: Path, environment: dict[str, str], packed: Path, s3: str, mode: str
) -> None:
    """With the commands of the how-to guide, HDFS for Parquet files and the checkpoint of the stream, and an object
    store for the export."""
    variables = environment.copy()
    settings = {"spark.yarn.jars": f"local:{environment['SPARK_HOME']}/jars/*"}  # else it uploads 400 MB
    keys = s3_settings(s3)
    settings |= {f"spark.executorEnv.{name}": value for name, value in keys.items()}
    driver = keys | {"PYSPARK_PYTHON": "./environment/bin/python"}
    if mode == "client":
        variables |= driver
    else:
        settings |= {f"spark.yarn.appMasterEnv.{name}": value for name, value in driver.items()}
    options = ["--master", "yarn", "--deploy-mode", mode, "--num-executors", "2"]
    options += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with ExitStack() as stack:
        try:
            hadoop = stack.enter_context(run_hadoop(tmp_path / "hadoop", yarn=True))
        except ToolMissing as missing:
            pytest.skip(str(missing))
        cluster = stack.enter_context(cluster_in_thread(tmp_path / "store"))
        job = [cluster.nameserver, f"{hadoop.url}/place", f"s3://bucket/yarn-{mode}"]
        variables["HADOOP_CONF_DIR"] = str(hadoop.conf)
        found = submit_packed_job(packed, tmp_path, variables, job, options)
    containers = [container for container, _, _ in found["executors"]]
    assert len(containers) == 2
    if mode == "client":
        assert found["driver"][0] == str(packed)
    else:
        containers.append(found["driver"][0])
    assert len(set(containers)) == len(containers)
    assert [container for container in containers if not Path(container).is_relative_to(hadoop.home)] == []
