"""Spark that several processes use: where it listens, and joining and leaving it.

The process that starts it writes its address, with the secret, into a file that only its user can
read. Each other process has a connection and a Python context of its own to the one Spark context
in the JVM. Not here: who starts it and starts it again (`spark_host.py`); what a job does
(`session.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark import SparkConf, SparkContext

from penstock.host.process import process_alive
from penstock.load.java import connect

ADDRESS_NAME, FAILURE_NAME = "address.json", "failure.json"
PLACE = "PENSTOCK_SPARK"
"""Environment variable: the directory that has one place for each kind of shared Spark."""


SLOTS_PER_CORE = 2


def with_more_slots(master: str) -> str:
    """Return the master of a Spark that pipelines share, which has a slot for each core by default.

    It gets more, because tasks of small batches mostly wait: for an answer of the server, or for
    the processor, which the other processes of all pipelines want, too.
    """
    return f"local[{SLOTS_PER_CORE * (os.cpu_count() or 1)}]" if master == "local[*]" else master


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a Spark's JVM on this machine. pid: of the JVM."""

    pid: int
    port: int
    secret: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Error that keeps a shared Spark from starting."""

    error: str
    hint: str


class SharedJava:
    """JVM that is another process's child, with what is used of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        """Keep the process id."""
        self.pid = pid

    def poll(self) -> int | None:
        """Return None while it runs."""
        return None if process_alive(self.pid) else -1


def place_of(root: Path, *, master: str, python: str, ui: bool, conf: Mapping[str, str]) -> Path:
    """Return the place of the Spark with these settings."""
    text = json.dumps([master, python, ui, sorted(conf.items())])
    return root / hashlib.sha256(text.encode()).hexdigest()[:16]


def write_address(place: Path, address: Address) -> None:
    """Say where Spark listens."""
    _write(place / ADDRESS_NAME, address)
    (place / FAILURE_NAME).unlink(missing_ok=True)


def write_failure(place: Path, failure: Failure) -> None:
    """Say why Spark does not start."""
    _write(place / FAILURE_NAME, failure)


def remove_address(place: Path) -> None:
    """Say that no Spark listens."""
    (place / ADDRESS_NAME).unlink(missing_ok=True)


def _write(path: Path, value: msgspec.Struct) -> None:
    draft = path.with_suffix(".new")
    draft.touch(0o600)
    draft.write_bytes(msgspec.json.encode(value))
    draft.replace(path)


def address_at(place: Path) -> Address | None:
    """Return where a Spark listens; None if none does."""
    try:
        found = msgspec.json.decode((place / ADDRESS_NAME).read_bytes(), type=Address)
    except FileNotFoundError:
        return None
    return found if process_alive(found.pid) else None


def failure_at(place: Path) -> Failure | None:
    """Return why Spark does not start; None if that is not known."""
    try:
        return msgspec.json.decode((place / FAILURE_NAME).read_bytes(), type=Failure)
    except FileNotFoundError:
        return None


def open_gateway(address: Address) -> Any:
    """Connect to the JVM. Raises OSError or Py4JError."""
    gateway = connect(address.port, address.secret)
    gateway.proc = SharedJava(address.pid)
    return gateway


def join_context(gateway: Any) -> SparkContext:
    """Return a context of ours for the JVM's running one. Raises ValueError if none runs."""
    companion = getattr(getattr(gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
    running = companion.getActive()  # getOrCreate() would start another one
    if running.isEmpty():
        raise ValueError("Spark has stopped in the JVM")
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running.get())
    conf = SparkConf(_jconf=running.get().conf())
    return SparkContext(conf=conf, gateway=gateway, jsc=java)


def leave(context: SparkContext, gateway: Any) -> None:
    """Close our connections; the JVM and the contexts of others go on."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    shutil.rmtree(getattr(context, "_temp_dir", None) or "", ignore_errors=True)
    gateway.close()
