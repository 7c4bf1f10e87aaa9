"""Doctor's checks of server, slot, publication and machine, each with and without its condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline
from harness.servers.checks import every_check
from penstock.codec.postgres import pgoutput
from penstock.control.doctor import local_checks
from penstock.control.doctor.doctor import PreflightFailed, examine, examined_of
from penstock.control.doctor.load_checks import LOAD_CHECKS
from penstock.control.doctor.local_checks import (
    CONSUMER_CHECKS,
    DIRECTORY_CHECKS,
    EXTRA_CHECKS,
    HOST_CHECKS,
)
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.engines.postgres.checks import server as doctor_server
from penstock.engines.postgres.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, Probe
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.extraction import ensure_slot, read_identity
from penstock.engines.postgres.handover import prepare
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.source_engine import STREAM_FILE
from penstock.engines.postgres.source.source_identity import ServerIdentity, identify
from penstock.engines.postgres.standby import PublicationOnPrimary
from penstock.host.errors import ConnectionLost
from penstock.host.state_file import StateFile
from penstock.log import Writer
from penstock.model import FlushPoint, Run, TableDefinition
from penstock.ports.checks import Severity, Side
from penstock.ports.config import Config, Mode
from penstock.ports.handover import Handover, LogWithoutBulkLoad, write_handover
from penstock.ports.identity import keep_identity
from plugins.doctor import (
    AWAY,
    PUBLICATION,
    SLOT,
    as_role,
    database_of,
    find_by_code,
    make_slot,
    one,
    reader,
)
from plugins.postgres import Server


def test_every_check_of_the_reference_is_registered() -> None:
    """PG01 to PG34 and PK01 to PK13 are registered, each with a title and a docstring."""
    checks = every_check()
    codes = {check.code for check in checks}
    assert codes >= {f"PG{number:02}" for number in range(1, 35)}
    assert codes >= {f"PK{number:02}" for number in (1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13)}
    for check in checks:
        assert check.function.__doc__


def test_a_healthy_pair_has_no_error(config: Config, run: Callable[[str], None]) -> None:
    """No finding stops a run with keys and rights in place, and every check was made."""
    run("create table a (id int primary key, t text)")
    report = examine(config)
    assert report.errors == ()
    assert report.checks_skipped == 0
    assert report.checks_done >= 45
    report.require()


def test_a_server_that_cannot_be_asked_makes_no_check_done(
    config: Config, run: Callable[[str], None]
) -> None:
    """Neither its own checks nor those of both count as done; a failed check is not done either."""
    run("create table a (id int primary key)")
    whole = examine(config)
    here = [*EXTRA_CHECKS, *HOST_CHECKS, *DIRECTORY_CHECKS, *CONSUMER_CHECKS]
    for url in AWAY:
        without = examine(replace(config, target=replace(config.target, url=url)))
        assert without.checks_done == len(here) + len(SOURCE_CHECKS), url
        [error] = without.errors
        assert (error.code, error.side) == ("HS22", Side.TARGET)
    alone = [check for check in TARGET_CHECKS if not check.needs_source]
    for url in AWAY:
        without = examine(replace(config, source=replace(config.source, url=url)))
        assert without.checks_done == len(here) + len(alone), url
        assert "HS22" in {finding.code for finding in without.errors}
    assert without.checks_skipped > len(LOAD_CHECKS) + len(TARGET_CHECKS) - len(alone)
    without = examine(replace(config, source=replace(config.source, url=AWAY[0])))
    assert without.checks_done + without.checks_skipped == whole.checks_done


def test_checks_of_unknown_tables_do_not_count_as_done(config: Config) -> None:
    """The source exists but its patterns cannot be read: the tables to load are unknown."""
    report = examine(replace(config, source=replace(config.source, tables=("a.b.c",))))
    needing = [check for check in TARGET_CHECKS if check.needs_source]
    assert report.checks_skipped == len(needing) + len(LOAD_CHECKS)


def test_doctor_changes_nothing(
    config: Config, run: Callable[[str], None], postgres: Server, source_url: str, target_url: str
) -> None:
    """No slot, publication, schema, table or directory is left."""
    run("create table a (id int primary key, t text)")
    examine(config)
    source, target = database_of(source_url), database_of(target_url)
    assert postgres.execute("select 1 from pg_publication", source) == []
    assert postgres.execute(f"select 1 from pg_replication_slots where database = '{source}'") == []
    tables = "select nspname from pg_namespace where nspname in ('wirekite', 'penstock')"
    assert postgres.execute(tables, target) == []
    assert (
        postgres.execute("select tablename from pg_tables where schemaname='public'", target) == []
    )
    assert not config.directory.exists()


def test_a_server_that_cannot_be_reached_is_one_finding(config: Config) -> None:
    """The server's checks count as not done, and the other side is still examined."""
    away = replace(config, source=replace(config.source, url="postgresql://u:p@127.0.0.1:1/d"))
    report = examine(away)
    assert [finding.code for finding in report.errors][:1] == ["HS22"]
    assert report.checks_skipped > 20
    with pytest.raises(PreflightFailed):
        report.require()


