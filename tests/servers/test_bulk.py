"""The bulk load on real servers: every row once, whatever is killed, and the ledger's decisions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness.pipelines.bulk import (
    ORDERS,
    between,
    check_equal,
    fill_orders,
    load,
    point_of,
    rows,
    run,
)
from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.engines.postgres.source.snapshot import temporary_consistent_point
from penstock.load.bulk import finish_foreign_keys
from penstock.load.bulk_progress import BulkProgress, stored_progress
from penstock.load.ledger import TargetHoldsRows, read_ledger, start_positions, write_ledger
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import TargetFires
from penstock.ports.config import Config

pytestmark = pytest.mark.spark

TIMEOUT_S = 60.0


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A data pipeline between two databases, with chunks of one megabyte."""
    return between(source_url, target_url, tmp_path)


# -- what arrives ----------------------------------------------------------------------------------


def test_every_kind_of_table_arrives_whole(config: Config, spark: Session) -> None:
    """Types, generated and identity columns, partitions, odd names, empty tables and keys all
    arrive.
    """
    run(
        config.source.url,
        "create type public.mood as enum ('sad', 'glad')",
        'create table public."Élan vital" ("Ä b" int primary key, "select" public.mood[])',
        """insert into public."Élan vital" values (1, '{sad,glad}'), (2, null)""",
        "create table public.t (id int generated always as identity primary key, "
        "n numeric, f double precision, d timestamptz, j jsonb, b bytea, c character(4), "
        "g int generated always as (id * 2) stored)",
        "insert into public.t (n, f, d, j, b, c) values "
        r"""(1.00, '-0', 'infinity', '{"a": null}', '\x00ff', 'x'), """
        "('NaN', 'Infinity', '4713-01-01 BC', null, '', ''), (null, 1e-300, null, '1', null, null)",
        "create index t_n on public.t (n)",
        "create table public.empty (x text)",
        "create table public.child (id int primary key, t int references public.t)",
        "insert into public.child values (1, 1), (2, null)",
        "create table public.part (id int, v text, primary key (id)) partition by range (id)",
        "create table public.part1 partition of public.part for values from (0) to (100)",
        "create table public.part2 (v text, id int not null)",
        "alter table public.part attach partition public.part2 for values from (100) to (900)",
        "insert into public.part select i, i::text from generate_series(1, 500) as i",
    )
    fill_orders(config.source.url)
    result = load(config, spark)
    check_equal(config)
    assert result.rows[ORDERS] == 60_000
    assert result.rows[TableName("public", "empty")] == 0
    assert not result.foreign_keys_pending
    done = rows(
        config.target.url,
        "select count(*), sum(mark::int), count(finish_time) from wirekite.wirekite_progress "
        "where operation = 'DL' and table_name = 'public.orders'",
    )[0]
    assert done[0] == done[2]
    assert int(str(done[0])) > 4
    assert done[1] == 60_000
    keys = rows(
        config.target.url,
        "select contype::text, count(*) from pg_constraint where "
        "connamespace = 'public'::regnamespace and contype in ('p', 'f') group by 1 order by 1",
    )
    assert keys == [("f", 1), ("p", 4)]
    assert rows(config.target.url, "select reltuples from pg_class where relname = 'orders'") == [
        (60_000.0,)
    ]


def test_a_table_that_is_no_heap_goes_by_ranges_of_its_key(config: Config, spark: Session) -> None:
    """Each row of several chunks arrives once, whatever text the key is."""
    run(
        config.source.url,
        "create access method heap2 type table handler heap_tableam_handler",
        "create table public.odd (tenant text, id int, pad text, primary key (tenant, id)) "
        "using heap2",
        "insert into public.odd select case when i % 50 = 0 then e'it''s \\ ' || i else 'x' end, "
        "i, repeat(md5(i::text), 3) from generate_series(1, 60000) as i",
    )
    result = load(config, spark)
    assert result.rows == {TableName("public", "odd"): 60_000}
    check_equal(config)
    chunks = read_ledger(config.layout.state).plans[0].chunks
    assert len(chunks) > 4
    assert all("ctid" not in chunk.copy_out for chunk in chunks)
    counted = rows(
        config.target.url,
        "select min(mark::int), max(mark::int) from wirekite.wirekite_progress "
        "where operation = 'DL'",
    )[0]
    assert 0 < int(str(counted[0])) <= int(str(counted[1])) < 30_000


