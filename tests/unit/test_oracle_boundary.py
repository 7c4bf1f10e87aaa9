"""Snapshot and log together: rows as of the SCN at which a log begins, then its changes.

A random history goes on before, between the queries that find the beginning, while rows are read,
and afterwards. Follows the reference, section 1b.17.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.servers.redo_log import RedoLog, State, Truth, plain, replay_log
from penstock.engines.oracle import beginning as beginning_module
from penstock.engines.oracle.connect import Connection, connect
from penstock.engines.oracle.reading.bulk_reader import OracleReader, shape_of
from penstock.engines.oracle.reading.catalog import captured_tables
from penstock.engines.oracle.reading.chunks import plan_chunks
from penstock.engines.oracle.reading.read_plan import log_plan
from penstock.engines.oracle.reading.relations import relation_of
from penstock.engines.oracle.reading.statements import CURRENT_SCN
from penstock.engines.oracle.reading.statements import rows as rows_text
from penstock.model import TableDefinition
from penstock.ports.bulk import Chunk, ChunkTask
from sim_oracle.driver_servers import install
from sim_oracle.histories import Habits, History
from sim_oracle.session import Server
from sim_oracle.texts import KnownTexts

QUERIES = (CURRENT_SCN, beginning_module.OPEN_TRANSACTIONS)


class Play:
    """A history, and a log that begins in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History(seed, Habits(has_ddl=False, threads=1 + seed % 2, open_max=7))
        # Tables of many types: their texts are not all in the file of known ones.
        self.server = Server(self.history.database, texts=KnownTexts(None))
        address = install(monkeypatch, self.server)
        self.go_on(120)
        self.server.on_statement = self._meet
        self.log = RedoLog(self.server, address, path)
        self.server.on_statement = lambda _: None

    def go_on(self, steps: int) -> None:
        """Let the history go on."""
        for _ in range(steps):
            self.history.step()

    def _meet(self, text: str) -> None:
        if text in QUERIES:
            self.go_on(self.random.randrange(6))

    def read_snapshot(self) -> State:
        """Return the rows as of the log's begin, read in chunks while the history goes on."""
        found: State = {}
        scn = self.log.begin_scn
        with connect(self.log.url) as session:
            for definition in captured_tables(session, ["SHOP.*"]):
                found[definition.name.name] = self._read_table(session, definition, scn)
        return found

    def _read_table(
        self, session: Connection, definition: TableDefinition, scn: int
    ) -> dict[Any, dict[str, Any]]:
        rows: dict[Any, dict[str, Any]] = {}
        relation = relation_of(definition)
        shape = shape_of(session, definition.name)
        pieces = plan_chunks(
            session,
            definition,
            scn=scn,
            is_index_organized=bool(self.random.randrange(2)),
            bytes_target=32_768,
            pieces=4,
            rows_target=7,
        )
        for piece in self.random.sample(pieces, len(pieces)):
            self.go_on(2)
            text = rows_text(
                definition.name, log_plan(definition.columns).expressions, scn, piece.condition
            )
            chunk = Chunk(number=1, relation=definition.name, copy_out=text, shape=shape)
            for shaped in OracleReader(session).batches(task_of(definition, chunk), relation):
                _put(rows, shaped.relation, shaped.batch.to_pylist())
        return rows


def task_of(definition: TableDefinition, chunk: Chunk) -> ChunkTask:
    """Return a chunk's task, of which the reader needs the chunk alone."""
    return ChunkTask(
        source_url="",
        target_url="",
        table=definition.name,
        target=definition.name,
        chunk=chunk,
        columns=(),
        binary=False,
        snapshot_id="",
        snapshot_text="",
        plan="p",
        replica_role=False,
    )


def _put(rows: dict[Any, dict[str, Any]], relation: Any, found: list[dict[str, Any]]) -> None:
    """Put rows into a state as the replay does: by key, or counted."""
    columns = {one.name: one for one in relation.columns}
    names = [relation.columns[at].name for at in relation.key]
    for row in found:
        values = {name: plain(value, columns[name]) for name, value in row.items()}
        if names:
            key = tuple(values[name] for name in names)
            assert key not in rows, f"{key} is read twice"
            rows[key] = values
        else:
            rows.setdefault(tuple(sorted(values.items())), {"count": 0})["count"] += 1


@pytest.mark.parametrize("seed", range(16))
def test_snapshot_and_log_are_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """No transaction is in both, and none is in neither."""
    play = Play(monkeypatch, tmp_path, seed)
    database = play.history.database
    state = play.read_snapshot()
    truth = Truth(database, {})
    truth.load(play.log.begin_scn)
    expected = truth.state()
    assert {name: rows for name, rows in state.items() if rows} == expected
    play.go_on(60)
    play.history.finish()
    play.log.catch_up()
    for _ in replay_log(play.log, state):
        pass
    for committed in database.truth(play.log.begin_scn):
        truth.apply(committed)
    assert {name: rows for name, rows in state.items() if rows} == truth.state()
    play.log.engine.close()
