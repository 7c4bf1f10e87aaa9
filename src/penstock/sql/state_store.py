"""Store of progress in a target: the tables of schema `wirekite`, for every SQL engine.

`wirekite_progress` and `wirekite_action` are Wirekite's, with the choices it leaves open made
as ARCHITECTURE.md says. The other tables are our own: `wirekite_log` binds the target to one change
log and stores how far it is applied, `wirekite_staged` the same for each log that instances share,
`wirekite_table` the shapes of captured tables as applied, `wirekite_apart` the tables with a table
sync (`load/table_sync.py`), `wirekite_ahead` the tables that have the changes of a batch of which
other parts are missing (`load/apply_parts.py`), `wirekite_merge` a stamp for each merge table if
the engine has no better place, `bulk_table` the tables that the bulk load has begun and finished.
In their definitions words in braces are a dialect's types.

A `StateDialect` (`state_dialect.py`) has the differences between engines. Statements are written
once, with `?` for each parameter. They use no boolean literal, no `limit`, and no conversion of
types, so that the same text runs on every engine.

A subclass of an engine runs the statements on its connection. Progress is written in the
transaction of the rows, so every method runs on the connection, and in the transaction, that the
caller has opened. Not here: the engines' own dialects (`target/progress.py` of each), and the
statements that empty tables for a reset (the engines).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.ports.bulk import ChunkCounts, Mark
from penstock.ports.progress import (
    SHOWN_MAX,
    Progress,
    ProgressRow,
    SharedProgress,
    TargetReader,
    Unfinished,
)
from penstock.ports.reset import Leftovers
from penstock.ports.target import (
    SCHEMA,
    ActionUnknown,
    Applied,
    AppliedByAnother,
    FileProgress,
    ProgressUnwritable,
    SyncState,
    TableRecord,
    TableSync,
    TargetFollowsAnotherLog,
    TargetProgress,
    is_shared,
    left_out_columns,
)
from penstock.sql.state_dialect import StateDialect, Upsert

_FIELDS = (
    *("columns", "ids", "source_id", "collations", "unique", "log_id", "version"),
    *("key", "not_null", "computed", "left_out", "kept", "notes"),
)


def shape_text(record: TableRecord) -> str | None:
    """Return the text of a record's shape; None if it has no relation yet."""
    if record.columns is None:
        return None
    return json.dumps({name: getattr(record, name) for name in _FIELDS})


def shape_fields(text: str | None) -> dict[str, Any]:
    """Return the fields of a TableRecord that the text holds."""
    if text is None:
        return {"columns": None}
    held = json.loads(text)
    if isinstance(held, list):  # as earlier versions kept it: the columns alone
        held = {"columns": held}
    return {name: _in_tuples(held[name]) for name in _FIELDS if name in held}


def _in_tuples(value: Any) -> Any:
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value


_APPLIED_DDL = """
        applied_segment  bigint default -1 not null,
        applied_gsn      bigint default 0 not null,
        applied_trx      bigint default 0 not null,
        applied_position {position} default 0 not null,
        applied_commit   {moment} null"""

TABLES = {
    "wirekite_progress": """
        source       varchar(256) not null,
        target       varchar(256) not null,
        operation    varchar(2) not null,
        transmission varchar(1) not null,
        mark         varchar(64) null,
        table_name   varchar(256) null,
        start_time   {start_time},
        finish_time  {finish_time},
        restarts     int default 0 not null,
        primary key (source, target)""",
    "wirekite_action": """
        action {action}""",
    "wirekite_log": f"""
        only_row         {{only_row}},
        log_id           {{log_id}} not null,{_APPLIED_DDL}""",
    "wirekite_staged": f"""
        log_id           {{log_id}} primary key,{_APPLIED_DDL},
        holder           {{holder}},
        taken_over       {{moment}} null""",
    "wirekite_table": """
        source_schema {name} not null,
        source_name   {name} not null,
        target_schema {name} not null,
        target_name   {name} not null,
        merge_name    {name} not null unique,
        made          {flag} not null,
        columns       {long_text} null,
        primary key (source_schema, source_name)""",
    "wirekite_apart": """
        source_schema    {name} not null,
        source_name      {name} not null,
        state            varchar(16) not null,
        copy_id          bigint not null,
        start_position   {position} not null,
        applied_segment  bigint not null,
        applied_gsn      bigint not null,
        applied_trx      bigint not null,
        applied_position {position} not null,
        since            {moment} not null,
        primary key (source_schema, source_name)""",
    "wirekite_ahead": """
        log_id        {log_id} not null,
        source_schema {name} not null,
        source_name   {name} not null,
        applied_gsn   bigint not null,
        primary key (log_id, source_schema, source_name)""",
    "wirekite_merge": """
        merge_name {name} not null primary key,
        stamp      bigint not null,
        shape      {long_text} not null""",
    "bulk_table": """
        source_schema {name} not null,
        source_name   {name} not null,
        {plan}        varchar(64) not null,
        position      varchar(256) not null,
        row_count     bigint null,
        start_time    {moment} not null,
        finish_time   {moment} null,
        primary key (source_schema, source_name)""",
}


