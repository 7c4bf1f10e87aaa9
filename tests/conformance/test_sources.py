"""Requirements of the extractor and the bulk load for every source.

The sources are the servers under test, the toy engine, and a fake in memory, once with everything
and once with every feature switched off. A new source is complete when these pass. Each case is
shown to find a defect of the fake (`test_the_suite_finds`). Not here: values of every type
(`test_types_across.py`), features of one engine alone (`tests/servers/`), kills (`tests/faults/`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.faults.fake_source import DESCRIPTOR as FAKE
from harness.faults.fake_source import FAKES, FEATURES, Fake
from harness.servers.engines import ENGINES, SIMULATED, new_place
from harness.servers.sources import (
    OTHER,
    WIDE,
    Delete,
    FakeSide,
    Follower,
    Insert,
    Seen,
    Side,
    T,
    ToySide,
    U,
    Undone,
    Update,
    side_of,
)
from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Server
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.servers import source_tables
from penstock.control.status.lag import lag_of
from penstock.host.faults import arming
from penstock.model import PenstockError, TableName
from penstock.model.position import to_bytes
from penstock.ports import registry
from penstock.ports.bulk import ChunkTask, TableRead, bulk_source, open_planner
from penstock.ports.lag import open_source
from penstock.ports.positions import kind_in_log, kind_of, positions_of
from penstock.ports.registry import engines
from penstock.ports.tables import tables_at
from penstock.ports.target import Applied
from penstock.sql.read_plan import read_plan_of
from plugins.shared import SharedServers
from toy_engine.descriptor import DESCRIPTOR as TOY
from toy_engine.store import Store
from toy_engine.values import rows_in

# Sources to which penstock writes heartbeats, and those to which it never writes.
SILENT = [one for one in SIMULATED if not registry.engine_at(f"{one}://host").sends_heartbeats]
SENDING = ["fake", "plain fake", "toy", *ENGINES, *(one for one in SIMULATED if one not in SILENT)]
POSTGRES = Server(engine=Engine.POSTGRESQL, version=(18,))
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def engines_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the fake and the toy as engines."""
    known = (*engines(), FAKE, TOY)
    monkeypatch.setattr(registry, "engines", lambda: known)


def new_fake(stack: ExitStack, *, features: frozenset[str] = FEATURES, defect: str = "") -> Side:
    """Return a fake source."""
    fake = Fake(f"fake{next(_numbers)}", features=features, defect=defect)
    FAKES[fake.name] = fake
    stack.callback(FAKES.pop, fake.name)
    stack.callback(fake.closed.set)
    return FakeSide(fake)


@pytest.fixture(params=[*SENDING, *SILENT])
def side(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Side]:
    """A source with empty tables."""
    with ExitStack() as stack:
        if request.param == "toy":
            yield ToySide(stack.enter_context(closing(Store.create(tmp_path / "toy.db"))))
        elif "fake" in request.param:
            features = FEATURES if request.param == "fake" else frozenset()
            yield new_fake(stack, features=features)
        else:
            yield side_of(stack.enter_context(new_place(shared_servers, request.param)))


def begin_log(side: Side, folder: Path) -> Follower:
    """Return a log that begins here, empty."""
    follower = Follower(side, folder)
    follower.follow()
    return follower


def need(side: Side, feature: str) -> None:
    """Skip a case for a source that cannot do it."""
    if feature not in side.features:
        pytest.skip(f"this source has no {feature}")


# --- committed changes ----------------------------------------------------------------------------


def test_every_committed_change_is_there_once_and_in_order(side: Side, tmp_path: Path) -> None:
    """Any changes of a row are there, and transactions of any size."""
    follower = begin_log(side, tmp_path)
    side.commit(Insert(T, {"id": 1, "name": "a", "n": 1}))
    side.commit(
        Update(T, 1, {"name": "b"}),
        Update(T, 1, {"name": "c", "n": None}),
        Insert(T, {"id": 2, "name": "", "n": 2}),
    )
    side.commit(Delete(T, 1), Insert(T, {"id": 1, "name": "d", "n": 3}))
    follower.follow()
    assert follower.read_changes() == side.expected
    assert [trx for trx, _, _ in follower.log()] == [1, 2, 3]


