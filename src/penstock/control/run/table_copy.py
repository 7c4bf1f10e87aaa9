"""Copying of one table's rows beside the stream: for `penstock table add` and `table resync`.

It is the bulk load's machinery, for one table, at a consistent point that is taken now: chunks with
a ledger of their own below state/copies/, so that a killed copy continues where it was. Each
runs on a thread of the load process, waits for its turn, and leaves one of Spark's slots to the
changes. Not here: the table before and after the copy (`penstock.load.table_sync`).
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import Any

import structlog

from penstock.control.pipeline.servers import source_tables
from penstock.control.run.bulk_load import bulk_options, narrow
from penstock.control.tables.table_list import CopyNote, write_notes
from penstock.host import faults
from penstock.host.files import REAL_FILES
from penstock.host.retry import Backoff, Patience
from penstock.load.bulk import BulkStopped, finish_foreign_keys, load_in_bulk
from penstock.load.session import SessionKeeper
from penstock.load.table_sync import Copier
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import open_planner
from penstock.ports.config import Config
from penstock.ports.tables import tables_at

logger = structlog.get_logger()
faults.declare("table.copy.before", "table.copy.after")

RETRIES = Backoff(first_s=0.5, longest_s=30.0, attempts=10_000)
STOP_CHECK_S = 0.2


class TableCopier(Copier):
    """The `Copier` of a configured pipeline. A context manager: leaving it ends all copies."""

    def __init__(self, config: Config, sessions: SessionKeeper):
        """Prepare. sessions: owner of the session, which does other work too."""
        self._config = config
        self._sessions = sessions
        self._copies: dict[tuple[TableName, int], _Copy] = {}
        self._reported: list[CopyNote] = []
        self._turn = threading.Lock()

    def __enter__(self) -> TableCopier:
        """Return itself; nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End running copies; they continue at the next start."""
        for copy in self._copies.values():
            copy.end()

    def copy(self, table: TableName, copy_id: int, *, replaces: bool) -> int | None:
        key = (table, copy_id)
        if key not in self._copies:
            self._copies[key] = _Copy(
                self._config, self._sessions, table, copy_id, replaces, self._turn
            )
        self._tell()
        return self._copies[key].position

    def drop(self, table: TableName, copy_id: int) -> None:
        copy = self._copies.pop((table, copy_id), None)
        if copy is not None:
            copy.end()
        shutil.rmtree(self._config.layout.copies / str(copy_id), ignore_errors=True)
        self._tell()

    def _tell(self) -> None:
        notes = [copy.note for copy in self._copies.values()]
        if notes != self._reported:
            write_notes(self._config, notes)
            self._reported = notes


class _Copy:
    """Copy on a thread of its own. position: set when all rows are loaded."""

    def __init__(
        self,
        config: Config,
        sessions: SessionKeeper,
        table: TableName,
        copy_id: int,
        replaces: bool,
        turn: threading.Lock,
    ) -> None:
        self.position: int | None = None
        self.note = CopyNote(table=table, copy_id=copy_id)
        self._config = narrow(config, table)
        self._sessions = sessions
        self._replaces = replaces
        self._turn = turn
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"copy {copy_id}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop at once; committed chunks stay."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        """Copy, and try again as long as it is wanted: the operator may have to fix something."""
        patience = Patience(RETRIES)
        while not self._ended.is_set():
            try:
                position = self._in_turn()
            except PenstockError as error:
                if self._ended.is_set():
                    return
                logger.warning(
                    "table is not copied yet", table=str(self.note.table), error=error.message
                )
                self._note(code=error.code, error=error.message, hint=error.hint)
                self._ended.wait(patience.wait_s(error) or RETRIES.longest_s)
            except Exception as error:
                # This is a defect: shown where the operator looks, and the other tables flow on.
                logger.exception("copy failed", table=str(self.note.table))
                self._note(code="PS99", error=f"unexpected {type(error).__name__}: {error}")
                return
            else:
                self._note()
                faults.point("table.copy.after")
                self.position = position
                return

    def _note(self, **said: Any) -> None:
        known = self.note
        self.note = CopyNote(table=known.table, copy_id=known.copy_id, **said)

    def _in_turn(self) -> int:
        """Wait for the copy's turn, then copy. Copies that run together would take the slot of the
        changes.
        """
        while not self._turn.acquire(timeout=STOP_CHECK_S):
            if self._ended.is_set():
                raise BulkStopped(f"the copy of {self.note.table} is not wanted any more")
        try:
            return self._once()
        finally:
            self._turn.release()

    def _once(self) -> int:
        """Copy the missing rows; return the position of the rows."""
        config, table = self._config, self.note.table
        place = str(self.note.copy_id)
        options = replace(
            bulk_options(config),
            state_directory=config.layout.copies / place,
            run_directory=config.layout.run / "copies" / place,
            replaces=self._replaces,
            adds_foreign_keys=False,
            beside=True,
            isolates=False,
            shift=tables_at(config.source.url).shift(config),
        )
        REAL_FILES.make_directory(options.run_directory)
        definitions = source_tables(config)
        session = self._sessions.get().with_jobs(f"copy {place}")
        faults.point("table.copy.before")
        with open_planner(config) as planner:
            result = load_in_bulk(session, options, definitions, planner, stop=self._ended.is_set)
        logger.info("table copied", table=str(table), row_count=result.rows[table])
        notes = result.notes
        if result.stands_at_one_position:  # else they are added with the unique keys
            notes += self._foreign_keys(options, definitions)
        for note in notes:
            logger.warning("table copy", note=note)
        return result.positions[table] + options.shift

    def _foreign_keys(self, options: Any, definitions: Any) -> list[str]:
        """Add foreign keys of a table that penstock created; they may have to wait for rows."""
        try:
            return finish_foreign_keys(options, definitions)
        except PenstockError as error:
            return [f"foreign keys of {self.note.table} are not made: {error.message}"]
