"""The staging schema is created, upgraded, named, opened and examined on a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from harness.feeds.staging_database import GROUP, LINES, ORDERS, at, batch, change, rows
from penstock.cli import run_guarded
from penstock.engines.postgres.connect import with_database
from penstock.engines.postgres.feeds.database import PostgresStaging
from penstock.engines.postgres.feeds.memo import VERSIONS
from penstock.model.hlc import Hlc
from penstock.ports.feeds import StagedTable, StagingMissing, StagingUnusable, staging_at
from penstock.ports.registry import part
from plugins.postgres import Server

COLUMNS = """
    select column_name, data_type, is_nullable, column_default, generation_expression is not null
      from information_schema.columns
     where table_name = '{}'
     order by ordinal_position
"""
OLD_MUTATIONS = """
    create table public._shop_public_orders (
      nanos bigint not null, logical bigint not null, key text not null, mut bytea not null,
      {}
      primary key (nanos, logical, key))
"""


@pytest.fixture
def empty_url(postgres: Server) -> Iterator[str]:
    """A database without tables."""
    url = postgres.make_database("staging")
    yield url
    postgres.drop_database(url)


@pytest.fixture
def url(empty_url: str) -> str:
    """A staging database with its tables."""
    PostgresStaging(empty_url).create()
    return empty_url


def table_names(url: str) -> list[str]:
    """Return the tables of schema public."""
    found = rows(url, "select tablename from pg_tables where schemaname = 'public' order by 1")
    return [name for (name,) in found]


def test_mutation_tables_have_the_published_columns_and_indexes(url: str) -> None:
    """Columns and indexes are those of Replicator's staging schema, in PostgreSQL's dialect;
    source_time is derived.
    """
    with PostgresStaging(url).open_session() as session:
        session.stage({ORDERS: batch(change(1), change(2, after=None))})
    name = "_shop_public_orders"
    assert rows(url, COLUMNS.format(name)) == [
        ("nanos", "bigint", "NO", None, False),
        ("logical", "bigint", "NO", None, False),
        ("key", "text", "NO", None, False),
        ("mut", "bytea", "NO", None, False),
        ("before", "bytea", "YES", None, False),
        ("applied", "boolean", "NO", "false", False),
        ("applied_at", "timestamp with time zone", "YES", None, False),
        ("deletion", "boolean", "NO", "false", False),
        ("source_time", "timestamp with time zone", "YES", None, True),
    ]
    indexes = rows(url, f"select indexname, indexdef from pg_indexes where tablename = '{name}'")
    assert {index: text.partition(" USING ")[2] for index, text in indexes} == {
        "_shop_public_orders_pkey": "btree (nanos, logical, key)",
        "_shop_public_orders_key_applied": "btree (key)",
    }
    query = f"select deletion, mut, source_time = to_timestamp(nanos / 1e9) from public.{name}"
    assert rows(url, query + " order by nanos") == [
        (False, change(1).after, True),
        (True, b"null", True),
    ]


def test_the_other_tables_are_as_published(url: str) -> None:
    """Checkpoints with derived columns, leases, memo, keys and revoked tokens are as published."""
    assert table_names(url) == [
        "checkpoints", "jwt_public_keys", "jwt_revoked_ids", "leases", "memo",
    ]  # fmt: skip
    with PostgresStaging(url).open_session() as session:
        session.advance(GROUP, "shop.public", Hlc(at(1).nanos, 42))
    ((text, nanos, logical, wall, seen, applied),) = rows(
        url,
        "select source_hlc::text, source_nanos, source_logical, source_wall_time ="
        " to_timestamp(source_nanos / 1e9), first_seen is not null, target_applied_at"
        " from public.checkpoints where source_nanos > 1",
    )
    assert text == str(Hlc(at(1).nanos, 42))
    assert (nanos, logical, wall, seen, applied) == (at(1).nanos, 42, True, True, None)
    assert rows(url, "select key, value from public.memo order by key") == sorted(
        (f"version-{version}", b'{"state":"applied"}') for version in VERSIONS
    )
    assert [name for name, *_ in rows(url, COLUMNS.format("leases"))] == [
        "name", "expires", "nonce", "hostname",
    ]  # fmt: skip


def test_the_database_is_made_where_it_is_missing(postgres: Server) -> None:
    """Two instances create it at once; an earlier session gets the command to run."""
    url = with_database(postgres.url(), f"staging_made_{postgres.version}")
    staging = staging_at(url)
    try:
        with (
            pytest.raises(StagingMissing, match="does not exist") as caught,
            staging.open_session(),
        ):
            pass
        assert "--create" in caught.value.hint
        with pytest.raises(StagingMissing, match="does not exist"):
            staging.create(database=False)
        (finding, *_) = staging.examine()
        assert finding.command == f'create database "staging_made_{postgres.version}";'
        failed: list[BaseException] = []

        def make() -> None:
            try:
                PostgresStaging(url).create()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert staging.examine() == []
        with staging.open_session() as session:
            assert session.get_memo("version-400") == b'{"state":"applied"}'
    finally:
        postgres.drop_database(url)


def test_doctor_shows_what_an_operator_runs(
    postgres: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with [stage] needs CREATE DATABASE, and for CockroachDB the time of its tombstones."""
    url = with_database(postgres.url(), "_replicator_of_nobody")
    file = tmp_path / "c.toml"
    text = """
        [pipeline]
        name = "c"
        directory = "c"
        [staging]
        url = "{}"
        [stage]
        authentication = "off"
        [target]
        url = "{}"
    """
    for scheme, wanted in (
        ("postgresql", ['create database "_replicator_of_nobody";']),
        (
            "cockroachdb",
            [
                'create database "_replicator_of_nobody";',
                'ALTER DATABASE "_replicator_of_nobody" CONFIGURE ZONE USING gc.ttlseconds=300;',
            ],
        ),
    ):
        given = url.replace("postgresql", scheme, 1)
        file.write_text(text.format(given, postgres.url()))
        with pytest.raises(SystemExit) as ended:
            run_guarded(["doctor", str(file), "--json"])
        assert ended.value.code == 1
        out, err = capsys.readouterr()
        assert err == ""
        said = json.loads(out)
        commands = [finding["command"] for finding in said["findings"]]
        assert commands == wanted


