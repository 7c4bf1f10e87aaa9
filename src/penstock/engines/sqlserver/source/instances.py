"""Capture instances: which one of a table is read, and whether changes were lost.

A table has one capture instance, or two while its shape changes: the older one is read up to the
start of the newer one (reference, sections 5, 6, S7). `Book` remembers each instance by object id
and create date, because other tools create instances again without the changes in between (S9), and
with the LSN at which it started, because the clean-up job moves `start_lsn`. Loss is judged by the
change tables alone, never by the transaction log (S4). Pure, except for reading the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.codec.sqlserver.lsn import ZERO, SqlServerLsn
from penstock.codec.sqlserver.types import SqlServerType, catalogue_type
from penstock.engines.sqlserver.connect import literal, quote
from penstock.engines.sqlserver.errors import (
    ChangesLost,
    DatabaseReplaced,
    InstanceMissing,
    InstanceRecreated,
    InstanceUnreadable,
    TableRenamed,
)
from penstock.model import TableName
from penstock.model.patterns import as_pattern

LOAD_AGAIN = "Load the table again: penstock reset --target, then penstock run."


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Capture instance as the catalogue has it now.

    Attributes:
        object_id: Of the change table.
        source_id: Object id of the captured table.
        table: Name of the captured table; None if the catalogue does not show it.
        created: create_date as text.
        start: start_lsn of change_tables, as a number; the clean-up job moves it.
        least: Result of fn_cdc_get_min_lsn, as a number; 0 if the caller may not read it.
        altered: ddl_lsn of the last statement that altered the table, as a number; 0 if none did.
    """

    name: str
    object_id: int
    source_id: int
    table: TableName | None
    created: str
    start: int
    least: int
    altered: int = 0

    @property
    def identity(self) -> tuple[int, str]:
        """Return what no other instance has, not even one of the same name."""
        return self.object_id, self.created


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedColumn:
    """Column of a change table. column_id: of the captured table. ordinal: in update masks."""

    ordinal: int
    name: str
    column_id: int
    kind: SqlServerType


class KnownInstance(msgspec.Struct, frozen=True, kw_only=True):
    """Instance as the state file remembers it. start: LSN from which on it has changes."""

    name: str
    object_id: int
    created: str
    start: str

    @property
    def ordinal(self) -> int:
        """Return the start as a number."""
        return SqlServerLsn.parse(self.start).ordinal


class KnownTable(msgspec.Struct, frozen=True, kw_only=True):
    """Captured table with its instances, oldest first. The name is that of the log."""

    schema: str
    name: str
    instances: tuple[KnownInstance, ...]

    @property
    def table(self) -> TableName:
        """Return the name."""
        return TableName(self.schema, self.name)


class KnownCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Transaction that the log has, as the server described it.

    Attributes:
        lsn: Its commit.
        ended: The server's local time of its end, as text.
        id: Its tran_id, in hex.
    """

    lsn: str
    ended: str
    id: str


class KnownTables(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the state file.

    Attributes:
        tables: By object id.
        newest: The greatest max_lsn ever seen.
        begin: Where the log began.
        database: Guid of the database; empty if it is not known.
        commit: The newest transaction that was read.
    """

    tables: dict[int, KnownTable] = {}
    newest: str = ""
    begin: str = ""
    database: str = ""
    commit: KnownCommit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Part of an instance to read: commits from `first` to `last`, as numbers."""

    instance: Instance
    first: int
    last: int


def number(lsn: bytes | None) -> int:
    """Return an LSN of the server as a number, 0 for NULL."""
    return int.from_bytes(lsn or ZERO)


def lsn_bytes(ordinal: int) -> bytes:
    """Return an LSN as the server takes it."""
    return SqlServerLsn(ordinal).data


def lsn_text(ordinal: int) -> str:
    """Return an LSN as text."""
    return str(SqlServerLsn(ordinal))


def _number(text: str) -> int:
    return SqlServerLsn.parse(text).ordinal if text else 0


def _text(ordinal: int) -> str:
    return lsn_text(ordinal) if ordinal else ""


def instances_of(rows: Iterable[tuple[Any, ...]]) -> list[Instance]:
    """Return the instances of the rows of `statements.INSTANCES`."""
    return [
        Instance(
            object_id=int(object_id),
            source_id=int(source_id),
            name=str(name),
            created=str(created),
            start=number(start),
            least=number(least),
            table=None if schema is None or table is None else TableName(schema, table),
            altered=number(altered),
        )
        for object_id, source_id, name, created, start, least, schema, table, altered in rows
    ]


def columns_of(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[CapturedColumn, ...]]:
    """Return the columns of the rows of `statements.COLUMNS`, by the change table's object id.

    Computed columns are left out, because change tables have NULL in them (S12), and so are columns
    that the captured table has no longer.
    """
    found: dict[int, list[CapturedColumn]] = {}
    for object_id, ordinal, name, column_id, computed, kind, length, digits, scale, source in rows:
        columns = found.setdefault(int(object_id), [])
        if not computed and source is not None:
            columns.append(
                CapturedColumn(
                    ordinal=int(ordinal),
                    name=str(name),
                    column_id=int(column_id),
                    kind=catalogue_type(str(kind), int(length), int(digits), int(scale)),
                )
            )
    return {object_id: tuple(columns) for object_id, columns in found.items()}


@dataclass(slots=True)
class Book:
    """Captured tables with all instances that were seen of them.

    Attributes:
        takes: Returns whether a table is captured.
        may_take: Returns whether a renamed table may be captured by its new name: at once, or once
            that is requested.
        tables: By object id.
        newest: The greatest max_lsn ever seen.
        begin: Where the log began, which may be after what the server had captured then.
        is_changed: Whether it has to be saved.
        gone: Tables whose end is in the log, by object id, with its position.
        durable: The log is durable up to this commit.
        database: Guid of the database; empty if it is not known.
        commit: The newest transaction that was read.
    """

    takes: Callable[[TableName], bool]
    tables: dict[int, KnownTable] = field(default_factory=dict)
    newest: int = 0
    begin: int = 0
    is_changed: bool = False
    gone: dict[int, int] = field(default_factory=dict)
    durable: int = 0
    database: str = ""
    commit: KnownCommit | None = None
    may_take: Callable[[TableName], bool] = lambda _: True
    _ending: set[int] = field(default_factory=set)  # renamed tables whose end is not durable

    @classmethod
    def load(cls, state: KnownTables | None, takes: Callable[[TableName], bool]) -> Book:
        """Return the book of a state file."""
        if state is None:
            return cls(takes)
        return cls(
            takes,
            dict(state.tables),
            _number(state.newest),
            _number(state.begin),
            database=state.database,
            commit=state.commit,
        )

    def state(self) -> KnownTables:
        """Return what the state file has to remember."""
        return KnownTables(
            tables=dict(self.tables),
            newest=_text(self.newest),
            begin=_text(self.begin),
            database=self.database,
            commit=self.commit,
        )

    def saw_newest(self, newest: int) -> None:
        """Note the server's newest captured commit; it is saved with the next change."""
        self.newest = max(self.newest, newest)

    def check_database(
        self, guid: str, find: Callable[[int], tuple[int, int, KnownCommit | None]]
    ) -> None:
        """Check that the database is the one that the log was read from. Notes a new one's guid.

        A database that was restored to an earlier time lacks the newest transaction that was read,
        or has another one in its place, once it has captured as much again.

        Args:
            guid: Of the database; empty if the server does not tell.
            find: Returns for a commit LSN the oldest and the newest commit that the server knows,
                and the commit itself.

        Raises:
            DatabaseReplaced: It is another one.
        """
        if self.database and guid and guid != self.database:
            raise DatabaseReplaced(
                f"another database has the source's name now: its guid is {guid}, and the log was "
                f"read from {self.database}",
                hint=f"Name the database of the log in source.url. Or: {LOAD_AGAIN}",
            )
        if guid and not self.database:
            self.database, self.is_changed = guid, True
        if self.commit is None:
            return
        position = _number(self.commit.lsn)
        oldest, newest, commit = find(position)
        if not oldest or oldest > position or newest < position:
            return  # the clean-up job removed it, or the server lags
        if commit != self.commit:
            there = f"the one that ended at {commit.ended}" if commit is not None else "none"
            raise DatabaseReplaced(
                f"the log has a transaction with the commit {self.commit.lsn}, which ended at "
                f"{self.commit.ended}, and the server has {there} there: the database was restored "
                "to an earlier time, or another server took over that lacked changes",
                hint=LOAD_AGAIN,
            )

    def saw_log(self, end: int) -> None:
        """Note the log's end: what is after its begin, the server had captured.

        The log of a silent source ends one after the newest captured commit.
        """
        if end > self.begin:
            self.saw_newest(end - 1)

    def check(
        self, now: Collection[Instance], last: int, *, exists: Callable[[int], bool]
    ) -> list[int]:
        """Add new instances, judge loss, and return the object ids of tables that end here.

        A dropped table ends, and so does a renamed one: by its new name it is another table, as in
        other engines.

        Args:
            now: All instances as they are now.
            last: The log has all commits up to this one.
            exists: Returns whether a table with an object id exists.

        Raises:
            ChangesLost: Changes after `last` were removed.
            InstanceRecreated: The instance that has the changes after `last` is gone.
            InstanceUnreadable: The user may not read an instance.
            InstanceMissing: A table is no longer captured.
            TableRenamed: A table is not captured by its new name.
        """
        self._learn(now, last)
        dropped = []
        by_table: dict[int, list[Instance]] = {}
        for one in now:
            by_table.setdefault(one.source_id, []).append(one)
        for source_id, known in self.tables.items():
            there = by_table.get(source_id, [])
            if source_id in self.gone:
                continue
            if not there and not exists(source_id):
                dropped.append(source_id)
                continue
            _check_table(known, there, last)
            new_name = there[0].table
            if new_name is not None and new_name != known.table:
                if not self.may_take(new_name):
                    raise _renamed_error(known.table, new_name)
                self._ending.add(source_id)
                dropped.append(source_id)
        self._forget_passed({one.identity for one in now})
        return dropped

    def rewind(self) -> None:
        """Note that the log lost what was not durable."""
        self.gone.clear()
        self._ending.clear()

    @property
    def is_ending(self) -> bool:
        """Return whether the end of a renamed table has to be durable before anything else.

        Then the table is known by its new name, and no change of it is left out.
        """
        return any(source_id in self.gone for source_id in self._ending)

    def prune(self, durable: int) -> None:
        """Forget what a log that is durable up to a commit never needs again."""
        for source_id, position in list(self.gone.items()):
            if position <= durable:
                del self.gone[source_id]
                self._ending.discard(source_id)
                self.leave(source_id)
        self.durable = durable

    def _forget_passed(self, there: Collection[tuple[int, str]]) -> None:
        """Forget instances that are gone and were read up to their end. there: identities."""
        for source_id, known in list(self.tables.items()):
            first = current_of(known, self.durable + 1).ordinal
            kept = tuple(
                one
                for one in known.instances
                if one.ordinal >= first or (one.object_id, one.created) in there
            )
            if kept != known.instances:
                self.tables[source_id] = msgspec.structs.replace(known, instances=kept)
                self.is_changed = True

    def leave(self, source_id: int) -> None:
        """Capture a table no more."""
        if self.tables.pop(source_id, None) is not None:
            self.is_changed = True

    def id_of(self, table: TableName) -> int | None:
        """Return the object id of a captured table; None if it is not captured."""
        return next((at for at, one in self.tables.items() if one.table == table), None)

    def _learn(self, now: Collection[Instance], last: int) -> None:
        """Add new instances.

        An instance that is created while a table is captured begins after the log's end, because
        both LSNs grow. It never stands in for an older one that is gone.
        """
        begun = {source_id for source_id, known in self.tables.items() if known.instances}
        for one in now:
            if one.table is None:
                continue
            known = self.tables.get(one.source_id)
            if known is None:
                if not self.takes(one.table):
                    continue
                known = KnownTable(schema=one.table.schema, name=one.table.name, instances=())
            if any((it.object_id, it.created) == one.identity for it in known.instances):
                continue
            new = KnownInstance(
                name=one.name,
                object_id=one.object_id,
                created=one.created,
                start=lsn_text(max(one.start, last + 2) if one.source_id in begun else one.start),
            )
            ordered = sorted((*known.instances, new), key=lambda it: (it.ordinal, it.created))
            self.tables[one.source_id] = msgspec.structs.replace(known, instances=tuple(ordered))
            self.is_changed = True

    def plan(self, now: Collection[Instance], last: int, end: int) -> tuple[list[Range], int]:
        """Return the part of each table to read, and the end of all parts.

        Of each table the newest instance that had started is read; where a newer one starts before
        the end, all tables end there, so that the next batch begins with the newer one.

        Args:
            now: All instances as they are now, after `check`.
            last: The log has all commits up to this one.
            end: The last commit to read.
        """
        chosen = []
        for source_id, known in self.tables.items():
            if source_id in self.gone:
                continue
            current = current_of(known, last + 1)
            for later in known.instances:
                if current.ordinal < later.ordinal <= end:
                    end = min(end, max(later.ordinal - 1, last))
            chosen.append((source_id, current))
        found = {(one.source_id, one.identity): one for one in now}
        parts = []
        for source_id, current in chosen:
            instance = found.get((source_id, (current.object_id, current.created)))
            if instance is not None and current.ordinal <= end:
                parts.append(Range(instance=instance, first=last + 1, last=end))
        return parts, end


