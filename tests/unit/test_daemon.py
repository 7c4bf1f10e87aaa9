"""The process from which Spark forks workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.load.daemon import acknowledging_at_once

SAY = (
    "from penstock.load.daemon import prepare; prepare();"
    " import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
)


@pytest.mark.parametrize(("given", "used"), [("", "system"), ("mimalloc", "mimalloc")])
def test_the_allocator_is_chosen_before_arrow_is_there(given: str, used: str) -> None:
    """The allocator is the system's, unless the user sets another one."""
    words = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    if given:
        words["ARROW_DEFAULT_MEMORY_POOL"] = given
    done = subprocess.run(
        [sys.executable, "-c", SAY], env=words, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [used]


LOOK = """
import importlib, sys, zipimport
import penstock.load.daemon as daemon
daemon.prepare()
read = []
directory = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or directory(archive)
importlib.invalidate_caches()
import pyspark, py4j
print(pyspark.__file__, py4j.__file__, len(read), any(".jar" in entry for entry in sys.path))
"""


@pytest.mark.parametrize("installed", [True, False])
def test_no_archive_is_read_again_before_a_task(tmp_path: Path, *, installed: bool) -> None:
    """Modules come from their installation, or else from Spark's archives, read once."""
    packages = Path(pyspark.__file__).parent.parent
    archives = sorted((packages / "pyspark" / "python" / "lib").glob("*.zip"))
    assert len(archives) == 2
    others = tmp_path / "packages"
    others.mkdir()
    for entry in packages.iterdir():
        if not entry.name.startswith(("pyspark", "py4j", "__editable__")):
            (others / entry.name).symlink_to(entry)
    jar = next((packages / "pyspark" / "jars").glob("*.jar"))
    source = Path(__file__).parents[2] / "src"
    path = [*archives, jar, source, packages if installed else others]
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOOK],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other, reads, has_jar = done.stdout.split()
    assert (".zip" in one, ".zip" in other) == (not installed, not installed)
    assert reads == "0"
    assert has_jar == "False"


def test_the_first_array_imports_nothing() -> None:
    """Each worker would otherwise import pandas with its first task."""
    look = (
        "import sys; from penstock.load.daemon import prepare; prepare(); import pyarrow;"
        " before = set(sys.modules); pyarrow.array([1]).to_numpy(); pyarrow.nulls(1).is_valid();"
        " print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_task_is_acknowledged_at_once() -> None:
    """The kernel delays it between alternating answers, until it is told otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        jvm = socket.create_connection(listening.getsockname())
        worker, _ = listening.accept()
    seen = []

    def serve(sock: socket.socket, authenticated: bool) -> int:
        seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        return 3 if authenticated else 0

    with jvm, worker:
        for _ in range(20):
            jvm.send(b"task")
            assert worker.recv(100) == b"task"
            worker.send(b"done")
            assert jvm.recv(100) == b"done"
        assert serve(worker, False) == 0
        assert acknowledging_at_once(serve)(worker, True) == 3
    assert seen == [0, 1]


def test_another_kind_of_socket_is_served_as_it_is() -> None:
    """Spark's workers may be reached by Unix sockets."""
    one, other = socket.socketpair()
    with one, other:
        assert acknowledging_at_once(lambda sock, _: sock.fileno())(one, True) == one.fileno()
