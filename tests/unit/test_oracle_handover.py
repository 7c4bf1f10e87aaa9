"""Handover, points and planner of an Oracle source on the fake driver, and what a start refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.codec.oracle.scn import OraclePosition
from penstock.control.pipeline.config import load_config
from penstock.engines.oracle import handover, lag, plan, reset, tables
from penstock.engines.oracle.beginning import (
    BEGINNING_FILE,
    SWITCH,
    check_database,
    load_beginning,
    read_scn,
    switch_log,
    take_beginning,
)
from penstock.engines.oracle.connect import connect_root
from penstock.engines.oracle.errors import (
    ArchivingOff,
    DatabaseClosed,
    DatabaseNotPrimary,
    MiningOutsideRoot,
    SupplementalLoggingOff,
)
from penstock.engines.oracle.extraction import has_begun, identity
from penstock.engines.oracle.planner import OraclePlanner, make_planner
from penstock.model import FlushPoint, TableDefinition, TableName
from penstock.ports.bulk import Point, TableRead
from penstock.ports.config import BulkState, Config, Pipeline
from penstock.ports.handover import HandoverPhase, LogWithoutBulkLoad, read_handover
from penstock.ports.identity import StateUnreadable
from penstock.ports.lag import LogEnd
from penstock.ports.registry import engine_at
from penstock.ports.tables import Followed
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import ALL_PRIVILEGES, Server

T = {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)"}
SCN_QUERY = "SELECT CURRENT_SCN FROM V$DATABASE"
OPEN_QUERY = "SELECT XIDUSN"
FILE = """
[pipeline]
name = "p"
mode = "{mode}"
directory = "d"
[source]
url = "{url}"
tables = ["SHOP.*"]
[target]
url = "postgresql://u:p@h/d"
"""


class Place:
    """A server, and a pipeline from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.database = Database("ORCL", pdbs=["SHOPPDB"])
        self.database.add_thread(2)
        self.server = Server(self.database)
        address = install(monkeypatch, self.server)
        self.url = f"oracle://c%23%23penstock:secret@{address}/ORCL?pdb=shoppdb"
        self.table = self.database.add_table("SHOP", "T", T, key=["ID"])
        self.path = path
        self.position = 0

    def config(self, mode: str = "data+change") -> Config:
        """Return the configuration of a file."""
        file = self.path / f"{mode}.toml"
        file.write_text(FILE.format(mode=mode, url=self.url), encoding="utf-8")
        return load_config(file)

    def pipeline(self, mode: str = "data+change") -> Pipeline:
        """Return the pipeline."""
        return Pipeline(
            config=self.config(mode), log_position=lambda: self.position, bulk=lambda: BulkState()
        )

    def planner(self, first: Callable[[], Point | None] = lambda: None) -> OraclePlanner:
        """Return the planner."""
        return make_planner(self.config(), first=first)

    def define(self) -> list[TableDefinition]:
        """Return the captured tables."""
        return tables.read_captured(self.config(), dropped=())

    def table_name(self) -> TableName:
        """Return the name of the first table."""
        return TableName("SHOP", "T")

    def insert(self, *ids: int, thread: int = 1) -> Any:
        """Begin a transaction that inserts rows."""
        transaction = self.database.begin(thread=thread)
        for at in ids:
            transaction.insert(self.table, {"ID": at, "NAME": "n"})
        return transaction


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Return a fresh server with a pipeline."""
    return Place(monkeypatch, tmp_path)


# -- where a log begins ----------------------------------------------------------------------------


def at_query(place: Place, number: int, text: str, action: Callable[[], None]) -> None:
    """Call a function before the n-th statement that begins with a text runs."""
    seen = 0
    before = place.server.on_statement

    def look(sql: str) -> None:
        nonlocal seen
        before(sql)
        if sql.startswith(text):
            seen += 1
            if seen == number:
                action()

    place.server.on_statement = look


@pytest.mark.parametrize("thread", [1, 2])
def test_each_transaction_is_in_the_snapshot_or_in_the_log(place: Place, thread: int) -> None:
    """Reference, 1b.17: whenever it begins and ends, and in whichever instance."""
    old = place.insert(1, thread=thread)
    made: dict[str, Any] = {}

    def before_list() -> None:
        made["ends in between"] = place.insert(2, thread=thread)
        made["begins before the list"] = place.insert(3, thread=thread)

    def before_scn() -> None:
        made["ends in between"].commit()
        made["begins after the list"] = place.insert(4, thread=thread)
        place.insert(5, thread=thread).commit()

    at_query(place, 1, OPEN_QUERY, before_list)
    at_query(place, 2, SCN_QUERY, before_scn)
    with connect_root(place.url) as session:
        beginning = take_beginning(session)
    after = place.insert(6, thread=thread)
    snapshot = {row["ID"] for _, row in place.database.rows_at(place.table, beginning.scn)}
    assert snapshot == {2, 5}
    listed = {(one.segment, one.slot, one.sequence) for one in beginning.transactions}
    for one in (old, made["begins before the list"], made["begins after the list"], after):
        assert one.commit() > beginning.scn
        xid = (one.xid.usn, one.xid.slot, one.xid.sequence)
        assert xid in listed or one.start_scn >= beginning.first_scn
        assert one.start_scn >= beginning.low_scn
    assert beginning.low_scn <= old.start_scn <= beginning.first_scn <= beginning.scn


def test_without_open_transactions_redo_is_read_from_the_first_scn(place: Place) -> None:
    """There is nothing older to look for."""
    with connect_root(place.url) as session:
        beginning = take_beginning(session)
    assert beginning.transactions == ()
    assert beginning.low_scn == beginning.first_scn <= beginning.scn


def test_the_logs_are_switched(place: Place) -> None:
    """Use the statement of Wirekite's guide, on RDS its procedure, without a right nothing."""
    with connect_root(place.url) as session:
        scn = read_scn(session)
        assert "archived" in switch_log(session)
        assert all(one.log.first_scn >= scn for one in place.database.logs.threads.values())
        place.database.settings.grants = ALL_PRIVILEGES - {"ALTER SYSTEM"}
        assert "rdsadmin" in switch_log(session)
        place.server.fail_next(6550, "rdsadmin")
        assert "lacks ALTER SYSTEM" in switch_log(session)
        place.server.fail_next(258, SWITCH)
        with pytest.raises(ArchivingOff):
            switch_log(session)


