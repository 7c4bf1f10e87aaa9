"""Extraction from the model of Oracle into a log on disk: beginning, failures, restart, requests.

The database is `sim_oracle`; the extractor, the log and the state files are real.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.servers.redo_log import define, read_rows
from penstock.engines.oracle.connect import connect, connect_root
from penstock.engines.oracle.source.source_engine import OracleEngine
from penstock.extract.extractor import Extractor, _StateFiles
from penstock.host import faults
from penstock.host.faults import FaultInjected, arming
from penstock.host.files import REAL_FILES
from penstock.host.request_files import RequestFiles
from penstock.host.state_file import StateFile
from penstock.log import list_segments, open_chain
from penstock.model import PenstockError, Rows, TableDefinition, TableName
from penstock.model.layout import PipelineLayout
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    Capture,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.source import EnginePlace, ExtractOptions
from sim_oracle.columns import NanoTime
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import Server

OPTIONS = ExtractOptions(
    exit_when_idle=True,
    idle_wait_s=0.05,
    flush_interval_s=0.05,
    apply_interval_s=0.01,
    operation_count_max=7,
)
T = {"ID": "NUMBER(10)", "A": "VARCHAR2(40)"}
POINTS = [
    "oracle.window.before",
    "oracle.window.after",
    "oracle.spill.before",
    "oracle.spill.after",
    "oracle.run.before",
    "oracle.acknowledge.after",
    "extract.write.after",
    "extract.flush.before",
    "extract.flush.after",
    "extract.rotate.before",
    "extract.rotate.after",
    "extract.relations.before",
]


class Case:
    """A database with a table, and a pipeline that has not begun."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.database = Database()
        self.table = self.database.add_table("SHOP", "T", dict(T), key=["ID"])
        self.server = Server(self.database)
        address = install(monkeypatch, self.server)
        self.url = f"oracle://c%23%23penstock:secret@{address}/ORCL?pdb=SHOPPDB"
        self.layout = PipelineLayout(root=folder)
        self.asks = False
        monkeypatch.setattr("penstock.engines.oracle.source.assembly.SPILL_BYTES", 1500)
        monkeypatch.setattr("penstock.engines.oracle.source.emission.RUN_ROWS", 5)
        monkeypatch.setattr("penstock.extract.extractor.BACKOFF_S", (0.01,))

    def definitions(self) -> list[TableDefinition]:
        """Return the definitions of all tables of the schema."""
        found = (one for one in self.database.tables.values() if one.version.owner == "SHOP")
        return sorted(map(define, found), key=lambda one: one.name)

    def engine(self) -> OracleEngine:
        """Return the engine of a new process."""
        return OracleEngine(
            lambda: connect_root(self.url),
            lambda: connect(self.url),
            tables=self.definitions,
            selects=lambda _: not self.asks,
            options=OPTIONS,
            container="SHOPPDB",
            poll_s=0.001,
        )

    def extract(self) -> Any:
        """Extract until the source is idle; threads of the database write their SCN meanwhile."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(0.005):
                with self.server.lock:
                    self.database.beat()

        thread = threading.Thread(target=beat)
        thread.start()
        engine = self.engine()
        try:
            return Extractor(engine, self.folder, options=OPTIONS).run()
        finally:
            stop.set()
            thread.join()
            engine.close()

    def insert(self, *ids: int, name: str = "T") -> int:
        """Commit a transaction; return its SCN."""
        with self.server.lock:
            transaction = self.database.begin()
            for number in ids:
                row = {"ID": number, "A": f"n{number}"}
                transaction.insert(self.database.table("SHOP", name), row)
            return transaction.commit()

    def rows(self) -> list[tuple[str, int]]:
        """Return table and id of all rows in closed segments, in order."""
        found = []
        for rows in self.frames():
            for one in read_rows(rows.relation, rows.batch):
                image = one.after or one.before or {}
                found.append((one.gsn, one.relation.name, image["ID"]))
        return [(table, number) for _, table, number in sorted(found)]

    def frames(self) -> list[Rows]:
        """Return the rows of all closed segments, as they are together there."""
        found = []
        for segment in open_chain(list_segments(self.layout.log)):
            with segment:
                found += [segment.read_rows(entry) for entry in segment.row_frames()]
        return found

    def request(self, table: TableName, capture: Capture, **more: Any) -> None:
        """Request a table's capture, as `penstock table` does."""
        file = StateFile(self.layout.state / REQUESTS_FILE, TableRequests)
        known = file.load() or TableRequests()
        number = known.serial + 1
        request = TableRequest(table=table, capture=capture, capture_id=number, **more)
        file.save(known.with_request(request))

    def answers(self) -> CaptureAnswers:
        """Return the answers to requests."""
        found = StateFile(self.layout.state / CAPTURED_FILE, CaptureAnswers).load()
        assert found is not None
        return found


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Return a database, and a pipeline that has not begun."""
    return Case(tmp_path, monkeypatch)


def test_a_log_of_closed_segments(case: Case) -> None:
    """Earlier changes are not in it; a restart continues, large transactions are whole."""
    case.insert(1)
    case.extract()
    case.insert(2, 3)
    case.insert(*range(100, 140))
    case.extract()
    case.insert(4)
    case.extract()
    expected = [2, 3, *range(100, 140), 4]
    assert case.rows() == [("T", one) for one in expected]
    assert not list(case.layout.spill.iterdir())


def test_a_begin_that_was_not_in_the_log_yet(case: Case) -> None:
    """A process that dies after it chose the begin is followed by one that begins there."""
    engine = case.engine()
    engine.begin(
        EnginePlace(
            state=_StateFiles(case.layout.state, REAL_FILES),
            spill=case.layout.spill,
            run=case.layout.run,
            log_id=lambda: "",
        )
    )
    engine.close()
    case.insert(1)
    case.extract()
    assert case.rows() == [("T", 1)]


@pytest.mark.parametrize("point", POINTS)
def test_a_failure_at_any_place(case: Case, point: str) -> None:
    """Each change is in the log once, in order, wherever a process fails."""
    case.extract()
    case.insert(1)
    case.insert(*range(10, 50))
    case.insert(2)
    with faults.arming(f"{point}:1:error,{point}:3:error"), suppress(FaultInjected):
        case.extract()
    case.extract()
    case.insert(3)
    case.extract()
    assert case.rows() == [("T", one) for one in (1, *range(10, 50), 2, 3)]


def test_a_process_that_dies_in_any_run(case: Case) -> None:
    """New processes over the same state files continue, also within a large transaction."""
    case.extract()
    expected = []
    for number in range(1, 12):
        case.insert(number * 100, *range(number * 100 + 1, number * 100 + number * 3))
        expected += range(number * 100, number * 100 + max(1, number * 3))
        with faults.arming(f"oracle.run.before:{number}:error=EIO"):
            try:
                case.extract()
            except (OSError, PenstockError):
                continue
    case.extract()
    assert case.rows() == [("T", one) for one in expected]


def test_a_table_is_added_and_removed_by_request(case: Case) -> None:
    """A table that is created later is captured once it was requested, if there is a target."""
    case.asks = True
    case.extract()
    other = case.database.create_table("SHOP", "U", dict(T), key=["ID"])
    case.insert(1, name="U")
    case.insert(2)
    case.extract()
    name = TableName("SHOP", other.name)
    case.request(name, Capture.ADDED)
    case.extract()
    case.insert(3, name="U")
    case.extract()
    assert case.rows() == [("T", 2), ("U", 3)]
    case.request(TableName("SHOP", "T"), Capture.REMOVED)
    case.request(TableName("SHOP", "X"), Capture.ADDED)
    case.request(name, Capture.ADDED, resend_id=9)
    case.extract()
    case.insert(4)
    case.insert(5, name="U")
    case.extract()
    assert case.rows() == [("T", 2), ("U", 3), ("U", 1), ("U", 3), ("U", 5)]
    answers = case.answers()
    answer = answers.of(TableName("SHOP", "X"))
    assert answer is not None
    assert answer.code
    assert [one.code for one in answers.resent] == [""]
    requests, _ = RequestFiles(_StateFiles(case.layout.state, REAL_FILES)).read()
    assert not answers.open(requests.tables)


# -- rows that are sent again ------------------------------------------------------------------


def resend(case: Case, name: str = "T", number: int = 9) -> None:
    """Ask for a table's rows."""
    case.request(TableName("SHOP", name), Capture.ADDED, resend_id=number)