_VARCHAR = re.compile(r"\bvarchar\((\d+)\)")


def create_text(name: str, dialect: StateDialect) -> str:
    """Return the statement that creates a state table."""
    columns = _VARCHAR.sub(
        lambda match: dialect.varchar.format(match[1]), TABLES[name].format_map(dialect.types)
    )
    columns = re.sub(r"\bbigint\b", dialect.bigint, columns)
    return f"{dialect.create_table} {SCHEMA}.{name} ({columns}\n    ){dialect.table_options}"


ACTIONS = ("RUN", "PAUSE", "STOP")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the columns have no time zone: UTC

ACTION = f"{SCHEMA}.wirekite_action"
PROGRESS = f"{SCHEMA}.wirekite_progress"
LOG = f"{SCHEMA}.wirekite_log"
STAGED = f"{SCHEMA}.wirekite_staged"
TABLE = f"{SCHEMA}.wirekite_table"
APART = f"{SCHEMA}.wirekite_apart"
AHEAD = f"{SCHEMA}.wirekite_ahead"
BULK = f"{SCHEMA}.bulk_table"

Lock = Literal["", "update", "share"]

_TABLE_KEY = ("source_schema", "source_name")
_APPLIED = ("applied_segment", "applied_gsn", "applied_trx", "applied_position")
_RECORD = ("target_schema", "target_name", "merge_name", "made", "columns")
_APART = ("state", "copy_id", "start_position", *_APPLIED)


def utc(microseconds_: int) -> datetime | None:
    """Return microseconds since 1970 as naive UTC time; None for 0."""
    return _EPOCH + timedelta(microseconds=microseconds_) if microseconds_ else None


def microseconds(moment: datetime | None) -> int:
    """Return the inverse of `utc`; aware times are converted."""
    if moment is None:
        return 0
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def check_action(action: str) -> None:
    """Raise ActionUnknown unless it is RUN, PAUSE or STOP."""
    if action not in ACTIONS:
        raise ActionUnknown(f"no such action: {action!r}", hint="Use RUN, PAUSE or STOP.")


def applied_by_another(before: Applied) -> AppliedByAnother:
    """Return the error for a target that is not where this loader left it."""
    return AppliedByAnother(
        f"the target's applied position is no longer gsn {before.gsn}",
        hint="Let one loader work on a target: stop the other `penstock run` or `penstock load`.",
    )


def applied_by_another_table(table: TableName) -> AppliedByAnother:
    """Return the error for a table that is not where this loader left it."""
    return AppliedByAnother(
        f"another process has applied changes of {table} to the target",
        hint="Let one loader work on a target: stop the other `penstock run` or `penstock load`.",
    )