def test_a_database_without_tables_is_named(empty_url: str) -> None:
    """The error has the command that creates them."""
    with (
        pytest.raises(StagingMissing, match="lacks the table checkpoints"),
        PostgresStaging(empty_url).open_session(),
    ):
        pass
    (finding,) = PostgresStaging(empty_url).examine()
    assert finding.command == "penstock stage FILE"
    PostgresStaging(empty_url).create(database=False)
    with PostgresStaging(empty_url).open_session() as session:
        assert session.group_names() == ()


def test_another_server_than_the_url_says_is_refused(url: str) -> None:
    """The tables of CockroachDB are not created in PostgreSQL."""
    cockroach = staging_at(url.replace("postgresql://", "cockroachdb://", 1))
    with pytest.raises(StagingUnusable, match="one of CockroachDB, and the server says PostgreSQL"):
        cockroach.create()
    found = {finding.code: finding.command for finding in cockroach.examine()}
    assert "cockroachdb://" in found["ST20"]
    assert found["ST21"].endswith("CONFIGURE ZONE USING gc.ttlseconds=300;")


def test_a_missing_version_marker_is_warned_of(url: str) -> None:
    """The start warns once, and so does doctor; markers are only written on a first start."""
    rows(url, "delete from public.memo where key = 'version-572'")
    staging = PostgresStaging(url)
    with capture_logs() as logs:
        staging.create()
        with staging.open_session():
            pass
    said = [line["reason"] for line in logs if line["log_level"] == "warning"]
    assert len(said) == 1
    assert said[0].startswith("Manual schema change required")
    assert "version-572" in said[0]
    assert said[0] in {finding.what for finding in staging.examine()}


@pytest.mark.parametrize(
    ("columns", "added"),
    [
        (
            "before bytea, applied bool not null default false, applied_at timestamptz,",
            ["deletion"],
        ),
        ("", ["before", "applied", "applied_at", "deletion"]),
    ],
)
def test_an_older_mutation_table_is_upgraded_in_place(
    url: str, columns: str, added: list[str]
) -> None:
    """The rows are kept; an earlier removal still is one."""
    rows(url, OLD_MUTATIONS.format(columns))
    nanos = at(1).nanos
    rows(url, "insert into public._shop_public_orders (nanos, logical, key, mut)"
         f" values ({nanos}, 0, '[1]', 'null'), ({nanos}, 0, '[2]', '{{}}')")  # fmt: skip
    with PostgresStaging(url).open_session() as session:
        session.stage({ORDERS: batch(change(2))})
        (found,) = session.read([ORDERS], Hlc(0), at(9), limit=100)
        assert found.rows[ORDERS].column("after").to_pylist() == [None, b"{}", change(2).after]
    here = [name for name, *_ in rows(url, COLUMNS.format("_shop_public_orders"))]
    assert set(added) <= set(here)
    assert rows(url, "select 1 from pg_indexes where indexname = '_shop_public_orders_key_applied'")


