"""The files in ``deploy/``: each is valid, agrees with the broker's configuration, and drops privileges."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli import version
from gantrymq.cli.__main__ import run

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PORTS = {9876, 10911, 8558}
NOT_FOR_USERS = {"release", "test", "bench", "docs", "dev"}


def extras_of_package() -> dict[str, set[str]]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    return {name: set(re.findall(r"^[\w-]+", text, re.MULTILINE)) for name, text in extras.items()}


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (gantrymq[acl])")
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def pod(kind: str) -> dict[str, Any]:
    (found,) = [
        each for each in documents("kubernetes/gantrymq.yaml")
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == f"gantrymq-{kind}"
    ]  # fmt: skip
    return found


def accepts(config: Path | None, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, *options: str) -> bool:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = ["--config", str(config)] if config is not None else []
    return run(["check-config", *given, *options]) == 0


def test_kubernetes_configures_a_broker_that_accepts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config,) = [each for each in documents("kubernetes/gantrymq.yaml") if each["kind"] == "ConfigMap"]
    (tmp_path / "broker.toml").write_text(config["data"]["broker.toml"])
    container = pod("broker")["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["broker", "--config", "/etc/gantrymq/broker.toml"]
    names = {each["name"]: each.get("value", "gantrymq-broker-0") for each in container["env"]}
    names = {name: value.replace("$(GANTRYMQ_BROKER__NAME)", "gantrymq-broker-0") for name, value in names.items()}
    assert accepts(tmp_path / "broker.toml", names, monkeypatch)


@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_pods_have_probes_limits_a_disruption_budget_and_no_privileges(kind: str) -> None:
    set_ = pod(kind)
    selector = set_["spec"]["selector"]["matchLabels"]
    template = set_["spec"]["template"]
    assert selector.items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert set(ports.values()) <= PORTS
    for probe in ("livenessProbe", "readinessProbe"):
        (action,) = [container[probe][name] for name in ("httpGet", "tcpSocket") if name in container[probe]]
        assert action["port"] in ports
        assert action.get("path", "/healthz") in ("/healthz", "/readyz")
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["limits"]["memory"]
    services = {
        each["metadata"]["name"]: each for each in documents("kubernetes/gantrymq.yaml") if each["kind"] == "Service"
    }
    service = services[set_["spec"]["serviceName"]]
    assert service["spec"]["selector"] == selector
    assert {each["port"] for each in service["spec"]["ports"]} == set(ports.values())
    budgets = [each for each in documents("kubernetes/gantrymq.yaml") if each["kind"] == "PodDisruptionBudget"]
    assert sum(each["spec"]["selector"]["matchLabels"] == selector for each in budgets) == 1


def test_a_broker_in_kubernetes_keeps_its_store_and_has_time_to_stop() -> None:
    spec = pod("broker")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    mounts = {each["name"]: each["mountPath"] for each in spec["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/var/lib/gantrymq"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60


def test_nameservers_keep_their_kv_config_which_has_the_epochs() -> None:
    spec = pod("nameserver")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    (claim,) = spec["volumeClaimTemplates"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    assert data_of(container["args"]) == mount["mountPath"]
    assert spec["template"]["spec"]["securityContext"]["fsGroup"] == 10001

    service = documents("compose/compose.yaml")[0]["services"]["nameserver"]
    assert [volume.partition(":")[2] for volume in service["volumes"]] == [data_of(service["command"])]

    unit = (DEPLOY / "systemd" / "gantrymq-nameserver.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    (folder,) = re.findall(r"^StateDirectory=(.*)$", unit, re.M)
    assert data_of(command.split()) == f"/var/lib/{folder}"


def data_of(command: list[str]) -> str:
    """The folder that a command line names."""
    return command[command.index("--data") + 1]


def test_compose_connects_services_that_exist_and_configures_a_broker_that_accepts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (compose,) = documents("compose/compose.yaml")
    services = compose["services"]
    broker = services["broker"]
    environment = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in broker["environment"].items()}
    assert environment["GANTRYMQ_BROKER__NAMESERVERS"].partition(":")[0] in services
    assert accepts(None, environment, monkeypatch, *broker["command"][1:])
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is published beyond this machine"
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / "compose" / source).exists(), volume
    (prometheus,) = documents("compose/prometheus.yml")
    targets = [
        target for job in prometheus["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert targets == ["broker:8558"]
    (source,) = documents("compose/grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_image_runs_as_a_user_without_rights_and_checks_its_health() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# \t"]
    last_stage = steps[max(number for number, step in enumerate(steps) if step[0] == "FROM") :]
    names = [name for name, _ in last_stage]
    assert dict(last_stage)["USER"].split(":")[0] not in ("root", "0")
    assert names.index("USER") > names.index("RUN")
    assert "HEALTHCHECK" in names
    assert f"{DEPLOY.name}/docker/healthcheck.py /opt/gantrymq/" in [
        rest for name, rest in last_stage if name == "COPY"
    ]
    assert "/opt/gantrymq/healthcheck.py" in dict(last_stage)["HEALTHCHECK"]
    assert {int(port) for port in dict(last_stage)["EXPOSE"].split()} == PORTS
    assert all(
        ":" in rest.split()[0] and not rest.split()[0].endswith(":latest") for name, rest in steps if name == "FROM"
    )
    extras = re.search(r"\[([a-z,]+)\]", text)
    assert extras is not None
    declared = re.findall(r"^(\w+) =$", (ROOT / "setup.cfg").read_text().partition("[options.extras_require]")[2], re.M)
    assert set(extras[1].split(",")) <= set(declared)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/opt/gantrymq/bin/gantrymq", shutil.which("true") or "/bin/true")
        (tmp_path / path.name).write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.glob("gantrymq-*")))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    own = [line for line in (done.stdout + done.stderr).splitlines() if "gantrymq-" in line]
    assert own == []


@pytest.mark.slow
def test_the_units_use_commands_and_options_that_exist() -> None:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        (command,) = re.findall(r"^ExecStart=/opt/gantrymq/bin/gantrymq (.*)$", path.read_text(), re.M)
        words = [word for word in command.split() if not word.startswith(("-", "/")) and not re.search(r"\d", word)]
        done = subprocess.run(
            [sys.executable, "-m", "gantrymq.cli", *words, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        for option in re.findall(r"--[a-z-]+", command):
            assert option in done.stdout, (path.name, option)


def test_the_dashboard_of_grafana_uses_metrics_that_exist() -> None:
    board = json.loads((DEPLOY / "grafana" / "gantrymq.json").read_text())
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    missing = page.partition("## RocketMQ's metrics that are missing")[2].partition("\n## ")[0]
    known = set(re.findall(r"`((?:gantrymq|rocketmq|process)_\w+)`", page)) - set(
        re.findall(r"`(rocketmq_\w+)`", missing)
    )
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    used = {name for text in expressions for name in re.findall(r"(?:gantrymq|rocketmq|process)_\w+", text)}
    assert {name.removesuffix("_bucket") for name in used} <= known
    assert len(panels) >= 12
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_version_is_one_and_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    from gantrymq import __version__

    assert run(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == __version__
    assert found["loops"] in ("compiled", "plain")
    literals = subprocess.run(
        ["git", "grep", "-lF", f'"{__version__}"', "--", "gantrymq", "kernel", "plugins", "setup.cfg", ":!*.tmpl"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert literals.stdout.split() == ["gantrymq/_version.py"]


def test_version_and_the_sbom_know_all_extras_for_users() -> None:
    packages = {extra: names for extra, names in extras_of_package().items() if extra not in NOT_FOR_USERS}
    assert {extra: set(names) for extra, names in version.OPTIONAL.items()} == packages
    release = (ROOT / "packaging" / "release.py").read_text()
    (listed,) = re.findall(r'^EXTRAS = "(.*)"$', release, re.MULTILINE)
    assert set(listed.split(",")) == set(packages)


def test_an_extra_counts_as_installed_with_all_its_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version, "_is_installed", lambda package: package != "lz4")
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extras"] == [name for name in version.OPTIONAL if name != "compression"]