class StateSession:
    """Connection to a target, as the state tables need it; every error is typed.

    Attributes:
        dialect: The engine's SQL.
        tables: Tables that `ensure_tables` creates.
    """

    dialect: ClassVar[StateDialect]
    tables: ClassVar[tuple[str, ...]] = (
        "wirekite_progress",
        "wirekite_action",
        "wirekite_log",
        "wirekite_table",
        "wirekite_apart",
    )
    _keeps_ahead = False

    # --- what an engine implements ----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        raise NotImplementedError

    def rows(self, sql: str, values: Sequence[object] = (), *, doing: str) -> Sequence[Any]:
        """Return the rows of a query as tuples. doing: names the work in errors."""
        raise NotImplementedError

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        """Run a statement and return the number of rows that it found."""
        raise NotImplementedError

    def run_many(self, sql: str, rows: Iterable[Sequence[object]], *, doing: str) -> None:
        """Run a statement once for each row of values."""
        for values in rows:
            self.run(sql, values, doing=doing)

    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction, which is rolled back on any error."""
        raise NotImplementedError

    def create_alone(self) -> AbstractContextManager[object]:
        """Let one session at a time create tables; `if not exists` alone is not safe."""
        raise NotImplementedError

    def is_missing(self, error: StatementFailed) -> bool:
        """Return whether a statement failed because its table or schema does not exist."""
        raise NotImplementedError

    def unwritable(self, error: PrivilegeMissing) -> ProgressUnwritable:
        """Return the error, with what to type, if the tables cannot be created."""
        raise NotImplementedError

    def under_way(self) -> Mapping[TableName, int]:
        """Return nothing, because uncommitted rows are not known here."""
        return {}

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    # --- tables -----------------------------------------------------------------------------------

    def ensure_tables(self) -> None:
        """Create missing tables, and their schema. Raises ProgressUnwritable."""
        self.ensure(self.tables)

    @property
    def keeps_ahead(self) -> bool:
        """Return whether the table of tables that are ahead exists, as last seen."""
        return self._keeps_ahead

    def ensure(self, names: Sequence[str]) -> None:
        """Create those of these tables that are missing, and their schema."""
        present = self.present_tables()
        self._keeps_ahead = "wirekite_ahead" in {*present, *names}
        if present >= set(names):
            return
        doing = f"creating the tables of {self.dialect.container} {SCHEMA}"
        try:
            with self.create_alone():
                if not self.has_schema():
                    self.run(self.dialect.create_schema, doing=doing)
                present = self.present_tables()
                missing = [name for name in names if name not in present]
                for name in missing:
                    self.run(create_text(name, self.dialect), doing=doing)
                if missing and "wirekite_action" in names and not self.read_words():
                    self.run(f"insert into {ACTION} values ('RUN')", doing=doing)
        except PrivilegeMissing as error:
            raise self.unwritable(error) from error

    def has_schema(self) -> bool:
        """Return whether schema or database `wirekite` exists."""
        return bool(self.rows(self.dialect.has_schema, doing="looking for the state tables"))

    def present_tables(self) -> set[str]:
        """Return the names of the state tables that exist."""
        names = ", ".join(f"'{name}'" for name in TABLES)
        query = self.dialect.present.format(names=names)
        return {row[0] for row in self.rows(query, doing="looking for the state tables")}

    def present(self) -> tuple[bool, bool]:
        """Return whether the progress tables exist, and whether those of a bulk load do."""
        found = self.present_tables()
        return "wirekite_progress" in found, "bulk_table" in found

    def read_if_there(
        self, sql: str, values: Sequence[object] = (), *, doing: str
    ) -> Sequence[Any]:
        """Return the rows of a query; none if its table does not exist."""
        try:
            return self.rows(sql, values, doing=doing)
        except StatementFailed as error:
            if not self.is_missing(error):
                raise
            return ()

    def select(self, columns: Sequence[str], table: str, where: str = "", lock: Lock = "") -> str:
        """Return a query, with a lock of its rows that lasts until the transaction ends."""
        locks = {"update": self.dialect.for_update, "share": self.dialect.for_share}
        chosen = locks.get(lock)
        hint, suffix = (chosen.hint, chosen.suffix) if chosen else ("", "")
        condition = f" where {where}" if where else ""
        return f"select {', '.join(columns)} from {table}{hint}{condition}{suffix}"

    def read_words(self) -> Sequence[Any]:
        """Return the rows of wirekite_action."""
        query = self.select(["action"], ACTION)
        return self.read_if_there(query, doing="reading the action")


class StateStore(StateSession, Progress, TargetProgress, TargetReader, SharedProgress, ChunkCounts):
    """Implementation of `Progress`, `TargetProgress`, `TargetReader` and their like."""

    # --- RUN, PAUSE, STOP -------------------------------------------------------------------------

    def read_action(self) -> str:
        found = self.read_words()
        word = str(found[0][0]).strip().upper() if found else "RUN"
        if word not in ACTIONS:
            raise ActionUnknown(
                f"wirekite.wirekite_action holds {word!r}, expected RUN, PAUSE or STOP",
                hint=f"Run: {self.action_command()}",
            )
        return word

    def action_command(self) -> str:
        """Return what to type to set the action to RUN."""
        return "update wirekite.wirekite_action set action = 'RUN';"

    def action(self) -> str:
        return self.read_action()

    def set_action(self, action: str) -> None:
        check_action(action)
        doing, insert = "writing the action", f"insert into {ACTION} values (?)"
        with self.transaction():
            has_row = self.rows(self.select(["action"], ACTION, lock="update"), doing=doing)
            sql = f"update {ACTION} set action = ?" if has_row else insert
            self.run(sql, (action,), doing=doing)

    # --- the log that is applied, and how far -----------------------------------------------------

    def log_id(self) -> str:
        found = self.read_if_there(self.select(["log_id"], LOG), doing="reading the log's id")
        return str(found[0][0]) if found else ""

    def bind_log(self, log_id: str) -> Applied:
        """Bind the target to a change log, or check that it is, and return how far it is applied.

        Raises TargetFollowsAnotherLog, because GSNs of two logs cannot be compared.
        """
        if is_shared(log_id):
            return self.read_applied(log_id)
        doing = "binding the target to the log"
        row = Upsert(
            table=LOG, values={"only_row": self.dialect.true, "log_id": "?"}, keys=(("only_row",),)
        )
        self.run(self.dialect.upsert(row), (log_id,), doing=doing)
        with self.transaction():
            found = self.rows(self.select(["log_id"], LOG, lock="update"), doing=doing)
        bound = found[0][0] if found else "unknown"
        if bound != log_id:
            raise TargetFollowsAnotherLog(
                f"the target follows change log {bound}, this pipeline's is {log_id}",
                hint="Use the directory of the pipeline that loaded this target, another target "
                f"database, or give up its state: {self.dialect.drop_schema} and load afresh.",
            )
        return self.read_applied()

    def read_applied(self, log_id: str = "", *, lock: Lock = "") -> Applied:
        """Return how far a log is applied; all zero if nothing is, or no table exists.

        Args:
            log_id: Id of a shared log; otherwise the one log that the target follows is read.
            lock: Lock of the row until the transaction ends: "update" or "share".
        """
        has_key = is_shared(log_id)
        query = self.select(
            [*_APPLIED, "applied_commit"],
            STAGED if has_key else LOG,
            "log_id = ?" if has_key else "",
            lock,
        )
        values = (log_id,) if has_key else ()
        found = self.read_if_there(query, values, doing="reading the applied position")
        if not found:
            return Applied()
        segment, gsn, trx, position, commit = found[0]
        return Applied(
            segment=int(segment),
            gsn=int(gsn),
            trx=int(trx),
            position=int(position),
            commit_time_us=microseconds(commit),
        )

    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        """Move the applied position inside the batch's transaction.

        Raises AppliedByAnother if it is not where this loader left it: then the transaction must be
        rolled back.
        """
        changes = ", ".join(f"{column} = ?" for column in (*_APPLIED, "applied_commit"))
        # A loader that divides batches may have created the table of tables that are ahead since
        # this one looked for it. The same statement notices that, without a round trip of its own.
        has_key = is_shared(log_id)
        no_ahead = "" if has_key or self.keeps_ahead else self.dialect.has_no_ahead
        found = self.run(
            f"update {STAGED if has_key else LOG} set {changes} where log_id = ?"
            " and applied_segment = ? and applied_gsn = ? and applied_position = ?"
            + (f" and {no_ahead}" if no_ahead else ""),
            (
                *_values_of(after),
                utc(after.commit_time_us),
                *(log_id, before.segment, before.gsn, before.position),
            ),
            doing="moving the applied position",
        )
        if found != 1:
            raise applied_by_another(before)

    # --- tables that are ahead of the applied position --------------------------------------------

    def ensure_ahead(self) -> None:
        self.ensure((*self.tables, "wirekite_ahead"))

    def read_ahead(self, log_id: str, *, lock: Lock = "") -> dict[TableName, int]:
        query = self.select((*_TABLE_KEY, "applied_gsn"), AHEAD, "log_id = ?", lock)
        found = self.read_if_there(query, (log_id,), doing="reading the tables that are ahead")
        return {TableName(schema, name): int(gsn) for schema, name, gsn in found}

    def prepared_names(self) -> tuple[str, ...]:
        """Return the names of prepared parts of a batch; an engine that prepares them knows."""
        return ()

    def read_unfinished(self) -> Unfinished:
        if "wirekite_ahead" not in self.present_tables():  # as long as one session applies
            return Unfinished()
        tables = tuple(sorted(self.read_ahead(self.log_id())))
        return Unfinished(tables=tables, prepared=self.prepared_names())

    def check_ahead(self, *, log_id: str, expected: Mapping[TableName, int], at: Applied) -> None:
        # A plain read may not see commits after the transaction's first one.
        if self.read_ahead(log_id, lock="share") != expected:
            raise applied_by_another(at)

    def put_ahead(
        self, *, log_id: str, tables: Iterable[TableName], known: Mapping[TableName, int], gsn: int
    ) -> None:
        columns = ("log_id", *_TABLE_KEY, "applied_gsn")
        row = Upsert(table=AHEAD, values=_parameters_of(*columns), keys=(columns[:-1],))
        insert = self.dialect.upsert(row)
        update = (
            f"update {AHEAD} set applied_gsn = ? where log_id = ?"
            " and source_schema = ? and source_name = ? and applied_gsn = ?"
        )
        doing = "recording a table that is ahead"
        for table in sorted(tables):
            if table in known:
                found = self.run(update, (gsn, log_id, *table, known[table]), doing=doing)
            else:
                found = self.run(insert, (log_id, *table, gsn), doing=doing)
            if found != 1:
                raise applied_by_another_table(table)

    def clear_ahead(self, *, log_id: str, gsn: int) -> None:
        sql = f"delete from {AHEAD} where log_id = ? and applied_gsn <= ?"
        self.run(sql, (log_id, gsn), doing="forgetting tables that were ahead")

    def hold_applied(self, *, log_id: str, at: Applied) -> None:
        where = "log_id = ? and applied_segment = ? and applied_gsn = ? and applied_position = ?"
        query = self.select(["log_id"], LOG, where, "share")
        values = (log_id, at.segment, at.gsn, at.position)
        if not self.rows(query, values, doing="reading the applied position"):
            raise applied_by_another(at)

    # --- logs that instances share ----------------------------------------------------------------

    def take_over(self, log_id: str, holder: str) -> Applied:
        self.ensure((*self.tables, "wirekite_staged"))
        old, dialect = self.dialect.old, self.dialect
        row = Upsert(
            table=STAGED,
            values={"log_id": "?", "holder": "?", "taken_over": dialect.utc_now},
            keys=(("log_id",),),
            changes={
                "applied_segment": f"{old.format('applied_segment')} + 1",
                **dialect.take_inserted(("holder", "taken_over")),
            },
        )
        doing = "taking over the applied position"
        self.run(dialect.upsert(row), (log_id, holder), doing=doing)
        return self.read_applied(log_id)

    def ensure_shared(self, log_id: str) -> None:
        """Insert the row of a shared log unless it is there."""
        if self._holder(log_id) is None:
            self.ensure((*self.tables, "wirekite_staged"))
            row = Upsert(table=STAGED, values={"log_id": "?"}, keys=(("log_id",),))
            doing = "creating the row of the applied position"
            self.run(self.dialect.upsert(row), (log_id,), doing=doing)

    def _holder(self, log_id: str) -> str | None:
        query = self.select(["holder"], STAGED, "log_id = ?")
        doing = "reading who has the applied position"
        found = self.read_if_there(query, (log_id,), doing=doing)
        return str(found[0][0] or "") if found else None

    def holder(self, log_id: str) -> str:
        return self._holder(log_id) or ""

    def read_shared(self, log_id: str) -> Applied:
        return self.read_applied(log_id)

    # --- rows of wirekite_progress ----------------------------------------------------------------

    def _begin_rows(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Insert rows (source, target, operation, mark, table); an open row counts a restart."""
        old = self.dialect.old.format
        row = Upsert(
            table=PROGRESS,
            values={
                **_parameters_of("source", "target", "operation", "mark", "table_name"),
                "transmission": "'F'",
                "start_time": self.dialect.now,
            },
            keys=(("source", "target"),),
            changes={
                "restarts": f"{old('restarts')} + "
                f"case when {old('finish_time')} is null then 1 else 0 end"
            },
        )
        self.run_many(self.dialect.upsert(row), rows, doing="writing progress rows")

    def _end_rows(self, rows: Iterable[tuple[object, ...]]) -> None:
        """Write rows (source, target, operation, mark, table, whether it is finished: 1 or 0)."""
        now = self.dialect.now
        row = Upsert(
            table=PROGRESS,
            values={
                **_parameters_of("source", "target", "operation", "mark", "table_name"),
                "transmission": "'F'",
                "start_time": now,
                "finish_time": f"case when ? = 1 then {now} end",
            },
            keys=(("source", "target"),),
            changes=self.dialect.take_inserted(("mark", "operation", "finish_time")),
        )
        self.run_many(self.dialect.upsert(row), rows, doing="writing progress rows")

    def begin_files(self, files: Iterable[str]) -> None:
        """Insert the CL rows of a batch that begins."""
        with self.transaction():
            self._begin_rows((file, "CL", "CL", None, None) for file in files)

    def end_files(self, files: Iterable[FileProgress]) -> None:
        """Write the CL rows of an applied batch; call inside its transaction."""
        self._end_rows(
            (one.file, "CL", "CL", str(one.mark), None, int(one.finished)) for one in files
        )

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        self._begin_rows([(slot, file, "CE", mark, None)])

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        self._end_rows([(slot, file, "CE", mark, None, 1)])

    def finished_segments(self, slot: str) -> set[str]:
        where = "operation = 'CE' and source = ? and finish_time is not null"
        query = self.select(["target"], PROGRESS, where)
        return {row[0] for row in self.rows(query, (slot,), doing="reading progress rows")}

    def begin_chunk(self, *, table: TableName, number: int) -> None:
        """Insert the DL row of a chunk of the bulk load: source is `schema.table.N`."""
        self._begin_rows([(f"{table}.{number}", "DL", "DL", None, str(table))])

    def end_chunk(self, *, table: TableName, number: int, row_count: int) -> None:
        """Close the DL row of a chunk, inside the transaction that wrote its rows."""
        self._end_rows([(f"{table}.{number}", "DL", "DL", str(row_count), str(table), 1)])

    def rows_of_chunk(self, table: TableName, number: int) -> int | None:
        """Return the rows of a finished chunk; None if it is not finished.

        Locks the row: a plain read may not see commits after the transaction's first one.
        """
        where = "source = ? and target = 'DL' and finish_time is not null"
        query = self.select(["mark"], PROGRESS, where, "update")
        found = self.rows(query, (f"{table}.{number}",), doing="reading progress rows")
        return int(found[0][0]) if found else None

    def finished_chunks(self, table: TableName) -> dict[int, int]:
        """Return the rows of each finished chunk of a table, by its number."""
        where = "operation = 'DL' and table_name = ? and finish_time is not null"
        query = self.select(["source", "mark"], PROGRESS, where)
        found = self.rows(query, (str(table),), doing="reading progress rows")
        return {_number(source): int(mark) for source, mark in found}

    def read_done(self) -> dict[str, dict[int, int]]:
        done: dict[str, dict[int, int]] = {}
        where = "operation = 'DL' and finish_time is not null"
        query = self.select(["table_name", "source", "mark"], PROGRESS, where)
        for table, source, mark in self.read_if_there(query, doing="reading progress rows"):
            done.setdefault(table, {})[_number(source)] = int(mark)
        return done

    def forget_chunks(self, table: TableName) -> None:
        """Delete the DL rows of a table that is loaded again."""
        self.run(
            f"delete from {PROGRESS} where operation = 'DL' and table_name = ?",
            (str(table),),
            doing="forgetting chunks",
        )

    def newest(self, operation: str) -> tuple[ProgressRow, ...]:
        query = self.dialect.newest.format(operation=operation, limit=SHOWN_MAX)
        return tuple(
            ProgressRow(source=source, mark=mark, start_time=start, finish_time=finish)
            for source, mark, start, finish in self.rows(query, doing="reading progress rows")
        )

    def restarts(self) -> int:
        query = self.select(["coalesce(sum(restarts), 0)"], PROGRESS)
        [row] = self.rows(query, doing="reading progress rows")
        return int(row[0])

    @property
    def counts(self) -> ChunkCounts:
        return self

    # --- tables that the bulk load has begun and finished -----------------------------------------

    def ensure_marks(self) -> None:
        """Create the table of marks if it is missing."""
        self.ensure(("bulk_table",))

    def read_marks(self) -> dict[TableName, Mark]:
        """Return the marks of all tables, by source name; none if there is no table of marks."""
        columns = (*_TABLE_KEY, self.dialect.types["plan"], "position", "row_count", "finish_time")
        found = self.read_if_there(self.select(columns, BULK), doing="reading what is loaded")
        done = self.read_done() if found else {}
        return {
            (table := TableName(schema, name)): Mark(
                plan=plan,
                position=position,
                row_count=row_count,
                finished=finish is not None,
                done=done.get(str(table), {}),
            )
            for schema, name, plan, position, row_count, finish in found
        }

    def begin_mark(self, table: TableName, plan: str, position: str) -> None:
        """Put a table under a plan, as begun."""
        plan_column, now = self.dialect.types["plan"], self.dialect.utc_now
        row = Upsert(
            table=BULK,
            values={**_parameters_of(*_TABLE_KEY, plan_column, "position"), "start_time": now},
            keys=(_TABLE_KEY,),
            changes={
                **self.dialect.take_inserted((plan_column, "position", "start_time")),
                "row_count": "null",
                "finish_time": "null",
            },
        )
        doing = "recording the plan of a table"
        self.run(self.dialect.upsert(row), (*table, plan, position), doing=doing)

    def finish_mark(self, table: TableName, plan: str, row_count: int) -> bool:
        """Record that a table is loaded, and return whether it follows this plan."""
        sql = f"update {BULK} set row_count = ?, finish_time = {self.dialect.utc_now}"
        values = (row_count, *table, plan)
        return self.run(sql + self._of_plan, values, doing=f"finishing {table}") == 1

    def holds_plan(self, table: TableName, plan: str) -> bool:
        """Return whether a table follows this plan, and keep it so until the transaction ends.

        A process that begins the table again waits for the transactions of its chunks.
        """
        where = f"{self._of_plan.removeprefix(' where ')} and finish_time is null"
        query = self.select([self.dialect.types["plan"]], BULK, where, "share")
        return bool(self.rows(query, (*table, plan), doing="reading the plan of a table"))

    @property
    def _of_plan(self) -> str:
        plan = self.dialect.types["plan"]
        return f" where source_schema = ? and source_name = ? and {plan} = ?"

    # --- shapes of captured tables ----------------------------------------------------------------

    def read_tables(self) -> dict[TableName, TableRecord]:
        """Return the records of all captured tables, by source name; none without the table."""
        query = self.select((*_TABLE_KEY, *_RECORD), TABLE)
        found = self.read_if_there(query, doing="reading the captured tables")
        return {
            (source := TableName(row[0], row[1])): TableRecord(
                source=source,
                target=TableName(row[2], row[3]),
                merge_name=row[4],
                made=bool(row[5]),
                **shape_fields(row[6]),
            )
            for row in found
        }

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        return left_out_columns(self.read_tables())

    def made_tables(self) -> set[TableName]:
        """Return the target tables that penstock created."""
        return {record.target for record in self.read_tables().values() if record.made}

    def write_tables(self, records: Iterable[TableRecord]) -> None:
        """Insert or replace records; `made` stays true once it is."""
        old, new = self.dialect.old.format("made"), self.dialect.new.format("made")
        made = {"made": self.dialect.either.format(old, new)}
        replaced = self.dialect.take_inserted(_RECORD)
        self._write_records({**replaced, **made}, records)

    def add_table(self, record: TableRecord) -> None:
        """Insert a record unless it, or another with its merge name, exists already.

        If two connections come at once, one waits for the other and then finds its record.
        """
        self._write_records({}, [record])

    def _write_records(self, changes: Mapping[str, str], records: Iterable[TableRecord]) -> None:
        row = Upsert(
            table=TABLE,
            values=_parameters_of(*_TABLE_KEY, *_RECORD),
            keys=(_TABLE_KEY, ("merge_name",)),
            changes=changes,
        )
        values = (
            (*one.source, *one.target, one.merge_name, one.made, shape_text(one)) for one in records
        )
        self.run_many(self.dialect.upsert(row), values, doing="recording a captured table")

    # --- tables with a table sync -----------------------------------------------------------------

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        query = self.select((*_TABLE_KEY, *_APART), APART)
        return {
            (table := TableName(schema, name)): TableSync(
                table=table,
                state=SyncState(state),
                copy_id=int(copy_id),
                start=int(start),
                applied=Applied(
                    segment=int(segment), gsn=int(gsn), trx=int(trx), position=int(position)
                ),
            )
            for schema, name, state, copy_id, start, segment, gsn, trx, position in (
                self.read_if_there(query, doing="reading the table syncs")
            )
        }

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        return self.read_table_syncs()

    def write_table_sync(self, row: TableSync) -> None:
        """Insert or replace the row of a table."""
        changed = Upsert(
            table=APART,
            values={**_parameters_of(*_TABLE_KEY, *_APART), "since": self.dialect.utc_now},
            keys=(_TABLE_KEY,),
            changes=self.dialect.take_inserted((*_APART, "since")),
        )
        values = (*row.table, str(row.state), row.copy_id, row.start, *_values_of(row.applied))
        self.run(self.dialect.upsert(changed), values, doing="writing the state of a table")


