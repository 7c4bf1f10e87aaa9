"""The tables that a pipeline has followed so far, dropped ones too."""

from __future__ import annotations

from penstock.control.pipeline.table_requests import read_answers, read_requests
from penstock.model import TableName
from penstock.model.table_requests import Capture
from penstock.ports.config import Config
from penstock.ports.tables import Followed, tables_at


def followed_tables(config: Config) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted.

    Raises CheckpointCorrupt.
    """
    answers = read_answers(config)
    added = [
        request.table
        for request in read_requests(config).tables
        if request.capture is Capture.ADDED and answers.is_done(request)
    ]
    return tables_at(config.source.url).read_followed(config, added=added)


def is_followed(config: Config, table: TableName) -> bool:
    """Return whether a table of the configuration is followed; before a first run all are."""
    state = followed_tables(config)
    return state is None or state.has(table)


def followed_names(config: Config) -> frozenset[TableName]:
    """Return the tables that the change log follows, or did until they were dropped at the source.

    Empty before changes were extracted. Raises CheckpointCorrupt.
    """
    state = followed_tables(config)
    return state.names if state is not None else frozenset()
