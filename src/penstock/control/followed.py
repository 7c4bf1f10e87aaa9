"""Which tables a pipeline has followed so far, dropped ones too.

Not here: the catalogue as it is now (`engines.postgres.source.catalog`,
`engines.mysql.source.catalog`).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.control.table_wishes import read_answers, read_wishes
from penstock.engines.postgres.source.ddl_watch import WatchState
from penstock.engines.postgres.source.engine import WATCH_FILE
from penstock.host import checkpoint
from penstock.host.files import REAL_FILES, Files
from penstock.log import PipelineLayout
from penstock.model import TableName
from penstock.model.wishes import Capture
from penstock.ports.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The tables whose changes go into the log, or went there until they were dropped.

    missing: those of them that were dropped. ids: their oids (PostgreSQL), by which one is known
    that has another name now.
    """

    names: frozenset[TableName]
    missing: frozenset[TableName] = frozenset()
    ids: frozenset[int] = frozenset()

    def has(self, name: TableName, source_id: int = 0) -> bool:
        """Whether a table of the catalogue is one of them."""
        return name in self.names or source_id in self.ids


def followed(layout: PipelineLayout, files: Files = REAL_FILES) -> WatchState | None:
    """What a pipeline's extraction remembers of the tables it follows; None before its first look.

    PostgreSQL only. Raises CheckpointCorrupt.
    """
    return checkpoint.load(layout.state / WATCH_FILE, WatchState, files)


def followed_tables(config: Config) -> Followed | None:
    """The tables that the change log follows; None before changes were extracted.

    Raises CheckpointCorrupt.
    """
    if config.source.is_mysql:
        return _in_binlog(config)
    state = followed(config.layout)
    if state is None:
        return None
    return Followed(
        names=state.names,
        missing=frozenset(state.gone),
        ids=frozenset(shape.source_id for shape in state.shapes),
    )


def _in_binlog(config: Config) -> Followed | None:
    from penstock.engines.mysql.source.engine import NOTES_FILE
    from penstock.engines.mysql.source.table_notes import AllNotes

    notes = checkpoint.load(config.layout.state / NOTES_FILE, AllNotes)
    if notes is None:
        return None
    captured = [one for one in notes.tables if one.is_captured]
    answers = read_answers(config)
    # What was taken in is noted with the next transaction that comes.
    added = [
        wish.table
        for wish in read_wishes(config).tables
        if wish.capture is Capture.ADDED and answers.is_done(wish)
    ]
    return Followed(
        names=frozenset([*(one.table for one in captured), *added]),
        missing=frozenset(one.table for one in captured if not one.is_there),
    )


def is_followed(config: Config, table: TableName) -> bool:
    """Whether a table that the configuration takes is followed; before a first run all are."""
    state = followed_tables(config)
    return state is None or state.has(table)


def followed_names(config: Config) -> frozenset[TableName]:
    """The tables that the change log follows, or did until they were dropped at the source.

    Empty before changes were extracted. Raises CheckpointCorrupt.
    """
    state = followed_tables(config)
    return state.names if state is not None else frozenset()
