"""The bulk load on real servers: every row once, whatever is killed, and the ledger's decisions."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.control.bulk_load import bulk_load
from penstock.control.compare import Side, TablePair, compare_tables
from penstock.control.config import Config, load_config
from penstock.control.source_planner import SourcePlanner
from penstock.host.connect import connect
from penstock.load import chunk as chunks
from penstock.load.bulk import BulkResult, BulkStopped, Point, finish_foreign_keys
from penstock.load.bulk_checks import TargetFires
from penstock.load.bulk_progress import BulkProgress, stored_progress
from penstock.load.ledger import TargetHoldsRows, read_ledger, start_positions
from penstock.load.session import PendingSession, Session, SessionOptions
from penstock.model import Lsn, TableName
from penstock.source.postgres.catalog import captured_tables, open_catalog
from penstock.source.postgres.slot import ConsistentPoint
from penstock.source.postgres.snapshot import temporary_consistent_point

pytestmark = pytest.mark.spark

KILL_TIMEOUT_S = 60.0
ORDERS = TableName("public", "orders")

CHILD = """
import sys
from pathlib import Path
from penstock.control.bulk_load import bulk_load
from penstock.control.config import load_config
from penstock.control.source_planner import SourcePlanner
from penstock.load.bulk import Point
from penstock.load.session import SessionOptions, start_session
from penstock.model import Lsn

config = load_config(Path(sys.argv[1]))
point = None
if sys.argv[2:]:
    point = Point(
        position=Lsn.parse(sys.argv[2]), snapshot_id=sys.argv[3], snapshot_text=sys.argv[4]
    )
options = SessionOptions(work_directory=config.layout.run / "child", master="local[2]")
with start_session(options) as session, SourcePlanner(config, first=lambda: point) as planner:
    bulk_load(config, session, planner)
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session shared by the tests."""
    directory = tmp_path_factory.mktemp("spark")
    pending = PendingSession(SessionOptions(work_directory=directory, master="local[2]"))
    with pending.result() as session:
        yield session


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A data pipeline between two databases, with chunks of one megabyte."""
    file = tmp_path / "p.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "bulk"
        mode = "data"
        directory = "p"
        [source]
        url = "{source_url}"
        tables = ["public.*"]
        [target]
        url = "{target_url}"
        [dataLoader]
        chunkMegabytes = 1
        """
    )
    return load_config(file)


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with connect(url, application_name="test") as connection:
        for statement in statements:
            connection.execute(statement)


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    """The rows of a query."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def load(config: Config, spark: Session, **how: object) -> BulkResult:
    """Run the bulk load in this process."""
    with SourcePlanner(config) as planner:
        return bulk_load(config, spark, planner, **how)  # type: ignore[arg-type]


def point_of(config: Config, point: ConsistentPoint) -> Point:
    """A held point as the bulk load takes it."""
    return Point(
        position=Lsn(point.position),
        snapshot_id=point.snapshot_id,
        snapshot_text=chunks.snapshot_text(config.source.url, point.snapshot_id),
    )


def check_equal(config: Config) -> None:
    """Source and target hold the same rows, each once."""
    with open_catalog(config.source.url) as catalog:
        tables = captured_tables(catalog, config.source.tables)
    mapped = config.target.map
    pairs = [
        TablePair(source=t, target=TableName(mapped.get(t.name.schema, t.name.schema), t.name.name))
        for t in tables
    ]
    with (
        Side(config.source.url, snapshot_id=None, sessions=2) as source,
        Side(config.target.url, snapshot_id=None, sessions=2) as target,
    ):
        for result in compare_tables(pairs, source, target):
            assert result.equal, result


def fill_orders(url: str, count: int = 60_000) -> None:
    """A table without unique key of about six chunks: a chunk copied twice would be seen."""
    run(
        url,
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        "insert into public.orders select i, repeat(md5(i::text), 3), i / 7.0, "
        f"'2020-01-01'::timestamptz + i * interval '1 min' from generate_series(1, {count}) as i",
    )


# -- what arrives ----------------------------------------------------------------------------------


def test_every_kind_of_table_arrives_whole(config: Config, spark: Session) -> None:
    """Types, generated and identity columns, partitions, odd names, empty tables, keys after."""
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


def test_a_finished_load_is_not_done_again(config: Config, spark: Session) -> None:
    """Run again, it returns at once and leaves changes made meanwhile alone."""
    fill_orders(config.source.url, 100)
    first = load(config, spark)
    run(config.source.url, "insert into public.orders (id) values (-1)")
    run(config.target.url, "update public.orders set note = 'applied later' where id = 5")
    second = load(config, spark)
    assert second.rows == first.rows == {ORDERS: 100}
    assert second.positions == first.positions == start_positions(config.layout.state)
    assert rows(config.target.url, "select count(*) from public.orders where note like 'appl%'")


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
        deadline = time.monotonic() + KILL_TIMEOUT_S
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
    """[target.map] moves tables to another schema, which is made."""
    text = config.path.read_text().replace(
        "[dataLoader]", '[target.map]\npublic = "shop"\n[dataLoader]'
    )
    config.path.write_text(text)
    mapped = load_config(config.path)
    fill_orders(mapped.source.url, 50)
    load(mapped, spark)
    check_equal(mapped)
    assert rows(mapped.target.url, "select count(*) from shop.orders") == [(50,)]