# -- the server --------------------------------------------------------------------------------


def test_pg01_server_version(config: Config) -> None:
    """A version below 14 is an error, one above 18 a warning, the current one neither."""
    assert find_by_code(config, "PG01") == []
    with connect(config.source.url, application_name="test") as connection:
        for version, severity in ((130_011, Severity.ERROR), (190_000, Severity.WARNING)):
            probe = Probe(examined=examined_of(config), connection=connection, version=version)
            assert [f.severity for f in doctor_server.server_version(probe)] == [severity]


@pytest.fixture(scope="module")
def tuned_server(postgres_version: int) -> Iterator[Server]:
    """A server whose settings these tests change."""
    with EmbeddedPostgres(major=postgres_version) as embedded:
        server = Server(embedded=embedded)
        server.execute("create table a (id int primary key)")
        yield server


@pytest.fixture
def tuned_config(tuned_server: Server, tmp_path: Path, target_url: str) -> Config:
    """A pipeline from that server."""
    return pipeline(tmp_path, tuned_server.url(), target_url)


def test_pg02_wal_level(tuned_server: Server, tuned_config: Config) -> None:
    """A wal_level below logical is an error with the statement that fixes it."""
    assert find_by_code(tuned_config, "PG02") == []
    tuned_server.restart_with(wal_level="replica")
    try:
        one(tuned_config, "PG02", Severity.ERROR, "replica", "alter system set wal_level")
    finally:
        tuned_server.restart_with(wal_level="logical")


def test_pg03_free_slots(tuned_server: Server, tuned_config: Config) -> None:
    """No slot for the pipeline is an error, none for verify a warning."""
    assert find_by_code(tuned_config, "PG03") == []
    tuned_server.restart_with(max_replication_slots="1")
    try:
        one(tuned_config, "PG03", Severity.WARNING, "verify")
        make_slot(tuned_config, "other")
        one(tuned_config, "PG03", Severity.ERROR, "max_replication_slots")
    finally:
        tuned_server.execute("select pg_drop_replication_slot('other')")
        tuned_server.restart_with(max_replication_slots="20")


def test_pg04_free_senders(tuned_server: Server, tuned_config: Config) -> None:
    """Two WAL senders must be free."""
    assert find_by_code(tuned_config, "PG04") == []
    tuned_server.restart_with(max_wal_senders="1")
    try:
        one(tuned_config, "PG04", Severity.ERROR, "max_wal_senders")
    finally:
        tuned_server.restart_with(max_wal_senders="20")


def test_pg05_and_pg06_role_without_replication(
    config: Config, postgres: Server, role: str
) -> None:
    """There are no slots and no replication connection without the attribute."""
    least = as_role(config, postgres, role, "source")
    one(least, "PG05", Severity.ERROR, f'alter role "{role}" replication')
    unfit = one(least, "PG06", Severity.ERROR, f'alter role "{role}" replication')
    assert "pg_hba" not in unfit.command
    postgres.execute(f"alter role {role} replication")
    assert find_by_code(least, "PG05") == []
    assert find_by_code(least, "PG06") == []


def test_pg35_mode_pause(config: Config, run: Callable[[str], None], tmp_path: Path) -> None:
    """A primary cannot be paused: doctor says so before the handover does."""
    run("create table a (id int primary key)")
    assert find_by_code(config, "PG35") == []
    paused = pipeline(
        tmp_path, config.source.url, config.target.url, sections={"pipeline": {"handover": "pause"}}
    )
    one(paused, "PG35", Severity.ERROR, "needs a standby", 'handover = "snapshot"')


