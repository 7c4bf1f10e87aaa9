"""A MySQL or MariaDB source's side of `penstock verify`; see `verify_source.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from penstock.control.ends import source_tables
from penstock.control.log_facts import read_log_end
from penstock.control.verify_source import SourcePoint
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.resume_state import stored_standing
from penstock.engines.mysql.source.recipes import NoConsistentPoint, Recipe
from penstock.engines.mysql.source.snapshot import APPLICATION_NAME, open_snapshots, read_choices
from penstock.engines.mysql.source.unread import has_changes
from penstock.engines.mysql.verify.compare import MySQLSide
from penstock.model import BinlogPosition, TableDefinition
from penstock.model.patterns import Selection
from penstock.model.position import BINLOG_OFFSET_BITS
from penstock.ports.config import Config
from penstock.ports.handover import log_begin


def open_binlog_side(
    config: Config, sessions: int, stack: ExitStack, tell: Callable[[str], None]
) -> tuple[MySQLSide, SourcePoint]:
    """Sessions in snapshots at one place of the binlog, for as long as the stack is open.

    Raises NoConsistentPoint where the account may take none of the ways to exactly one place, and
    what taking snapshots does.
    """
    url = config.source.url
    tables = source_tables(config)
    with connect(url, application_name=APPLICATION_NAME) as connection:
        among = [
            choice
            for choice in read_choices(connection, tables)
            if choice.recipe is not Recipe.LOCK_FREE
        ]
    if not among:
        raise NoConsistentPoint(
            "the tables cannot be compared at one point: the account may not lock for a moment",
            hint="Run at the server: grant reload on *.* to 'USER'@'HOST'; or lock tables on them.",
        )
    taken = stack.enter_context(
        open_snapshots(
            url, tables, count=sessions + 1, among=among, on_choice=lambda one: tell(str(one))
        )
    )
    side = stack.enter_context(MySQLSide(url, taken.connections))
    position = taken.status.position
    ordinal = position.ordinal + (_shift(config) << BINLOG_OFFSET_BITS)
    return side, SourcePoint(position=ordinal, text=str(position))


def unread_in_binlog(config: Config, position: int, tables: Sequence[TableDefinition]) -> str:
    """Whether the binlog has something of ours between our log's end and a position, in words."""
    standing = stored_standing(config)
    begin = read_log_end(config).end.position or log_begin(config)
    if standing is None or not begin:
        return ""
    shift = standing.mark.shift << BINLOG_OFFSET_BITS
    found = has_changes(
        config.source.url,
        start=BinlogPosition(begin - shift, standing.mark.base),
        until=BinlogPosition(position - shift, standing.mark.base),
        takes=Selection.parse(config.source.tables).takes,
        names=[table.name.name for table in tables],
    )
    return "changes are in the binlog that nobody has read" if found else ""


def _shift(config: Config) -> int:
    """By how much our log counts files further than the server that is there now."""
    standing = stored_standing(config)
    return standing.mark.shift if standing is not None else 0
