"""Publication, slot and consistent point on a real server."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from harness.pipelines.stream import run_sql
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot import (
    PublicationMissing,
    PublicationUnfit,
    SlotNameInvalid,
    check_publication,
    consistent_point,
    create_slot,
    drop_slot,
    ensure_publication,
    flushed_position,
    log_running_transactions,
    read_slot,
)
from penstock.model import PenstockError, TableName
from plugins.postgres import Server

pytestmark = pytest.mark.each_server


def test_publication_is_made_and_then_found(source_url: str) -> None:
    """A publication with awkward names has partitioned tables under their root, and every
    operation.
    """
    table = TableName('Sche ma"', "tä.ble")
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, 'create schema "Sche ma""";; create table "Sche ma"""."tä.ble" (i int)')
        assert ensure_publication(sql, 'pub "x"', [table])
        assert not ensure_publication(sql, 'pub "x"', [table])
        row = sql.execute(
            "select pubviaroot, pubinsert and pubupdate and pubdelete and pubtruncate"
            " from pg_publication"
        ).fetchone()
    assert row == (True, True)
    with open_replication(source_url, application_name="test") as replication:
        check_publication(replication, 'pub "x"')
        with pytest.raises(PublicationMissing):
            check_publication(replication, "other")


@pytest.mark.parametrize(
    "options",
    ["publish = 'insert, update, delete'", "publish_via_partition_root = false"],
)
def test_unfit_publication_names_the_statement_that_mends_it(source_url: str, options: str) -> None:
    """The SQL in the hint fixes the publication."""
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "create table t (i int);; create table u (i int)")
        sql.execute(f"create publication p for table t with ({options})".encode())
        tables = [TableName("public", "t"), TableName("public", "u")]
        for _ in range(2):
            with pytest.raises(PublicationUnfit) as caught:
                ensure_publication(sql, "p", tables)
            sql.execute(caught.value.hint.encode())
        assert not ensure_publication(sql, "p", tables)


def test_slot_is_made_read_and_dropped(source_url: str) -> None:
    """The slot is shown by pg_replication_slots on every version."""
    with open_replication(source_url, application_name="test") as replication:
        created = create_slot(replication, source_url, "one", snapshot=False)
        state = read_slot(replication, "one")
        assert state is not None
        assert (state.plugin, state.slot_type) == ("pgoutput", "logical")
        assert state.confirmed_flush == created.position
        with pytest.raises(PenstockError) as caught:
            create_slot(replication, source_url, "one", snapshot=False)
        assert caught.value.fields["sqlstate"] == "42710"
        assert drop_slot(replication, "one")
        assert not drop_slot(replication, "one")
        assert read_slot(replication, "one") is None
        with pytest.raises(SlotNameInvalid):
            create_slot(replication, source_url, "Not-Good", snapshot=False)


def test_consistent_point_shows_the_database_exactly_there(source_url: str) -> None:
    """Every importer sees rows committed before, none sees later ones, until it is closed."""
    with connect(source_url, application_name="test") as sql:
        run_sql(sql, "create table t (i int);; insert into t values (1)")
        with consistent_point(source_url, "point") as held:
            sql.execute("insert into t values (2)")
            assert _count(source_url, held.snapshot_id) == 1
            held.ping()
            assert _count(source_url, held.snapshot_id) == 1
            snapshot = held.snapshot_id
        with pytest.raises(psycopg.Error):
            _count(source_url, snapshot)
        row = sql.execute(
            "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
            " where slot_name = 'point'"
        ).fetchone()
    assert row is not None
    assert row[0] == held.position


def _count(url: str, snapshot: str) -> int:
    with connect(url, application_name="test") as sql:
        sql.execute("begin isolation level repeatable read read only")
        sql.execute(f"set transaction snapshot '{snapshot}'".encode())
        row = sql.execute("select count(*) from t").fetchone()
        assert row is not None
        return int(row[0])


def test_temporary_slot_goes_with_its_block(source_url: str, postgres: Server) -> None:
    """No slot is left on the server after the block."""
    with consistent_point(source_url, "passing", temporary=True) as held:
        assert held.position > 0
    for _ in range(100):
        if not postgres.execute("select 1 from pg_replication_slots where slot_name = 'passing'"):
            break
    else:
        pytest.fail("the temporary slot is still there")


def test_slot_whose_snapshot_could_not_be_kept_is_dropped(
    source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown slot would hold the server's WAL forever."""
    from penstock.host import faults

    with (
        faults.arming("slot.snapshot.before:1:error"),
        pytest.raises(faults.FaultInjected),
        consistent_point(source_url, "half"),
    ):
        pass
    with open_replication(source_url, application_name="test") as replication:
        assert read_slot(replication, "half") is None


def test_running_transactions_are_logged_where_it_is_granted(
    postgres: Server, source_url: str
) -> None:
    """The record is on the server's disk then; without the grant, and before 16, there is none."""
    name = conninfo_to_dict(source_url)["dbname"]
    postgres.execute("drop role if exists onlooker")
    postgres.execute("create role onlooker login replication password 'x'")
    url = postgres.url(str(name), "onlooker", "x")
    with (
        open_replication(url, application_name="test") as onlooker,
        open_replication(source_url, application_name="test") as owner,
        connect(source_url, application_name="test") as sql,
    ):
        is_known = sql.info.server_version >= 160_000
        assert not log_running_transactions(onlooker)
        before = flushed_position(owner)
        assert log_running_transactions(owner) == is_known
        assert (flushed_position(owner) > before) == is_known
        if is_known:
            sql.execute("grant execute on function pg_log_standby_snapshot() to onlooker")
            assert log_running_transactions(onlooker)
