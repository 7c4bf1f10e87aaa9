"""The part of the source's log that is kept for a slot."""

from __future__ import annotations

from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.lag import read_retention
from plugins.postgres import Server

SLOT = "keeps"


def test_bytes_and_age_grow_with_what_is_not_confirmed(postgres: Server, source_url: str) -> None:
    """Both are unknown without a slot; a role that may not list files learns only the bytes."""
    with connect(source_url, application_name="test") as connection:
        assert read_retention(connection, SLOT) is None
        connection.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        connection.execute("create table t (v text)")
        first = read_retention(connection, SLOT)
        connection.execute("insert into t select repeat('x', 100) from generate_series(1, 30000)")
        connection.execute("select pg_switch_wal()")
        second = read_retention(connection, SLOT)
        assert first is not None
        assert second is not None
        assert second.size_bytes > first.size_bytes + 3_000_000
        assert second.age_s is not None
        assert 0 <= second.age_s < 3600
        assert second.left_bytes is None
        assert second.state == "reserved"
        postgres.execute("create role looks login password 'p'")
        try:
            database = source_url.rpartition("/")[2]
            with connect(postgres.url(database, "looks", "p"), application_name="test") as other:
                seen = read_retention(other, SLOT)
        finally:
            postgres.execute("drop role looks")
        assert seen is not None
        assert seen.age_s is None
        assert seen.size_bytes >= second.size_bytes
        connection.execute(f"select pg_drop_replication_slot('{SLOT}')")