def test_pg07_directory_of_another_source(config: Config) -> None:
    """A directory that was filled from another server or by another pipeline is refused."""
    assert find_by_code(config, "PG07") == []
    with connect(config.source.url, application_name="test") as connection:
        now = read_identity(connection, config)
    keep_identity(config, now)
    assert find_by_code(config, "PG07") == []
    keep_identity(config, replace(now, system_id="42"))
    one(config, "PG07", Severity.ERROR, "42", "another source")
    keep_identity(config, replace(now, pipeline="other"))
    one(config, "PG07", Severity.ERROR, "other")


def log_up_to(config: Config, position: int) -> None:
    """Write a change log that ends at a position."""
    config.layout.log.mkdir(parents=True)
    with Writer.open(config.layout.log, log_id=None, source={}) as writer:
        writer.write(Run(end=FlushPoint(position=position)))
        writer.flush()


def test_pg07_promoted_server(config: Config) -> None:
    """A timeline that the log was not filled from is an error; a later one is not."""
    with connect(config.source.url, application_name="test") as connection:
        keep_identity(config, replace(read_identity(connection, config), timeline=99))
    with open_replication(config.source.url, application_name="test") as replication:
        now = identify(replication)
    log_up_to(config, 1)
    stream = StateFile(config.layout.state / STREAM_FILE, ServerIdentity)
    stream.save(now)
    assert find_by_code(config, "PG07") == []
    stream.save(replace(now, timeline=99))
    one(config, "PG07", Severity.ERROR, "timeline 99")


def test_pg07_server_put_back_from_an_older_copy(config: Config) -> None:
    """The server's WAL ends before that of the log."""
    with connect(config.source.url, application_name="test") as connection:
        keep_identity(config, read_identity(connection, config))
    with open_replication(config.source.url, application_name="test") as replication:
        stream = StateFile(config.layout.state / STREAM_FILE, ServerIdentity)
        stream.save(identify(replication))
    log_up_to(config, 2**62)
    one(config, "PG07", Severity.ERROR, "was put back from an older copy", "penstock reset")


def test_pg08_standby(own_postgres: Server, tmp_path: Path, target_url: str) -> None:
    """A standby as source is a risk from 16 on, and an error before; it cannot publish tables."""
    config = pipeline(tmp_path, own_postgres.url(), target_url)
    own_postgres.execute("create table if not exists a (id int primary key)")
    assert find_by_code(config, "PG08") == find_by_code(config, "PG11") == []
    own_postgres.stop()
    (own_postgres.directory / "standby.signal").touch()
    own_postgres.start()
    severity = Severity.WARNING if own_postgres.version >= 16 else Severity.ERROR
    one(config, "PG08", severity, "standby")
    finding = one(config, "PG11", Severity.ERROR, "a standby cannot make it")
    tables = source_tables(config)
    for begin in (
        lambda: ensure_slot(pipeline_of(config), tables),
        lambda: begin_handover(config, tables),
    ):
        with pytest.raises(PublicationOnPrimary) as caught:
            begin()
        assert caught.value.hint == finding.command


def begin_handover(config: Config, tables: list[TableDefinition]) -> None:
    """Begin a handover, which is refused."""
    with prepare(pipeline_of(config), tables, stop=lambda: False):
        pytest.fail("it is refused")


def test_pg18_old_transactions(
    config: Config, monkeypatch: pytest.MonkeyPatch, run: Callable[[str], None]
) -> None:
    """A transaction that writes for long would delay the creation of the slot."""
    run("create table a (id int primary key)")
    with psycopg.connect(config.source.url) as writer:
        writer.execute("insert into a values (1)")
        assert find_by_code(config, "PG18") == []
        monkeypatch.setattr(doctor_server, "OLD_TRANSACTION_S", 0)
        findings = find_by_code(config, "PG18")
        pid = writer.info.backend_pid
        assert any(f"pg_terminate_backend({pid})" in finding.command for finding in findings)


