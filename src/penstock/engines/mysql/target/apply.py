"""Applying one batch to a MySQL or MariaDB target: changed shapes first, then one transaction.

foreign_key_checks is off in this session, which needs no privilege: rows arrive in any order, and
effects of foreign keys on referring rows (cascades) are in the log if the source had them. Triggers
cannot be switched off here: a table with triggers is refused unless they are allowed. Not here: the
statements (`merge.py`, `alter.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from pymysql.cursors import Cursor

from penstock.codec.types import NO_CHOICES, Choices, Engine
from penstock.codec.types import Mapping as TypeMapping
from penstock.engines.mysql.connect import (
    Connection,
    connect,
    quote,
    rows,
    run,
    server_errors,
    value,
)
from penstock.engines.mysql.target.alter import Alterer, later_fills
from penstock.engines.mysql.target.claims import alone
from penstock.engines.mysql.target.direct import (
    UnsureTables,
    begin_replaying,
    direct_load,
    event_table,
    replay,
    replays,
    table_altered,
)
from penstock.engines.mysql.target.layout import as_defined, mapping_of, target_server
from penstock.engines.mysql.target.merge import Merge, MergeSql, MergeStrategy, writes_of
from penstock.engines.mysql.target.merge_tables import check_staged, drop_merge_tables
from penstock.engines.mysql.target.progress import MySQLProgress, transaction
from penstock.engines.mysql.target.refusals import (
    HARMLESS,
    RowsUnexpected,
    apply_error,
    value_refused,
)
from penstock.engines.mysql.target.reshape import Changes, Reshaping
from penstock.engines.mysql.target.rows_files import RowsFile, files_of, pieces_of
from penstock.engines.mysql.target.send import PACKET_BYTES, load_local
from penstock.engines.mysql.target.target import (
    TargetTable,
    accepting_documents,
    read_target_tables,
    require,
)
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementFailed
from penstock.model import LOAD_AFRESH, Column, PenstockError, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, ChangeKind, Policies
from penstock.ports.sql_target import SqlTarget
from penstock.ports.target import (
    Applied,
    MergeSpec,
    PhaseSpec,
    ShapeNote,
    StagingChanged,
    TableRecord,
    TargetNotTransactional,
    TargetRowMissing,
    TriggersWouldFire,
    target_name,
)
from penstock.sql.schema_drift import find_kept_merges
from penstock.sql.shape_changes import (
    is_applied,
    renamed_columns,
    replaced_columns,
    type_rules_of,
    with_copied_ids,
)
from penstock.sql.state_store import Records, applied_by_another

logger = structlog.get_logger(__name__)

LOCK_TIMEOUT_S = 10
APPLICATION_NAME = "penstock loader"
GUARD_NAME = "penstock loader guard"
TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster"})


def lock_timeouts(seconds: int) -> dict[str, str]:
    """Return session settings that limit the wait for rows and tables that others use."""
    return {"innodb_lock_wait_timeout": str(seconds), "lock_wait_timeout": str(seconds)}


class MySQLTarget(SqlTarget):
    """Applying side; see `SqlTarget`. All its sessions ignore foreign keys."""

    replica = True

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        unsure: UnsureTables | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Connect. Raises the typed errors of a connection.

        choices: of [target.types]. policies: of [schemaChanges]. unsure: receives the tables whose
        rows differed from the log.
        """
        self._url = url
        self._namespaces = namespaces
        self._allow_triggers = allow_triggers
        self._choices = choices
        self._policies = policies
        self._unsure = unsure or UnsureTables()
        self.clock = clock
        self._noted: list[ShapeNote] = []
        self._replays = False
        self._source_engine = ""
        self.log_id = ""
        settings = {**lock_timeouts(LOCK_TIMEOUT_S), "foreign_key_checks": "0"}
        self.connection: Connection = connect(
            url,
            application_name=APPLICATION_NAME,
            options=settings,
            found_rows=True,
            local_infile=True,
        )
        self._server = target_server(self.connection.server)
        self.progress = MySQLProgress(self.connection)
        self._records = Records(self.progress)
        self._tables: dict[TableName, TargetTable] = {}
        try:
            self._choose_isolation()
        except BaseException:
            self.connection.close()
            raise

    def _choose_isolation(self) -> None:
        """Lock rows without gaps if the server's binlog format allows it."""
        doing = "setting up the session"
        binlog = value(self.connection, "select @@binlog_format", doing=doing)
        level = "repeatable read" if binlog == "STATEMENT" else "read committed"
        run(self.connection, f"set session transaction isolation level {level}", doing=doing)

    # --- the port ---------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return not self.connection.open

    def need(self, names: Iterable[TableName]) -> None:
        missing = [name for name in names if name not in self._tables]
        if missing:
            found = read_target_tables(self.connection, missing)
            for name in missing:
                self._check(require(found, name))
            self._tables |= found

    def get_table(self, name: TableName) -> TargetTable:
        """Return the table, checked to accept changes. Raises the errors of `need`."""
        self.need([name])
        return self._tables[name]

    def _check(self, table: TargetTable) -> None:
        if table.engine.lower() not in TRANSACTIONAL:
            raise TargetNotTransactional(
                f"target table {table.name} is kept by {table.engine or 'no engine'}, which has no "
                "transactions",
                hint=f"Run: alter table {table.sql_name} engine = InnoDB;",
                table=str(table.name),
            )
        if table.triggers and not self._allow_triggers:
            raise TriggersWouldFire(
                f"target table {table.name} has triggers that would act a second time: "
                + ", ".join(table.triggers),
                hint="Drop them in the target: drop trigger "
                f"{quote(table.name.schema, table.triggers[0])};",
                table=str(table.name),
            )

    def forget(self) -> None:
        self._tables.clear()
        self._records.forget()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with transaction(self.connection):
            yield

    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        check_staged(self.connection, expected)

    def resolve_refusal(
        self,
        error: PenstockError,  # noqa: ARG002
        merges: Iterable[MergeSpec],  # noqa: ARG002
    ) -> bool:
        """Return false: types are altered when the log says so, never because of a row."""
        return False

    def take_notes(self) -> list[ShapeNote]:
        taken, self._noted = self._noted, []
        return taken

    def drop_merge_tables(self, names: Iterable[str]) -> None:
        drop_merge_tables(self.connection, names)

    def find_groups(
        self, phase: PhaseSpec, *, source_engine: str
    ) -> Sequence[frozenset[TableName]]:
        """Return each table alone, since foreign keys are not checked; together are tables with
        triggers, which may write anywhere.
        """
        self._source_engine = source_engine
        if self._news([phase]):
            return ()
        names = {spec.table for spec in phase.merges}
        firing = frozenset(name for name in names if self._tables[name].triggers)
        return [*(frozenset([name]) for name in sorted(names - firing)), *filter(None, [firing])]

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # --- changes of shape -------------------------------------------------------------------------

    def reshape(self, phases: Sequence[PhaseSpec], *, source_engine: str, before: Applied) -> None:
        """Alter the tables that changed their shape, and record the shapes; safe to repeat.

        Meanwhile a second session locks the applied position, so that no other loader applies.
        """
        self._source_engine = source_engine
        self._check_truncates(phases)
        if not self._news(phases):
            return
        with alone(self.connection, self.log_id, wait_s=LOCK_TIMEOUT_S):
            # Another session, which was waited for, may have altered tables until now.
            self._records.forget()
            self._tables.clear()
            self._alter_all(phases, self._news(phases), before)

    def _news(self, phases: Sequence[PhaseSpec]) -> dict[TableName, Relation]:
        """Return the last shapes of source tables that the target does not have yet."""
        return {
            source: relation
            for source, relation in self._shapes(phases).items()
            if not is_applied(self._record(source), relation, self.log_id)
        }

    def _alter_all(
        self, phases: Sequence[PhaseSpec], changed: Mapping[TableName, Relation], before: Applied
    ) -> None:
        self.need(
            {spec.table for phase in phases for spec in phase.merges}
            | {self._target_name(source) for source in changed}
        )
        replaced = {spec.table for phase in phases for spec in self._find_replaced(phase)}
        emptied = {name for phase in phases for name in (*phase.truncated, *phase.reloaded)}
        starts = {name: at for phase in phases for name, at in phase.starts.items()}
        records = {
            source: with_copied_ids(self._record(source), relation, starts)
            for source, relation in changed.items()
        }
        changes = {
            source: self._reshaping(source).changes(
                records[source],
                relation,
                self._tables[self._target_name(source)],
            )
            for source, relation in changed.items()
        }
        with self._guard(before):
            for source, relation in changed.items():
                alterer = self._alterer(records[source], relation, emptied - replaced, replaced)
                self._alter(source, changes[source], alterer)
        self.need(self._target_name(source) for source in changed)

    def _check_truncates(self, phases: Sequence[PhaseSpec]) -> None:
        for phase in phases:
            for name in phase.truncated:
                what = "all rows were removed (TRUNCATE)"
                self._policies.check(ChangeKind.TRUNCATE, what, table=str(name))

    def _reshaping(self, source: TableName) -> Reshaping:
        name = self._target_name(source)
        types = type_rules_of(self._source_engine)
        return Reshaping(
            self._policies,
            types,
            lambda sql: self.run(sql, name),
            lambda sql: self.run(sql, name, is_lossy=True),
            self._noted,
            self.log_id,
        )

    @contextmanager
    def _guard(self, before: Applied) -> Iterator[None]:
        """Lock the applied position, after checking that it is unchanged."""
        guard = connect(
            self._url, application_name=GUARD_NAME, options=lock_timeouts(LOCK_TIMEOUT_S)
        )
        try:
            with server_errors("altering target tables"), transaction(guard):
                if not MySQLProgress(guard).read_applied(self.log_id, lock="update").is_at(before):
                    raise applied_by_another(before)
                yield
        finally:
            guard.close()

    def _alterer(
        self,
        record: TableRecord,
        relation: Relation,
        emptied: set[TableName],
        replaced: set[TableName],
    ) -> Alterer:
        name = self._target_name(record.source)
        return Alterer(
            record=record,
            relation=relation,
            table=self._tables[name],
            mapping_of=lambda column: self._mapping(
                record.source, column, with_collation=True, key_of=relation
            ),
            server=self._server,
            emptied=name in emptied or self._is_empty(name),
            replaced=name in replaced,
        )

    def _is_empty(self, name: TableName) -> bool:
        """Return whether a table has no rows: an earlier batch may have emptied it."""
        with server_errors(f"looking at {name}"), self.connection.cursor() as cursor:
            return not cursor.execute(f"select 1 from {self._tables[name].sql_name} limit 1")

    def _alter(self, source: TableName, changes: Changes, alterer: Alterer) -> None:
        name = self._target_name(source)

        def look_again() -> TargetTable:
            del self._tables[name]
            self.need([name])
            return self._tables[name]

        faults.point("load.alter.before")
        # Some clauses need a current database, although the table is named with its database.
        self.connection.select_db(name.schema)
        record = self._reshaping(source).carry_out(changes, alterer, look_again, self._records.put)
        del self._tables[name]
        faults.point("load.alter.between")
        self._records.put(record)
        faults.point("load.alter.after")

    def _mapping(
        self,
        source: TableName,
        column: Column,
        *,
        with_collation: bool = False,
        key_of: Relation | None = None,
    ) -> TypeMapping:
        """Return the type that a column has in the target.

        with_collation: with the source's collation, if any. key_of: see `layout.mapping_of`.
        """
        return mapping_of(
            as_defined(column) if with_collation else column,
            self._source_engine,
            self._server,
            choices=self._choices,
            table=source,
            key_of=key_of,
        )

    def _shapes(self, phases: Sequence[PhaseSpec]) -> dict[TableName, Relation]:
        """Return the last shape of each source table in these phases."""
        return {
            TableName(relation.schema, relation.name): relation
            for phase in phases
            for relation in phase.relations
        }

    def _record(self, source: TableName) -> TableRecord:
        return self._records.get(source, self._target_name(source))

    def _target_name(self, source: TableName) -> TableName:
        return target_name(source, self._namespaces)

    # --- rows -------------------------------------------------------------------------------------

    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        """Apply all phases. The tables already have the last of their shapes."""
        shapes = self._shapes(phases)
        last = {self._target_name(source): relation for source, relation in shapes.items()}
        for phase in phases:
            names = {spec.table for spec in phase.merges}
            self.need({*names, *phase.truncated, *phase.reloaded})
            replaced = {spec.table: spec for spec in self._find_replaced(phase)}
            for name in sorted({*phase.truncated, *phase.reloaded} - replaced.keys()):
                # TRUNCATE would commit the transaction.
                self.run(f"delete from {self._tables[name].sql_name}", name)
            for name, spec in sorted(replaced.items()):
                merge = MergeSql(self._merge(spec, last.get(name)))
                self.run(merge.delete_others(), name)
            merges = [
                MergeSql(self._merge(spec, last.get(spec.table)))
                for spec in sorted(phase.merges, key=lambda spec: spec.table)
                if spec.counts.upserts or spec.counts.deletes
            ]
            is_from_mysql = self._source_engine in (Engine.MYSQL, Engine.MARIADB)
            for merge in merges:
                with accepting_documents(self.connection, merge.table, is_from_mysql=is_from_mysql):
                    _TableApply(self, merge).run()
            for spec in phase.merges:
                self._fill_new(spec, last.get(spec.table))

    def _fill_new(self, spec: MergeSpec, last: Relation | None) -> None:
        """Give rows of an earlier shape than the table's the values of columns without a default.

        No later change is applied yet, so that no other row lacks these values.
        """
        is_old = last is not None and last.source_id == spec.relation.source_id
        if last is None or not is_old or not spec.counts.upserts:
            return
        if spec.relation.columns == last.columns:
            return
        table = self._tables[spec.table]
        source = TableName(last.schema, last.name)
        for name, fill in later_fills(
            spec.relation,
            last,
            lambda column: self._mapping(source, column, with_collation=True, key_of=last),
            self._server,
        ):
            if table.column(name) is not None:
                where = f"{quote(name)} is null"
                self.run(f"update {table.sql_name} set {fill} where {where}", spec.table)

    def _find_replaced(self, phase: PhaseSpec) -> list[MergeSpec]:
        def record_of(relation: Relation) -> TableRecord:
            return self._record(TableName(relation.schema, relation.name))

        if not phase.reloaded:
            return []
        return find_kept_merges(phase, record_of, self._policies)

    def _merge(self, spec: MergeSpec, last: Relation | None) -> Merge:
        table = self._tables[spec.table]
        source = TableName(spec.relation.schema, spec.relation.name)
        left_out = set(self._record(source).left_out) if spec.relation.key else set()
        left_out -= {spec.relation.columns[index].name for index in spec.relation.key}
        names = {column.name for column in last.columns} if last is not None else set()
        dropped = {
            column.name
            for column in spec.relation.columns
            if table.column(column.name) is None
            and (column.name in left_out or (last is not None and column.name not in names))
        }
        renamed: dict[str, str] = {}
        if last is not None and last.source_id == spec.relation.source_id:
            dropped |= replaced_columns(spec.relation, last)
            renamed = {
                old: new
                for old, new in renamed_columns(spec.relation, last).items()
                if table.column(new) is not None
            }
            dropped -= renamed.keys()
        return Merge(
            relation=spec.relation,
            table=table,
            staging=spec.staging,
            counts=spec.counts,
            absent_columns=spec.absent_columns,
            dropped=frozenset(dropped),
            writes=writes_of(
                spec.relation, table, lambda column: self._mapping(source, column), renamed
            ),
            files=files_of(spec),
            renamed=renamed,
        )

    def run(self, sql: str, table: TableName, *, is_lossy: bool = False) -> int:
        """Run a statement that changes this table; return its row count.

        Warnings are refusals, unless is_lossy.
        """
        try:
            with server_errors(f"applying to {table}"), self.connection.cursor(Cursor) as cursor:
                count = int(cursor.execute(sql))
                if cursor.warning_count and not is_lossy:
                    self._refuse_warnings(cursor, table)
                return count
        except StatementFailed as error:
            raise apply_error(error, table) from error

    def load(self, sql: str, file: RowsFile, table: TableName) -> None:
        """Run a `direct_load` statement with this file. Warnings are refusals."""
        try:
            with (
                pieces_of(file, size_bytes=PACKET_BYTES) as pieces,
                server_errors(f"applying to {table}"),
                self.connection.cursor(Cursor) as cursor,
            ):
                row_count, warning_count = load_local(self.connection, sql, pieces)
                if warning_count:
                    self._refuse_warnings(cursor, table)
        except StatementFailed as error:
            raise apply_error(error, table) from error
        if row_count != file.row_count:
            raise StagingChanged(
                f"{file.path} held {row_count} rows, {file.row_count} were written",
                hint="penstock stages the batch again.",
            )

    def replay(self, files: Iterable[RowsFile], merge: MergeSql) -> None:
        """Have the server execute the events in these files.

        Raises RowsUnexpected if the existence of a row differs from the log, and StagingChanged if
        the table or the privileges differ from those when the files were written.
        """
        connection, table = self.connection, merge.table.name
        server_id = replays(connection)
        if server_id is not None and not self._replays:
            self._replays = begin_replaying(connection, server_id)
        form = event_table(merge, server_id) if server_id is not None and self._replays else None
        for file in files:
            if form is None or file.events != form:
                raise table_altered(table)
            try:
                replay(connection, file, merge)
            except RowsUnexpected:
                relation = merge.merge.relation
                self._unsure.note(TableName(relation.schema, relation.name))
                raise
        if replays(connection) is None:
            raise table_altered(table)  # meanwhile the server may have skipped rows

    def _refuse_warnings(self, cursor: Cursor, table: TableName) -> None:
        """Raise ValueRefused if the server changed a value to make it fit."""
        cursor.execute("show warnings")
        for _, number, said in cursor.fetchall():
            if int(number) not in HARMLESS:
                raise value_refused(str(said), int(number), table)


