"""Images of containers, built here: tests reach no registry of images, so a small Debian is their base."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs

from support.debian import find_system
from support.foreign import ToolMissing, hold_lock
from support.wheels import copy_source

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
NAME = "docker.io/library/gantrymq:latest"
"""The image for the name ``gantrymq`` in ``deploy/``."""


@attrs.frozen
class Buildah:
    """buildah with a storage of its own; commands run in a chroot, with the network of this machine."""

    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()

    def command(self, *arguments: str | Path) -> list[str]:
        places = ["--storage-driver", self._driver(), "--root", self.folder / "root", "--runroot", self.folder / "run"]
        return ["buildah", *map(str, places), *map(str, arguments)]

    def _driver(self) -> str:
        """Layers of layers need another file system below; copies of whole images work everywhere."""
        command = ["stat", "--file-system", "--format", "%T", str(self.folder)]
        return (
            "vfs"
            if "overlay" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
            else "overlay"
        )


@attrs.frozen
class Image:
    """The image of the shipped Dockerfile, in ``buildah``'s storage. ``system``: the folder of its base."""

    buildah: Buildah
    system: Path
    name: str = NAME

    def archive(self, name: str) -> Path:
        """The file that ``docker save`` would write, with the image under this name."""
        target = self.buildah.folder / f"{name.replace(':', '-')}.tar"
        with hold_lock(self.buildah.folder / "archive.lock"):
            if not target.exists():
                unfinished = target.with_suffix(".new")
                unfinished.unlink(missing_ok=True)
                self.buildah("push", "--quiet", self.name, f"docker-archive:{unfinished}:docker.io/library/{name}")
                unfinished.rename(target)
        return target


def find_image(folder: Path) -> Image:
    """The image, built once in ``folder`` from a wheel of this source. ToolMissing if it cannot be built here."""
    for program, package in (("buildah", "buildah"), ("systemd-nspawn", "systemd-container")):
        if shutil.which(program) is None:
            raise ToolMissing(f"{program} is not installed (Debian: apt install {package})")
    system = find_system(ROOT / "build")
    folder.mkdir(exist_ok=True)
    image = Image(Buildah(folder), system)
    with hold_lock(folder / "image.lock"):
        if not (folder / "built").exists():
            _build(image, folder / "context")
            (folder / "built").touch()
    return image


def _build(image: Image, context: Path) -> None:
    buildah = image.buildah
    (base,) = set(re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    blank = buildah("from", "scratch")
    buildah("add", "--quiet", blank, image.system, "/")
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", blank)
    buildah("commit", "--quiet", "--rm", blank, f"docker.io/library/{base}")
    copy_source(context)
    source = "."
    if sys.version_info[:2] == (3, 11):  # that of the system, for which a wheel of this machine is
        # a compiler of this machine, not of the container: the same C is compiled once only
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
        done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        source = "dist/*.whl"
    volumes = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.exists() else []
    options = ["--pull-never", "--layers=false", "--format", "docker", "--build-arg", f"SOURCE={source}"]
    buildah("bud", *options, *volumes, "--tag", NAME, "--file", DOCKERFILE, context)
