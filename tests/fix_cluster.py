"""Spark with executors as processes of their own: `local-cluster`, which writes to SPARK_HOME."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

MASTER = "local-cluster[2,1,512]"
CLUSTER: dict[str, Any] = {"master": MASTER}
CONF: dict[str, Any] = {"spark.executor.memory": "512m"}
COPIED = ("bin", "sbin")
LINKED = ("jars", "python", "RELEASE")


@pytest.fixture(scope="session")
def spark_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPARK_HOME that may be written to."""
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
    yield spark_copy
    shutil.rmtree(spark_copy / "work", ignore_errors=True)
