"""The Compose file runs in a real Docker: our image, Debian's Prometheus and Alertmanager, a stand-in for Grafana.

Only ``make soak`` has it, as root: it builds the image and Docker Compose, which takes some minutes.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.debian import find_unpacked
from support.docker import Docker, find_compose
from support.foreign import ToolMissing, cache_folder
from support.images import Image
from support.processes import ChildFailed, wait_for

pytestmark = [pytest.mark.soak(0), pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(3600)]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = cache_folder(ROOT / "tests/interop/.cache")
FILE = ROOT / "deploy" / "compose" / "compose.yaml"
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
MONITORING = """FROM gantrymq
USER root
COPY program /bin/{name}
COPY share /usr/share/prometheus
RUN install -d -o nobody -g nogroup /{name}
USER nobody
WORKDIR /{name}
VOLUME /{name}
HEALTHCHECK NONE
ENTRYPOINT ["/bin/{name}"]
"""
GRAFANA = """FROM gantrymq
USER root
COPY stand_in_grafana.py /
RUN install -d -o 472 -g 0 /var/lib/grafana
USER 472
HEALTHCHECK NONE
ENTRYPOINT ["/opt/gantrymq/bin/python", "/stand_in_grafana.py"]
"""


@pytest.fixture
def docker(image: Image, tmp_path: Path) -> Iterator[Docker]:
    """A daemon with the images that the Compose file names."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (gantrymq[acl])")
    services = yaml.safe_load(FILE.read_text())["services"]
    try:
        with Docker(tmp_path) as docker:
            docker("load", "--quiet", "--input", image.archive("gantrymq:latest"))
            for name, program in (("prometheus", "prometheus"), ("alertmanager", "prometheus-alertmanager")):
                context = tmp_path / name
                context.mkdir()
                found = find_unpacked(CACHE, program, program)
                shutil.copy(found, context / "program")
                shutil.copytree(found.parents[1] / "share/prometheus", context / "share")
                (context / "Dockerfile").write_text(MONITORING.format(name=name))
                docker("build", "--quiet", "--tag", services[name]["image"], context)
            context = tmp_path / "grafana"
            context.mkdir()
            shutil.copy(HERE / "stand_in_grafana.py", context)
            (context / "Dockerfile").write_text(GRAFANA)
            docker("build", "--quiet", "--tag", services["grafana"]["image"], context)
            yield docker
    except ToolMissing as missing:
        pytest.skip(str(missing))


def test_compose_serves_restarts_keeps_its_store_and_is_scraped(docker: Docker, tmp_path: Path) -> None:
    compose = find_compose(CACHE)
    files = ["--file", str(FILE)]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 65536:  # a daemon without CAP_SYS_RESOURCE cannot give more than it has
        (tmp_path / "limit.yaml").write_text(f"services: {{broker: {{ulimits: {{nofile: {hard}}}}}}}\n")
        files += ["--file", str(tmp_path / "limit.yaml")]

    def run(*arguments: str) -> str:
        return docker.run(compose, *files, *arguments, GRAFANA_PASSWORD="a word")

    def gantrymq(*arguments: str) -> str:
        return docker.run(sys.executable, "-m", "gantrymq.cli", *arguments)

    def get(url: str) -> Any:
        with suppress(ChildFailed, ValueError):
            return json.loads(docker.run(sys.executable, "-c", GET, f"http://127.0.0.1:{url}"))
        return {}

    def health() -> str:
        return docker("inspect", "--format", "{{.State.Health.Status}} {{.RestartCount}}", "gantrymq-broker-1").strip()

    run("up", "--detach", "--no-build", "--quiet-pull")
    wait_for(lambda: health() == "healthy 0", 120)
    gantrymq("topic", "create", "orders")
    docker.run("sh", "-c", f"echo kept | {sys.executable} -m gantrymq.cli produce orders")

    wait_for(lambda: get("3000/") == {"dashboards": ["GantryMQ"], "up": ["1"]}, 90)
    groups = get("9090/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert sum(len(group["rules"]) for group in groups) >= 8
    (manager,) = get("9090/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert manager["url"] == "http://alertmanager:9093/api/v2/alerts"
    assert get("9093/api/v2/status")["config"]["original"]

    os.kill(int(docker("inspect", "--format", "{{.State.Pid}}", "gantrymq-broker-1")), signal.SIGKILL)
    wait_for(lambda: health() == "healthy 1", 120)
    assert gantrymq("topic", "peek", "orders", "--max", "1").strip() == "kept"

    run("down")
    run("up", "--detach", "--no-build", "--quiet-pull")
    wait_for(lambda: health() == "healthy 0", 120)
    assert gantrymq("consume", "orders", "--group", "new", "--from", "first", "--max", "1").strip() == "kept"
    log = run("logs", "--no-log-prefix", "broker")
    (recovered,) = [json.loads(line) for line in log.splitlines() if "store_recovered" in line]
    assert recovered["clean"] is True, "Docker stopped the broker, which ended in order"
    run("down", "--volumes")