def _check_table(known: KnownTable, there: list[Instance], last: int) -> None:
    """Raise the errors of `Book.check` for one table. there: its instances as they are now."""
    table = f"{known.schema}.{known.name}"
    current = current_of(known, last + 1)
    found = {one.identity: one for one in there}
    instance = found.get((current.object_id, current.created))
    if instance is None:
        if there:
            raise InstanceRecreated(
                f"the capture instance {current.name} of {table}, which had the changes after "
                f"{lsn_text(last)}, was dropped; there is {there[0].name}, created at "
                f"{there[0].created}",
                hint=f"Changes in between are lost. {LOAD_AGAIN}",
                table=table,
            )
        raise InstanceMissing(
            f"the table {table} is no longer captured",
            hint=f"Run at the database: {enable_text(known.schema, known.name)} Then: {LOAD_AGAIN}",
            table=table,
        )
    if not instance.least:
        raise InstanceUnreadable(
            f"the capture instance {current.name} of {table} cannot be read",
            hint="Make the user a member of its gating role, and let it read the columns: "
            f"GRANT SELECT ON [{known.schema}].[{known.name}] TO [USER];",
            table=table,
        )
    needed = max(last + 1, current.ordinal)
    if instance.least > needed:
        raise ChangesLost(
            f"the clean-up job has removed changes of {table}: the log has all up to "
            f"{lsn_text(last)}, the change table begins at {lsn_text(instance.least)}",
            hint=f"{LOAD_AGAIN} To keep changes longer: EXEC sys.sp_cdc_change_job "
            "@job_type = N'cleanup', @retention = 10080;",
            table=table,
        )


