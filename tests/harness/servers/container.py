"""A container image without a container engine: the steps of a Containerfile, run in a chroot.

The base image is Debian, unpacked by debootstrap from the packages that this machine's apt uses.
The steps are those that docs/deploy/Containerfile has; another one is an error. Each command runs
as in a container: in mount and process namespaces of its own, with the network of this machine.
Only root may do this.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BASE = re.compile(r"debian:(\d+)-slim")
SUITES = {"12": "bookworm", "13": "trixie"}
# What a container engine mounts. The namespace is private, so all of it goes with the command.
MOUNTS = (
    "mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; mount -t tmpfs tmpfs {root}/run"
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# The host's, in the image; installing packages there writes the file of the usual name again.
OWN_CERTIFICATES = "/etc/certificates-of-the-host.crt"


@dataclass
class Image:
    """A root file system with the settings of its Containerfile."""

    root: Path
    user: str = "root"
    folder: str = "/"
    entrypoint: Sequence[str] = ()
    stop_signal: str = "SIGTERM"
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str, volumes: Mapping[Path, str] | None = None) -> list[str]:
        """Return the command line of `podman run IMAGE ARGUMENTS` with folders or files mounted."""
        return self._enter([*self.entrypoint, *arguments], volumes or {})

    def _enter(self, command: Sequence[str], volumes: Mapping[Path, str]) -> list[str]:
        root = shlex.quote(str(self.root))
        script = [MOUNTS.format(root=root)]
        for source, place in volumes.items():
            target = self.root / place.lstrip("/")
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.touch()
            script.append(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))}")
        settings = " ".join(shlex.quote(f"{name}={value}") for name, value in self._settings())
        inside = f'cd {shlex.quote(self.folder)} && exec "$@"'
        script.append(
            f"exec chroot --userspec={self.user} {root} /usr/bin/env -i {settings} "
            f'/bin/sh -c {shlex.quote(inside)} sh "$@"'
        )
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
                "; ".join(script), "sh", *command]  # fmt: skip

    def _settings(self) -> Iterator[tuple[str, str]]:
        yield "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield "HOME", "/root" if self.user == "root" else f"/home/{self.user}"
        yield "DEBIAN_FRONTEND", "noninteractive"
        yield from self.environment.items()

    def run(self, command: str) -> None:
        """Run a command of the build with the shell."""
        check(self._enter(["/bin/sh", "-c", command], {}))


def check(command: Sequence[str | Path], **more: str) -> None:
    """Run a command; fail the test with its output if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **more}
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@contextmanager
def build_image(containerfile: Path, context: Path, folder: Path) -> Iterator[Image]:
    """Build an image; its files are removed at the end.

    context: the folder from which COPY takes files. folder: where the root file system goes.
    Skips where this user may not make one.
    """
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip("an image is built by root on a system with apt only")
    image = Image(folder / "root")
    try:
        for word, text in read_steps(containerfile):
            take_step(image, word, text, context, folder)
        yield image
    finally:
        shutil.rmtree(image.root, ignore_errors=True)


def read_steps(containerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield each step's word and its text."""
    lines = containerfile.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    for step in text.replace("\\\n", " ").splitlines():
        if step.strip():
            word, _, rest = step.strip().partition(" ")
            yield word, rest.strip()


def take_step(image: Image, word: str, text: str, context: Path, folder: Path) -> None:
    """Carry out one step."""
    match word:
        case "FROM":
            unpack_base(image.root, text, folder)
            take_host_settings(image)
        case "RUN":
            image.run(text)
        case "COPY":
            copy(image, text, context)
        case "USER":
            image.user = text
        case "WORKDIR":
            image.folder = text
        case "ENV":
            image.environment.update(pair.split("=", 1) for pair in shlex.split(text))
        case "STOPSIGNAL":
            image.stop_signal = text
        case "ENTRYPOINT":
            image.entrypoint = json.loads(text)
        case _:
            raise AssertionError(f"tests/harness/servers/container.py does not know {word}")


def unpack_base(root: Path, image: str, folder: Path) -> None:
    """Unpack the packages of a base image; debootstrap's script is taken from its package."""
    found = BASE.fullmatch(image)
    assert found is not None, image
    tools = folder / "tools"
    tools.mkdir(parents=True)
    tools.chmod(0o777)  # apt downloads as a user of its own
    subprocess.run(["apt-get", "-qq", "download", "debootstrap"], cwd=tools, check=True)
    (package,) = tools.glob("debootstrap_*.deb")
    check(["dpkg-deb", "-x", package, tools])
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    command = tools / "usr" / "sbin" / "debootstrap"
    share = tools / "usr" / "share" / "debootstrap"
    suite = SUITES[found[1]]
    check([command, "--variant=minbase", suite, root, sites[0]], DEBOOTSTRAP_DIR=str(share))


def take_host_settings(image: Image) -> None:
    """Give the image the host's names, and what its package index needs."""
    if Path(CERTIFICATES).exists():
        shutil.copy(CERTIFICATES, image.root / OWN_CERTIFICATES.lstrip("/"))
        image.environment["PIP_CERT"] = OWN_CERTIFICATES
    for name in ("resolv.conf", "hosts"):  # an engine writes them, too
        shutil.copy(Path("/etc") / name, image.root / "etc" / name)
    taken = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
    taken += ("http_proxy", "https_proxy", "no_proxy")
    image.environment.update({name: os.environ[name] for name in taken if name in os.environ})


def copy(image: Image, text: str, context: Path) -> None:
    """Copy files of the context, whose names may be patterns."""
    *patterns, place = text.split()
    for pattern in patterns:
        files = sorted(context.glob(pattern))
        assert files, f"no file for COPY {pattern}"
        for file in files:
            shutil.copy(file, image.root / place.lstrip("/"))