@pytest.mark.parametrize(
    ("settings", "error", "hint"),
    [
        ({"log_mode": "NOARCHIVELOG"}, ArchivingOff, "ALTER DATABASE ARCHIVELOG"),
        ({"minimal_logging": "NO"}, SupplementalLoggingOff, "ADD SUPPLEMENTAL LOG DATA"),
        ({"role": "PHYSICAL STANDBY"}, DatabaseNotPrimary, "primary"),
    ],
)
def test_a_database_that_cannot_be_mined_is_refused(
    place: Place, settings: dict[str, str], error: type[Exception], hint: str
) -> None:
    """Before anything is read or written, with the SQL to run."""
    with connect_root(place.url) as session:
        assert check_database(session, "SHOPPDB").name == "ORCL"
        for name, value in settings.items():
            setattr(place.database.settings, name, value)
        with pytest.raises(error) as caught:
            check_database(session, "SHOPPDB")
        assert hint in caught.value.hint  # type: ignore[attr-defined]


def test_a_service_of_a_pluggable_database_is_refused(place: Place) -> None:
    """Logs cannot be added to LogMiner there (ORA-65040); a database without containers is fine."""
    local = place.url.partition("?")[0].replace("/ORCL", "/shoppdb")
    with connect_root(local) as session:
        with pytest.raises(MiningOutsideRoot, match="SHOPPDB") as caught:
            check_database(session)
        assert "?pdb=SHOPPDB" in caught.value.hint
        place.database.settings.is_cdb = False
        assert check_database(session).name == "ORCL"


def test_a_pluggable_database_that_is_not_seen_is_refused(place: Place) -> None:
    """Closed ones make LogMiner wait."""
    with connect_root(place.url) as session, pytest.raises(DatabaseClosed, match="OTHER"):
        check_database(session, "OTHER")