class Records:
    """Contents of `wirekite.wirekite_table`, as one connection has read them.

    Two connections of a loader use them at the same time, one for staging and one for applying; a
    record that either creates is never overwritten by the other.
    """

    def __init__(self, store: StateStore) -> None:
        """Store the tables of a connection: autocommit, or in the records' transaction."""
        self._store = store
        self._known: dict[TableName, TableRecord] = {}

    def get(self, source: TableName, target: TableName) -> TableRecord:
        """Return the record of a captured table; create it if there is none."""
        while source not in self._known:
            self._known = self._store.read_tables()
            if source not in self._known:
                self._add(source, target)  # nothing happens if its merge name was taken just now
        return self._known[source]

    def _add(self, source: TableName, target: TableName) -> None:
        taken = {record.merge_name: record.target for record in self._known.values()}
        name = self._store.dialect.merge_name(target, taken)
        record = TableRecord(
            source=source, target=target, merge_name=name, made=False, columns=None
        )
        self._store.add_table(record)

    def put(self, record: TableRecord) -> None:
        """Write a record over an existing one."""
        self._store.write_tables([record])
        self._known[record.source] = record

    def forget(self) -> None:
        """Read the records again when next needed: after a failure."""
        self._known.clear()


def _parameters_of(*columns: str) -> dict[str, str]:
    """Return a parameter for each column."""
    return dict.fromkeys(columns, "?")


