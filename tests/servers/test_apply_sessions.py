"""Batches that several sessions apply in parts: kills, errors, holds, and two loaders at once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.loading import Running, until
from harness.pipelines.merge import insert
from harness.pipelines.parts import (
    BAG,
    KEYED,
    NAMES,
    TABLES,
    WAYS,
    ahead,
    check,
    count_prepared,
    expected_rows,
    place_for,
    rows_of,
    run_child,
    start_child,
    write,
    write_segments,
)
from harness.servers.engines import Place, PostgresPlace
from penstock.host import faults
from penstock.host.files import DirectoryLock
from penstock.host.state_file import StateFile
from penstock.load import apply_parts, division
from penstock.load.loader import Loader
from penstock.load.loader_state import HOLD_LOCK, Hold, clear_hold, read_held, write_hold
from penstock.model import MarkerKind, TableName
from penstock.model.table_requests import REQUESTS_FILE, TableRequest, TableRequests
from penstock.ports.progress import open_target_reader
from penstock.ports.target import AppliedByAnother, MergeBatch, Target, ValueRefused
from plugins.shared import SharedServers

# `name:nth`: the first batch brings the shapes, so one session applies it.
POINTS = (
    "load.part.before:1",
    "load.part.before:2",
    "load.part.after:1",
    "load.part.after:2",
    "load.part.after:4",
    "load.parts.joined:1",
    "load.apply.after:2",
    "load.progress.before:2",
    "load.commit.before:2",
    "load.commit.after:2",
)
PREPARED_POINTS = ("load.part.committed:1", "load.part.committed:2")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    """A change log with four segments of two transactions each."""
    maker = LogMaker(tmp_path / "log")
    write_segments(maker, 4)
    maker.writer.finish()
    yield maker
    maker.writer.close()


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A target with empty tables, for each way in which parts are committed."""
    with place_for(shared_servers, request.param) as found:
        found.run(*TABLES)
        yield found


@pytest.fixture
def is_prepared(request: pytest.FixtureRequest) -> bool:
    """Return whether parts are prepared in this test's place."""
    return "prepared" in request.node.callspec.params["place"]


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_kills_between_the_parts(place: Place, tmp_path: Path, log: LogMaker, point: str) -> None:
    """The next loader ends equal after a kill anywhere, and nothing is left behind."""
    del log
    code, said = run_child(place, tmp_path, f"{point}:kill")
    assert code == -signal.SIGKILL, said
    code, said = run_child(place, tmp_path)
    assert code == 0, said
    check(place, 8)
    assert ahead(place) == {}
    assert count_prepared(place) == 0


@pytest.mark.faults
@pytest.mark.parametrize("point", PREPARED_POINTS)
@pytest.mark.parametrize("place", ["pg18 prepared"], indirect=True)
def test_kills_between_the_commits_of_prepared_parts(
    place: Place, tmp_path: Path, log: LogMaker, point: str
) -> None:
    """The batch is decided: a status says which part is left, and the next loader commits it."""
    del log
    code, said = run_child(place, tmp_path, f"{point}:kill")
    assert code == -signal.SIGKILL, said
    with closing(open_target_reader(place.url, application_name="test")) as reader:
        assert reader.read_applied().gsn == 32
        left = len(reader.read_unfinished().prepared)
    assert left == count_prepared(place) <= 1
    code, said = run_child(place, tmp_path, "load.apply.before:1:kill")
    assert code == -signal.SIGKILL, said
    check(place, 4)
    assert count_prepared(place) == 0
    code, said = run_child(place, tmp_path)
    assert code == 0, said
    check(place, 8)