def test_names_never_collide(url: str) -> None:
    """Parts that join alike, case, and names of indexes cause no collision; memo
    records the names.
    """
    tables = [
        StagedTable(("a_b",), "c"),
        StagedTable(("a",), "b_c"),
        StagedTable(("A",), "b_C"),
        StagedTable(("a", "b"), "c"),
        StagedTable(("a.b",), "c"),
        StagedTable(("a", "b"), "c_key_applied"),
        StagedTable(("a", "b"), "c_pkey"),
        StagedTable(("long",), "ä" * 40),
        StagedTable(("long",), "ä" * 40 + "b"),
        StagedTable(("long",), "x" * 50),
    ]
    with PostgresStaging(url).open_session() as session:
        for number, table in enumerate(tables):
            session.stage({table: batch(change(1, key=number))})
    with PostgresStaging(url).open_session() as session:
        for number, table in enumerate(reversed(tables)):
            (found,) = session.read([table], Hlc(0), at(9), limit=100)
            keys = found.rows[table].column("key").to_pylist()
            assert keys == [f"[{len(tables) - 1 - number}]"], table
    names = [name for name in table_names(url) if name.startswith("_")]
    assert len(names) == len(tables)
    assert {"_a_b_c", "_a.b_c", "_a_b_c_key_applied_"} & set(names) == {"_a_b_c", "_a.b_c"}
    unindexed = rows(
        url,
        "select relname from pg_class c where relkind = 'r' and relname like '\\_%' and 2 <>"
        " (select count(*) from pg_index where indrelid = c.oid)",
    )
    assert unindexed == []


def test_a_foreign_table_of_the_name_is_left_alone(url: str) -> None:
    """The mutation table gets the hashed name; if that exists as well, an operator has to act."""
    rows(url, "create table public._shop_public_orders (n int)")
    with PostgresStaging(url).open_session() as session:
        session.stage({ORDERS: batch(change(1))})
    (name,) = (one for one in table_names(url) if one.startswith("_shop_public_orders_"))
    rows(url, f"drop table public.{name}; delete from public.memo where key like 'mutations%'")
    rows(url, f"create table public.{name} (n int)")
    with (
        PostgresStaging(url).open_session() as session,
        pytest.raises(StagingUnusable, match="are other relations"),
    ):
        session.stage({ORDERS: batch(change(1))})


def test_older_checkpoints_are_taken_over_once(empty_url: str) -> None:
    """Checkpoints come from resolved_timestamps, which an old release can no longer write."""
    rows(
        empty_url,
        "create table public.resolved_timestamps (target_schema text, source_nanos bigint,"
        " source_logical bigint, first_seen timestamptz not null default now(),"
        " target_applied_at timestamptz)",
    )
    add = "insert into public.resolved_timestamps values ('shop.public', {}, {}, now(), {})"
    rows(empty_url, add.format(at(1).nanos, 3, "now()"))
    rows(empty_url, add.format(at(2).nanos, 4, "null"))
    for _ in range(2):
        PostgresStaging(empty_url).create()
    with PostgresStaging(empty_url).open_session() as session:
        found = session.window(GROUP)
    assert (found.committed, found.proposed) == (at(1, 3), at(2, 4))
    with pytest.raises(psycopg.errors.CheckViolation, match="resolved_timestamps_is_deprecated"):
        rows(empty_url, add.format(1, 1, "null"))
    assert rows(empty_url, "select count(*) from public.checkpoints") == [(2,)]


def test_the_start_of_one_does_not_wait_for_the_work_of_another(url: str) -> None:
    """A transaction has locked rows of every table: existing tables are not locked."""
    with PostgresStaging(url).open_session() as session:
        session.stage({ORDERS: batch(change(1)), LINES: batch(change(1))})
    with psycopg.connect(url) as working:
        for name in table_names(url):
            working.execute(f"lock table public.{name} in row exclusive mode")  # type: ignore[arg-type]
        limited = f"{url}?options=-c%20lock_timeout%3D3s"
        PostgresStaging(limited).create()
        with PostgresStaging(limited).open_session() as other:
            other.prepare([ORDERS, LINES])
            other.stage({ORDERS: batch(change(2)), LINES: batch(change(2))})


def test_the_registry_has_both_engines() -> None:
    """The scheme of a URL selects the engine."""
    assert part("postgresql://u@h/_replicator", "staging") is PostgresStaging
    assert callable(part("cockroachdb://u@h/_replicator", "staging"))