def codes(case: Case) -> list[str]:
    """Return the errors of the answers to requests for rows; empty texts if they were sent."""
    return [one.code for one in case.answers().resent]


def test_rows_are_sent_again_at_one_position(case: Case) -> None:
    """Rows that are written while the table is read come after them, once."""
    case.insert(1)
    case.extract()
    case.insert(2, 3)
    case.extract()
    resend(case)
    later = iter((10, 11))

    def write(text: str) -> None:
        if "AS OF SCN" in text:
            for number in later:
                case.insert(number)

    case.server.on_statement = write
    case.extract()
    case.server.on_statement = lambda _: None
    case.insert(12)
    case.extract()
    sent = [number for _, number in case.rows()]
    assert sent == [2, 3, 1, 2, 3, 10, 11, 12]
    assert codes(case) == [""]


@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("extract.resend.rows", 1),
        ("extract.flush.before", 1),
        ("extract.resend.before", 2),
        ("extract.resend.after", 1),
    ],
)
def test_a_failure_while_rows_are_sent(case: Case, point: str, times: int) -> None:
    """A request that was not answered is carried out again; no row is lost."""
    case.extract()
    case.insert(1, 2)
    case.extract()
    resend(case)
    with arming(f"{point}:1:error"), suppress(FaultInjected):
        case.extract()
    case.insert(3)
    case.extract()
    numbers = [number for _, number in case.rows()]
    assert numbers[:2] == [1, 2]
    assert numbers.count(1) == 1 + times
    assert numbers[-1] == 3
    assert codes(case) == [""]


