"""A Kubernetes cluster of one node on this machine: a real API server, controllers, scheduler, kubelet and containerd.

Everything runs in a network namespace of its own, so that it takes no port of this machine and reaches nothing outside.
Needs root and Debian's packages ``containerd``, ``runc``, ``etcd-server``, ``containernetworking-plugins`` and a
``kubectl``. Kubernetes and CoreDNS come from the proxy of Go modules, built by :func:`build_kubernetes`.

``python -m support.kubernetes FOLDER IMAGES.tar`` starts a cluster in ``FOLDER`` until Ctrl-C (from ``tests/``).
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from support.foreign import ToolMissing, hold_lock
from support.processes import ChildFailed, wait_for

KUBERNETES = "31.4"
"""The minor version and the patch of Kubernetes 1.x, which is also the version 0.x of its parts."""
COREDNS = "1.11.3"
PARTS = [
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
    "cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api",
    "cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "kms", "kube-aggregator",
    "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics", "mount-utils",
    "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller",
]  # fmt: skip
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
NODE = "10.77.0.1"
PODS = "10.78.0"
PAUSE = "localhost/pause:1"
DEBIAN = {"containerd": "containerd", "runc": "runc", "etcd": "etcd-server", "ctr": "containerd", "gcc": "gcc"}


def build_kubernetes(cache: Path) -> Path:
    """The folder with Kubernetes' programs and CoreDNS, built once, which takes some minutes.

    ToolMissing if Go is missing or the modules cannot be fetched.
    """
    target = (cache / f"kubernetes-1.{KUBERNETES}").absolute()
    go = shutil.which("go")
    with hold_lock(cache / "kubernetes.lock"):
        if all((target / name).exists() for name in (*PROGRAMS, "coredns")):
            return target
        if go is None:
            raise ToolMissing("go, which builds Kubernetes, is not installed")
        version = f"v1.{KUBERNETES}"
        stamps = {
            "k8s.io/component-base/version.gitVersion": version,
            "k8s.io/component-base/version.gitMajor": "1",
            "k8s.io/component-base/version.gitMinor": KUBERNETES.partition(".")[0],
            "k8s.io/client-go/pkg/version.gitVersion": version,
        }
        flags = "-s -w " + " ".join(f"-X {name}={value}" for name, value in stamps.items())
        replaced = "\n".join(f"replace k8s.io/{name} => k8s.io/{name} v0.{KUBERNETES}" for name in PARTS)
        module = f"module build\n\ngo 1.22.0\n\nrequire k8s.io/kubernetes {version}\n\n{replaced}\n"
        packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS}
        _build(go, target, module, packages, flags)
        module = f"module build\n\ngo 1.22.0\n\nrequire github.com/coredns/coredns v{COREDNS}\n"
        _build(go, target, module, {"coredns": "github.com/coredns/coredns"}, "-s -w")
    return target


def _build(go: str, target: Path, module: str, packages: dict[str, str], flags: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    (target / "go.mod").write_text(module)
    environ = {**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
    for name, package in packages.items():
        if (target / name).exists():
            continue
        command = [go, "build", "-ldflags", flags, "-o", str(target / f"{name}.new"), package]
        done = subprocess.run(command, cwd=target, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolMissing(f"{name} cannot be built: {done.stderr[-2000:]}")
        (target / f"{name}.new").rename(target / name)


CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # without CAP_SYS_RESOURCE, as in many virtual machines, no process may get a better score than its parent's
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "https://{node}:6443", insecure-skip-tls-verify: true}}}}]
users: [{{name: admin, user: {{token: "{token}"}}}}]
contexts: [{{name: it, context: {{cluster: it, user: admin}}}}]
current-context: it
"""
COREFILE = """cluster.local:53 {{
    bind {node}
    kubernetes cluster.local {{
        kubeconfig {folder}/kubeconfig
    }}
}}
"""


