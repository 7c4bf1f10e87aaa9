"""Local S3 server of tests: moto in a process of its own, which keeps its objects in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]

from penstock.host.server_process import free_port

START_S_MAX = 120.0
REGION = "us-east-1"
KEY, SECRET = "test-key", "test-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """Server that answers.

    Attributes:
        endpoint: Its address, as a URL.
    """

    endpoint: str

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings by which penstock reaches it, as Hadoop spells them, without `fs.s3a.`."""
        return {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "access.key": KEY,
            "secret.key": SECRET,
            "path.style.access": "true",
        }

    @property
    def conf(self) -> Mapping[str, str]:
        """The same as properties of a pipeline's [spark.conf]."""
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in self.settings.items()}

    @property
    def delta_options(self) -> Mapping[str, str]:
        """`storage_options` of delta-rs and polars."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    @property
    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg's files."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
        }

    @property
    def client(self) -> Any:
        """Client of Amazon's package."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def make_bucket(self, name: str) -> str:
        """Create a bucket; return its name."""
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Return the names of all objects of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]


@contextmanager
def serve_s3(folder: Path, *, refuses_keys: bool = False) -> Iterator[S3Server]:
    """Start a server; end it afterwards.

    Args:
        folder: for its messages.
        refuses_keys: It knows no key, so it refuses every request.
    """
    port = free_port()
    environment = {**os.environ, **({"INITIAL_NO_AUTH_ACTION_COUNT": "0"} if refuses_keys else {})}
    with (folder / "s3.log").open("wb") as messages:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=messages,
            stderr=messages,
            env=environment,
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait(process, f"{endpoint}/moto-api/")
        yield S3Server(endpoint)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    until_s = time.monotonic() + START_S_MAX
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            assert process.poll() is None, "the S3 server ended at its start"
            assert time.monotonic() < until_s, "the S3 server does not answer"
            time.sleep(0.2)