def wait_for(child: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until a condition holds while a child runs."""
    until(lambda: child.poll() is not None or condition(), 60)
    assert child.poll() is None, child.communicate()[0]


def end_main_session(place: Place) -> None:
    """End the loader's session that has a transaction open, as a server or an operator might."""
    if isinstance(place, PostgresPlace):
        place.run(
            "select pg_terminate_backend(pid) from pg_stat_activity where xact_start is not null"
            " and application_name = 'penstock loader' and datname = current_database()"
        )
        return
    for (number,) in place.run("select trx_mysql_thread_id from information_schema.innodb_trx"):
        place.run(f"kill {number}")


@pytest.mark.faults
def test_a_loader_that_was_stopped_inside_a_part_applies_nothing_later(
    place: Place, tmp_path: Path, log: LogMaker, *, is_prepared: bool
) -> None:
    """The main session ends meanwhile, and another loader applies the rest of the log."""
    del log
    code, said = run_child(place, tmp_path, "load.commit.after:1:kill")
    assert code == -signal.SIGKILL, said
    # The point comes before the part's transaction: the batch of the second segment is divided.
    stopped = start_child(place, tmp_path, "load.part.before:1:sleep=8", run="run1")
    try:
        wait_for(
            stopped,
            lambda: count_prepared(place) == 1 if is_prepared else len(ahead(place)) == 1,
        )
        stopped.send_signal(signal.SIGSTOP)
        end_main_session(place)
        code, said = run_child(place, tmp_path, run="run2")
        assert code == 0, said
        check(place, 8)
        stopped.send_signal(signal.SIGCONT)
        said, _ = stopped.communicate(timeout=60)
    finally:
        stopped.kill()
    # It sees that it was overtaken, or begins again where the other loader has ended.
    assert stopped.returncode == 0 or "AppliedByAnother" in said, said
    if stopped.returncode:
        code, said = run_child(place, tmp_path)
        assert code == 0, said
    check(place, 8)
    assert (ahead(place), count_prepared(place)) == ({}, 0)


def make_uneven(place: Place, root: Path) -> None:
    """Leave a target in which one batch of three segments is applied to some tables alone."""
    code, said = run_child(place, root, "load.commit.after:1:kill")
    assert code == -signal.SIGKILL, said
    code, said = run_child(place, root, "load.part.after:2:kill", files=3)
    assert code == -signal.SIGKILL, said


@pytest.mark.faults
@pytest.mark.parametrize("sessions", [1, 3])
def test_a_smaller_batch_follows_a_kill(
    place: Place, tmp_path: Path, log: LogMaker, *, is_prepared: bool, sessions: int
) -> None:
    """Tables that are ahead of it wait for the others, whether batches are still divided or not."""
    del log
    make_uneven(place, tmp_path)
    if not is_prepared:
        assert set(ahead(place).values()) == {68}
        assert len(ahead(place)) >= 2
    code, said = run_child(place, tmp_path, "load.commit.after:1:kill", sessions=sessions)
    assert code == -signal.SIGKILL, said
    if not is_prepared:
        assert set(ahead(place).values()) == {68}
    code, said = run_child(place, tmp_path, sessions=sessions)
    assert code == 0, said
    check(place, 8)
    assert (ahead(place), count_prepared(place)) == ({}, 0)


@pytest.fixture
def divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every batch divided."""
    monkeypatch.setattr(division, "PART_S_MIN", 1e-9)


def options_for(place: Place) -> dict[str, Any]:
    """Return options of a loader in this process."""
    return {
        "namespaces": {"public": place.namespace},
        "apply_sessions": 3,
        "max_files_per_batch": 1,
    }


@pytest.mark.faults
@pytest.mark.usefixtures("divides", "log")
def test_verify_waits_until_no_table_is_ahead(place: Place, tmp_path: Path) -> None:
    """A hold is answered when all tables are at one commit again."""
    make_uneven(place, tmp_path)
    state = tmp_path / "state"
    with DirectoryLock(state, HOLD_LOCK):
        write_hold(state, Hold(nonce="n"))
        running = Running(place.url, tmp_path, **options_for(place), exit_when_done=False)
        until(lambda: running.error is not None or read_held(state, "n") is not None)
        held = read_held(state, "n")
        assert held is not None
        assert ahead(place) == {}
        check(place, (held.gsn + 4) // 9)
        clear_hold(state)
    until(lambda: running.error is not None or running.loader.applied_position.gsn == 68)
    running.end(stop=True)
    check(place, 8)


@pytest.mark.usefixtures("divides", "log")
def test_batches_are_divided(place: Place, tmp_path: Path, *, is_prepared: bool) -> None:
    """All rows are there, and the number of parts is that of the sessions."""
    part_count = 0

    def count(name: str) -> None:
        nonlocal part_count
        part_count += name == ("load.part.committed" if is_prepared else "load.part.after")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", count)
        Running(place.url, tmp_path, **options_for(place)).end()
    assert part_count == 2 * 3  # three batches after the one with the shapes
    check(place, 8)
    assert (ahead(place), count_prepared(place)) == ({}, 0)


@pytest.mark.usefixtures("log")
def test_small_batches_stay_in_one_session(place: Place, tmp_path: Path) -> None:
    """No other session is opened for them."""
    running = Running(place.url, tmp_path, **options_for(place), exit_when_done=False)
    until(lambda: running.error is not None or running.loader.applied_position.gsn == 68)
    target = running.loader._target
    assert isinstance(target, apply_parts.PartedTarget)
    assert target._others == []
    running.end(stop=True)
    check(place, 8)


TOO_LONG = "a name that is too long for the column"


def write_refused(root: Path) -> None:
    """Write four segments. The target refuses a row of table c in the second one."""
    log = LogMaker(root / "log")
    for number in range(8):
        write(log, number, name_in_c=TOO_LONG if number == 3 else "")
        if number % 2:
            log.close_segment()
    log.writer.finish()
    log.writer.close()


def allow(place: Place) -> None:
    """Give table c room for the refused row."""
    is_postgres = isinstance(place, PostgresPlace)
    change = "alter name type varchar(40)" if is_postgres else "modify name varchar(40)"
    place.run(f"alter table c {change}")


STATE = "select source_name, state from wirekite.wirekite_apart"


@pytest.mark.usefixtures("divides")
def test_a_refused_row_stops_the_loader_with_its_table(
    place: Place, tmp_path: Path, *, is_prepared: bool
) -> None:
    """Other parts stay or are rolled back, as the documentation says; then the loader continues."""
    write_refused(tmp_path)
    with pytest.raises(ValueRefused) as raised:
        Running(place.url, tmp_path, **options_for(place)).end()
    assert raised.value.fields["table"] == f"{place.namespace}.c"
    assert rows_of(place, "c") == expected_rows(2)
    assert count_prepared(place) == 0
    assert "c" not in ahead(place)
    for name in ("a", "b", "d"):
        is_ahead = name in ahead(place)
        assert rows_of(place, name) == expected_rows(4 if is_ahead else 2)
        assert not (is_prepared and is_ahead)
    assert bool(ahead(place)) != is_prepared
    allow(place)
    Running(place.url, tmp_path, **options_for(place)).end()
    check(place, 8)
    assert ahead(place) == {}


@pytest.mark.usefixtures("divides")
def test_a_table_that_cannot_be_applied_is_isolated(place: Place, tmp_path: Path) -> None:
    """The others continue, whether they had the batch already or not."""
    write_refused(tmp_path)
    Running(place.url, tmp_path, **options_for(place), isolates=True).end()
    check(place, 8, tables=("a", "b", "d"))
    assert rows_of(place, "c") == expected_rows(2)
    assert place.run(STATE) == [("c", "isolated")]
    assert (ahead(place), count_prepared(place)) == ({}, 0)


@pytest.mark.faults
@pytest.mark.usefixtures("divides", "log")
def test_tables_move_when_all_are_level_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused table stays at the commit of the others, and loses and repeats nothing when it
    resumes; deferred keys are created at one commit, too.
    """
    make_uneven(place, tmp_path)
    levels: list[bool] = []
    create = Loader._create_keys

    def create_keys(self: Loader) -> bool:
        levels.append(not ahead(place))
        return create(self)

    monkeypatch.setattr(Loader, "_create_keys", create_keys)
    bag = TableName("public", "bag")
    requests = StateFile(tmp_path / "state" / REQUESTS_FILE, TableRequests)
    requests.save(TableRequests(tables=(TableRequest(table=bag, paused=True),)))
    running = Running(place.url, tmp_path, **options_for(place), exit_when_done=False)
    until(lambda: running.error is not None or running.loader.applied_position.gsn == 68)
    until(lambda: running.error is not None or place.run(STATE) == [("bag", "paused")])
    level = len(rows_of(place, "bag"))
    assert rows_of(place, "bag") == [(number,) for number in range(level)]
    assert ahead(place) == {}
    running.end(stop=True)  # another loader does not know which tables were ahead
    requests.save(TableRequests(tables=(TableRequest(table=bag, paused=False),)))
    running = Running(place.url, tmp_path, **options_for(place), exit_when_done=False)
    until(lambda: running.error is not None or place.run(STATE) == [("bag", "following")])
    running.end(stop=True)
    check(place, 8)
    assert levels
    assert all(levels)


@contextmanager
def staged_batch(
    place: Place, root: Path, sessions: int, *, has_ahead: bool = True
) -> Iterator[tuple[Target, MergeBatch, Applying]]:
    """Provide a target with two transactions, the staged batch of two more, and its session.

    has_ahead: the table of tables that are ahead exists; with several sessions it always does.
    """
    namespaces = {"public": place.namespace}
    with ExitStack() as stack:
        maker = LogMaker(root / "log")
        stack.callback(maker.writer.close)
        write_segments(maker, 1)
        applying = stack.enter_context(
            closing(Applying(place.url, maker.directory, namespaces=namespaces))
        )
        target: Target = applying.target
        if sessions == 1:
            if has_ahead:
                applying.target.progress.ensure_ahead()
        else:
            target = apply_parts.PartedTarget(
                applying.target,
                lambda: applying.engine.open_target(place.url, namespaces),
                session_count=sessions,
            )
            stack.callback(target.close)
        target.bind("test-log")
        batch = applying.stage()
        target.apply(batch)
        applying.applied = batch.after
        for number in (2, 3):
            write(maker, number)
        maker.close_segment()
        yield target, applying.stage(), applying


@pytest.mark.usefixtures("divides")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sessions", [1, 3])
def test_a_part_of_another_loader_is_seen(
    place: Place, tmp_path: Path, sessions: int, name: str
) -> None:
    """A loader whose batch has rows that another one has applied meanwhile is refused."""
    with staged_batch(place, tmp_path, sessions) as (target, batch, applying):
        values = f"'test-log', 'public', '{name}', {batch.after.gsn}"
        place.run(f"insert into wirekite.wirekite_ahead values ({values})")
        with pytest.raises(AppliedByAnother):
            target.apply(batch)
        assert rows_of(place, name) == expected_rows(2)
        with pytest.raises(AppliedByAnother):
            target.write_table_sync([], at=batch.before)
        assert applying.target.progress.read_applied() == batch.before


def test_a_part_of_a_loader_that_came_later_is_seen(place: Place, tmp_path: Path) -> None:
    """A loader with one session had connected before another one divided a batch there for the
    first time. It is refused, and knows the parts once it connects again.
    """
    with staged_batch(place, tmp_path, 1, has_ahead=False) as (target, batch, applying):
        namespaces = {"public": place.namespace}
        with closing(applying.engine.open_target(place.url, namespaces)) as other:
            other.progress.ensure_ahead()
        values = f"'test-log', 'public', 'c', {batch.after.gsn}"
        place.run(f"insert into wirekite.wirekite_ahead values ({values})")
        with pytest.raises(AppliedByAnother):
            target.apply(batch)
        assert rows_of(place, "c") == expected_rows(2)
        with pytest.raises(AppliedByAnother):
            target.write_table_sync([], at=batch.before)
        assert target.bind("test-log") == batch.before
        assert target.read_ahead() == {TableName("public", "c"): batch.after.gsn}


@pytest.mark.usefixtures("divides")
def test_no_part_is_applied_at_another_position(place: Place, tmp_path: Path) -> None:
    """A loader that another one has overtaken changes nothing."""
    with staged_batch(place, tmp_path, 3) as (target, batch, _):
        place.run("update wirekite.wirekite_log set applied_gsn = applied_gsn + 1")
        with pytest.raises(AppliedByAnother):
            target.apply(batch)
    check(place, 2)
    assert (ahead(place), count_prepared(place)) == ({}, 0)


def test_a_shape_that_changes_keeps_a_batch_together(
    place: Place, tmp_path: Path, divides: None
) -> None:
    """All sessions know the new shape afterwards."""
    del divides
    maker = LogMaker(tmp_path / "log")
    for number in range(4):
        write(maker, number)
        if number % 2:
            maker.close_segment()
    wide = relation(
        ("id", "integer", "int32"),
        ("name", "text", "string"),
        ("more", "integer", "int32"),
        name="a",
        version=2,
    )
    maker.transaction(insert(wide, 90, "x", 1), insert(KEYED["b"], 90, "x"), relations=[wide])
    maker.close_segment()
    for number in (91, 92):
        names = [insert(KEYED[name], number, "y") for name in ("b", "c", "d")]
        maker.transaction(insert(wide, number, "y", number), *names)
        maker.close_segment()
    maker.writer.finish()
    Running(place.url, tmp_path, **options_for(place)).end()
    maker.writer.close()
    found = [row for row in rows_of(place, "a") if row[0] >= 90]
    assert found == [(90, "x", 1), (91, "y", 91), (92, "y", 92)]
    assert [row for row in rows_of(place, "d") if row[0] >= 90] == [(91, "y"), (92, "y")]


def test_a_truncation_keeps_a_batch_together(place: Place, tmp_path: Path, divides: None) -> None:
    """Rows before it are gone in every part."""
    del divides
    maker = LogMaker(tmp_path / "log")
    write_segments(maker, 2)
    maker.transaction((MarkerKind.TRUNCATE, [TableName("public", "bag")]), insert(BAG, 7))
    maker.close_segment()
    maker.transaction(insert(BAG, 8), insert(KEYED["a"], 90, "x"))
    maker.close_segment()
    maker.writer.finish()
    Running(place.url, tmp_path, **options_for(place)).end()
    maker.writer.close()
    assert rows_of(place, "bag") == [(7,), (8,)]
    assert len(rows_of(place, "a")) == 5
