"""The lag and heartbeats of a PostgreSQL source, in every state, compared with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.lag import (
    EXTRACTOR,
    Line,
    tell_heartbeats,
    tell_states,
    tell_that_they_are_no_activity,
    until,
)
from harness.pipelines.pipeline import penstock, pipeline
from harness.servers.proxy import Proxy
from penstock.control.doctor.doctor import examine
from penstock.control.status.status import read_status
from plugins.postgres import Server

TABLE = "create table t (id int primary key)"


def line_of(folder: Path, source: str, target: str, **extractor: Any) -> Line:
    """Return a pipeline between two databases with this table."""
    for url in (source, target):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLE)
    sections = {"changeExtractor": {**EXTRACTOR, **extractor}}
    config = pipeline(folder, source, target, mode="change", sections=sections)

    def commit(number: int) -> None:
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("insert into t values (%s)", (number,))

    return Line(config=config, commit=commit)


@pytest.fixture
def alone(own_postgres: Server) -> str:
    """A source on a server without other writers."""
    return own_postgres.make_database("source")


@pytest.mark.slow
def test_each_state_is_reported_as_it_is(alone: str, target_url: str, tmp_path: Path) -> None:
    """The states range from before the first run to caught up; both halves pause, stop and work."""
    tell_states(line_of(tmp_path, alone, target_url))


@pytest.mark.slow
def test_a_server_that_is_away_makes_the_lag_unknown(
    postgres: Server, source_url: str, target_url: str, tmp_path: Path
) -> None:
    """The unavailable server is named; `penstock lag` exits with 1 and prints no number. Status
    too.
    """
    port = int(psycopg.conninfo.conninfo_to_dict(source_url)["port"])
    with Proxy(port) as source, Proxy(port) as target:
        line = line_of(tmp_path, source.url(source_url), target.url(target_url))
        with line.extracting():
            line.commit_next()
            until(lambda: line.has_logged(1), "it is in the log")
        for side, door in (("source", source), ("target", target)):
            assert read_status(line.config).lag is not None
            door.away(True)
            assert read_status(line.config).lag is None
            told = penstock("lag", line.config.path)
            assert told.code == 1
            assert f"unknown: {side} unreachable" in told.out
            assert "0.0 s" not in told.out
            assert penstock("lag", line.config.path, "--json").result["lag_seconds"] is None
            door.away(False)


@pytest.mark.slow
def test_heartbeats_measure_an_idle_source(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """The lag is measured from before a heartbeat's commit to its visibility."""
    tell_heartbeats(line_of(tmp_path, source_url, target_url, heartbeatSeconds=0.2))


def test_heartbeats_are_no_activity(source_url: str, target_url: str, tmp_path: Path) -> None:
    """A source that has only heartbeats is idle."""
    extractor = {"heartbeatSeconds": 0.2, "exitWhenIdle": True, "idleWaitSeconds": 1.0}
    tell_that_they_are_no_activity(line_of(tmp_path, source_url, target_url, **extractor))


def test_heartbeats_of_another_slot_are_not_ours(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """Every slot of a database sees heartbeats; keepMessages does not keep penstock's."""
    line = line_of(tmp_path, source_url, target_url, heartbeatSeconds=0.2, keepMessages=True)
    with psycopg.connect(source_url, autocommit=True) as connection, line.extracting():
        until(lambda: line.has_logged(1), "our own")
        for content in ("another 17", "wirekite_replication_slot none", "17"):
            connection.execute(
                "select pg_logical_emit_message(true, 'penstock.heartbeat', %s)", (content,)
            )
        line.commit_next()
        until(lambda: read_status(line.config).log.end.gsn, "the row behind them")
    said = penstock("log", "cat", line.config.path).out
    assert '"sent_us":' in said
    assert '"sent_us":17}' not in said
    assert "\tmessage\t" not in said


def test_doctor_tries_a_heartbeat(
    postgres: Server, source_url: str, target_url: str, tmp_path: Path
) -> None:
    """Heartbeats are tried only if they are wanted; doctor reports a role that may
    not write them.
    """
    line = line_of(tmp_path, source_url, target_url, heartbeatSeconds=1)
    assert "PG36" not in [one.code for one in examine(line.config).findings]
    database = source_url.rpartition("/")[2].partition("?")[0]
    postgres.execute(
        "revoke execute on all functions in schema pg_catalog from public;"
        "drop role if exists heartless; create role heartless login replication password 'p';"
        f"grant all on database {database} to heartless; grant select on t to heartless;"
        "grant execute on all functions in schema pg_catalog to heartless;"
        "do $$ declare f regprocedure; begin for f in select oid from pg_proc where proname ="
        " 'pg_logical_emit_message' loop execute format('revoke execute on function %s from"
        " heartless', f); end loop; end $$",
        database,
    )
    poor = pipeline(
        tmp_path,
        postgres.url(database, "heartless", "p"),
        target_url,
        mode="change",
        sections={"changeExtractor": {"heartbeatSeconds": 1}},
    )
    try:
        assert "PG36" in [one.code for one in examine(poor).findings]
    finally:
        postgres.execute("drop owned by heartless; drop role heartless", database)