def _renamed_error(table: TableName, new_name: TableName) -> TableRenamed:
    back = f"EXEC sp_rename {literal(quote(*new_name))}, {literal(table.name)};"
    if table.schema != new_name.schema:
        back = f"ALTER SCHEMA {quote(table.schema)} TRANSFER {quote(*new_name)};"
    return TableRenamed(
        f"{table} is named {new_name} now",
        hint=f"Undo it ({back}) and start again; or have its new name captured ([source] tables "
        f"with '{as_pattern(new_name)}', newTables = \"add\") and start again: its rows are copied "
        "as those of a new table, and the old one stays in the target as it is.",
        table=str(table),
    )


def current_of(known: KnownTable, first: int) -> KnownInstance:
    """Return the instance that has a table's changes from a commit on: the newest that had started.

    If none had started by then, it is the oldest one.
    """
    started = [one for one in known.instances if one.ordinal <= first]
    return started[-1] if started else known.instances[0]


def enable_text(schema: str, name: str, *, instance: str = "") -> str:
    """Return the statement by which a table is captured. instance: name of a second instance."""
    more = f", @capture_instance = {literal(instance)}" if instance else ""
    return (
        f"EXEC sys.sp_cdc_enable_table @source_schema = {literal(schema)}, @source_name = "
        f"{literal(name)}, @role_name = NULL, @supports_net_changes = 0{more};"
    )


__all__ = [
    "Book",
    "CapturedColumn",
    "Instance",
    "KnownCommit",
    "KnownInstance",
    "KnownTable",
    "KnownTables",
    "Range",
    "columns_of",
    "current_of",
    "enable_text",
    "instances_of",
    "lsn_bytes",
    "lsn_text",
    "number",
]