def test_progress_is_told_and_ends_complete(config: Config, spark: Session) -> None:
    """Readings never go back, and the last one is whole; run/bulk.json holds it."""
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


# -- what is refused -------------------------------------------------------------------------------


def test_a_target_table_with_foreign_rows_is_refused_and_untouched(
    config: Config, spark: Session
) -> None:
    """Rows that are not ours are never truncated; the other tables are not begun either."""
    fill_orders(config.source.url, 10)
    run(config.source.url, "create table public.aaa (id int)")
    run(
        config.target.url,
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        "insert into public.orders (id) values (77)",
    )
    with pytest.raises(TargetHoldsRows, match=r"public\.orders holds rows") as caught:
        load(config, spark)
    assert 'truncate "public"."orders"' in caught.value.hint
    assert rows(config.target.url, "select id from public.orders") == [(77,)]
    assert rows(config.target.url, "select to_regclass('public.aaa')") == [(None,)]


def test_an_empty_target_table_that_is_there_is_used(config: Config, spark: Session) -> None:
    """Its triggers do not fire, and its own indexes stay."""
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
    """Without session_replication_role a trigger would fire on every copied row."""
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


# -- what is killed --------------------------------------------------------------------------------


@contextmanager
def child(config: Config, fault: str, *point: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that runs the load; it and all it started are gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(config.path), *point],
        env={**os.environ, "PENSTOCK_FAULT": fault},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, query: str, expected: int) -> None:
    """Wait until a count is reached."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        with psycopg.connect(url) as connection:
            connection.execute("set client_min_messages = error")
            found = connection.execute(
                "select to_regclass('wirekite.bulk_table') is not null"
            ).fetchone()
            if found and found[0]:
                count = connection.execute(query).fetchone()  # type: ignore[arg-type]
                if count and count[0] >= expected:
                    return
        time.sleep(0.05)
    raise TimeoutError(f"{query} did not reach {expected}")


DONE_CHUNKS = (
    "select count(*) from wirekite.wirekite_progress where operation = 'DL' "
    "and finish_time is not null"
)
# Sessions that have stood still for a while: their workers sleep at the fault point.
ASLEEP = (
    "select count(*) from pg_stat_activity where application_name = 'penstock bulk' and "
    "state <> 'active' and clock_timestamp() - state_change > interval '0.7 s' "
    "and datname = current_database()"
)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "query", "expected"),
    [
        ("bulk.chunk.committed:2:sleep", DONE_CHUNKS, 2),
        ("bulk.chunk.copied:3:sleep", ASLEEP, 2),
        ("bulk.chunk.copied:1:sleep", ASLEEP, 1),
    ],
)
def test_a_killed_load_goes_on_where_it_was(
    config: Config, spark: Session, fault: str, query: str, expected: int
) -> None:
    """While the snapshot lives, done chunks stay and the others follow: no row lost or twice."""
    fill_orders(config.source.url)
    with temporary_consistent_point(config.source.url) as point:
        first = point_of(config, point)
        run(config.source.url, "insert into public.orders (id) values (-1)")  # after the point
        with child(
            config, fault, str(first.position), first.snapshot_id, first.snapshot_text
        ) as process:
            wait_for(config.target.url, query, expected)
            os.kill(process.pid, signal.SIGKILL)
        plan = read_ledger(config.layout.state).plans[0]
        before = rows(
            config.target.url,
            "select source, start_time from wirekite.wirekite_progress where operation = 'DL' "
            "and finish_time is not null",
        )
        with SourcePlanner(config, first=lambda: first) as planner:
            result = bulk_load(config, spark, planner)
    assert result.positions == {ORDERS: point.position}
    assert result.rows == {ORDERS: 60_000}
    run(config.source.url, "delete from public.orders where id = -1")
    check_equal(config)
    assert read_ledger(config.layout.state).plans[0].name == plan.name
    after = rows(config.target.url, "select source, start_time from wirekite.wirekite_progress")
    assert set(before) <= set(after)


@pytest.mark.faults
def test_a_killed_load_whose_snapshot_is_gone_starts_unfinished_tables_afresh(
    config: Config, spark: Session
) -> None:
    """The finished table keeps its point, the other gets a later one, and the user is told."""
    fill_orders(config.source.url)
    run(
        config.source.url,
        "create table public.huge (id int, pad text)",
        "insert into public.huge select i, repeat('y', 900) from generate_series(1, 6000) as i",
    )
    # The small ones are read last; a table counts as finished once its load has ended.
    with child(config, "bulk.chunk.copied:3:sleep"):
        wait_for(config.target.url, DONE_CHUNKS, 3)
    early = start_positions(config.layout.state)
    run(config.source.url, "delete from public.huge where id < 100")
    result = load(config, spark)
    check_equal(config)
    assert result.positions[ORDERS] > early[ORDERS]
    assert any("is loaded again from the start" in note for note in result.notes)
    assert any("at a later point" in note for note in result.notes)


@pytest.mark.faults
def test_a_worker_left_over_can_not_add_rows_of_an_old_plan(config: Config, spark: Session) -> None:
    """A task of a plan that was given up finds the table under another plan and leaves."""
    fill_orders(config.source.url, 1000)
    load(config, spark)
    plan = read_ledger(config.layout.state).plans[0]
    with temporary_consistent_point(config.source.url) as point:
        task = chunks.ChunkTask(
            source_url=config.source.url,
            target_url=config.target.url,
            table=plan.source,
            target=plan.target,
            chunk=plan.chunks[0],
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=point.snapshot_id,
            snapshot_text=chunks.snapshot_text(config.source.url, point.snapshot_id),
            plan="given up",
            replica_role=True,
        )
        with chunks.Workplace() as workplace:
            assert workplace.copy(task).status is chunks.Status.PLAN_GONE
    check_equal(config)


def test_another_snapshot_of_the_same_name_is_not_taken_for_ours(
    config: Config, spark: Session
) -> None:
    """Names of snapshots come again after a restart; what the snapshot holds tells it."""
    fill_orders(config.source.url, 1000)
    with temporary_consistent_point(config.source.url) as point:
        stale = dataclasses.replace(point_of(config, point), snapshot_text="1:2:")
        run(config.source.url, "insert into public.orders (id) values (-1)")
        with SourcePlanner(config, first=lambda: stale) as planner:
            result = bulk_load(config, spark, planner)
    assert result.positions[ORDERS] > point.position
    check_equal(config)


@pytest.mark.faults
def test_a_chunk_copied_by_two_processes_is_there_once(config: Config, spark: Session) -> None:
    """The second waits for the first to commit, sees its DL row and adds nothing."""
    fill_orders(config.source.url, 1000)
    load(config, spark)
    plan = read_ledger(config.layout.state).plans[0]
    run(config.target.url, "update wirekite.bulk_table set finish_time = null")
    with temporary_consistent_point(config.source.url) as point, ExitStack() as stack:
        task = chunks.ChunkTask(
            source_url=config.source.url,
            target_url=config.target.url,
            table=plan.source,
            target=plan.target,
            chunk=plan.chunks[0],
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=point.snapshot_id,
            snapshot_text=chunks.snapshot_text(config.source.url, point.snapshot_id),
            plan=plan.name,
            replica_role=True,
        )
        workplace = stack.enter_context(chunks.Workplace())
        outcome = workplace.copy(task)
        assert (outcome.status, outcome.rows) == (chunks.Status.DONE_BEFORE, 1000)
    check_equal(config)


def test_a_stopped_load_keeps_its_chunks(config: Config, spark: Session) -> None:
    """Ctrl-C ends the load in order; run again, it is completed."""
    fill_orders(config.source.url, 150_000)
    seen: list[BulkProgress] = []
    with pytest.raises(BulkStopped):
        load(config, spark, on_progress=seen.append, stop=lambda: bool(seen))
    load(config, spark)
    check_equal(config)


# -- what changes meanwhile ------------------------------------------------------------------------


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
        with SourcePlanner(config, first=lambda: first) as planner:
            result = bulk_load(config, spark, planner)
    check_equal(config)
    assert result.positions[ORDERS] == point.position
    assert result.positions[TableName("public", "t")] > point.position
    assert result.foreign_keys_pending
    from penstock.control.bulk_load import bulk_options, source_tables

    finish_foreign_keys(bulk_options(config), source_tables(config))
    keys = rows(config.target.url, "select count(*) from pg_constraint where contype = 'f'")
    assert keys == [(1,)]


def test_a_table_rewritten_between_plan_and_chunk_is_read_again(
    config: Config, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type changed after the plan was made: the chunk sees it and the table is planned anew."""
    fill_orders(config.source.url, 1000)
    made = SourcePlanner.chunks

    def chunks_then_alter(self: SourcePlanner, *args: object, **how: object) -> object:
        found = made(self, *args, **how)  # type: ignore[arg-type]
        run(config.source.url, "alter table public.orders alter total type numeric(14,3)")
        return found

    monkeypatch.setattr(SourcePlanner, "chunks", chunks_then_alter)
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