def _values_of(applied: Applied) -> tuple[int, int, int, int]:
    return applied.segment, applied.gsn, applied.trx, applied.position


def _number(source: str) -> int:
    """Return a chunk's number from the source of its DL row."""
    return int(source.rpartition(".")[2])


Empty = Callable[[Collection[TableName], Collection[TableName]], Iterable[Removal]]


def find_leftovers(
    store: StateStore, tables: Collection[TableName] | None, empty: Empty
) -> Leftovers:
    """Return what the target holds of a pipeline.

    Args:
        store: The target's state tables.
        tables: Tables to empty, with those that the target remembers; None: tables stay.
        empty: Plans the emptying of tables; its second argument are those that penstock created.

    Removals are in an order in which a reset that was killed can be repeated: the tables first, and
    what remembers them last.
    """
    removals: list[Removal] = []
    if tables is not None:
        known = {record.target for record in store.read_tables().values()}
        removals += empty({*tables, *known}, store.made_tables())
    log_id = store.log_id()
    if store.has_schema():
        container = store.dialect.container
        removals.append(
            Removal(
                what=f"the pipeline's progress at the target: {container} {SCHEMA}",
                statements=(store.dialect.drop_schema,),
            )
        )
    return Leftovers(log_id=log_id, removals=tuple(removals))
