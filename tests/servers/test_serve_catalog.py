"""Real clients query the server's tables, publications and slots."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.servers.engines import ENGINES, Place, insert, new_place
from harness.servers.subscribers import PASSWORD, Served, Subscriber
from plugins.postgres import Server, first_server
from plugins.shared import SharedServers
from record_catalog_queries import PGJDBC, PSQL, java

ITEM = "create table {}item (id int primary key, n int, note varchar(200))"
OTHER = "create table {}other (k varchar(40) primary key, v bigint)"


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with two tables."""
    with new_place(shared_servers, request.param) as found:
        found.run(ITEM.format(""))
        found.run(OTHER.format(""))
        yield found


@pytest.fixture
def served_log(place: Place, tmp_path: Path) -> Iterator[Served]:
    """Served log of the source."""
    made = Served(place, tmp_path)
    try:
        made.extract()
        made.serve()
        yield made
    finally:
        made.close()
        place.forget_log()


def test_psql(served_log: Served, shared_servers: SharedServers) -> None:
    """The backslash commands of old and new clients are answered."""
    for version in (15, 18):
        psql = first_server(shared_servers, version).bindir / "psql"
        for command in PSQL:
            shown = command.replace("public.", f"{served_log.place.namespace}.")
            done = subprocess.run(
                [str(psql), "-X", "-v", "ON_ERROR_STOP=1", "-c", shown, served_log.connection()],
                capture_output=True,
                text=True,
                check=False,
            )
            missing = "Did not find any" in done.stderr  # for the tables that PSQL names
            assert missing or (done.returncode, done.stderr) == (0, ""), (version, shown)
        described = subprocess.run(
            [
                str(psql),
                "-X",
                "-c",
                rf"\d {served_log.place.namespace}.item",
                served_log.connection(),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert '"item_pkey" PRIMARY KEY, btree (id)' in described
        assert "character varying(200)" in described


def test_psycopg(served_log: Served) -> None:
    """Parameters, binary results and types work, and a prepared statement that is deallocated."""
    namespace = served_log.place.namespace
    with psycopg.connect(served_log.connection()) as connection:
        query = "select relname, relnatts from pg_class where relname = %s and relnatts > %s"
        for binary in (False, True):
            cursor = connection.cursor(binary=binary)
            assert cursor.execute(query, ("item", 1)).fetchall() == [("item", 3)]
        found = psycopg.types.TypeInfo.fetch(connection, f"{namespace}.item")
        assert found is not None
        assert found.name == "item"
        connection.pgconn.prepare(b"mine", b"select 1")
        assert connection.pgconn.exec_prepared(b"mine", []).get_value(0, 0) == b"1"
        connection.execute("deallocate mine")
        gone = connection.pgconn.exec_prepared(b"mine", [])
        assert gone.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000"
        connection.rollback()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select * from nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("select 1")
        connection.rollback()
        assert connection.execute("select 1").fetchall() == [(1,)]


def test_jdbc(served_log: Served, tmp_path: Path) -> None:
    """The metadata of JDBC is answered."""
    address = f"jdbc:postgresql://127.0.0.1:{served_log.port}/shop?user=repl&password={PASSWORD}"
    java(tmp_path, str(PGJDBC), "Metadata", address)


def test_publications_of_clients(served_log: Served, postgres: Server, place: Place) -> None:
    """A subscriber gets what CREATE and ALTER PUBLICATION say, also after a restart."""
    prefix = f"{place.namespace}."
    subscriber = Subscriber(postgres, served_log, ITEM.format(prefix), OTHER.format(prefix))
    try:
        with psycopg.connect(served_log.connection()) as connection:
            connection.execute(f"create publication q for table {prefix}item where (id > 10)")
            connection.execute("create publication gone")
            connection.rollback()
            assert served_log.query_catalog("select pubname from pg_publication") == [("p",)]
            connection.execute(f"create publication q for table {prefix}item where (id > 10)")
            connection.commit()
        subscriber.subscribe("q")
        insert(place, "item", [(1, 1, "out"), (11, 11, "in")])
        subscriber.until(
            lambda: subscriber.run(f"select id from {prefix}item") == [(11,)], "the row in is there"
        )
        with psycopg.connect(served_log.connection(), autocommit=True) as connection:
            connection.execute(f"alter publication q add table {prefix}other")
        assert served_log.server is not None
        served_log.server.__exit__()
        served_log.serve()
        assert served_log.query_catalog(
            "select tablename, rowfilter from pg_publication_tables where pubname = 'q' order by 1"
        ) == [("item", "(id > 10)"), ("other", None)]
        subscriber.run(
            f"alter subscription {subscriber.name} refresh publication with (copy_data = false)"
        )
        insert(place, "other", [("a", 1)])
        subscriber.until(
            lambda: subscriber.run(f"select k from {prefix}other") == [("a",)], "the new table"
        )
        slots = served_log.query_catalog(
            "select active, confirmed_flush_lsn <= pg_current_wal_lsn(), plugin "
            "from pg_replication_slots"
        )
        assert slots == [(True, True, "pgoutput")]
        ((name, state),) = served_log.query_catalog(
            "select application_name, state from pg_stat_replication"
        )
        assert (name, state) == (subscriber.name, "streaming")
    finally:
        subscriber.drop()
