"""A pipeline that has begun, without any server, and the tables that it follows."""

from __future__ import annotations

from penstock.engines.postgres.source.ddl_watch import WatchState
from penstock.engines.postgres.source.source_engine import WATCH_FILE
from penstock.engines.postgres.source.table_shape import TableShape
from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile
from penstock.model import TableName
from penstock.ports.config import Config


def follows(config: Config, *tables: TableName) -> None:
    """Record that the pipeline has begun, and follows these tables."""
    shapes = tuple(
        TableShape(
            digest="d",
            source_id=number,
            name=table,
            kind="r",
            persistence="p",
            identity="d",
            identity_columns=("id",),
            key_columns=("id",),
            types=(),
            file=1,
            published="all",
            keys=(),
            attributes=(),
            parts=(),
        )
        for number, table in enumerate(tables, 1)
    )
    REAL_FILES.make_directory(config.layout.state)
    StateFile(config.layout.state / WATCH_FILE, WatchState).save(WatchState(shapes=shapes))