class _TableApply:
    """Application of one merge table to its base table."""

    def __init__(self, target: MySQLTarget, merge: MergeSql) -> None:
        self._target = target
        self._merge = merge
        self._name = merge.table.name

    def run(self) -> None:
        """Fill unsent columns, delete, then insert."""
        merge = self._merge
        if merge.strategy is MergeStrategy.COUNT:
            self._count()
            return
        if merge.merge.files:
            self._load_files()
            return
        in_place = self._fill()
        if merge.strategy is MergeStrategy.REPLACE:
            self._run(merge.delete_affected())
        elif merge.merge.counts.deletes:
            self._run(merge.delete_gone())
        update = merge.update_in_place()
        if update is not None and in_place:
            self._expect(update, in_place)
        wanted = merge.merge.counts.upserts - in_place
        if not wanted:
            return
        if merge.strategy is MergeStrategy.REPLACE:
            self._expect(merge.insert(), wanted)
        elif merge.strategy is MergeStrategy.UPSERT:
            self._run(merge.insert())
        else:
            found = self._run(merge.update_known())
            if found < wanted:
                self._expect(merge.insert_missing(), wanted - found)

    def _load_files(self) -> None:
        """Load rows that wait in files into the table. Its deletes may be in the merge table.

        If a bucket could not be written into a file, all its rows are in the merge table.
        """
        merge, files = self._merge, self._merge.merge.files
        counts, outside = merge.merge.counts, sum(file.row_count for file in files)
        if any(file.events is not None for file in files):
            if outside < counts.upserts + counts.deletes:
                self._run(merge.delete_gone())
                self._run(merge.insert())
            self._target.replay(files, merge)
            return
        load = direct_load(merge)
        if load is None:
            raise table_altered(self._name)
        if counts.deletes:
            self._run(merge.delete_gone())
        for file in files:
            self._target.load(load, file, self._name)
        if outside < counts.upserts:
            self._run(merge.insert())

    def _fill(self) -> int:
        """Fill unsent columns; return the number of rows that remain to be updated in place."""
        fill = self._merge.fill_absent()
        if fill is None:
            return 0
        for statement in self._merge.fill_labels():
            self._run(statement)
        row = self._row(self._merge.count_absent())
        if int(row["filled"]):
            self._expect(fill, int(row["filled"]))
        return int(row["placed"])

    def _count(self) -> None:
        """Delete and insert the counted copies of each row, because nothing distinguishes equal
        rows.
        """
        for row in rows(
            self._target.connection, self._merge.surplus(), doing=f"applying to {self._name}"
        ):
            number, copies = int(row["number"]), int(row["copies"])
            self._expect(self._merge.delete_copies(number, copies), copies)
        most = self._row(self._merge.most_copies())
        made = sum(
            self._run(self._merge.insert_copies(number))
            for number in range(1, int(most["most"]) + 1)
        )
        if made != int(most["every"]):
            raise self._missing(int(most["every"]), made)

    def _row(self, sql: str) -> dict[str, Any]:
        return rows(self._target.connection, sql, doing=f"applying to {self._name}")[0]

    def _run(self, sql: str) -> int:
        return self._target.run(sql, self._name)

    def _expect(self, sql: str, expected: int) -> None:
        found = self._run(sql)
        if found != expected:
            raise self._missing(expected, found)

    def _missing(self, expected: int, found: int) -> TargetRowMissing:
        return TargetRowMissing(
            f"target table {self._name}: {expected} rows were to be changed, {found} were found",
            hint="Another program writes to the table, or its rows are not the source's: run "
            f"`penstock verify`. {LOAD_AFRESH}",
            table=str(self._name),
            expected=expected,
            actual=found,
        )
