"""Hanging workers' sessions at a PostgreSQL target, which their successors end.

Sessions of another chunk, plan, merge table, role, database or program are not ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest

from harness.pipelines.chunks import chunk_task
from harness.pipelines.merge import ITEM
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.target import bulk, claims, merge_tables
from penstock.engines.postgres.target.chunk import TARGET_SETTINGS, PostgresWriter
from penstock.engines.postgres.target.claims import WORKER_NAME, claim_chunk, end_workers
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.merge_tables import MergeTables, PostgresMergeWriter
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.host.errors import ConnectionLost, StatementInterrupted
from penstock.model import TableName
from penstock.ports.bulk import APPLICATION_NAME, ChunkStatus, ChunkTask, TablePlan
from penstock.ports.target import StagingChanged, StagingLost
from plugins.postgres import Server

TASK = chunk_task()
TABLE = TableName("public", "t")
WAIT_S = 60.0
ROLES = ("plain_loader", "other_loader")


@pytest.fixture
def plain_urls(postgres: Server, target_url: str) -> Iterator[tuple[str, str]]:
    """URLs of two roles that may log in and use schemas public and wirekite, and nothing else."""
    database = urlsplit(target_url).path.lstrip("/")
    for role in ROLES:
        postgres.execute(f"drop role if exists {role}; create role {role} login password 'p'")
    postgres.execute("create schema wirekite; create table t (id int primary key)", database)
    for role in ROLES:
        postgres.execute(
            f"grant all on t to {role}; grant all on schema public, wirekite to {role}", database
        )
    first, second = (postgres.url(database, role, "p") for role in ROLES)
    yield first, second
    for role in ROLES:
        postgres.execute(f"drop owned by {role} cascade", database)
        postgres.execute(f"drop role {role}")


@contextmanager
def session(url: str, name: str = APPLICATION_NAME) -> Iterator[psycopg.Connection]:
    """Open a session in a transaction that does not wait long for locks."""
    options = {"lock_timeout": "500"}
    with connect(url, application_name=name, options=options, autocommit=False) as connection:
        try:
            yield connection
        finally:
            connection.close()


def run(connection: psycopg.Connection, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as a worker does; return rows, if there are any."""
    with server_errors("x"):
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def is_alive(connection: psycopg.Connection) -> bool:
    """Return whether the session exists, with its transaction."""
    try:
        return run(connection, "select 1") == [(1,)]
    except ConnectionLost:
        return False


def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- chunks ----------------------------------------------------------------------------------------


def test_who_takes_over_ends_the_session_of_before(plain_urls: tuple[str, str]) -> None:
    """The first session's locks are released, and its rows are removed."""
    url, _ = plain_urls
    with session(url) as first, session(url) as second, session(url) as third:
        claim_chunk(first, TASK)
        run(first, "insert into t values (1)")
        claim_chunk(second, TASK)  # not repeated: a working session stays
        with pytest.raises(StatementInterrupted):
            run(second, "insert into t values (1)")
        second.rollback()
        assert is_alive(first)
        claim_chunk(third, replace(TASK, repeated=True))
        run(third, "insert into t values (1)")
        with pytest.raises(ConnectionLost) as caught:
            run(first, "commit")
        assert caught.value.retry == "backoff"
        third.commit()
        assert run(third, "select id from t") == [(1,)]


def test_who_waits_behind_a_session_of_before_is_ended_too(plain_urls: tuple[str, str]) -> None:
    """A second attempt came when the first was at work, and then hung as well."""
    url, _ = plain_urls
    with session(url) as first, session(url) as second, session(url) as third:
        claim_chunk(first, TASK)
        claim_chunk(second, TASK)
        run(second, "insert into t values (1)")
        claim_chunk(third, replace(TASK, repeated=True))
        run(third, "insert into t values (1)")
        assert not is_alive(first)
        assert not is_alive(second)


def test_a_session_does_not_end_itself_nor_another_s(
    postgres: Server, plain_urls: tuple[str, str]
) -> None:
    """Sessions at another chunk, or of another plan, role or database, are not ended."""
    url, others = plain_urls
    elsewhere = postgres.make_database("elsewhere")
    try:
        with ExitStack() as stack:
            again = postgres.url(urlsplit(elsewhere).path.lstrip("/"), ROLES[0], "p")
            bystanders = [
                (url, chunk_task(8)),
                (url, chunk_task(plan="another")),
                (others, TASK),
                (again, TASK),
            ]
            living = []
            for place, task in bystanders:
                living.append(stack.enter_context(session(place)))
                claim_chunk(living[-1], task)
            own = stack.enter_context(session(url))
            claim_chunk(own, TASK)
            claim_chunk(own, replace(TASK, repeated=True))
            assert all(is_alive(one) for one in [*living, own])
    finally:
        postgres.drop_database(elsewhere)


def plan_of(name: str, *given_up: str) -> TablePlan:
    """Return a plan of a table, without chunks."""
    return TablePlan(
        source=TABLE,
        target=TABLE,
        columns=("id",),
        binary=False,
        position="0/1",
        snapshot_id="",
        snapshot_text="",
        chunks=(),
        name=name,
        given_up=given_up,
    )


@pytest.mark.parametrize("ending", ["begun afresh", "finished"])
def test_a_table_does_not_wait_for_who_hangs_at_a_chunk(target_url: str, ending: str) -> None:
    """Restarting or finishing a table ends the hung worker of its plan, instead of waiting.

    A worker of another pipeline stays.
    """
    with session(target_url) as driver, session(target_url) as hung, session(target_url) as other:
        driver.autocommit = True
        driver.execute("create table t (id int)")
        PostgresProgress(driver).ensure_tables()
        PostgresProgress(driver).ensure_marks()
        bulk.begin_afresh(driver, [plan_of("one")])
        claim_chunk(other, chunk_task(table=TABLE, plan="of another pipeline"))
        claim_chunk(hung, chunk_task(table=TABLE, plan="one"))
        assert PostgresProgress(hung).holds_plan(TABLE, "one")
        run(hung, "insert into t values (1)")
        if ending == "finished":
            assert bulk.finish_table(driver, plan_of("one")) == 0
        else:
            bulk.begin_afresh(driver, [plan_of("two", "zero", "one")])
        assert not is_alive(hung)
        assert is_alive(other)
        assert run(driver, "select count(*) from t") == [(0,)]


class Numbers:
    """Lines of one column, as a reader and its rows.

    Attributes:
        pause: Function that is called between the first two lines.
    """

    row_count = 2**17 + 1

    def __init__(self, pause: Callable[[], object] = lambda: None) -> None:
        self._pause = pause

    def lines(self, *_: object) -> Numbers:
        """Return the rows of any chunk."""
        return self

    def __iter__(self) -> Iterator[bytes]:
        yield b"1\n" * 2**17  # more than libpq buffers
        self._pause()
        yield b"2\n"


def test_a_chunk_is_copied_beside_a_worker_that_hangs(target_url: str) -> None:
    """The worker hangs among its rows; later it is told to try again, and finds the chunk done."""
    reached, resumed = threading.Event(), threading.Event()
    task = replace(chunk_task(table=TABLE, plan="one"), columns=("id",))
    settings = {**TARGET_SETTINGS, "lock_timeout": "5000"}

    def hang() -> None:
        reached.set()
        assert resumed.wait(WAIT_S)

    with ExitStack() as stack:
        driver = stack.enter_context(connect(target_url, application_name="driver"))
        driver.execute("create table t (id int)")
        PostgresProgress(driver).ensure_tables()
        PostgresProgress(driver).ensure_marks()
        bulk.begin_afresh(driver, [plan_of("one")])

        def write(task: ChunkTask, reader: Any) -> tuple[ChunkStatus, int]:
            writer = PostgresWriter(target_url, replica_role=False, settings=settings)
            with closing(writer):
                return writer.write(task, reader)

        worker = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(resumed.set)
        hung = worker.submit(write, task, Numbers(hang))
        until(lambda: reached.is_set() or hung.done())
        status = write(replace(task, repeated=True), Numbers())
        assert status == (ChunkStatus.DONE, Numbers.row_count)
        resumed.set()
        with pytest.raises(ConnectionLost) as caught:
            hung.result(WAIT_S)
        assert caught.value.retry == "backoff"
        assert write(task, Numbers()) == (ChunkStatus.DONE_BEFORE, Numbers.row_count)
        assert run(driver, "select count(*) from t") == [(Numbers.row_count,)]


# -- merge tables ----------------------------------------------------------------------------------


def test_only_workers_at_these_merge_tables_are_ended(
    postgres: Server, target_url: str, plain_urls: tuple[str, str]
) -> None:
    """The stager ends its own role's worker sessions that have locked one of the merge tables.

    Sessions at other tables or with other names stay. A superuser could end sessions of any role,
    and ends only its own.
    """
    url, others = plain_urls
    with session(url) as maker:
        for name in ("a_wkm", "b_wkm", "c_wkm"):
            maker.execute(f"create table wirekite.{name} (id int)")
            maker.execute(f"grant all on wirekite.{name} to {ROLES[1]}")
        maker.commit()
    insert = "insert into wirekite.{} values (1)"
    with ExitStack() as stack:

        def at_work(place: str, name: str, table: str) -> psycopg.Connection:
            one = stack.enter_context(session(place, name))
            one.execute(insert.format(table))  # type: ignore[arg-type]
            return one

        hung = [at_work(url, WORKER_NAME, "a_wkm"), at_work(url, f"{WORKER_NAME} - h:1", "b_wkm")]
        living = [
            at_work(url, WORKER_NAME, "c_wkm"),
            at_work(url, "psql", "a_wkm"),
            at_work(url, APPLICATION_NAME, "a_wkm"),
            at_work(others, WORKER_NAME, "a_wkm"),
            stack.enter_context(session(url, WORKER_NAME)),  # at nothing
        ]
        superuser = stack.enter_context(session(target_url, "stager"))
        end_workers(superuser, ["a_wkm", "b_wkm"])
        assert all(is_alive(one) for one in hung)
        stager = stack.enter_context(session(url, "stager"))
        end_workers(stager, ["a_wkm", "b_wkm"])
        assert not any(is_alive(one) for one in hung)
        assert all(is_alive(one) for one in living)


@pytest.mark.parametrize("place", ["rows", "stamp", "commit"])
def test_a_batch_is_staged_beside_a_worker_that_hangs(
    target_url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The worker hangs between two batches of rows, after them or before its commit; then
    continues.

    Its error causes its batch to be staged again, and it finds another's merge table then.
    """
    layout, reached, resumed = MergeLayout(ITEM), threading.Event(), threading.Event()
    batch = pa.RecordBatch.from_pylist([{layout.count: 2, "id": 5}], schema=layout.schema)

    def hang() -> None:
        reached.set()
        assert resumed.wait(WAIT_S)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch
        if place == "rows":
            hang()
        yield batch

    check = merge_tables._check_stamp

    def check_and_hang(cursor: Any, writer: PostgresMergeWriter) -> None:
        if place == "stamp":
            hang()
        check(cursor, writer)
        if place == "commit":
            hang()

    monkeypatch.setattr(merge_tables, "_check_stamp", check_and_hang)
    options = {"lock_timeout": "5000"}
    with (
        connect(target_url, application_name="stager", options=options) as driver,
        ThreadPoolExecutor(1) as worker,
    ):
        PostgresProgress(driver).ensure_tables()
        [(name, stamp)] = MergeTables(driver).make_empty({"t_wkm": layout}).items()
        late = PostgresMergeWriter(
            url=target_url, table=TABLE, staging=name, stamp=stamp, relation=ITEM
        )
        sending = worker.submit(lambda: late.send(batches()))
        try:
            until(lambda: reached.is_set() or sending.done())
            held = "select count(*) from pg_locks where relation = 'wirekite.t_wkm'::regclass"
            until(lambda: run(driver, held) != [(0,)])
            MergeTables(driver).make_empty({"t_wkm": layout})
        finally:
            resumed.set()
        with pytest.raises(StagingLost) as caught:
            sending.result(WAIT_S)
        assert caught.value.retry == "backoff"
        monkeypatch.undo()
        with pytest.raises(StagingChanged):
            worker.submit(lambda: late.send(iter([batch]))).result(WAIT_S)
        assert run(driver, "select count(*) from wirekite.t_wkm") == [(0,)]


def test_a_role_without_the_right_leaves_sessions_alone(
    postgres: Server, plain_urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL may switch to a role that cannot end sessions: it waits as before, without an error."""
    url, _ = plain_urls
    postgres.execute(f"grant {ROLES[1]} to {ROLES[0]}")
    monkeypatch.setattr(claims, "END_TIMEOUT_MS", 100)
    with session(url) as first, session(url) as second:
        claim_chunk(first, TASK)
        run(second, f"set role {ROLES[1]}")
        claim_chunk(second, replace(TASK, repeated=True))
        assert is_alive(first)
        assert is_alive(second)