def test_what_was_rolled_back_is_not_there(side: Side, tmp_path: Path) -> None:
    """The log has no rolled back transaction and nothing that was undone to a savepoint."""
    follower = begin_log(side, tmp_path)
    side.commit(Insert(T, {"id": 1, "name": "a", "n": 1}))
    side.roll_back(Insert(T, {"id": 2, "name": "b", "n": 2}), Delete(T, 1))
    undone = Undone((Update(T, 1, {"n": 9}), Insert(T, {"id": 3, "name": "c", "n": 3})))
    side.commit(Update(T, 1, {"n": 5}), undone, Insert(T, {"id": 4, "name": "d", "n": 4}))
    follower.follow()
    assert follower.read_changes() == side.expected


def test_a_large_transaction_comes_in_pieces(side: Side, tmp_path: Path) -> None:
    """A transaction need not fit in memory; it is one transaction nevertheless."""
    follower = begin_log(side, tmp_path)
    side.commit_many(8_000)
    side.commit(Insert(T, {"id": 1, "name": "a", "n": 1}))
    follower.follow()
    (large, small), (many, one) = follower.read_changes(), side.expected
    assert sorted(large, key=lambda seen: seen.key) == many
    assert small == one
    assert len([rows for rows, ended in follower.run_rows if rows and not ended]) > 0
    assert max(rows for rows, _ in follower.run_rows) < len(many)


def test_a_transaction_of_several_tables_is_one(side: Side, tmp_path: Path) -> None:
    """The transaction's changes keep their order among tables."""
    follower = begin_log(side, tmp_path)
    side.commit(
        Insert(T, {"id": 1, "name": "a", "n": 1}),
        Insert(U, {"id": 1, "n": 1}),
        Update(T, 1, {"n": 2}),
        Insert(OTHER, {"id": 1, "n": 1}),
        Update(U, 1, {"n": 2}),
        Delete(T, 1),
    )
    follower.follow()
    assert follower.read_changes() == side.expected
    assert len(follower.log()) == 1


# --- kinds of changes -----------------------------------------------------------------------------


def test_a_changed_key_tells_the_old_one(side: Side, tmp_path: Path) -> None:
    """A key change has the old key, also when rows swap keys, and takes two numbers.

    Its row in the log has the second of the two.
    """
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}), Insert(U, {"id": 2, "n": 2}))
    side.commit(Update(U, 1, {"id": 9}), Update(U, 2, {"id": 1}), Update(U, 9, {"id": 2, "n": 5}))
    side.commit(Update(U, 1, {"n": 7}), Delete(U, 2))
    follower.follow()
    assert follower.read_changes() == side.expected
    assert follower.gsns() == [1, 2, 4, 6, 8, 9, 10]


def test_a_truncate_is_reported_in_its_place(side: Side, tmp_path: Path) -> None:
    """The truncate is between the earlier and the later rows."""
    need(side, "truncate")
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}), Insert(T, {"id": 1, "name": "a", "n": 1}))
    side.truncate(U)
    side.commit(Insert(U, {"id": 1, "n": 2}))
    follower.follow()
    assert follower.read_changes() == side.expected


def test_a_value_that_was_not_sent_is_absent(side: Side, tmp_path: Path) -> None:
    """An absent value is not NULL; a value that was sent as NULL is."""
    need(side, "absent")
    follower = begin_log(side, tmp_path)
    side.commit(Insert(WIDE, {"id": 1, "n": 1, "big": "x" * 9000}))
    side.commit(Update(WIDE, 1, {"n": None}), unsent=True)
    side.commit(Update(WIDE, 1, {"big": None}), unsent=True)
    follower.follow()
    _, (first,), (second,) = follower.read_changes()
    assert first.row is not None
    assert second.row is not None
    assert first.key == second.key == 1
    assert "big" not in first.row
    assert first.row["n"] is None
    assert second.row["big"] is None