def test_pg19_age_of_slots(
    config: Config, monkeypatch: pytest.MonkeyPatch, run: Callable[[str], None]
) -> None:
    """A slot that holds back the catalogue for long is a warning, then an error."""
    make_slot(config, "left_behind")
    run("create table a (id int primary key)")
    assert not [f for f in find_by_code(config, "PG19") if "left_behind" in f.what]
    monkeypatch.setattr(doctor_server, "SLOT_AGE_WARNING", 0)
    [finding] = [f for f in find_by_code(config, "PG19") if "left_behind" in f.what]
    assert finding.severity is Severity.WARNING
    monkeypatch.setattr(doctor_server, "SLOT_AGE_ERROR", 0)
    [finding] = [f for f in find_by_code(config, "PG19") if "left_behind" in f.what]
    assert finding.severity is Severity.ERROR


def test_pg23_encoding(config: Config, postgres: Server) -> None:
    """A SQL_ASCII database may contain bytes that are not text."""
    assert find_by_code(config, "PG23") == []
    name = f"ascii_{time.monotonic_ns()}"
    postgres.execute(f"create database {name} encoding 'SQL_ASCII' template template0")
    url = postgres.url(name)
    try:
        other = replace(config, source=replace(config.source, url=url))
        one(other, "PG23", Severity.WARNING, "SQL_ASCII")
    finally:
        postgres.drop_database(url)


def test_pg25_and_pg26_limits(tuned_server: Server, tuned_config: Config) -> None:
    """Unlimited or little WAL and short timeouts cause a warning; sound values do not."""
    one(tuned_config, "PG25", Severity.WARNING, "no limit")
    assert find_by_code(tuned_config, "PG26") == []
    tuned_server.restart_with(max_slot_wal_keep_size="64MB", wal_sender_timeout="5s")
    one(tuned_config, "PG25", Severity.WARNING, "64MB")
    one(tuned_config, "PG26", Severity.WARNING, "wal_sender_timeout")
    tuned_server.restart_with(max_slot_wal_keep_size="50GB", wal_sender_timeout="60s")
    assert find_by_code(tuned_config, "PG25") == []
    assert find_by_code(tuned_config, "PG26") == []
    tuned_server.restart_with(max_slot_wal_keep_size="-1")


@pytest.mark.server("postgres >= 18")
def test_pg26_idle_slot_timeout(tuned_server: Server, tuned_config: Config) -> None:
    """An idle slot can end on 18."""
    tuned_server.restart_with(idle_replication_slot_timeout="1d")
    try:
        one(tuned_config, "PG26", Severity.WARNING, "idle_replication_slot_timeout")
    finally:
        tuned_server.restart_with(idle_replication_slot_timeout="0")


def test_pg29_settings_of_the_role(config: Config, postgres: Server, role: str) -> None:
    """Settings that change the text of values are reported, since penstock's override them."""
    least = as_role(config, postgres, role, "source")
    assert find_by_code(least, "PG29") == []
    postgres.execute(f"alter role {role} set datestyle = 'german'")
    one(least, "PG29", Severity.WARNING, "german", role)


# -- slot and publication ----------------------------------------------------------------------


def test_pg09_slot_of_another_kind(config: Config, postgres: Server) -> None:
    """A physical slot of this name is not ours; a logical pgoutput one of this database is."""
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        connection.execute(f"select pg_create_physical_replication_slot('{SLOT}')")
    try:
        (finding,) = [f for f in find_by_code(config, "PG09") if "type physical" in f.what]
        assert f'replicationSlot = "{SLOT}_2"' in finding.command
        assert "drop" not in finding.command
    finally:
        postgres.execute(f"select pg_drop_replication_slot('{SLOT}')")
    make_slot(config)
    one(config, "PG09", Severity.ERROR, "has not begun")
    write_handover(config, Handover(slot=SLOT))
    assert find_by_code(config, "PG09") == []


def test_pg09_two_phase(config: Config) -> None:
    """A slot created for two-phase commit is refused."""
    make_slot(config, extra=", false, true")
    one(config, "PG09", Severity.ERROR, "two_phase", f'replicationSlot = "{SLOT}_2"')


def test_pg10_another_reader(config: Config, run: Callable[[str], None]) -> None:
    """Another reader of the slot is named with the pid to end; our own extractor is not."""
    make_slot(config)
    assert find_by_code(config, "PG10") == []
    run("create publication x")
    with reader(config, SLOT, "other tool"):
        one(config, "PG10", Severity.WARNING, "other tool", "pg_terminate_backend")


