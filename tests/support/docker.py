"""A Docker daemon for tests, in a network namespace of its own: it takes no port and no image of this machine.

Needs root and Debian's package ``docker.io``. Docker Compose comes from the proxy of Go modules.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

import attrs

from support.foreign import ToolMissing, hold_lock
from support.processes import ChildFailed, wait_for

COMPOSE = "2.29.7"
DOCKER = "/usr/bin/docker"
"""Debian's program: another one of the same name may come before it in PATH."""


def find_compose(cache: Path) -> Path:
    """Docker Compose, built once, which takes some minutes. ToolMissing if it cannot be built."""
    target = (cache / f"compose-{COMPOSE}").absolute()
    with hold_lock(cache / "compose.lock"):
        if not (target / "docker-compose").exists():
            go = shutil.which("go")
            if go is None:
                raise ToolMissing("go, which builds Docker Compose, is not installed")
            target.mkdir(parents=True, exist_ok=True)
            (target / "go.mod").write_text("module build\n\ngo 1.22.0\n")
            package = "github.com/docker/compose/v2"
            flags = f"-s -w -X {package}/internal.Version=v{COMPOSE}"
            environ = {**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
            for command in (
                [go, "get", f"{package}/cmd@v{COMPOSE}"],
                [go, "build", "-ldflags", flags, "-o", "docker-compose.new", f"{package}/cmd"],
            ):
                done = subprocess.run(command, cwd=target, env=environ, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise ToolMissing(f"Docker Compose cannot be built: {done.stderr[-2000:]}")
            (target / "docker-compose.new").rename(target / "docker-compose")
    return target / "docker-compose"


@attrs.define
class Docker:
    """A running daemon. ``folder``: a new one, with a path short enough for a socket."""

    folder: Path
    namespace: str = attrs.field(factory=lambda: f"gmq-{secrets.token_hex(3)}", init=False)
    _daemon: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)

    def __enter__(self) -> Docker:
        if os.geteuid() != 0:
            raise ToolMissing("a Docker daemon needs root")
        if shutil.which("dockerd") is None:
            raise ToolMissing("dockerd is not installed (Debian: apt install docker.io)")
        self._call("ip", "netns", "add", self.namespace)
        self._call(*self.inside("ip", "link", "set", "lo", "up"))
        places: list[str | Path] = ["--data-root", self.folder / "data", "--exec-root", self.folder / "exec"]
        places += ["--pidfile", self.folder / "docker.pid", "--host", f"unix://{self.folder}/docker.sock"]
        with (self.folder / "dockerd.log").open("wb") as log:
            self._daemon = subprocess.Popen(
                self.inside("dockerd", *places), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_for(lambda: self._ping() == 0, 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.terminate()  # it ends its containers
            try:
                self._daemon.wait(60)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)

    def inside(self, *command: str | Path) -> list[str]:
        """The command line of a program in the daemon's network."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *map(str, command)]

    def __call__(self, *arguments: str | Path) -> str:
        """The output of ``docker``; ChildFailed unless it succeeds."""
        return self._call(DOCKER, *arguments)

    def run(self, *command: str | Path, **environment: str) -> str:
        """The output of a program in the daemon's network; ChildFailed unless it succeeds."""
        return self._call(*self.inside(*command), **environment)

    def _ping(self) -> int:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            raise ChildFailed((self.folder / "dockerd.log").read_text()[-2000:])
        command = [DOCKER, "--host", f"unix://{self.folder}/docker.sock", "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode

    def _call(self, *command: str | Path, **environment: str) -> str:
        environ = {**os.environ, "DOCKER_HOST": f"unix://{self.folder}/docker.sock", **environment}
        done = subprocess.run(list(map(str, command)), env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChildFailed(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout
