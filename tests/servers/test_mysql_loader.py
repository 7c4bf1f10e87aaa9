"""The loader's loop on MySQL and MariaDB: histories, kills, lost answers, readers, monitoring."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.loading import Running, add, until
from harness.pipelines.merge import delete, insert, update
from harness.servers.published import CE_QUERY, CL_QUERY, LAG_QUERY
from penstock.control.pipeline.actions import ActionWatch
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.load.isolation import read_isolations
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.model import Identity, MarkerKind, TableName
from penstock.ports.progress import open_progress
from penstock.ports.target import ActionUnknown, ProgressUnwritable, TargetFollowsAnotherLog
from plugins.mysql import MySQLServer
from plugins.mysql_loader import COUNTED, MyStart, Target, run_killed

ROW = relation(
    ("id", "integer", "int32"), ("u", "integer", "int32"), ("doc", "text", "string"), name="hist"
)
HEAP = relation(
    ("v", "integer", "int32"), ("w", "text", "string"), key=(), identity=Identity.FULL, name="heap"
)
HISTORY = (
    "create table hist (id int primary key, u int not null, doc longtext {unique});"
    "create table heap (v int, w varchar(20))"
)


class Model:
    """Rows of the source, written together with the log and compared with the target."""

    def __init__(self, log: LogMaker, chance: random.Random, *, unique: bool) -> None:
        self.log = log
        self.chance = chance
        self.unique = unique
        self.rows: dict[int, tuple[int, str | None]] = {}
        self.heap: Counter[tuple[int, str | None]] = Counter()

    def transaction(self) -> None:
        """Write some changes of both tables, as a source could commit them."""
        changes = [self._change() for _ in range(self.chance.randint(1, 8))]
        self.log.transaction(*[change for change in changes if change is not None])

    def _free(self) -> int:
        used = {u for u, _ in self.rows.values()} if self.unique else set()
        return self.chance.choice([u for u in range(90) if u not in used])

    def _change(self):  # type: ignore[no-untyped-def]
        what = self.chance.random()
        if what < 0.03:
            table = self.chance.choice(["hist", "heap"])
            (self.rows if table == "hist" else self.heap).clear()
            return (MarkerKind.TRUNCATE, [TableName("public", table)])
        if what < 0.3:
            return self._heap_change()
        if (what < 0.55 and len(self.rows) < 40) or not self.rows:
            key = self.chance.choice([k for k in range(60) if k not in self.rows])
            self.rows[key] = (self._free(), self._text())
            return insert(ROW, key, *self.rows[key])
        key = self.chance.choice(sorted(self.rows))
        if what < 0.7:
            del self.rows[key]
            return delete(ROW, key, None, None)
        _u, doc = self.rows.pop(key)
        new = key
        if what > 0.85:
            new = self.chance.choice([k for k in range(60) if k not in self.rows])
        keeps = self.chance.random() < 0.5
        value = (self._free(), doc if keeps else self._text())
        self.rows[new] = value
        old = (key, None, None) if new != key else None
        return update(ROW, new, *value, old=old, absent=(2,) if keeps else ())

    def _heap_change(self):  # type: ignore[no-untyped-def]
        row = (self.chance.randint(1, 3), self._text())
        present = sorted(self.heap.elements(), key=repr)
        if self.chance.random() < 0.6 or not present:
            self.heap[row] += 1
            return insert(HEAP, *row)
        old = self.chance.choice(present)
        self.heap[old] -= 1
        if self.chance.random() < 0.5:
            return delete(HEAP, *old)
        self.heap[row] += 1
        return update(HEAP, *row, old=old)

    def _text(self) -> str | None:
        return self.chance.choice([None, "", "a", "A", "a ", "tab\t\\N", "ü😀"])

    def check(self, rows: Callable[[str], list[tuple[object, ...]]]) -> None:
        """Check that the target is equal."""
        found = rows("select id, u, doc from hist order by id")
        assert found == [(key, *self.rows[key]) for key in sorted(self.rows)]
        heap = Counter(rows("select v, w from heap"))
        assert heap == Counter({row: n for row, n in self.heap.items() if n})


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(my_start: MyStart, log: LogMaker, seed: int) -> None:
    """Inserts, updates, key changes, takeovers and truncations leave the target equal after every
    batch.
    """
    unique = seed % 2 == 1
    ways: dict[int, dict[str, Any]] = {
        2: {"rows_directory": None},
        3: {"rows_directory": None},
        4: {"unsure": frozenset({TableName("public", "hist")})},
    }
    more = ways.get(seed, {})
    target = my_start(HISTORY.format(unique=", unique (u)" if unique else ""), **more)
    model = Model(log, random.Random(seed), unique=unique)
    for _ in range(6):
        for _ in range(model.chance.randint(1, 3)):
            for _ in range(model.chance.randint(1, 12)):
                model.transaction()
            log.close_segment()
        target.batch(place=model.chance.randint(0, 1))
        model.check(target.rows)


def test_files_are_applied_and_removed(my_target: Target, log: LogMaker, tmp_path: Path) -> None:
    """The loop ends when the log is done; each file is applied once."""
    my_target.execute(COUNTED)
    for number in range(6):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    running = Running(
        my_target.url,
        tmp_path,
        namespaces=my_target.namespaces,
        max_files_per_batch=2,
        remove_files=True,
    )
    state = running.end()
    my_target.check(6)
    assert state.file_count == 6
    assert not list((tmp_path / "log").glob("*.ckt"))


KILL_POINTS = [
    "load.prepare.before",
    "load.job.before",
    "load.copy.before",
    "load.copy.after",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
    "load.ahead.before",
]


@pytest.mark.faults
@pytest.mark.parametrize("point", KILL_POINTS)
def test_kills_at_every_step(my_target: Target, log: LogMaker, tmp_path: Path, point: str) -> None:
    """The next loader ends equal after a kill anywhere: every row once."""
    my_target.execute(COUNTED)
    for number in range(4):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    (tmp_path / "state").mkdir()
    killed = run_killed(my_target, tmp_path, f"{point}:2:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_killed(my_target, tmp_path)
    assert done.returncode == 0, done.stderr
    my_target.check(4)
    marks = my_target.execute(
        "select source, mark, finish_time is not null from wirekite.wirekite_progress"
        " where operation = 'CL' order by 1"
    )
    assert marks == [(f"{n}.ckt", str(2 * n + 2), 1) for n in range(4)]


@pytest.mark.faults
@pytest.mark.parametrize("point", ["load.alter.before", "load.alter.between", "load.alter.after"])
def test_kills_around_an_alter(
    my_target: Target, log: LogMaker, tmp_path: Path, point: str
) -> None:
    """DDL commits automatically: a kill around it loses nothing and repeats nothing."""
    old = relation(("id", "integer", "int32"), ("name", "text", "string"))
    new = relation(("id", "integer", "int32"), ("n", "integer", "int32"), version=2)
    bag = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")
    my_target.execute(COUNTED)
    log.transaction(insert(old, 1, "a"), insert(bag, 1))
    log.close_segment()
    log.transaction(insert(old, 2, "b"), insert(bag, 2))
    log.transaction(insert(new, 3, 30), insert(bag, 3))
    log.close_segment()
    log.writer.finish()
    (tmp_path / "state").mkdir()
    # A table's first shape is recorded, too: the second time is the change.
    killed = run_killed(my_target, tmp_path, f"{point}:3:kill", files=5)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_killed(my_target, tmp_path, files=5)
    assert done.returncode == 0, done.stderr
    assert my_target.execute("select * from t order by id") == [(1, None), (2, None), (3, 30)]
    assert my_target.execute("select v from bag order by v") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("point", ["load.commit.after", "load.apply.after", "load.commit.before"])
def test_a_lost_answer_is_known_from_the_applied_position(
    my_target: Target,
    log: LogMaker,
    tmp_path: Path,
    point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are not applied twice, whether the COMMIT took effect or not."""
    from penstock.host.faults import arming

    my_target.execute(COUNTED)
    for number in range(3):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    with arming(f"{point}:2:error"):
        Running(
            my_target.url, tmp_path, namespaces=my_target.namespaces, max_files_per_batch=1
        ).end()
    my_target.check(3)


GONE = 1094


def kill_sessions(server: MySQLServer) -> None:
    """End all sessions of loaders."""
    rows = server.execute(
        "select id from information_schema.processlist where user <> 'system user'"
        " and id <> connection_id() and command <> 'Daemon'"
    )
    for (number,) in rows:
        try:
            server.execute(f"kill {number}")
        except pymysql.Error as error:
            if error.args[0] != GONE:
                raise


@pytest.mark.faults
def test_killed_sessions(my_target: Target, log: LogMaker, tmp_path: Path) -> None:
    """The server ends the loader's sessions repeatedly; all rows arrive, each once."""
    my_target.execute(COUNTED)
    running = Running(
        my_target.url, tmp_path, namespaces=my_target.namespaces, max_files_per_batch=2
    )
    for number in range(30):
        add(log, number)
        log.close_segment()
        if number % 6 == 5:
            kill_sessions(my_target.server)
    log.writer.finish()
    running.end()
    my_target.check(30)


@pytest.mark.faults
def test_a_server_that_restarts(
    own_mysql: Callable[..., MySQLServer], log: LogMaker, tmp_path: Path
) -> None:
    """The server is killed during the load and restarted: the loader waits for it and continues."""
    server = own_mysql()
    target = Target(server, server.make_database("load"))
    target.execute(COUNTED)
    running = Running(target.url, tmp_path, namespaces=target.namespaces, max_files_per_batch=1)
    for number in range(10):
        add(log, number)
        log.close_segment()
    until(lambda: running.loader.applied_position.segment >= 2)
    server.embedded.crash()
    server.embedded.start()
    for number in range(10, 14):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    running.end()
    target.check(14)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_the_whole_loader_on_spark(my_target: Target, log: LogMaker, tmp_path: Path) -> None:
    """Batches go through Spark's workers, each with a connection that it keeps."""
    my_target.execute(COUNTED)
    for number in range(6):
        add(log, number)
        log.close_segment()
    options = SessionOptions(work_directory=tmp_path / "spark", master="local[2]")
    keeper = SessionKeeper(options, PendingSession(options))
    running = Running(
        my_target.url, tmp_path, keeper, namespaces=my_target.namespaces, max_files_per_batch=2
    )
    try:
        until(lambda: running.loader.applied_position.gsn == 12, 120)
        kill_sessions(my_target.server)
        add(log, 6)
        log.close_segment()
        log.writer.finish()
        running.end()
    finally:
        running.stop.set()
        running.thread.join()
        keeper.close()
    my_target.check(7)


ACCOUNT = relation(("id", "integer", "int32"), ("balance", "bigint", "int64"), name="account")


def test_a_reader_sees_whole_transactions_only(
    my_target: Target, log: LogMaker, tmp_path: Path
) -> None:
    """A reader adds up accounts during transfers between them: the sum never changes."""
    my_target.execute("create table account (id int primary key, balance bigint)")
    chance, balances = random.Random(5), dict.fromkeys(range(20), 100)
    log.transaction(*[insert(ACCOUNT, key, value) for key, value in balances.items()])
    log.close_segment()
    for _ in range(25):
        for _ in range(10):
            giver, taker = chance.sample(range(20), 2)
            balances[giver] -= 7
            balances[taker] += 7
            log.transaction(
                update(ACCOUNT, giver, balances[giver]), update(ACCOUNT, taker, balances[taker])
            )
        log.close_segment()
    log.writer.finish()
    sums: set[object] = set()
    over = threading.Event()

    def read() -> None:
        with my_target.server.connect(my_target.database) as connection:
            while not over.is_set():
                with connection.cursor() as cursor:
                    cursor.execute("select sum(balance), count(*) from account")
                    sums.add(cursor.fetchone())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        Running(
            my_target.url, tmp_path, namespaces=my_target.namespaces, max_files_per_batch=1
        ).end()
    finally:
        over.set()
        reader.join()
    assert {tuple(map(int, row)) for row in sums if row[1]} == {(2000, 20)}  # type: ignore[index]
    found = dict(my_target.execute("select id, balance from account"))
    assert found == balances


# --- promises of the tables' documentation --------------------------------------------------------


@pytest.mark.promise
def test_the_published_queries(my_start: MyStart, log: LogMaker) -> None:
    """The queries run as printed, in any time zone; the lag is seconds since the last file."""
    target = my_start(COUNTED)
    add(log, 0)
    log.close_segment()
    target.batch()
    with connect(target.url, application_name="test") as connection:
        MySQLProgress(connection).begin_segment(
            slot="binlog.000001", file="0.ckt", mark="binlog.000001:4"
        )
        MySQLProgress(connection).end_segment(
            slot="binlog.000001", file="0.ckt", mark="binlog.000001:999"
        )
        assert MySQLProgress(connection).finished_segments("binlog.000001") == {"0.ckt"}
    for zone in ("+00:00", "-11:00", "+05:30"):
        with target.place.server.connect() as reader, reader.cursor() as cursor:
            cursor.execute("set time_zone = %s", (zone,))
            cursor.execute(CE_QUERY)
            assert [row[:2] for row in cursor.fetchall()] == [
                ("binlog.000001", "binlog.000001:999")
            ]
            cursor.execute(CL_QUERY)
            assert [row[:2] for row in cursor.fetchall()] == [("0.ckt", "2")]
            cursor.execute(LAG_QUERY)
            assert 0 <= cursor.fetchone()[0] <= 60


def test_the_published_columns(my_start: MyStart) -> None:
    """The columns of wirekite_progress are those of the documentation; updates leave start_time."""
    target = my_start(COUNTED)
    rows = target.rows(
        "select column_name, data_type, is_nullable, coalesce(column_key, ''), extra from"
        " information_schema.columns where table_schema = 'wirekite' and table_name ="
        " 'wirekite_progress' order by ordinal_position"
    )
    assert [row[:3] for row in rows] == [
        ("source", "varchar", "NO"),
        ("target", "varchar", "NO"),
        ("operation", "varchar", "NO"),
        ("transmission", "varchar", "NO"),
        ("mark", "varchar", "YES"),
        ("table_name", "varchar", "YES"),
        ("start_time", "timestamp", "NO"),
        ("finish_time", "timestamp", "YES"),
        ("restarts", "int", "NO"),
    ]
    assert [row[3] for row in rows[:2]] == ["PRI", "PRI"]
    assert not any("on update" in str(row[4]).lower() for row in rows)


def test_the_action(my_start: MyStart) -> None:
    """One row has RUN; another word is written over it; an unknown word is an error."""
    target = my_start(COUNTED)
    assert target.rows("select * from wirekite.wirekite_action") == [("RUN",)]
    with connect(target.url, application_name="test") as connection:
        assert MySQLProgress(connection).read_action() == "RUN"
        MySQLProgress(connection).set_action("PAUSE")
        assert MySQLProgress(connection).read_action() == "PAUSE"
        target.execute("update wirekite.wirekite_action set action = 'DANCE'")
        with pytest.raises(ActionUnknown):
            MySQLProgress(connection).read_action()
        target.execute("delete from wirekite.wirekite_action")
        assert MySQLProgress(connection).read_action() == "RUN"
        MySQLProgress(connection).set_action("STOP")
        assert target.rows("select * from wirekite.wirekite_action") == [("STOP",)]
        target.execute("drop database wirekite")
        assert MySQLProgress(connection).read_action() == "RUN"


def test_the_door_for_other_processes(my_start: MyStart, log: LogMaker) -> None:
    """The action is watched and the applied position read through only the URL."""
    target = my_start(COUNTED)
    add(log, 0)
    log.close_segment()
    target.batch()
    session = open_progress(target.url, application_name="test")
    watch = ActionWatch(target.url, name="test", interval_s=0)
    try:
        assert session.read_applied() == target.applied
        session.ensure_tables()
        session.begin_segment(slot="s", file="1.ckt", mark="0/1")
        assert session.finished_segments("s") == set()
        session.end_segment(slot="s", file="1.ckt", mark="0/2")
        assert session.finished_segments("s") == {"1.ckt"}
        assert watch.word() == "RUN"
        session.set_action("PAUSE")
        assert watch.word() == "PAUSE"
        kill_sessions(target.place.server)
        assert watch.word() == "PAUSE"  # the last known word, and then a new connection
        assert watch.word() == "PAUSE"
    finally:
        watch.close()
        session.close()


def test_another_log_is_refused(my_start: MyStart) -> None:
    """The numbers of two logs cannot be compared."""
    target = my_start(COUNTED)
    with pytest.raises(TargetFollowsAnotherLog):
        target.target.bind("another-log")


def test_a_user_who_may_not_make_our_database(my_target: Target, log: LogMaker) -> None:
    """The hint has the statements to type."""
    from penstock.engines.mysql.target.apply import MySQLTarget

    with my_target.server.role(f"all on `{my_target.database}`.*") as url:
        target = MySQLTarget(url, my_target.namespaces)
        try:
            with pytest.raises(ProgressUnwritable) as caught:
                target.bind("test-log")
        finally:
            target.close()
    assert "create database wirekite" in caught.value.hint


def test_least_rights(my_target: Target, log: LogMaker, tmp_path: Path) -> None:
    """The rights that the documentation lists suffice."""
    my_target.execute(COUNTED)
    add(log, 0)
    log.close_segment()
    log.writer.finish()
    my_target.execute("create database wirekite")
    grants = (
        f"select, insert, update, delete, alter on `{my_target.database}`.*",
        "all on wirekite.*",
    )
    with my_target.server.role(*grants) as url:
        Running(url, tmp_path, namespaces=my_target.namespaces, max_files_per_batch=1).end()
    my_target.check(1)


def test_a_table_that_cannot_be_applied_is_left_behind(
    my_target: Target, log: LogMaker, tmp_path: Path
) -> None:
    """The target lacks the table; the other one has all its rows, and a batch failed once."""
    my_target.execute("create table t (id int primary key, name text)")
    for number in range(4):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    options = {"namespaces": my_target.namespaces, "isolates": True, "max_files_per_batch": 2}
    Running(my_target.url, tmp_path, **options).end()
    assert my_target.execute("select id from t order by 1") == [(n,) for n in range(4)]
    found = my_target.execute("select source_name, state from wirekite.wirekite_apart")
    assert found == [("bag", "isolated")]
    assert read_isolations(tmp_path / "state")[TableName("public", "bag")].code == "TG01"