# -- handover --------------------------------------------------------------------------------------


def prepare(place: Place, *, begun: bool = False) -> Any:
    """Take the handover's steps."""
    with connect_root(place.url) as session:
        return handover.prepare(place.pipeline(), session, tables=place.define, has_begun=begun)


def test_the_four_steps(place: Place) -> None:
    """Log and bulk load have the same position, and a second process begins at the same place."""
    place.insert(1).commit()
    open_one = place.insert(2)
    beginning = prepare(place)
    state = read_handover(place.config())
    assert state is not None
    position = OraclePosition.of_scn(beginning.scn)
    assert (state.phase, state.position) == (HandoverPhase.DONE, str(position))
    assert state.slot_position == state.snapshot_id == state.position
    assert [step.number for step in state.steps] == [1, 2, 3, 4]
    assert "1 open transactions" in state.steps[2].text
    assert state.tables == ("SHOP.T",)
    assert beginning.low_scn == open_one.start_scn
    assert prepare(place) == prepare(place, begun=True) == beginning
    point = state.point(OraclePosition)
    assert point is not None
    assert point.position == position
    with place.planner(lambda: point) as planner:
        assert planner.first_point() == point
        (chunk,) = planner.chunks(point, reads(place))[place.table_name()]
        assert f"AS OF SCN {beginning.scn}" in chunk.copy_out


def test_a_handover_whose_beginning_is_gone_is_an_error(place: Place) -> None:
    """Never begin again at a later place, because rows would be lost."""
    prepare(place)
    (place.config().layout.state / BEGINNING_FILE).unlink()
    with pytest.raises(StateUnreadable):
        prepare(place)
    with pytest.raises(StateUnreadable):
        load_beginning(place.config())


def test_a_log_of_mode_change_is_refused(place: Place) -> None:
    """Refuse a log that has no bulk load."""
    with pytest.raises(LogWithoutBulkLoad):
        prepare(place, begun=True)


def test_a_table_that_is_altered_during_the_handover_needs_a_later_point(place: Place) -> None:
    """Read it later, because its definition at the SCN is not known."""
    other = place.database.add_table("SHOP", "U", T, key=["ID"])
    at_query(place, 2, SCN_QUERY, lambda: place.database.add_column(other, "MORE", "NUMBER"))
    prepare(place)
    state = read_handover(place.config())
    assert state is not None
    point = state.point(OraclePosition)
    assert point is not None
    assert list(point.definitions or {}) == ["SHOP.T"]
    with place.planner() as planner:
        assert list(planner.chunks(point, reads(place))) == [place.table_name()]
        assert len(planner.chunks(planner.fresh_point(), reads(place))) == 2


# -- planner ---------------------------------------------------------------------------------------


def reads(place: Place) -> list[TableRead]:
    """Return what the load asks the planner for."""
    return [
        TableRead(definition=one, columns=tuple(f'"{c.name}"' for c in one.columns))
        for one in place.define()
    ]


def test_points_are_scns(place: Place) -> None:
    """A later one is higher; nothing is kept open."""
    with place.planner() as planner:
        first, second = planner.fresh_point(), planner.fresh_point()
        assert first.position < second.position  # type: ignore[operator]
        assert first.snapshot_text != second.snapshot_text
        assert planner.first_point() is None
        assert planner.release() is None
        (definition,) = planner.define([place.table_name()])
        assert definition.primary_key == ("ID",)
        assert planner.define([TableName("SHOP", "X")]) == []


def test_tables_that_cannot_be_read_at_a_point_are_left_out(place: Place) -> None:
    """Truncated, altered or dropped since, or without undo; the load asks for a later point."""
    iot = place.database.add_table("SHOP", "IOT", T, key=["ID"], is_index_organized=True)
    dropped = place.database.add_table("SHOP", "D", T, key=["ID"])
    wanted = reads(place)
    with place.planner() as planner:
        point = planner.fresh_point()
        assert {name.name for name in planner.chunks(point, wanted)} == {"D", "IOT", "T"}
        place.database.drop_table(dropped)
        place.server.fail_next(1555, "AS OF SCN")
        assert {name.name for name in planner.chunks(point, wanted)} == {"D", "T"}
        place.database.add_column(iot, "MORE", "NUMBER")
        assert "IOT" not in {name.name for name in planner.chunks(point, reads(place))}
        with pytest.raises(ValueError, match="binary"):
            planner.chunks(
                point, [TableRead(definition=wanted[-1].definition, columns=(), binary=True)]
            )


