"""Start Spark's Java process, connect to it, and end it.

pyspark can start it too, but does not expose the process before it answers, so the process could
not be ended until then.
"""

from __future__ import annotations

import logging
import os
import shlex
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home

from penstock.host.process import JAVA_VERSIONS, java_program, java_version
from penstock.model import PenstockError

logger = structlog.get_logger(__name__)

PORT_CHECK_S = 0.05
JAVA_HINT = (
    "Install a Java runtime 17 or 21 (on Debian: `apt-get install openjdk-17-jre-headless`) "
    "or set JAVA_HOME to one."
)


class JavaMissing(PenstockError):
    """There is no Java runtime to run Spark on."""

    code = "LD01"


class JavaUnsuitable(PenstockError):
    """The Java runtime has a version that this Spark does not support."""

    code = "LD02"


def check_java() -> int:
    """Return the major version of the Java runtime that Spark will use.

    Raises JavaMissing or JavaUnsuitable.
    """
    java = java_program()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"below JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise JavaMissing(f"no java program {where}", hint=JAVA_HINT)
    version = java_version()
    if version is None:
        raise JavaMissing(f"{java} does not print its version", hint=JAVA_HINT)
    if version not in JAVA_VERSIONS:
        wanted = " or ".join(map(str, JAVA_VERSIONS))
        raise JavaUnsuitable(f"{java} is Java {version}, Spark needs {wanted}", hint=JAVA_HINT)
    return version


class Start:
    """Start in progress. Another thread may abort it, which kills the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Abort the start as soon as possible; harmless after its end."""
        with self._lock:
            self.given_up = True
            if self._process is not None:
                self._process.kill()

    def took(self, process: subprocess.Popen[bytes] | None) -> None:
        """Record the process to kill; None if there is none now."""
        with self._lock:
            self._process = process
            if process is not None and self.given_up:
                process.kill()


def launch(conf: SparkConf, directory: Path, messages: Path, start: Start) -> Any:
    """Start a JVM and connect to it; return pyspark's gateway, whose process is `gateway.proc`.

    The JVM ends when its standard input closes. messages: the file that gets its output. Raises
    PySparkRuntimeError if it ends before it answers, and OSError.
    """
    with tempfile.TemporaryDirectory() as place, messages.open("ab") as stream:
        info = Path(place) / "port"
        properties = Path(place) / "spark.conf"
        properties.touch(0o600)
        properties.write_text(_as_properties(conf.getAll()), encoding="ascii")
        process = subprocess.Popen(
            _command(properties),
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            cwd=directory,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
            },
            start_new_session=True,  # Ctrl-C at the terminal is not for it
        )
        try:
            start.took(process)
            gateway = _connect(process, info)
        except BaseException:
            end(process)
            raise
    gateway.proc = process
    return gateway


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a JVM and wait for its end."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def quieten(context: SparkContext) -> None:
    """Keep pyspark from printing a stack when the JVM dies: that is reported as SparkLost."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: logger.debug("accumulator connection lost")
    root = logging.getLogger()
    if _not_py4j not in root.filters:
        root.addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record of the root logger is not from py4j."""
    return "py4j" not in record.pathname


def _command(properties: Path) -> list[str]:
    """Return the command without Spark properties: all users of the machine can read arguments."""
    spark_home: Any = _find_spark_home  # without annotations in pyspark
    command = [str(Path(spark_home()) / "bin" / "spark-submit")]
    command += ["--properties-file", str(properties), "--load-spark-defaults"]
    return command + shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))


def _as_properties(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the text of a Java properties file. Source: java.util.Properties.load."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in pairs)


def _escape(text: str) -> str:
    """Return text with all but letters, digits, dot and minus as UTF-16 units in hex."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(
        chr(code) if code < 128 and (chr(code).isalnum() or chr(code) in ".-") else f"\\u{code:04x}"
        for code in codes
    )


def _connect(process: subprocess.Popen[bytes], info: Path) -> Any:
    """Wait until the JVM has written its port, then let pyspark connect to that."""
    while not info.exists():
        if process.poll() is not None:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        time.sleep(PORT_CHECK_S)
    written = info.read_bytes()  # port, then the secret behind its length
    port, length = struct.unpack_from(">ii", written)
    secret = written[8 : 8 + length].decode()
    launch_gateway: Any = java_gateway.launch_gateway
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
