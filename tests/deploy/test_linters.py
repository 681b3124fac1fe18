"""The linters of each kind of file in ``deploy/``: Docker, Compose, Kubernetes and Alertmanager accept them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.debian import find_unpacked
from support.foreign import ToolMissing, cache_folder

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MISSING = "is not installed (pip install 'gantrymq[test]')"
OLDEST_KUBERNETES = "1.27"
"""The oldest version that the manifests promise."""


def tool(name: str) -> str:
    """A program of the environment of these tests."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} {MISSING}")
    return found


def lint(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_accepts_the_dockerfile() -> None:
    lint(tool("hadolint"), "--no-color", DEPLOY / "docker" / "Dockerfile")


@pytest.mark.slow
def test_the_compose_file_has_the_compose_specifications_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason=MISSING)
    yaml = pytest.importorskip("yaml", reason=MISSING)
    spec = importlib.util.find_spec("check_jsonschema")
    if spec is None or spec.origin is None:
        pytest.skip(f"check_jsonschema {MISSING}")
    # its program takes a second to start
    schema = json.loads((Path(spec.origin).parent / "builtin_schemas/vendor/compose-spec.json").read_text())
    document = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    jsonschema.validate(document, schema)
    document["services"]["broker"]["prots"] = []
    with pytest.raises(jsonschema.ValidationError, match="prots"):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, "newest"])
def test_the_manifests_have_the_schemas_of_kubernetes(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=MISSING)
    yaml = pytest.importorskip("yaml", reason=MISSING)
    chosen = validate.latest_version() if version == "newest" else version
    documents = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "gantrymq.yaml").read_text()) if each]
    assert len(documents) == 8
    for document in documents:
        validate.validate(document, chosen, strict=True)


def test_amtool_accepts_the_configuration_and_routes_critical_alerts_to_the_person_on_call() -> None:
    try:
        amtool = find_unpacked(cache_folder(ROOT / "tests/interop/.cache"), "amtool", "prometheus-alertmanager")
    except ToolMissing as missing:
        pytest.skip(str(missing))
    config = DEPLOY / "prometheus" / "alertmanager.yml"
    lint(amtool, "check-config", config)
    for severity, receiver in (("critical", "on-call"), ("warning", "team")):
        options = [f"--config.file={config}", f"--verify.receivers={receiver}"]
        lint(amtool, "config", "routes", "test", *options, f"severity={severity}")
