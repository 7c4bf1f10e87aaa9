"""Real Ignite nodes and Ignite's own utility, for tests and for making recordings again.

`.ci/system` gets their jars through Maven, with a compiler for the programs in `tests/ignite`, so
that a Java runtime is enough. One JVM runs at a time, as an unprivileged user, on 127.0.0.1.

`PYTHONPATH=tests python -m plugins.ignite_node` makes the recordings of `tests/data/ignite` again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from harness.ignite.recordings import unpack_recording
from penstock.host.server_process import free_port, unprivileged_account

ROOT = Path(__file__).parents[1]
REPOSITORY = Path.home() / ".m2" / "repository"
JARS = {
    "org/jetbrains/annotations/16.0.3/annotations-16.0.3.jar": (
        "04b16e8d2309bf7771fbee16187b76f63af6ccd023cf664ec846e4e8e65c5b3f"
    ),
    "javax/cache/cache-api/1.0.0/cache-api-1.0.0.jar": (
        "d2836213144722e2eb1d7461f6e2ea3349d6fbbf9cd5f345c7133bc29bd39ca1"
    ),
    "commons-codec/commons-codec/1.16.0/commons-codec-1.16.0.jar": (
        "56595fb20b0b85bc91d0d503dad50bb7f1b9afc0eed5dffa6cbb25929000484d"
    ),
    "com/h2database/h2/1.4.197/h2-1.4.197.jar": (
        "37f5216e14af2772930dff9b8734353f0a80e89ba3f33e065441de6537c5e842"
    ),
    "org/apache/ignite/ignite-core/2.17.0/ignite-core-2.17.0.jar": (
        "99eb9daa15208b6aaf39adb11403b5f6a6380ace134a5100b9be349bc81901da"
    ),
    "org/apache/ignite/ignite-indexing/2.17.0/ignite-indexing-2.17.0.jar": (
        "4993e6cf8a12ea3e5f87b9ead87b4b770052240fa381b70c141e05bc869489b6"
    ),
    "org/apache/lucene/lucene-analyzers-common/8.11.2/lucene-analyzers-common-8.11.2.jar": (
        "d3def04f7d0d2c891cf2c7e3dfc14c3b53545bec1cb8732ae033f25164e5c931"
    ),
    "org/apache/lucene/lucene-core/8.11.2/lucene-core-8.11.2.jar": (
        "8970925f43d789a70247e36c1ba5a2607baf4195c35afd0cd878642c95c37409"
    ),
    "org/apache/lucene/lucene-queries/8.11.2/lucene-queries-8.11.2.jar": (
        "0f93119d7d316cef13fdebaa668e716b197eb86cbe8e7b345c0ead26320e63c8"
    ),
    "org/apache/lucene/lucene-queryparser/8.11.2/lucene-queryparser-8.11.2.jar": (
        "d2cf511bad3bda7b91587cba4c227f8964a4e8da0433d05a740439ea21bb1ae4"
    ),
    "org/apache/lucene/lucene-sandbox/8.11.2/lucene-sandbox-8.11.2.jar": (
        "fea64c3102e21a1c233a95ebed8e7021e65f82e517da8d8b1446776356705bb7"
    ),
    "org/apache/ignite/ignite-control-utility/2.17.0/ignite-control-utility-2.17.0.jar": (
        "6d4e61b3c2822c8b215c90a87291f723b90699b705940dfa64924d6c9788ec8e"
    ),
    "org/eclipse/jdt/ecj/3.33.0/ecj-3.33.0.jar": (
        "f7686c4960cf70c2ebc5c500a73a8cfc04541b730c18f1c5c21329889b137f45"
    ),
}
"""Paths below Maven's local repository, and their sha256. The last one is the compiler."""
OPENS = (
    "java.base/jdk.internal.access",
    "java.base/jdk.internal.misc",
    "java.base/sun.nio.ch",
    "java.base/sun.util.calendar",
    "java.management/com.sun.jmx.mbeanserver",
    "jdk.internal.jvmstat/sun.jvmstat.monitor",
    "java.base/sun.reflect.generics.reflectiveObjects",
    "jdk.management/com.sun.management.internal",
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.net",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.locks",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.math",
    "java.sql/java.sql",
    "java.base/java.lang.reflect",
    "java.base/java.time",
    "java.base/java.text",
    "java.management/sun.management",
    "java.desktop/java.awt.font",
)
"""Java packages that Ignite's start script opens; with only some, a node starts
without CDC events.
"""
NODE_FILES = ("db/binary_meta", "db/marshaller")
TIMEOUT_S = 240


