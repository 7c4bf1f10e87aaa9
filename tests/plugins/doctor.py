"""Fixtures and helpers of doctor's tests: a pipeline over fresh databases, and its findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline
from penstock.codec.postgres import pgwire
from penstock.control.doctor.doctor import examine
from penstock.engines.postgres.source.client import open_replication
from penstock.ports.checks import Finding, Severity
from penstock.ports.config import Config
from plugins.postgres import Server

PASSWORD = "secret"
# No process listens there.
AWAY = (
    "postgresql://u@127.0.0.1:1/d",
    "mysql://u@127.0.0.1:1/d",
    "mariadb://u@127.0.0.1:1/d",
)
SLOT = "wirekite_replication_slot"
PUBLICATION = "wirekite_publication"


def database_of(url: str) -> str:
    """Return the database's name in a URL."""
    return urlsplit(url).path.lstrip("/")


@pytest.fixture
def run(postgres: Server, source_url: str) -> Callable[[str], None]:
    """Run SQL in the source database as its superuser."""
    return lambda sql: (postgres.execute(sql, database_of(source_url)), None)[1]


@pytest.fixture
def run_in_target(postgres: Server, target_url: str) -> Callable[[str], None]:
    """Run SQL in the target database as its superuser."""
    return lambda sql: (postgres.execute(sql, database_of(target_url)), None)[1]


@pytest.fixture
def config(tmp_path: Path, source_url: str, target_url: str) -> Config:
    """A pipeline over both fresh databases, as superuser."""
    return pipeline(tmp_path, source_url, target_url)


@pytest.fixture
def role(postgres: Server) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"least_{time.monotonic_ns()}"
    postgres.execute(f"create role {name} login password '{PASSWORD}'")
    yield name
    for (database,) in postgres.execute("select datname from pg_database where datallowconn"):
        postgres.execute(f"drop owned by {name} cascade", database)
    postgres.execute(f"drop role {name}")


def as_role(config: Config, postgres: Server, role: str, side: str) -> Config:
    """Return the same pipeline, with this role on one side."""
    section = getattr(config, side)
    url = postgres.url(database_of(section.url), role, PASSWORD)
    return replace(config, **{side: replace(section, url=url)})


def find_by_code(config: Config, code: str) -> list[Finding]:
    """Return the findings of the checks with one code."""
    return [finding for finding in examine(config, only=[code]).findings if finding.code == code]


def one(config: Config, code: str, severity: Severity, *said: str) -> Finding:
    """Return the single finding of this code; check its severity and words."""
    findings = find_by_code(config, code)
    assert len(findings) == 1, findings
    assert findings[0].severity is severity
    text = " ".join((findings[0].what, findings[0].why, findings[0].command))
    for word in said:
        assert word in text
    return findings[0]


def make_slot(config: Config, name: str = SLOT, extra: str = "") -> None:
    """Create a logical pgoutput slot in the source."""
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        connection.execute(
            f"select pg_create_logical_replication_slot('{name}', 'pgoutput'{extra})"
        )


@contextmanager
def reader(config: Config, name: str, application_name: str) -> Iterator[None]:
    """Read from the slot for the time of a with block."""
    with open_replication(config.source.url, application_name=application_name) as connection:
        options = [("proto_version", "1"), ("publication_names", '"x"')]
        connection.start_copy(
            pgwire.start_replication(name, "0/0", options), doing="reading the slot"
        )
        yield
