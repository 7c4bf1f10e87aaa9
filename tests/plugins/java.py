"""Spark's Java starts twice as fast from an archive of its loaded classes, made once per checkout.

A suite starts Spark some eighty times, and most of each start is the loading of classes. A start of
Spark writes the archive into `build/` when it ends; java finds it through JDK_JAVA_OPTIONS, and
ignores it if it does not fit. It is only for tests: a user's first start would pay for all others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from penstock.load.spark_properties import LOCAL_JVM_FLAGS

FOLDER = Path(__file__).parents[2] / "build" / "spark-classes"
OPTIONS = "JDK_JAVA_OPTIONS"
MAKE_TIMEOUT_S = 300
START_AND_END = f"""
from pyspark import SparkConf, SparkContext
conf = SparkConf().setMaster("local[2]").setAppName("classes")
conf.set("spark.ui.enabled", "false")
conf.set("spark.driver.extraJavaOptions", {LOCAL_JVM_FLAGS!r})
context = SparkContext(conf=conf)
assert context.parallelize(range(4), 2).map(str).collect()
gateway = context._gateway
context.stop()
gateway.proc.stdin.close()
gateway.proc.wait({MAKE_TIMEOUT_S})
"""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the archive before the first test, if any test starts Spark."""
    if OPTIONS in os.environ or not any(item.get_closest_marker("spark") for item in session.items):
        return
    archive = FOLDER / f"{_runtime()}.jsa"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    os.environ[OPTIONS] = f"-XX:SharedArchiveFile={archive} -Xshare:auto"


def _runtime() -> str:
    """Return a hash of everything that an archive depends on."""
    java = shutil.which("java", path=_path()) or ""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    told = "\n".join((java, said.stderr, version("pyspark"), LOCAL_JVM_FLAGS))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _path() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin") if home else os.environ.get("PATH", "")


def _make(archive: Path) -> None:
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", START_AND_END],
        env={**os.environ, OPTIONS: f"-XX:ArchiveClassesAtExit={part}"},
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=2 * MAKE_TIMEOUT_S,
        check=False,
    )
    if done.returncode or not part.exists():
        raise pytest.UsageError(f"no archive of Spark's classes was made:\n{done.stderr[-2000:]}")
    part.rename(archive)