def test_a_new_column_comes_before_its_rows(side: Side, tmp_path: Path) -> None:
    """Rows after an ALTER have the new shape, earlier ones the old shape.

    A source may read a table again whose shape it meets first, and finds altered meanwhile.
    """
    need(side, "shape")
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}))
    follower.follow()
    side.add_column(U, "more")
    side.commit(Insert(U, {"id": 2, "n": 2, "more": 7}), Insert(U, {"id": 3, "n": 3}))
    follower.follow()
    assert follower.read_changes() == [
        [Seen("I", U, 1, {"id": 1, "n": 1})],
        [
            Seen("I", U, 2, {"id": 2, "n": 2, "more": 7}),
            Seen("I", U, 3, {"id": 3, "n": 3, "more": None}),
        ],
    ]


# --- resuming -------------------------------------------------------------------------------------


def test_a_restart_goes_on_behind_what_is_durable(side: Side, tmp_path: Path) -> None:
    """No change is lost or is in the log twice, after any number of restarts."""
    follower = begin_log(side, tmp_path)
    for number in range(1, 4):
        side.commit(Insert(U, {"id": number, "n": 1}), Update(U, number, {"n": 2}))
        side.commit(Insert(T, {"id": number, "name": "a", "n": 1}))
        follower.follow()
        assert follower.read_changes() == side.expected
    side.commit(Delete(U, 1))
    Follower(side, tmp_path).follow()
    assert follower.read_changes() == side.expected


def test_a_broken_stream_goes_on_behind_what_is_durable(side: Side, tmp_path: Path) -> None:
    """A transaction of which a part was returned is sent again from its beginning."""
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}))
    follower.follow()
    side.commit_many(8_000)
    with arming("extract.write.after:1:error"):
        follower.follow()
    small, large = follower.read_changes()
    assert [small, sorted(large, key=lambda seen: seen.key)] == side.expected


def test_positions_rise_and_are_read_back(side: Side, tmp_path: Path) -> None:
    """Positions rise as bytes as they do as numbers, and the engine parses what it prints.

    The kind of position is the same from a URL and from a log.
    """
    follower = begin_log(side, tmp_path)
    for number in range(1, 6):
        side.commit(Insert(U, {"id": number, "n": 1}))
    follower.follow()
    config = follower.config
    kind, positions = kind_of(config), positions_of(config)
    found = [position for _, position, _ in follower.log()]
    assert len(found) == 5
    assert [to_bytes(one) for one in found] == sorted({to_bytes(one) for one in found})
    assert [positions.parse(positions.text(one)) for one in found] == found
    assert [kind.parse(str(kind(one))).ordinal for one in found] == found
    assert kind_in_log(follower.engine_in_log) is kind
    end = follower.engine.server_end().position
    assert end > found[-1]
    assert follower.engine.text(end)


def test_an_idle_source_moves_on(side: Side, tmp_path: Path) -> None:
    """Transactions of others move the log's end, without changes for us; the lag is zero."""
    need(side, "elsewhere")
    follower = begin_log(side, tmp_path)
    config = follower.config
    side.commit(Insert(U, {"id": 1, "n": 1}))
    with follower.following():
        follower.until(lambda: read_log_end(config).end.gsn == 1)
        side.commit(Insert(OTHER, {"id": 1, "n": 1}))
        position = follower.engine.server_end().position
        follower.until(lambda: read_log_end(config).end.position >= position)
        with closing(open_source(config, application_name="test")) as source:

            def lag_s() -> float | None:
                log = read_log_end(config)
                applied = Applied(gsn=1, trx=1, position=log.end.position)
                return lag_of(source.state(log), log, applied, outstanding_us=None).seconds

            follower.until(lambda: lag_s() == 0.0)
    assert follower.read_changes() == side.expected