@attrs.define
class Cluster:
    """A running cluster. ``programs``: of :func:`build_kubernetes`; ``folder``: a new one, with a short path."""

    folder: Path
    programs: Path
    _children: list[subprocess.Popen[bytes]] = attrs.field(factory=list, init=False)
    namespace: str = attrs.field(factory=lambda: f"gmq-{secrets.token_hex(3)}")

    def __attrs_post_init__(self) -> None:
        missing = sorted({package for name, package in DEBIAN.items() if shutil.which(name) is None})
        if not Path("/usr/lib/cni/bridge").exists():
            missing.append("containernetworking-plugins")
        if missing:
            raise ToolMissing(f"missing packages of Debian: {' '.join(missing)}")
        if shutil.which("kubectl") is None:
            raise ToolMissing("kubectl is not installed")
        if os.geteuid() != 0:
            raise ToolMissing("kubelet and containerd need root")

    def start(self, *images: Path) -> None:
        """Start all parts, import the images, and wait until the node is ready."""
        self._make_network()
        self._make_control_groups()
        folder = self.folder
        for name in ("logs", "cni", "kubelet"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        (folder / "kubeconfig").write_text(KUBECONFIG.format(node=NODE, token=token))
        (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, pause=PAUSE))
        (folder / "Corefile").write_text(COREFILE.format(node=NODE, folder=folder))
        self._write_network_of_pods()
        self._write_kubelet()
        key, public = folder / "sa.key", folder / "sa.pub"
        _run("openssl", "genrsa", "-out", key, "2048")
        _run("openssl", "rsa", "-in", key, "-pubout", "-out", public)
        config = f"--kubeconfig={folder}/kubeconfig"
        self._child("etcd", "--data-dir", folder / "etcd", "--log-level=warn", "--unsafe-no-fsync")
        self._child("containerd", "--config", folder / "containerd.toml", "--log-level", "warn")
        self._child(
            self.programs / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--advertise-address={NODE}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--cert-dir={folder}/certificates",
        )
        wait_for(lambda: self.try_kubectl("get", "--raw", "/readyz").returncode == 0, 300)
        self._child(
            self.programs / "kube-controller-manager",
            config,
            f"--service-account-private-key-file={key}",
            "--leader-elect=false",
        )
        self._child(self.programs / "kube-scheduler", config, "--leader-elect=false")
        self._child(self.programs / "coredns", "-conf", folder / "Corefile")
        wait_for((folder / "containerd.sock").exists, 60)
        for image in (self._pause_image(), *images):
            self.ctr("images", "import", image)
        self._child(
            self.programs / "kubelet",
            config,
            f"--config={folder}/kubelet.yaml",
            f"--root-dir={folder}/kubelet",
            f"--node-ip={NODE}",
            "--hostname-override=node",
        )
        wait_for(lambda: self.condition("node/node", "Ready"), 240)

    def condition(self, what: str, name: str, *options: str) -> bool:
        """Whether an object has a condition."""
        done = self.try_kubectl("get", what, *options, "-o", "json")
        if done.returncode:
            return False
        conditions = json.loads(done.stdout).get("status", {}).get("conditions", [])
        return any(each["type"] == name and each["status"] == "True" for each in conditions)

    def inside(self, *command: str | Path) -> list[str]:
        """The command line of a program in the cluster's network."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *map(str, command)]

    def try_kubectl(self, *arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator."""
        command = self.inside("kubectl", f"--kubeconfig={self.folder}/kubeconfig", *arguments)
        environ = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run(command, env=environ, input=given, capture_output=True, text=True, check=False)

    def kubectl(self, *arguments: str | Path, given: str | None = None) -> str:
        """The output of kubectl; ChildFailed unless it succeeds."""
        done = self.try_kubectl(*arguments, given=given)
        if done.returncode:
            raise ChildFailed(f"kubectl {shlex.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """``kubectl get`` as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def ctr(self, *arguments: str | Path) -> str:
        """Run containerd's client in the namespace of Kubernetes."""
        return _run("ctr", "--address", self.folder / "containerd.sock", "--namespace", "k8s.io", *arguments)

    def local_volume(self, name: str, size: str) -> Path:
        """Offer a folder of this machine as a volume, and return it."""
        path = self.folder / "volumes" / name
        path.mkdir(parents=True)
        node = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node"]}
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "--filename", "-", given=json.dumps(volume))
        return path

    def stop(self) -> None:
        """End everything, also the containers, and remove the network. What was written stays in ``folder``."""
        shims = [path.name for path in Path("/proc").glob("[0-9]*") if self._is_shim(path)]
        for child in reversed(self._children):
            child.terminate()
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(15)
            child.kill()
            child.wait()
        containers = [pid for shim in shims for pid in self._children_of(shim)]
        spaces = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in containers if Path(f"/proc/{pid}").exists()}
        for pid in (*shims, *containers):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for path in Path("/run/netns").glob("cni-*"):
            if path.stat().st_ino in spaces:
                subprocess.run(["ip", "netns", "delete", path.name], capture_output=True, check=False)
        time.sleep(1)
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in reversed(places):
            if place.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)
        # runc also makes the group in the hierarchy of version 2 that systemd mounts beside those of version 1
        for group in (*self._control_groups(), Path("/sys/fs/cgroup/unified") / self.namespace):
            for inner in sorted(group.rglob("*/"), reverse=True):
                with suppress(OSError):
                    inner.rmdir()
            with suppress(OSError):
                group.rmdir()

    @staticmethod
    def _children_of(pid: str) -> list[str]:
        done = subprocess.run(["ps", "-o", "pid=", "--ppid", pid], capture_output=True, text=True, check=False)
        return done.stdout.split()

    def _is_shim(self, process: Path) -> bool:
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            return b"containerd-shim" in command and str(self.folder).encode() in command
        return False

    def _child(self, program: str | Path, *arguments: str | Path) -> None:
        with (self.folder / "logs" / f"{Path(program).name}.log").open("ab") as log:
            command = self.inside(program, *arguments)
            self._children.append(
                subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def _make_network(self) -> None:
        _run("ip", "netns", "add", self.namespace)
        for command in (
            "ip link set lo up",
            "ip link add node0 type bridge",
            f"ip addr add {NODE}/24 dev node0",
            "ip link set node0 up",
            f"ip route add default dev node0 src {NODE}",
            "sysctl -q -w net.ipv4.ip_forward=1",
        ):
            _run(*self.inside(*command.split()))

    def _make_control_groups(self) -> None:
        """A group of its own: a kubelet ends all processes below its group that it does not know."""
        for group in self._control_groups():
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if group.parent.name == "cpuset":
                    (group / name).write_text((group.parent / name).read_text())
            if (group.parent / "cgroup.controllers").exists() and group.parent.name == "cgroup":
                wanted = (group.parent / "cgroup.controllers").read_text().split()
                (group.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))

    def _control_groups(self) -> list[Path]:
        """The control groups in each hierarchy of version 1, or in the only one of version 2."""
        root = Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            return [root / self.namespace]
        places = {path.resolve() for path in root.iterdir() if path.name != "unified"}
        return [path / self.namespace for path in sorted(places)]

    def _write_network_of_pods(self) -> None:
        address = {
            "type": "host-local",
            "dataDir": f"{self.folder}/addresses",
            "ranges": [[{"subnet": f"{PODS}.0/24"}]],
        }
        bridge = {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {**address, "routes": [{"dst": "0.0.0.0/0"}]},
        }
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))

    def _write_kubelet(self) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.namespace}",
            "clusterDNS": [NODE],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
            "volumePluginDir": f"{self.folder}/plugins",
            "podLogsDir": f"{self.folder}/pods",
        }
        (self.folder / "kubelet.yaml").write_text(json.dumps(config))

    def _pause_image(self) -> Path:
        """An image whose only program sleeps; it keeps the namespaces of a pod."""
        folder = self.folder / "pause"
        folder.mkdir()
        source = folder / "pause.c"
        source.write_text(
            "#include <signal.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
            "static void end(int s) { _exit(0); }\nstatic void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }\n"
            "int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }\n"
        )
        root = folder / "root"
        root.mkdir()
        _run("gcc", "-static", "-Os", "-o", root / "pause", source)
        return write_image(root, PAUSE, ["/pause"], folder)


def write_image(root: Path, name: str, entrypoint: list[str], folder: Path) -> Path:
    """An archive, as of ``docker save``, with one layer: the files in ``root``."""
    import hashlib
    import tarfile

    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        for path in sorted(root.iterdir()):
            archive.add(path, path.name)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    target = folder / "image.tar"
    with tarfile.open(target, "w") as archive:
        for name in ("manifest.json", "config.json", "layer.tar"):
            archive.add(folder / name, name)
    return target


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildFailed(f"{shlex.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def main(folder: str, *images: str, wait: Callable[[], Any] = signal.pause) -> None:
    """Run a cluster until a signal."""
    from support.foreign import cache_folder

    programs = build_kubernetes(cache_folder(Path(__file__).resolve().parents[1] / "interop/.cache"))
    cluster = Cluster(Path(folder), programs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        cluster.start(*map(Path, images))
        print(f"ready: {shlex.join(cluster.inside('kubectl', f'--kubeconfig={folder}/kubeconfig', 'get', 'pods'))}")
        wait()
    finally:
        cluster.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
