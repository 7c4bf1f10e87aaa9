"""One broker of Kafka, in KRaft mode, on 127.0.0.1: its jars from Maven, its data in a folder.

The jars are those of `tests/kafka/pom.xml`. A broker can be killed and started again on its data.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.maven import copy_jars
from penstock.host.server_process import free_port

ROOT = Path(__file__).parents[3]
START_S = 90.0
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
LOGGING = """
Configuration:
  status: ERROR
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "%d %p %c %m%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: STDOUT
"""


class Broker:
    """A broker with a folder of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Write its files; nothing runs yet.

        Args:
            folder: of its data.
            settings: of the broker, with _ for the points in their names.
        """
        self.folder = folder
        self.port, self._controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self._class_path = ":".join(map(str, copy_jars("kafka")))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        names = {name.replace("_", "."): value for name, value in settings.items()}
        values = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            **names,
        }
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{key}={one}\n" for key, one in values.items()))
        (folder / "log4j2.yaml").write_text(LOGGING)
        self.run_tool(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)
        )

    def _java(self, main: str, *arguments: str, heap: str = "512m") -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging]
        return ["java", *options, "-cp", self._class_path, main, *arguments]

    def run_tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's tools and return its output."""
        done = subprocess.run(
            self._java(main, *arguments, heap="256m"), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            text = (self.folder / "broker.log").read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, f"the broker ended: {text}"
            assert time.monotonic() < deadline_s, f"the broker does not answer: {text}"
            time.sleep(0.2)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; config has _ for the points in names."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})
        settings = {key.replace("_", "."): one for key, one in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        for future in admin.create_topics([topic]).values():
            future.result()

    def deny(self, kind: str, prefix: str, operation: str) -> None:
        """Deny an operation on everything whose name begins so."""
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        binding = AclBinding(
            ResourceType[kind],
            prefix,
            ResourcePatternType.PREFIXED,
            "User:ANONYMOUS",
            "*",
            AclOperation[operation],
            AclPermissionType.DENY,
        )
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.create_acls([binding]).values():
            future.result()

    def kill(self) -> None:
        """Kill it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it in order, or kill it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process without ending it: connections stay open, and nothing answers."""
        assert self._process is not None, "it runs"
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        assert self._process is not None, "it runs"
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def running_broker(folder: Path, **settings: Any) -> Iterator[Broker]:
    """Run a broker for a while."""
    broker = Broker(folder, **settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
