"""Start Spark's Java process, connect to it, end it, and summarize its exceptions in one line.

pyspark can start it too, but does not expose the process before it answers, so the process could
not be ended until then.
"""

from __future__ import annotations

import logging
import os
import re
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
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home

from penstock.host.process import JAVA_VERSIONS, java_program, java_version
from penstock.model import PenstockError

MESSAGES_BYTES_MAX = 65536
CAUSES_MAX = 8
_KILLED = "Application has been killed. Reason: "
_WRAPPED = "java.util.concurrent.ExecutionException"
_FAILURE = r"^(Exception|Error|Invalid|Unrecognized|Could not)\b"


def text_of(error: BaseException) -> str:
    """Return a Java exception's own text, even if Java no longer answers; else Python's.

    The text of a failed future is that of its cause.
    """
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            text = str(java.toString())
            is_wrapped = text.startswith(_WRAPPED) and java.getCause() is not None
            return str(java.getCause().toString()) if is_wrapped else text
        except (Py4JError, OSError):
            # Its own text would be asked for in the same way.
            return f"{type(error).__name__}, and Java does not answer any more"
    return str(error)


def root_cause(error: BaseException) -> str:
    """Return a Java exception's root cause in one line; empty if it has no other cause."""
    java = getattr(error, "java_exception", None)
    found = ""
    try:
        for _ in range(CAUSES_MAX):
            java = java.getCause() if java is not None else None
            if java is None:
                break
            found = str(java.toString())
    except (Py4JError, OSError):
        return ""  # Java does not answer any more, and what failed is known
    return " ".join(found.split())


def first_failure(messages: Path, before: int) -> str:
    """Return the first line of a JVM's messages that names a failure; "" without one."""
    lines = _lines(messages, before)
    return next((line.strip() for line in lines if re.search(_FAILURE, line)), "")


def last_error(messages: Path, before: int) -> str:
    """Return why the cluster ended the application, else Spark's last logged error, else ""."""
    found = [line.partition(" ERROR ")[2] for line in _lines(messages, before) if " ERROR " in line]
    killed = [line.partition(_KILLED)[2] for line in found if _KILLED in line]
    return (killed or found or [""])[-1]


def _lines(messages: Path, before: int) -> list[str]:
    """Return the lines after this many bytes, as far as they are read."""
    if not messages.exists():
        return []
    with messages.open("rb") as file:
        file.seek(before)
        return file.read(MESSAGES_BYTES_MAX).decode("utf-8", errors="replace").splitlines()


def last_line(text: str) -> str:
    """Return the most informative line: the last of a Python traceback, else the first."""
    python = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)]
    lines = python or [line for line in text.splitlines() if line.strip()]
    return " ".join((lines[-1] if python else lines[0]).split()) if lines else "no message"


def last_warning(messages: Path) -> str:
    """Return Spark's last warning; a sentence that says so if there is none."""
    if not messages.exists():
        return "the cluster said nothing"
    lines = messages.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line.partition(" WARN ")[2] for line in lines if " WARN " in line]
    return found[-1] if found else "the cluster said nothing"


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
        """Note the process to kill; None if there is none now."""
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
    return connect(port, written[8 : 8 + length].decode())


def connect(port: int, secret: str) -> Any:
    """Return pyspark's gateway to a JVM that listens at a port; its `proc` is None."""
    launch_gateway: Any = java_gateway.launch_gateway
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