def test_pg10_lost_slot(tuned_server: Server, tuned_config: Config) -> None:
    """A slot whose WAL was removed is an error: everything has to be loaded again."""
    make_slot(tuned_config)
    tuned_server.restart_with(
        max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="64MB"
    )
    try:
        deadline = time.monotonic() + 60
        status = ""
        while status != "lost" and time.monotonic() < deadline:
            tuned_server.execute("insert into a values (1) on conflict do nothing")
            tuned_server.execute("create table filler as select 1 as n; drop table filler")
            tuned_server.execute("select pg_switch_wal()")
            tuned_server.execute("checkpoint")
            status = tuned_server.execute("select wal_status from pg_replication_slots")[0][0]
        one(tuned_config, "PG10", Severity.ERROR, "lost", "penstock reset")
        if tuned_server.version >= 17:
            findings = find_by_code(tuned_config, "PG27")
            assert [f.severity for f in findings] == [Severity.ERROR]
    finally:
        tuned_server.execute(f"select pg_drop_replication_slot('{SLOT}')")
        tuned_server.restart_with(
            max_slot_wal_keep_size="-1", max_wal_size="1GB", min_wal_size="80MB"
        )


def test_pg11_publication_that_lacks_changes(config: Config, run: Callable[[str], None]) -> None:
    """A publication must have all four kinds of change, and partitions under their root."""
    run("create table a (id int primary key)")
    run(f"create publication {PUBLICATION} for table a with (publish = 'insert, update')")
    one(config, "PG11", Severity.ERROR, "delete, truncate", "alter publication")
    run(f"alter publication {PUBLICATION} set (publish = 'insert, update, delete, truncate')")
    assert find_by_code(config, "PG11") == []
    run("create table p (id int primary key) partition by range (id)")
    run("create table p1 partition of p default")
    one(config, "PG11", Severity.ERROR, "root")


def test_pg11_publication_that_cannot_be_made(
    config: Config, run: Callable[[str], None], postgres: Server, role: str
) -> None:
    """A role that may not create the publication is told what an administrator has to type."""
    run("create table a (id int primary key)")
    postgres.execute(f"alter role {role} replication")
    least = as_role(config, postgres, role, "source")
    one(least, "PG11", Severity.ERROR, "does not own", "create publication")
    run(f"alter table a owner to {role}")
    one(least, "PG11", Severity.ERROR, "CREATE on the database")
    database = database_of(config.source.url)
    postgres.execute(f"grant create on database {database} to {role}")
    assert find_by_code(least, "PG11") == []


def test_pg13_table_not_published(config: Config, run: Callable[[str], None]) -> None:
    """A wanted table that the publication lacks is named."""
    run("create table a (id int primary key); create table b (id int primary key)")
    assert find_by_code(config, "PG13") == []
    run(f"create publication {PUBLICATION} for table a")
    one(config, "PG13", Severity.ERROR, "public.b", "add table")


@pytest.mark.server("postgres >= 15")
def test_pg17_filters(config: Config, run: Callable[[str], None]) -> None:
    """Row filters and column lists hide rows or columns."""
    run("create table a (id int primary key, t text); create table b (id int primary key)")
    run(f"create publication {PUBLICATION} for table a (id), b")
    one(config, "PG17", Severity.WARNING, "column list")
    run(f"alter publication {PUBLICATION} set table a where (id > 1), b")
    one(config, "PG17", Severity.WARNING, "id > 1")
    run(f"alter publication {PUBLICATION} set table a, b")
    assert find_by_code(config, "PG17") == []


def test_pg20_spilling(config: Config, run: Callable[[str], None]) -> None:
    """Transactions spilled to the server's disk for the slot are reported."""
    run("create table a (id int primary key, t text)")
    run(f"create publication {PUBLICATION} for table a")
    make_slot(config)
    assert find_by_code(config, "PG20") == []
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        # The slot is read up to the flushed position: an unflushed commit would be missing.
        connection.execute("set synchronous_commit = on")
        connection.execute(
            "insert into a select g, repeat('x', 200) from generate_series(1,5000) g"
        )
        connection.execute("set logical_decoding_work_mem = '64kB'")
        connection.execute(
            f"select count(*) from pg_logical_slot_get_binary_changes('{SLOT}', null, null,"
            f" 'proto_version', '1', 'publication_names', '{PUBLICATION}')"
        )
    deadline = time.monotonic() + 10
    while not find_by_code(config, "PG20") and time.monotonic() < deadline:
        time.sleep(0.2)
    one(config, "PG20", Severity.WARNING, "logical_decoding_work_mem")


