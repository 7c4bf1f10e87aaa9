"""Batches in parts at a PostgreSQL target: tables that stay together, and prepared transactions.

A part's prepared transaction is named after the change log and the transaction that decides about
it, whose outcome the server knows. Not here: the order of the steps (`load/apply_parts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import ClassVar

import psycopg
import structlog

from penstock.engines.postgres.connect import literal, server_errors, statement
from penstock.engines.postgres.target.target import TargetTable
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import PenstockError, Retry, TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words

logger = structlog.get_logger(__name__)

PREFIX = "penstock"
UNKNOWN_NAME = "42704"
ENDS = {"committed": "commit", "aborted": "rollback"}
PREPARED = f"""
    select gid
      from pg_prepared_xacts
     where database = current_database() and starts_with(gid, '{PREFIX} ' || %s || ' ')
     order by gid
"""

FREE = """
    select current_setting('max_prepared_transactions')::int, count(*)::int
      from pg_prepared_xacts
"""


class PreparedUndecided(PenstockError):
    """A part of a batch is prepared, and the transaction that decides about it has no outcome."""

    code = "TG38"
    retry: ClassVar[Retry] = "backoff"


def group_tables(tables: Collection[TargetTable], *, replica: bool) -> list[frozenset[TableName]]:
    """Return tables in groups that may be applied independently.

    Tables that inherit from others stay together. So do tables with triggers that fire, since these
    may write anywhere, and tables joined by foreign keys, if only by way of a table between them.
    replica: foreign keys are not checked.
    """
    groups: list[tuple[set[object], set[TableName]]] = []
    for table in tables:
        links: set[object] = {table.name}
        if table.in_tree:
            links.add("tree")
        fires = ("A", "R") if replica else ("A", "O")
        if table.rules or any(enabled in fires for _, enabled in table.triggers):
            links.add("trigger")
        if not replica:
            links |= {key.parent for key in table.parents} | {key.child for key in table.children}
        names = {table.name}
        joined = [group for group in groups if group[0] & links]
        for group in joined:
            groups.remove(group)
            links |= group[0]
            names |= group[1]
        groups.append((links, names))
    return [frozenset(names) for _, names in groups]


def count_free(connection: psycopg.Connection) -> tuple[int, int]:
    """Return how many prepared transactions the server keeps, and how many more it would keep."""
    with server_errors("counting prepared transactions"):
        row = connection.execute(FREE).fetchone()
    assert row is not None
    return row[0], row[0] - row[1]


def read_transaction_id(connection: psycopg.Connection) -> str:
    """Return the id of the open transaction."""
    with server_errors("asking for the transaction's id"):
        row = connection.execute("select txid_current()").fetchone()
    assert row is not None
    return str(row[0])


def _name(log_id: str, decider: str, part: int) -> str:
    return f"{PREFIX} {log_id} {decider} {part}"


def _of_log(log_id: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(f'{PREFIX} {log_id}')} (\d+) \d+")


@contextmanager
def prepared_transaction(
    connection: psycopg.Connection, log_id: str, decider: str, part: int
) -> Iterator[None]:
    """Run a transaction and prepare it at its end; it is rolled back on any error."""
    with server_errors("preparing a part of a batch"):
        connection.execute("begin")
        try:
            yield
            _prepare(connection, _name(log_id, decider, part))
        except BaseException:
            if not connection.closed:
                connection.rollback()
            raise


def _prepare(connection: psycopg.Connection, name: str) -> None:
    try:
        connection.execute(statement(f"prepare transaction {literal(name)}"))
    except psycopg.errors.OutOfMemory as error:
        # Other programs have taken the last ones. The next batch looks how many are free.
        raise StatementInterrupted(
            f"preparing a part of a batch: {error.diag.message_primary}",
            hint="penstock retries automatically; max_prepared_transactions may be raised.",
        ) from error


def commit_prepared(connection: psycopg.Connection, log_id: str, decider: str, part: int) -> None:
    """Commit a part that was decided, unless another process has committed it."""
    _end(connection, "commit", _name(log_id, decider, part))


def find_prepared(connection: psycopg.Connection, log_id: str) -> dict[str, str]:
    """Return the names of a log's prepared parts, each with the outcome of the transaction that
    decides about it: `committed`, `aborted`, `in progress`, or empty if the server has forgotten.
    """
    with server_errors("looking for prepared parts of a batch"):
        found = {}
        for (name,) in connection.execute(PREPARED, (log_id,)).fetchall():
            match = _of_log(log_id).fullmatch(name)
            if match is None:
                continue  # of a log whose id begins with this one's
            row = connection.execute("select txid_status(%s)", (int(match[1]),)).fetchone()
            assert row is not None
            found[name] = row[0] or ""
    return found


def settle_prepared(connection: psycopg.Connection, log_id: str) -> None:
    """Commit or roll back a log's prepared parts, as their deciding transactions ended.

    Raises PreparedUndecided.
    """
    for name, outcome in find_prepared(connection, log_id).items():
        if outcome not in ENDS:
            raise PreparedUndecided(
                f"the prepared transaction {name!r} has to be committed if another one was, which "
                f"is {outcome or 'too old for the server to know'}",
                hint="Stop the other penstock that loads this target. If there is none, run: "
                f"rollback prepared {literal(name)}; and then: penstock verify",
            )
        logger.info("prepared part of a batch is ended", name=name, end=ENDS[outcome])
        _end(connection, ENDS[outcome], name)


def removal_of_prepared(connection: psycopg.Connection, log_id: str) -> list[Removal]:
    """Return the end of a log's prepared parts; none if there are none."""
    found = find_prepared(connection, log_id) if log_id else {}
    if not found:
        return []
    ends = tuple(
        f"{ENDS.get(outcome, 'rollback')} prepared {literal(name)};"
        for name, outcome in found.items()
    )
    what = f"{count_words(len(found), 'prepared transaction')} of a batch that was cut short"
    return [Removal(what=what, statements=ends)]


def _end(connection: psycopg.Connection, end: str, name: str) -> None:
    try:
        with server_errors("ending a prepared part of a batch"):
            connection.execute(statement(f"{end} prepared {literal(name)}"))
    except StatementFailed as error:
        if error.fields.get("sqlstate") != UNKNOWN_NAME:
            raise  # else another process has ended it, in the same way
