"""JVM of a command that has no Spark session of a loader: `penstock verify`, `reset`, `doctor`.

It has the same classes, with Spark in local mode, and ends with the command. Jobs run in this
process. Not here: the session of a loader (`ports/jobs.py`), which is used where there is one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from penstock.engines.lake.format import LakeFailed
from penstock.engines.lake.url import parse_url
from penstock.ports.jobs import Jobs
from penstock.ports.registry import spark_needs

Task = TypeVar("Task")
Result = TypeVar("Result")

START_S_MAX = 600.0
POLL_S = 0.05
_PROPERTIES: Mapping[str, str] = {
    "spark.master": "local[1]",
    "spark.app.name": "penstock",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "1",
}
_LAST_CHARACTERS = 300


class OwnJava(Jobs):
    """JVM that this process has started, with the interface of a loader's session."""

    slots_are_fixed = True
    parallelism = 1

    def __init__(
        self, process: subprocess.Popen[bytes], client: Any, s3: Mapping[str, str]
    ) -> None:
        """Keep a JVM that answers. client: py4j's; s3: settings of the object store."""
        self._process = process
        self._s3 = s3
        self._client = client
        self._spark: Any = None

    @property
    def jvm(self) -> Any:
        return self._client.jvm

    @property
    def spark(self) -> Any:
        """Return the JVM's SparkSession, created the first time: a catalogue may not need it."""
        if self._spark is None:
            builder = self.jvm.org.apache.spark.sql.classic.SparkSession.builder()
            self._spark = builder.getOrCreate()
        return self._spark

    @property
    def hadoop_conf(self) -> Any:
        """Return a configuration of its own: a catalogue needs no SparkSession."""
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        for name, value in self._s3.items():
            conf.set(f"fs.s3a.{name}", value)
        return conf

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(
        self,
        partitions: Sequence[Sequence[Task]],
        work: Callable[[Iterator[Task]], Iterable[Result]],
        *,
        description: str = "",
    ) -> list[Result]:
        """Run the tasks one after another in this process."""
        del description
        return [result for tasks in partitions for result in work(iter(tasks))]


@contextlib.contextmanager
def open_java(url: str, class_path: str = "") -> Iterator[OwnJava]:
    """Start a JVM for a lake's URL, and end it afterwards.

    class_path: jars besides those of the format, such as a JDBC driver's. Raises LakeJarsMissing,
    LakeFailed.
    """
    s3 = {f"spark.hadoop.fs.s3a.{name}": value for name, value in parse_url(url).s3.items()}
    properties = {**_PROPERTIES, **s3, **spark_needs(url)}
    if class_path:
        name = "spark.driver.extraClassPath"
        properties[name] = os.pathsep.join(filter(None, (class_path, properties.get(name))))
    with tempfile.TemporaryDirectory(prefix="penstock-java-") as place:
        folder = Path(place)
        properties["spark.local.dir"] = str(folder)
        properties["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        process = _launch(folder, properties)
        try:
            client = _connect(process, folder)
            try:
                java = OwnJava(process, client, parse_url(url).s3)
                known = _by_url.get(url)
                if known is None or not known.alive:
                    _by_url[url] = java
                yield java
            finally:
                with contextlib.suppress(Exception):  # the JVM may be gone, whichever class says so
                    client.shutdown()
        finally:
            process.kill()
            process.wait()


_kept = contextlib.ExitStack()
atexit.register(_kept.close)
_by_url: dict[str, OwnJava] = {}
"""JVMs by their lake's URL; some have ended."""


def keep_java(url: str, class_path: str = "") -> OwnJava:
    """Return a lake's JVM: the one that this process has open, or a new one.

    A new one ends with the process. See `open_java`.
    """
    found = _by_url.get(url)
    if found is None or not found.alive:
        found = _kept.enter_context(open_java(url, class_path))
    return found


def _launch(folder: Path, properties: Mapping[str, str]) -> subprocess.Popen[bytes]:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise LakeFailed(
            "the lake is read through Spark's classes, and pyspark is not installed",
            hint="Run: pip install 'penstock[spark]'",
        )
    home = Path(next(iter(spec.submodule_search_locations)))
    given = folder / "spark.conf"
    given.touch(0o600)
    lines = (f"{name} {value}" for name, value in properties.items())
    given.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (folder / "messages").open("ab") as messages:
        return subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--properties-file", str(given), "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=messages,
            stderr=messages,
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "port"),
            },
            start_new_session=True,
        )


def _connect(process: subprocess.Popen[bytes], folder: Path) -> Any:
    """Return py4j's client of a JVM, when that answers. Raises LakeFailed if it ends before."""
    from py4j import java_gateway, protocol  # type: ignore[import-untyped]
    from py4j.clientserver import (  # type: ignore[import-untyped]
        ClientServer,
        JavaParameters,
        PythonParameters,
    )

    info = folder / "port"
    until_s = time.monotonic() + START_S_MAX
    while not info.exists():
        if process.poll() is not None or time.monotonic() > until_s:
            ended = process.poll() is not None
            said = (folder / "messages").read_text("utf-8", errors="replace").strip()
            raise LakeFailed(
                f"Java {'ended' if ended else 'does not answer'} at its start for the lake: "
                f"{said[-_LAST_CHARACTERS:] or 'no message'}",
                hint="Run `java -version`: Spark needs Java 17 or 21.",
            )
        time.sleep(POLL_S)
    written = info.read_bytes()  # port, then the secret behind its length
    port, length = struct.unpack_from(">ii", written)
    secret = written[8 : 8 + length].decode()
    # A Spark session that this process has ended converts errors by its JVM, which is gone.
    java_gateway.get_return_value = protocol.get_return_value
    return ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False, auth_token=secret),
    )