@pytest.mark.parametrize("side", SENDING, indirect=True)
def test_a_heartbeat_comes_back(side: Side, tmp_path: Path) -> None:
    """A heartbeat returns as a marker with the data that was sent.

    It is not counted as a change, and heartbeats of other pipelines are left out.
    """
    follower = begin_log(side, tmp_path)
    other = Follower(side, tmp_path, name="other")
    side.commit(Insert(U, {"id": 1, "n": 1}))
    with other.open_engine() as engine, engine.heartbeats() as send:
        send(3)
    with follower.open_engine() as engine, engine.heartbeats() as send:
        send(5)
        send(7)
    follower.follow()
    assert follower.heartbeats() == [5, 7]
    assert follower.read_changes() == side.expected
    side.drop_heartbeats()


def test_a_wait_can_be_stopped(side: Side, tmp_path: Path) -> None:
    """A reader that waits for changes ends when told to, although none arrives."""
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}))
    with follower.following() as stop:
        follower.until(lambda: read_log_end(follower.config).end.gsn == 1)
        stop.set()
    assert follower.read_changes() == side.expected


def test_a_position_that_is_gone_is_refused(side: Side, tmp_path: Path) -> None:
    """The error says so: a retry would not help, and continuing would leave a gap."""
    need(side, "forget")
    follower = begin_log(side, tmp_path)
    side.commit(Insert(U, {"id": 1, "n": 1}))
    follower.follow()
    side.commit(Insert(U, {"id": 2, "n": 2}))
    side.forget_log()
    side.commit(Insert(U, {"id": 3, "n": 3}))
    with pytest.raises(PenstockError) as caught:
        follower.follow()
    assert caught.value.retry != "backoff"
    assert follower.read_changes() == side.expected[:1]


# --- reading in bulk ------------------------------------------------------------------------------


def test_chunks_hold_each_row_once_and_the_log_follows(side: Side, tmp_path: Path) -> None:
    """The chunks are the table at one point, and the later changes lead to its present rows.

    Where each chunk is read after the point, they lead there applied over the rows.
    """
    need(side, "bulk")
    follower = begin_log(side, tmp_path)
    config, name = follower.config, TableName(side.namespace, U)
    side.commit(*(Insert(U, {"id": number, "n": 0}) for number in range(1, 200)))
    side.commit(Update(U, 1, {"n": 1}), Delete(U, 2))
    with open_planner(config) as planner:
        point = planner.fresh_point()
        before = {key: dict(row) for key, row in side.book.rows[U].items()}
        side.commit(Insert(U, {"id": 500, "n": 5}), Update(U, 3, {"n": 3}), Delete(U, 4))
        side.commit(Update(U, 5, {"id": 501}))
        definition = next(one for one in source_tables(config) if one.name == name)
        servers = ServerPair(source=tables_at(side.url).server_of(side.url), target=POSTGRES)
        read_plan = read_plan_of(definition, servers, side.url)
        listed = tuple(read_plan.expressions or read_plan.columns)
        chunks = planner.chunks(point, [TableRead(definition=definition, columns=listed)])[name]
        source = bulk_source(side.url)
        reader = source.open_reader(side.url, point.snapshot_id, point.snapshot_text)
        assert reader is not None
        found: list[dict[str, str | None]] = []
        with closing(reader):
            for chunk in chunks:
                task = ChunkTask(
                    source_url=side.url,
                    target_url="",
                    table=name,
                    target=name,
                    chunk=chunk,
                    columns=read_plan.columns,
                    binary=False,
                    snapshot_id=point.snapshot_id,
                    snapshot_text=point.snapshot_text,
                    plan="",
                    replica_role=False,
                    read_plan=read_plan,
                )
                assert not reader.was_rewritten(task)
                found += rows_in(reader.lines(task, LineDialect.COPY), read_plan.columns)
    rows = {int(str(row["id"])): int(str(row["n"])) for row in found}
    assert len(found) == len(rows), "no row is in two chunks"
    assert not side.reads_at_point or rows == {key: row["n"] for key, row in before.items()}
    assert rows.keys() <= before.keys() | side.book.rows[U].keys()
    follower.follow()
    for _, position, changes in follower.log():
        for seen in changes if position >= point.position.ordinal else ():
            known = rows.pop(seen.key, None)
            follows = (known is None) == (seen.op == "I")
            assert follows or not side.reads_at_point, "it follows the chunks"
            if seen.row is not None:
                rows[seen.row["id"]] = seen.row["n"]
    assert rows == {key: row["n"] for key, row in side.book.rows[U].items()}