class Ignite:
    """Runner of the programs of `tests/ignite`."""

    def __init__(self, folder: Path) -> None:
        """Compile the programs; folder is for jars, classes and data, and other users
        can enter it.
        """
        self.folder = folder
        self._account = unprivileged_account()
        for path, wanted in JARS.items():
            jar = REPOSITORY / path
            if not jar.exists():
                raise FileNotFoundError(f"{jar}: run .ci/system, which gets it through Maven")
            actual = hashlib.sha256(jar.read_bytes()).hexdigest()
            assert actual == wanted, f"{jar} has the sha256 {actual}, expected {wanted}"
            shutil.copy(jar, folder)
        *jars, compiler = (str(folder / Path(path).name) for path in JARS)
        sources = sorted(map(str, (ROOT / "ignite").glob("*.java")))
        subprocess.run(
            ["java", "-jar", compiler, "-17", "-nowarn", "-cp", ":".join(jars),
             "-d", str(folder / "classes"), *sources],
            check=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        (folder / "home").mkdir()
        self.give(folder / "home")

    def give(self, path: Path) -> None:
        """Let the programs write below a path."""
        if self._account is not None:
            for one in (path, *path.rglob("*")):
                os.chown(one, self._account.uid, self._account.gid)

    def work(self, name: str) -> Path:
        """Create an empty work directory."""
        made = self.folder / name
        made.mkdir()
        self.give(made)
        return made

    def run(self, program: str, *arguments: object, **properties: object) -> None:
        """Run a program until it ends."""
        with (self.folder / "output.txt").open("w+") as output:
            child = self.child(
                program, *arguments, output=output, port=free_port(), memory=512, **properties
            )
            status = child.wait(TIMEOUT_S)
            output.seek(0)
            assert status == 0, output.read()[-4000:]

    def child(
        self,
        program: str,
        *arguments: object,
        output: IO[str],
        memory: int,
        has_pipes: bool = False,
        **properties: object,
    ) -> subprocess.Popen[str]:
        """Start a program. memory: MB of its heap. has_pipes: stdin and stdout are pipes to the
        test.
        """
        given = [f"-D{name}={value}" for name, value in properties.items()]
        home = str(self.folder / "home")
        account = self._account
        return subprocess.Popen(
            ["java", *(f"--add-opens={one}=ALL-UNNAMED" for one in OPENS), f"-Xmx{memory}m",
             "-DIGNITE_UPDATE_NOTIFIER=false", "-Djava.net.preferIPv4Stack=true",
             *given, "-cp", f"{self.folder}/classes:{self.folder}/*", program,
             *map(str, arguments)],
            env={"PATH": os.environ["PATH"], "HOME": home, "IGNITE_HOME": home},
            cwd=home, stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if has_pipes else output, stderr=output, text=True,
            encoding="utf-8", start_new_session=True,
            user=account.uid if account else None, group=account.gid if account else None,
        )  # fmt: skip

    def control_script(self) -> Path:
        """Write Ignite's control.sh, which calls the same class with our Java and jars; return its
        path.
        """
        made = self.folder / "control.sh"
        opens = " ".join(f"--add-opens={one}=ALL-UNNAMED" for one in OPENS)
        made.write_text(
            f"#!/bin/sh\nexport IGNITE_HOME={self.folder / 'home'}\ncd $IGNITE_HOME\n"
            f"exec java {opens} -Xmx128m -cp '{self.folder}/*' "
            'org.apache.ignite.internal.commandline.CommandHandler "$@"\n'
        )
        made.chmod(0o755)
        return made

    def calls(self, work: Path, node: str, per_call: int, out: str) -> str:
        """Return the lines of Ignite's utility on a node's directory: see `Calls.java`."""
        self.give(work)
        path = self.folder / "home" / out
        self.run("Calls", work, node, per_call, path)
        return path.read_text(encoding="utf-8")


@contextmanager
def ignite_folder() -> Iterator[Path]:
    """Make a folder that any user can enter."""
    with tempfile.TemporaryDirectory(prefix="penstock-ignite-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def ignite() -> Iterator[Ignite]:
    """Java programs of Ignite, compiled once."""
    with ignite_folder() as folder:
        yield Ignite(folder)


def pack_work(work: Path, archive: Path) -> None:
    """Pack the files of a work directory that a reader needs."""
    with tarfile.open(archive, "w:xz") as made:
        for path in sorted((work / "db").rglob("*")):
            name = str(path.relative_to(work))
            is_wanted = name.startswith(NODE_FILES) or path.name.endswith("cache_data.dat")
            is_wanted |= name.startswith("db/wal/cdc/") and path.suffix == ".wal"
            if is_wanted and path.is_file():
                made.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def record() -> None:
    """Make all recordings again."""
    data = ROOT / "data" / "ignite"
    with ignite_folder() as folder:
        ignite = Ignite(folder)
        for name, scenario, full in (
            ("one", "all", "false"),
            ("two", "two", "false"),
            ("full", "all", "true"),
        ):
            work = ignite.work(name)
            ignite.run("Node", scenario, work, fullFooter=full)
            pack_work(work, data / f"{name}.tar.xz")
        work = ignite.work("forms")
        ignite.run("Forms", work, folder / "home" / "keys.p12")
        pack_work(work, data / "forms.tar.xz")
        for name, calls, node, per_call in (
            ("one", "one-0", "node-1", 0),
            ("one", "one-7", "node-1", 7),
            ("full", "full-0", "node-1", 0),
            ("two", "two-node-1", "node-1", 0),
            ("two", "two-node-2", "node-2", 0),
        ):
            work = folder / f"calls-{calls}"
            unpack_recording(name, work)
            text = ignite.calls(work, node, per_call, calls)
            (data / f"{calls}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    record()
