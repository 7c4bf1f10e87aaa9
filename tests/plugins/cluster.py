"""Fixtures of Spark with executors in separate processes: `local-cluster` writes to SPARK_HOME."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from penstock.host.listen import ANYWHERE, own_address
from penstock.host.server_process import free_port

MASTER = "local-cluster[2,1,512]"
CLUSTER: dict[str, Any] = {"master": MASTER}
CONF: dict[str, Any] = {"spark.executor.memory": "512m"}
COPIED = ("bin", "sbin")
LINKED = ("jars", "python", "RELEASE")


@pytest.fixture(scope="session")
def spark_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable SPARK_HOME."""
    installed = Path(pyspark.__file__).parent
    home = tmp_path_factory.mktemp("spark-home")
    for name in COPIED:
        shutil.copytree(installed / name, home / name)
    for name in LINKED:
        if (installed / name).exists():
            (home / name).symlink_to(installed / name)
    return home


@pytest.fixture
def cluster_home(spark_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """SPARK_HOME for as long as a test runs."""
    monkeypatch.setenv("SPARK_HOME", os.fspath(spark_copy))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # of another test's session
    yield spark_copy
    shutil.rmtree(spark_copy / "work", ignore_errors=True)


@pytest.fixture
def lending() -> dict[str, str]:
    """Settings of [spark] that let executors reach snapshots at this machine's own address."""
    address = own_address(ANYWHERE)
    assert not address.startswith("127."), "this machine has no address of its own"
    return {"snapshotAddress": address}


@contextmanager
def standalone_master(home: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a standalone cluster's master, without workers; yield its URL."""
    port = free_port()
    command = [home / "bin" / "spark-class", "org.apache.spark.deploy.master.Master"]
    command += ["--host", host, "--port", str(port), "--webui-port", "0"]
    with (home / "master.log").open("ab") as log:
        master = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until_listening(host, port, master)
        yield f"spark://{host}:{port}"
    finally:
        master.kill()
        master.wait()


def until_listening(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a port accepts connections, as long as the process lives."""
    while process.poll() is None:
        with suppress(OSError):
            socket.create_connection((host, port), 1.0).close()
            return
        time.sleep(0.1)
    raise AssertionError(f"ended with {process.returncode}")