@pytest.mark.server("postgres >= 17")
def test_pg27_and_pg28_failover(config: Config, postgres: Server) -> None:
    """A slot should support failover if there is a standby, and the server wait for that."""
    make_slot(config)
    assert find_by_code(config, "PG27") == []
    with psycopg.connect(config.source.url, autocommit=True) as connection:
        connection.execute("select pg_create_physical_replication_slot('for_standby')")
    try:
        one(config, "PG27", Severity.WARNING, "FAILOVER true")
        assert find_by_code(config, "PG28") == []
        make_slot(config, "follows", extra=", false, false, true")
        one(config, "PG28", Severity.WARNING, "synchronized_standby_slots", "for_standby")
    finally:
        postgres.execute("select pg_drop_replication_slot('for_standby')")


def test_pg31_publication_gone(config: Config, run: Callable[[str], None]) -> None:
    """A slot without its publication is an error, on 18 the only sign of lost rows."""
    run("create table a (id int primary key)")
    run(f"create publication {PUBLICATION} for table a")
    make_slot(config)
    assert find_by_code(config, "PG31") == []
    run(f"drop publication {PUBLICATION}")
    one(config, "PG31", Severity.ERROR, "the slot", "penstock reset shop.toml --target")


# -- this machine ------------------------------------------------------------------------------


def test_pk01_kernel(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain decoder in use is a warning."""
    monkeypatch.setattr(pgoutput, "COMPILED", True)
    assert find_by_code(config, "PK01") == []
    monkeypatch.setattr(pgoutput, "COMPILED", False)
    one(config, "PK01", Severity.WARNING, "slower")


def test_pk19_log_without_a_bulk_load(config: Config) -> None:
    """A pipeline begun in mode change cannot continue in mode data+change."""
    assert find_by_code(config, "PK19") == []
    log_up_to(config, 1)
    finding = one(config, "PK19", Severity.ERROR, 'mode = "change"', "penstock reset shop.toml")
    with pytest.raises(LogWithoutBulkLoad, match="was begun without a bulk load") as caught:
        begin_handover(config, [])
    assert caught.value.hint == finding.command
    assert (
        find_by_code(replace(config, pipeline=replace(config.pipeline, mode=Mode.CHANGE)), "PK19")
        == []
    )
    write_handover(config, Handover(slot=SLOT))
    assert find_by_code(config, "PK19") == []


def test_pk02_java(config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing or old Java is an error."""
    assert find_by_code(config, "PK02") == []
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    one(config, "PK02", Severity.ERROR, "no Java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(local_checks, "JAVA_VERSIONS", (98, 99))
    one(config, "PK02", Severity.ERROR, "98 or 99")


def test_pk03_disk(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little space is a warning, almost none an error."""
    monkeypatch.setattr(local_checks, "DISK_FREE_BYTES_WARNING", 0)
    assert find_by_code(config, "PK03") == []
    monkeypatch.setattr(local_checks, "DISK_FREE_BYTES_WARNING", 2**60)
    one(config, "PK03", Severity.WARNING, "GiB are free")
    monkeypatch.setattr(local_checks, "DISK_FREE_BYTES_ERROR", 2**60)
    one(config, "PK03", Severity.ERROR)


def test_a_check_that_fails_is_a_finding(
    config: Config, run: Callable[[str], None], postgres: Server
) -> None:
    """A connection cut in the middle of the checks never counts as healthy."""
    run("create table a (id int primary key)")
    database = database_of(config.source.url)
    ended = threading.Event()

    def cut() -> None:
        while not ended.is_set():
            postgres.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                f"where datname = '{database}' and application_name = 'penstock doctor'"
            )

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        with pytest.raises((PreflightFailed, ConnectionLost)):
            examine(config).require()
    finally:
        ended.set()
        thread.join()