# --- the suite itself -----------------------------------------------------------------------------

DEFECTS: dict[str, Callable[[Side, Path], None]] = {
    "a change is left out": test_every_committed_change_is_there_once_and_in_order,
    "a change comes twice": test_every_committed_change_is_there_once_and_in_order,
    "changes come out of order": test_every_committed_change_is_there_once_and_in_order,
    "rolled back work is given": test_what_was_rolled_back_is_not_there,
    "a large transaction is one run": test_a_large_transaction_comes_in_pieces,
    "a transaction is torn": test_a_transaction_of_several_tables_is_one,
    "a key change has no before image": test_a_changed_key_tells_the_old_one,
    "a truncate is not reported": test_a_truncate_is_reported_in_its_place,
    "a value that was not sent is NULL": test_a_value_that_was_not_sent_is_absent,
    "rows come before their shape": test_a_new_column_comes_before_its_rows,
    "a restart begins again": test_a_restart_goes_on_behind_what_is_durable,
    "a restart skips what is there": test_a_restart_goes_on_behind_what_is_durable,
    "a broken stream goes on where it broke": test_a_broken_stream_goes_on_behind_what_is_durable,
    "positions fall": test_positions_rise_and_are_read_back,
    "a text does not say which position": test_positions_rise_and_are_read_back,
    "an idle source stands still": test_an_idle_source_moves_on,
    "the lag never ends": test_an_idle_source_moves_on,
    "a heartbeat does not come back": test_a_heartbeat_comes_back,
    "a wait cannot be stopped": test_a_wait_can_be_stopped,
    "a lost position goes on": test_a_position_that_is_gone_is_refused,
    "a lost position is not a typed error": test_a_position_that_is_gone_is_refused,
    "a row is in no chunk": test_chunks_hold_each_row_once_and_the_log_follows,
    "a row is in two chunks": test_chunks_hold_each_row_once_and_the_log_follows,
    "a snapshot is later than its point": test_chunks_hold_each_row_once_and_the_log_follows,
    "a snapshot is earlier than its point": test_chunks_hold_each_row_once_and_the_log_follows,
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_suite_finds(defect: str, tmp_path: Path) -> None:
    """A source with this defect does not pass."""
    with ExitStack() as stack:
        side = new_fake(stack, defect=defect)
        side.patience_s = 3.0  # a wait for an event that never happens is shorter
        with pytest.raises((Exception, pytest.fail.Exception)) as caught:
            DEFECTS[defect](side, tmp_path)
    slips = (TypeError, AttributeError, NameError, LookupError)
    assert not isinstance(caught.value, slips), caught.value
    assert "Timeout" not in str(caught.value), "it is found, not waited for until the test ends"


def test_every_case_is_shown_to_find_a_defect() -> None:
    """Each case has a defect that it finds, and each defect of the fake has a case."""
    cases = {value for name, value in globals().items() if name.startswith("test_")}
    about_the_suite = {test_the_suite_finds, test_every_case_is_shown_to_find_a_defect}
    assert set(DEFECTS.values()) == cases - about_the_suite
