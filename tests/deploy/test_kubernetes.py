"""The manifests run in a real Kubernetes: API server, controllers, scheduler, kubelet and containerd on this machine.

Only ``make soak`` has it, as root: it builds Kubernetes, which takes many minutes the first time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.foreign import ToolMissing, cache_folder
from support.images import Image
from support.kubernetes import Cluster, build_kubernetes
from support.processes import wait_for

pytestmark = [pytest.mark.soak(0), pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(7200)]

ROOT = Path(__file__).resolve().parents[2]
CACHE = cache_folder(ROOT / "tests/interop/.cache")
MANIFESTS = ROOT / "deploy" / "kubernetes" / "gantrymq.yaml"
SPACE = ("--namespace", "messaging")
NAMESERVERS = "gantrymq-nameserver-0.gantrymq-nameserver:9876;gantrymq-nameserver-1.gantrymq-nameserver:9876"


@pytest.fixture
def cluster(image: Image) -> Iterator[Cluster]:
    # a path short enough for the sockets of containerd
    folder = Path(tempfile.mkdtemp(prefix="gmq-"))
    cluster = None
    try:
        cluster = Cluster(folder, build_kubernetes(CACHE))
        cluster.start(image.archive("gantrymq:0.1.0"))
        yield cluster
    except ToolMissing as missing:
        pytest.skip(str(missing))
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def ready(cluster: Cluster, name: str) -> bool:
    status = cluster.get("statefulset", name, *SPACE)["status"]
    updated = status.get("currentRevision") == status.get("updateRevision")
    return status.get("readyReplicas", 0) == 2 and updated


def execute(cluster: Cluster, pod: str, command: str) -> str:
    return cluster.kubectl(
        "exec", *SPACE, pod, "--", "sh", "-ec", f"export GANTRYMQ_NAMESERVER='{NAMESERVERS}'\n{command}"
    )


def evict(cluster: Cluster, pod: str) -> str:
    """Empty, or why the API server refuses."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "messaging"}}
    path = f"/api/v1/namespaces/messaging/pods/{pod}/eviction"
    done = cluster.try_kubectl("create", "--raw", path, "--filename", "-", given=json.dumps(body))
    return done.stderr if done.returncode else ""


def test_the_manifests_serve_and_keep_messages_over_kills_evictions_and_a_rolling_restart(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "messaging")
    apply = ["apply", "--server-side", "--validate=strict", *SPACE, "--filename"]
    cluster.kubectl(*apply, MANIFESTS, "--dry-run=server")
    text = MANIFESTS.read_text()
    assert text.count('cpu: "1"') == 1
    volumes = [cluster.local_volume(f"store-{number}", "100Gi") for number in range(2)]
    volumes += [cluster.local_volume(f"nameserver-{number}", "100Mi") for number in range(2)]
    cluster.kubectl(*apply, "-", given=text.replace('cpu: "1"', "cpu: 100m"))  # one node has both brokers
    for name in ("gantrymq-nameserver", "gantrymq-broker"):
        wait_for(lambda name=name: ready(cluster, name), 300)
    claims = cluster.get("persistentvolumeclaims", *SPACE)["items"]
    assert {each["status"]["phase"] for each in claims} == {"Bound"}
    assert {path.stat().st_gid for path in volumes} == {10001}, "fsGroup"
    budget = cluster.get("poddisruptionbudget", "gantrymq-broker", *SPACE)["status"]
    assert (budget["currentHealthy"], budget["disruptionsAllowed"]) == (2, 1)

    assert execute(cluster, "gantrymq-broker-0", "id -u; touch /here 2>/dev/null || echo read-only").split() == [
        "10001",
        "read-only",
    ]
    create = (
        "gantrymq topic create orders --queues 2; for n in 1 2 3 4 5 6 7 8; do echo $n; done | gantrymq produce orders"
    )
    execute(cluster, "gantrymq-broker-0", create)
    status = json.loads(execute(cluster, "gantrymq-broker-1", "gantrymq cluster status --json"))
    assert "gantrymq-broker-0" in json.dumps(status)
    assert "gantrymq-broker-1.gantrymq-broker:10911" in json.dumps(status)

    (pid,) = [
        int(path.name) for path in Path("/proc").glob("[0-9]*")
        if b"/opt/gantrymq/bin/gantrymq\0broker\0--config\0/etc/gantrymq" in read(path / "cmdline")
        and b"GANTRYMQ_BROKER__NAME=gantrymq-broker-0" in read(path / "environ").split(b"\0")
        and str(cluster.folder).encode() in read(path / "mountinfo")
    ]  # fmt: skip
    os.kill(pid, signal.SIGKILL)

    def restarts() -> int:
        (container,) = cluster.get("pod", "gantrymq-broker-0", *SPACE)["status"]["containerStatuses"]
        return int(container["restartCount"]) if container["ready"] else 0

    wait_for(lambda: restarts() == 1, 180)
    evicted = cluster.get("pod", "gantrymq-broker-0", *SPACE)["metadata"]["uid"]
    assert evict(cluster, "gantrymq-broker-0") == ""
    assert "disruption budget" in evict(cluster, "gantrymq-broker-1")

    def is_replaced() -> bool:
        done = cluster.try_kubectl("get", "pod", "gantrymq-broker-0", *SPACE, "--output", "jsonpath={.metadata.uid}")
        return done.returncode == 0 and done.stdout != evicted

    wait_for(is_replaced, 180)
    wait_for(lambda: ready(cluster, "gantrymq-broker"), 180)
    first = execute(cluster, "gantrymq-broker-0", "gantrymq consume orders --group new --from first --max 8")
    assert sorted(first.split()) == list("12345678")

    cluster.kubectl("rollout", "restart", "statefulset/gantrymq-broker", "statefulset/gantrymq-nameserver", *SPACE)
    cluster.kubectl("rollout", "status", "statefulset/gantrymq-broker", *SPACE, "--timeout=300s")
    cluster.kubectl("rollout", "status", "statefulset/gantrymq-nameserver", *SPACE, "--timeout=300s")
    again = execute(cluster, "gantrymq-broker-1", "gantrymq consume orders --group other --from first --max 8")
    assert sorted(again.split()) == list("12345678")
    log = cluster.kubectl("logs", *SPACE, "gantrymq-broker-0")
    (recovered,) = [json.loads(line) for line in log.splitlines() if "store_recovered" in line]
    assert recovered["clean"] is True, "the kubelet stopped the broker, which ended in order"


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