def test_a_table_that_is_altered_is_sent_after_its_statement(case: Case) -> None:
    """Rows have the shape that the log has at their position."""
    case.extract()
    case.insert(1)
    case.extract()
    resend(case)
    text = "ALTER TABLE SHOP.T ADD M NUMBER(5)"
    armed = iter((1,))

    def alter(sql: str) -> None:
        if "AS OF SCN" in sql and next(armed, None):
            case.database.add_column(case.table, "M", "NUMBER(5)", text)
            case.server.fail_next(1466, "AS OF SCN")

    case.server.on_statement = alter
    case.extract()
    case.server.on_statement = lambda _: None
    case.extract()
    assert codes(case) == [""]
    assert case.rows() == [("T", 1), ("T", 1)]


def test_rows_that_cannot_be_sent(case: Case) -> None:
    """Undo that is gone, and a table that is not captured, answer the request by name."""
    case.extract()
    case.insert(1)
    case.extract()
    resend(case)
    case.server.fail_next(1555, "AS OF SCN")
    case.extract()
    resend(case, "X", 10)
    case.extract()
    case.insert(2)
    case.extract()
    assert case.rows() == [("T", 1), ("T", 2)]
    assert codes(case) == ["OR03"]


def test_a_value_that_does_not_fit_is_sent_as_text(case: Case) -> None:
    """Later rows have the same shape as those that were sent."""
    moment = datetime(2026, 7, 1, 12)  # noqa: DTZ001
    table = case.database.add_table(
        "SHOP", "N", {"ID": "NUMBER(10)", "AT": "TIMESTAMP(9)"}, key=["ID"]
    )

    def insert(number: int, nanoseconds: int) -> None:
        transaction = case.database.begin()
        transaction.insert(table, {"ID": number, "AT": NanoTime(moment, nanoseconds)})
        transaction.commit()

    insert(1, 7)
    case.extract()
    insert(2, 0)
    case.extract()
    resend(case, "N")
    case.extract()
    insert(3, 0)
    case.extract()
    assert case.rows() == [("N", one) for one in (2, 1, 2, 3)]
    shapes = [rows.relation.columns[1].neutral for rows in case.frames()]
    assert shapes[0] == "timestamp"
    assert set(shapes[1:]) == {"string"}


def test_the_end_of_the_server(case: Case) -> None:
    """The source's position and clock are those of the database."""
    engine = case.engine()
    end = engine.server_end()
    assert end.position >> 64 < case.database.scn
    assert end.now_us > 0
    assert engine.text(end.position) == str(end.position >> 64)
    assert engine.bytes_between(1, 2) == 1
    assert engine.bytes_between(2, 2) == 0
    assert not engine.has_outstanding()
    with engine.heartbeats() as send:
        send(1)
    engine.close()