def test_a_finished_load_is_not_done_again(
    config: Config, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run returns at once and leaves changes made meanwhile alone.

    It does not ask where the source is: on SQL Server, that waits for the capture job.
    """
    fill_orders(config.source.url, 100)
    first = load(config, spark)
    run(config.source.url, "insert into public.orders (id) values (-1)")
    run(config.target.url, "update public.orders set note = 'applied later' where id = 5")
    released: list[PostgresPlanner] = []
    monkeypatch.setattr(PostgresPlanner, "release", released.append)
    second = load(config, spark)
    assert not released
    assert second.rows == first.rows == {ORDERS: 100}
    assert second.positions == first.positions == start_positions(config.layout.state, Lsn)
    assert rows(config.target.url, "select count(*) from public.orders where note like 'appl%'")


def test_a_table_that_is_loaded_later_leaves_the_others_alone(
    config: Config, spark: Session
) -> None:
    """The other tables follow the log: columns and keys added at the source arrive through it, or
    not.

    This holds even if the keys of the first load were not created before it was killed.
    """
    target = config.target.url
    run(config.source.url, "create table public.t (id int primary key, a int unique)")
    load(config, spark)
    run(
        config.source.url,
        "alter table public.t add b int unique, add c int",
        "create index t_c on public.t (c)",
        "create table public.u (id int primary key, v text unique)",
        "insert into public.u values (1, 'x')",
    )
    load(config, spark)
    assert rows(target, "select * from public.u") == [(1, "x")]
    keys = (
        "select relname from pg_class where relkind = 'i' and relnamespace = 'public'::regnamespace"
    )
    assert {name for (name,) in rows(target, keys)} == {"t_pkey", "t_a_key", "u_pkey", "u_v_key"}
    ledger = read_ledger(config.layout.state)
    ledger.finished = False
    ledger.plans = [msgspec.structs.replace(plan, has_keys=False) for plan in ledger.plans]
    write_ledger(config.layout.state, ledger)
    run(target, "alter table public.t drop constraint t_pkey, drop constraint t_a_key")
    load(config, spark)
    assert {name for (name,) in rows(target, keys)} == {"t_pkey", "t_a_key", "u_pkey", "u_v_key"}


def test_all_tables_are_read_at_one_point_while_others_write(
    config: Config, spark: Session
) -> None:
    """A row moved from one table to the other is in exactly one of them."""
    for name in "ab":
        run(
            config.source.url,
            f"create table public.{name} (id int primary key, pad text)",
            f"insert into public.{name} select i, repeat('x', 300) from "
            "generate_series(1, 5000) as i",
        )
    mover = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import psycopg, sys, itertools\n"
            "with psycopg.connect(sys.argv[1], autocommit=True) as c:\n"
            "    for i in itertools.count(1):\n"
            "        c.execute('with gone as (delete from a where id = %s returning *) '\n"
            "                  'insert into b select id + 100000, pad from gone', (i % 5000,))\n",
            config.source.url,
        ]
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while rows(config.source.url, "select count(*) from b where id > 100000") == [(0,)]:
            assert mover.poll() is None
            assert time.monotonic() < deadline, "nothing is moved"
            time.sleep(0.02)
        load(config, spark)
    finally:
        mover.kill()
        mover.wait()
    total = rows(config.target.url, "select (select count(*) from a) + (select count(*) from b)")
    assert total == [(10_000,)]
    assert rows(config.target.url, "select count(*) from b where id > 100000") > [(0,)]


def test_schemas_are_mapped(config: Config, spark: Session) -> None:
    """Tables move to another schema by [target.map], and the schema is created."""
    text = config.path.read_text().replace(
        "[dataLoader]", '[target.map]\npublic = "shop"\n[dataLoader]'
    )
    config.path.write_text(text)
    mapped = load_config(config.path)
    fill_orders(mapped.source.url, 50)
    load(mapped, spark)
    check_equal(mapped)
    assert rows(mapped.target.url, "select count(*) from shop.orders") == [(50,)]


def test_progress_is_reported_and_ends_complete(config: Config, spark: Session) -> None:
    """Readings never decrease, and the last one is complete; run/bulk.json holds it."""
    fill_orders(config.source.url, 200_000)
    run(config.source.url, "analyze")
    seen: list[BulkProgress] = []
    load(config, spark, on_progress=seen.append)
    assert [r.rows_done for r in seen] == sorted(r.rows_done for r in seen)
    last = seen[-1]
    assert (last.phase, last.rows_done, last.rows_total) == ("done", 200_000, 200_000)
    assert last.bytes_done == last.bytes_total > 0
    assert last.tables[0].chunks_done == last.tables[0].chunks_total > 10
    assert stored_progress(config.layout.run) == last


def test_statistics_are_rough_where_autovacuum_makes_thorough_ones(
    config: Config, spark: Session
) -> None:
    """Every table gets statistics, as precise as those of ANALYZE if autovacuum is off."""
    fill_orders(config.source.url, 20_000)
    run(
        config.source.url,
        "create table public.alone (id int primary key, v text)",
        "insert into public.alone select i, i % 300 from generate_series(1, 20000) as i",
    )
    run(
        config.target.url,
        "create table public.alone (id int not null, v text) with (autovacuum_enabled = off)",
    )
    load(config, spark)
    run(config.target.url, "select pg_stat_force_next_flush()")
    counted = rows(
        config.target.url,
        "select relname::text, n_mod_since_analyze, analyze_count from pg_stat_user_tables "
        "where schemaname = 'public' order by 1",
    )
    assert counted == [("alone", 0, 1), ("orders", 20_000, 1)]
    buckets = rows(
        config.target.url,
        "select tablename::text, array_length(histogram_bounds, 1) from pg_stats "
        "where schemaname = 'public' and attname = 'id' order by 1",
    )
    assert buckets == [("alone", 101), ("orders", 11)]
    assert rows(config.target.url, "select count(*) from pg_stats where tablename = 'orders'") == [
        (4,)
    ]


# -- refusals --------------------------------------------------------------------------------------


def test_a_target_table_with_foreign_rows_is_refused_and_untouched(
    config: Config, spark: Session
) -> None:
    """Rows that penstock did not write are never truncated, and no other table is begun."""
    fill_orders(config.source.url, 10)
    run(config.source.url, "create table public.aaa (id int)")
    run(
        config.target.url,
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        "insert into public.orders (id) values (77)",
    )
    with pytest.raises(TargetHoldsRows, match=r"public\.orders holds rows") as caught:
        load(config, spark)
    assert 'truncate only "public"."orders"' in caught.value.hint
    assert rows(config.target.url, "select id from public.orders") == [(77,)]
    assert rows(config.target.url, "select to_regclass('public.aaa')") == [(None,)]


def test_an_empty_target_table_that_is_there_is_used(config: Config, spark: Session) -> None:
    """The triggers of the target table do not fire, and its own indexes stay."""
    fill_orders(config.source.url, 10)
    run(
        config.target.url,
        "create table public.orders (id bigint primary key, note text, total numeric(12,2), "
        "at timestamptz)",
        "create function public.boom() returns trigger language plpgsql as "
        "$$ begin raise 'fired'; end $$",
        "create trigger boom before insert on public.orders for each row "
        "execute function public.boom()",
    )
    load(config, spark)
    check_equal(config)


def test_triggers_without_the_right_to_silence_them_are_refused(
    config: Config, spark: Session, target_url: str
) -> None:
    """A trigger would fire on every copied row without session_replication_role."""
    fill_orders(config.source.url, 10)
    role = f"loader_{os.getpid()}"
    run(
        target_url,
        f"create role {role} login password 'x'",
        f"grant all on schema public to {role}",
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        f"alter table public.orders owner to {role}",
        "create function public.boom() returns trigger language plpgsql as "
        "$$ begin return new; end $$",
        "create trigger boom before insert on public.orders for each row "
        "execute function public.boom()",
        f"create schema wirekite authorization {role}",
    )
    text = config.path.read_text()
    other = target_url.replace(target_url.split("//")[1].split("@")[0], f"{role}:x")
    config.path.write_text(text.replace(target_url, other))
    try:
        with pytest.raises(TargetFires, match="trigger"):
            load(load_config(config.path), spark)
        run(target_url, "drop trigger boom on public.orders")
        load(load_config(config.path), spark)
        check_equal(config)
    finally:
        run(
            target_url, "drop schema wirekite cascade", f"drop owned by {role}", f"drop role {role}"
        )


# -- concurrent changes ----------------------------------------------------------------------------


def test_a_table_truncated_behind_the_point_gets_a_later_one(
    config: Config, spark: Session
) -> None:
    """The snapshot would show it empty; the other table keeps the handover's point."""
    fill_orders(config.source.url, 1000)
    run(
        config.source.url,
        "create table public.t (id int primary key)",
        "create table public.u (id int primary key, t int references public.t)",
        "insert into public.t select generate_series(1, 100)",
    )
    with temporary_consistent_point(config.source.url) as point:
        run(
            config.source.url,
            "truncate public.t cascade",
            "insert into public.t select generate_series(1, 7)",
        )
        first = point_of(config, point)
        with PostgresPlanner(config, first=lambda: first) as planner:
            result = bulk_load(config, spark, planner)
    check_equal(config)
    assert result.positions[ORDERS] == point.position
    assert result.positions[TableName("public", "t")] > point.position
    assert result.foreign_keys_pending
    from penstock.control.pipeline.servers import source_tables
    from penstock.control.run.bulk_load import bulk_options

    finish_foreign_keys(bulk_options(config), source_tables(config))
    keys = rows(config.target.url, "select count(*) from pg_constraint where contype = 'f'")
    assert keys == [(1,)]


def test_a_table_rewritten_between_plan_and_chunk_is_read_again(
    config: Config, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk detects a type that changed after the plan, and the table is planned again."""
    fill_orders(config.source.url, 1000)
    made = PostgresPlanner.chunks

    def chunks_then_alter(self: PostgresPlanner, *args: object, **how: object) -> object:
        found = made(self, *args, **how)  # type: ignore[arg-type]
        run(config.source.url, "alter table public.orders alter total type numeric(14,3)")
        return found

    monkeypatch.setattr(PostgresPlanner, "chunks", chunks_then_alter)
    result = load(config, spark)
    check_equal(config)
    assert any("rewritten in the source" in note for note in result.notes)


def test_errors_of_the_target_come_typed_and_the_load_can_go_on(
    config: Config, spark: Session
) -> None:
    """A constraint of an existing target table refuses a row: the error names the chunk's table."""
    fill_orders(config.source.url, 1000)
    run(
        config.target.url,
        "create table public.orders (id bigint check (id <> 500), note text, "
        "total numeric(12,2), at timestamptz)",
    )
    with pytest.raises(Exception, match="check constraint") as caught:
        load(config, spark)
    assert getattr(caught.value, "code", "") == "HS29"
    run(config.target.url, "alter table public.orders drop constraint orders_id_check")
    load(config, spark)
    check_equal(config)