# -- the frame -------------------------------------------------------------------------------------


def test_identity_and_beginning_of_a_log(place: Place) -> None:
    """The directory is bound to DBID and container."""
    found = identity(place.config())
    assert (found.engine, found.system_id) == ("oracle", str(place.database.dbid))
    assert found.database == "SHOPPDB"
    assert not has_begun(place.pipeline())
    place.position = 5
    assert has_begun(place.pipeline())
    assert list(reset.find_removals(place.config(), None)) == []
    assert reset.owner(place.config(), log_id="x") == ""


def test_tables_of_the_source(place: Place) -> None:
    """New ones are those that are not followed, by name or by object."""
    place.database.add_table("SHOP", "U", T, key=["ID"])
    config = place.config()
    assert tables.read_followed(config, added=()) is None
    known = Followed(names=frozenset([place.table_name()]))
    found = tables.present(config, ["SHOP.*"], known)
    assert {one.name for one in found.names} == {"T", "U"}
    assert {one.name for one in found.new} == {"U"}
    renamed = Followed(names=frozenset(), ids=frozenset([place.define()[0].source_id]))
    assert {one.name for one in tables.present(config, ["SHOP.*"], renamed).new} == {"U"}
    assert tables.everything(place.url) == "*.*"
    assert tables.namespace(place.url, "SHOP", is_same=False) == ""
    assert tables.namespace(place.url, "shop", is_same=False) == "SHOP"
    assert tables.namespace(place.url, "shop", is_same=True) == ""
    assert tables.namespace("oracle://loader:x@h/s", "public", is_same=False) == "LOADER"
    assert tables.shift(config) == 0
    assert tables.server_of(place.url).engine.value == "oracle"


def test_the_plan_names_what_is_left_out(place: Place) -> None:
    """A temporary table that a pattern matches is left out with a reason; that is not a problem."""
    place.database.add_table("SHOP", "G", T, key=["ID"], is_temporary=True)
    facts = plan.read_source(place.config(), dropped=())
    assert [str(one.name) for one in facts.tables] == ["SHOP.T"]
    assert "temporary" in facts.left_out[0]
    assert facts.problems == ()
    assert plan.problems_between(place.config(), facts.tables, planned=()) == []


def test_lag_is_the_redo_that_the_log_lacks(place: Place) -> None:
    """Tell the age of the first SCN that is missing."""
    place.insert(1).commit()
    place.database.archive_current()
    with connect_root(place.url) as session:
        scn = read_scn(session)
    reader = lag.OracleLagReader(place.config(), "status")
    place.insert(2).commit()
    place.database.beat()
    state = reader.state(LogEnd(log_id="x"))
    assert (state.slot_exists, state.confirmed) == (True, 0)
    end = OraclePosition.of_scn(scn)
    state = reader.state(LogEnd(log_id="x", end=FlushPoint(position=end.ordinal)))
    assert state.position > end.ordinal
    assert state.unread is not None
    assert state.unread.commit_us is not None
    assert state.unread.commit_us <= state.now_us
    later = reader.state(LogEnd(log_id="x", end=FlushPoint(position=state.position)))
    assert later.unread is not None
    assert later.bytes_behind(later.position) == 0
    kept = reader.retention()
    assert kept is not None
    assert kept.size_bytes > 0
    reader.close()
    assert reader.is_closed


def test_the_engine_is_found_by_its_url(place: Place) -> None:
    """Import all parts."""
    engine = engine_at(place.url)
    assert engine.name == "oracle"
    for name in engine.parts:
        assert engine.part(name) is not None  # type: ignore[var-annotated,arg-type]
