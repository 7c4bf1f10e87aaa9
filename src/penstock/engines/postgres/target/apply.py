"""One batch into the target, inside one transaction: tables in order, phase by phase.

Two modes. With the privilege to set session_replication_role, foreign keys and ordinary triggers
are off, and only the net result counts. Without it every statement must satisfy the foreign keys:
deletes of rows that nothing refers to come first, then upserts with parents first, then deletes of
the others with children first; what cannot be applied that way is refused with the GRANT to type,
and the target stays at the batch before. Not here: the statements (`merge.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import structlog

from penstock.codec.types import NO_CHOICES, Choices, Engine, Server
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.target import parts
from penstock.engines.postgres.target.enums import add_missing_labels, prepare_types
from penstock.engines.postgres.target.foreign import Foreign
from penstock.engines.postgres.target.merge import Merge, MergeLayout, MergeSql, MergeStrategy
from penstock.engines.postgres.target.merge_tables import check_staged, drop_merge_tables
from penstock.engines.postgres.target.nulls import drop_not_null
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.refusals import apply_error, grant_replica, naming_objects
from penstock.engines.postgres.target.reshape import Reshaping
from penstock.engines.postgres.target.target import TargetTable, read_target_tables, require
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import LOAD_AFRESH, PenstockError, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, ChangeKind, Policies
from penstock.ports.sql_target import SqlTarget
from penstock.ports.target import (
    Applied,
    MergeSpec,
    PhaseSpec,
    ShapeNote,
    TableRecord,
    TargetRowMissing,
    TriggersWouldFire,
    TruncateBlocked,
    UniqueBlocked,
    target_name,
)
from penstock.sql.schema_drift import find_kept_merges
from penstock.sql.shape_changes import is_applied, with_copied_ids
from penstock.sql.state_store import Records

logger = structlog.get_logger(__name__)

LOCK_TIMEOUT_MS = 10_000
ANALYZE_ROWS_MIN = 5_000
# From this many rows on, a second statement and planner settings cost less than they save.
MANY_ROWS = 1_000
APPLICATION_NAME = "penstock loader"


@dataclass(kw_only=True)
class PostgresTarget(SqlTarget):
    """The loader's connection to the target and what it knows of it; see `SqlTarget`.

    Catalogue and records are read once and again after changes of shape.

    Attributes:
        replica: Whether session_replication_role is set.
        choices: Of [target.types].
        policies: Of changes of shape.
        foreign: Meaning of the rows' types here.
        noted: See `take_notes`.
        may_prepare: Whether the server keeps prepared transactions at all, as far as known.
    """

    connection: psycopg.Connection
    namespaces: Mapping[str, str]
    replica: bool
    progress: PostgresProgress
    records: Records
    clock: Clock = REAL_CLOCK
    allow_triggers: bool = False
    choices: Choices = NO_CHOICES
    policies: Policies = EVOLVE_ALL
    log_id: str = ""
    foreign: Foreign = field(default_factory=Foreign)
    tables: dict[TableName, TargetTable] = field(default_factory=dict)
    noted: list[ShapeNote] = field(default_factory=list)
    may_prepare: bool = True

    @property
    def is_closed(self) -> bool:
        return self.connection.closed

    def need(self, names: Iterable[TableName]) -> None:
        missing = [name for name in names if name not in self.tables]
        if not missing:
            return
        with server_errors("reading the target's tables"):
            found = read_target_tables(self.connection, missing)
        for name in missing:
            self._check_triggers(require(found, name))
        self.tables |= found

    def _check_triggers(self, table: TargetTable) -> None:
        if self.replica or self.allow_triggers:
            return
        names = [name for name, enabled in table.triggers if enabled in ("O", "A")]
        if not names and not table.rules:
            return
        user = self.connection.info.user
        said = ", ".join([*names, *table.rules])
        raise TriggersWouldFire(
            f"target table {table.name} has triggers or rules that would act a second time: {said}",
            hint=f"{grant_replica(user)} or: alter table {table.sql_name} disable trigger user;",
            table=str(table.name),
        )

    def forget(self) -> None:
        self.noted.clear()
        self.tables.clear()
        self.records.forget()

    def reshape(
        self,
        phases: Sequence[PhaseSpec],
        *,
        source_engine: str,
        before: Applied,  # noqa: ARG002 - the port's
    ) -> None:
        """Create the types that these phases bring; tables are altered in the transaction."""
        self._meet(source_engine)
        with server_errors("preparing types"):
            self._create_types(phases)

    def _meet(self, source_engine: str) -> None:
        version = self.connection.info.server_version // 10_000
        self.foreign = Foreign(
            engine=source_engine,
            target=Server(engine=Engine.POSTGRESQL, version=(version,)),
            choices=self.choices,
        )

    def _create_types(self, phases: Sequence[PhaseSpec]) -> None:
        wanted = [relation for phase in phases for relation in phase.relations if relation.types]
        if not wanted:
            return
        new = []
        for relation in wanted:
            source = TableName(relation.schema, relation.name)
            record = self.records.get(source, target_name(source, self.namespaces))
            if not is_applied(record, relation, self.log_id):
                new.append(relation)
        prepare_types(self.connection, new, self.namespaces)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with server_errors("committing a batch"), self.connection.transaction():
            yield

    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        check_staged(self.connection, expected)

    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        if not self.replica:
            self.connection.execute("set constraints all deferred")
        for phase in phases:
            _PhaseApply(self, phase).run()

    def resolve_refusal(self, error: PenstockError, merges: Iterable[MergeSpec]) -> bool:
        """Add labels that enums lack, and make columns of our tables nullable."""
        how = {"22P02": add_missing_labels, "23502": drop_not_null}.get(
            str(error.fields.get("sqlstate"))
        )
        if how is None:
            return False
        layouts = [(spec.table, spec.staging, MergeLayout(spec.relation)) for spec in merges]
        with server_errors("fixing the target's refusal"):
            return how(self.connection, layouts) > 0

    def drop_merge_tables(self, names: Iterable[str]) -> None:
        drop_merge_tables(self.connection, names)

    # --- batches in parts -------------------------------------------------------------------------

    def find_groups(
        self, phase: PhaseSpec, *, source_engine: str
    ) -> Sequence[frozenset[TableName]]:
        self._meet(source_engine)
        for sent in phase.relations:
            source = TableName(sent.schema, sent.name)
            record = self.records.get(source, target_name(source, self.namespaces))
            if not is_applied(record, self.foreign.relation_here(sent), self.log_id):
                return ()
        names = {spec.table for spec in phase.merges}
        tables = [self.tables[name] for name in sorted(names)]
        return parts.group_tables(tables, replica=self.replica)

    def prepares(self, count: int) -> bool:
        if not self.may_prepare:
            return False
        most, free = parts.count_free(self.connection)
        self.may_prepare = most > 0  # a server must be restarted to change that
        return count <= free

    def read_transaction_id(self) -> str:
        return parts.read_transaction_id(self.connection)

    def prepared_transaction(self, decider: str, part: int) -> AbstractContextManager[None]:
        return parts.prepared_transaction(self.connection, self.log_id, decider, part)

    def commit_prepared(self, decider: str, part: int) -> None:
        parts.commit_prepared(self.connection, self.log_id, decider, part)

    def settle_prepared(self) -> None:
        parts.settle_prepared(self.connection, self.log_id)

    def take_notes(self) -> list[ShapeNote]:
        taken = list(self.noted)
        self.noted.clear()
        return taken

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def connect_to_apply(url: str) -> tuple[psycopg.Connection, bool]:
    """Connect for applying: exact text, a lock timeout, replica role where allowed.

    Returns the connection, and whether it has the replica role.
    """
    settings = {
        **EXACT_TEXT_SETTINGS,
        "lock_timeout": str(LOCK_TIMEOUT_MS),
        "jit": "off",
        "default_statistics_target": "10",  # of merge tables: a few values and unique keys
    }
    connection = connect(url, application_name=APPLICATION_NAME, options=settings)
    commit_durably(connection)  # files may go once their batch is committed
    try:
        connection.execute("set session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        logger.info("session_replication_role may not be set", user=connection.info.user)
        return connection, False
    return connection, True


class _PhaseApply:
    """Application of one phase to the target."""

    def __init__(self, target: PostgresTarget, phase: PhaseSpec) -> None:
        self.target = target
        self.phase = phase

    def run(self) -> None:
        """Empty, alter, then merge."""
        specs = self.phase.merges
        names = {spec.table for spec in specs} | {*self.phase.truncated, *self.phase.reloaded}
        names |= {self._target_name(relation) for relation in self.phase.relations}
        self.target.need(names)
        replaced: set[TableName] = set()
        if self.phase.reloaded:
            kept = find_kept_merges(self.phase, self._record, self.target.policies)
            replaced = {one.table for one in kept}
        self._empty(replaced)
        self._alter(replaced)
        merges = {
            spec.table: self._merge_sql(spec)
            for spec in specs
            if spec.counts.upserts or spec.counts.deletes
        }
        for name in sorted(replaced):
            self._run(merges[name].delete_others(), name)
        self._merge(parents_first(list(merges.values())))

    def _merge_sql(self, spec: MergeSpec) -> MergeSql:
        return MergeSql(
            Merge(
                relation=spec.relation,
                table=self.target.tables[spec.table],
                staging=spec.staging,
                counts=spec.counts,
                absent_columns=spec.absent_columns,
                writes=self.target.foreign.writes(spec.relation),
                left_out=frozenset(self._record(spec.relation).left_out),
            ),
            replica=self.target.replica,
        )

    def _record(self, relation: Relation) -> TableRecord:
        source = TableName(relation.schema, relation.name)
        return self.target.records.get(source, self._target_name(relation))

    def _target_name(self, relation: Relation) -> TableName:
        schema = self.target.namespaces.get(relation.schema, relation.schema)
        return TableName(schema, relation.name)

    # --- emptying ---------------------------------------------------------------------------------

    def _empty(self, replaced: set[TableName]) -> None:
        for name in self.phase.truncated:
            what = "all rows were removed (TRUNCATE)"
            self.target.policies.check(ChangeKind.TRUNCATE, what, table=str(name))
        together = sorted({*self.phase.truncated, *self.phase.reloaded} - replaced)
        if not together:
            return
        hung = [
            name
            for name in together
            if any(key.child not in together for key in self.target.tables[name].children)
        ]
        plain = [name for name in together if name not in hung]
        for name in hung:
            if not self.target.replica:
                key = next(k for k in self.target.tables[name].children if k.child not in together)
                raise TruncateBlocked(
                    f"target table {name} is emptied at the source, but {key.child} refers to it "
                    f"by foreign key {key.name}",
                    hint=f"{grant_replica(self.target.connection.info.user)} or drop the foreign "
                    f"key: alter table {quote(*key.child)} drop constraint {quote(key.name)};",
                    table=str(name),
                )
            self._run(f"delete from {self.target.tables[name].own_rows}", name)
        if plain:
            listed = ", ".join(self.target.tables[name].own_rows for name in plain)
            self._run(f"truncate {listed}", plain[0])

    # --- changes of shape -------------------------------------------------------------------------

    def _alter(self, replaced: set[TableName]) -> None:
        emptied = {*self.phase.truncated, *self.phase.reloaded}
        changed: set[TableName] = set()
        reshaping = Reshaping(
            connection=self.target.connection,
            namespaces=self.target.namespaces,
            policies=self.target.policies,
            refused=self._error,
            noted=self.target.noted,
            log_id=self.target.log_id,
        )
        for sent in sorted(self.phase.relations, key=self._inherits):
            relation, name = self.target.foreign.relation_here(sent), self._target_name(sent)
            record = self._record(sent)
            if is_applied(record, relation, self.target.log_id):
                continue
            record = with_copied_ids(record, relation, self.phase.starts)
            if name in changed or (changed and self.target.tables[name].in_tree):
                del self.target.tables[name]  # altered just now, alone or with its tree
                self.target.need({name})
            new = reshaping.run(
                record,
                relation,
                self.target.tables[name],
                emptied=name in emptied or self._is_empty(name),
                replaced=name in replaced,
                fills=self.target.foreign.fills(sent),
            )
            self.target.records.put(new)
            changed.add(name)
        if changed:
            stale = [n for n, table in self.target.tables.items() if n in changed or table.in_tree]
            for name in stale:
                del self.target.tables[name]
            self.target.need(stale)

    def _is_empty(self, name: TableName) -> bool:
        """Return whether a table has no rows: an earlier batch may have emptied it."""
        rows = self.target.tables[name].own_rows
        with server_errors(f"looking at {name}"):
            found = self.target.connection.execute(f"select 1 from {rows} limit 1").fetchone()
        return found is None

    def _inherits(self, relation: Relation) -> bool:
        """Return whether other tables should be altered first: children inherit their parent's
        changes.
        """
        table = self.target.tables[self._target_name(relation)]
        return any(column.origin is not None for column in table.columns)

    # --- rows -------------------------------------------------------------------------------------

    def _merge(self, merges: list[MergeSql]) -> None:
        for merge in merges:
            if self._needs_statistics(merge):
                self._run(merge.analyze(), merge.table.name)
        in_place = {id(merge): self._fill(merge) for merge in merges}
        late = [merge for merge in merges if self._is_late(merge)]
        for merge in reversed(merges):
            if merge not in late:
                self._delete(merge)
        for merge in merges:
            self._upsert(merge, in_place[id(merge)])
        for merge in reversed(late):
            if merge.merge.counts.deletes:
                self._run(merge.delete_gone(late=True), merge.table.name)

    def _needs_statistics(self, merge: MergeSql) -> bool:
        """Return whether the planner has a choice in which it may go wrong."""
        counts = merge.merge.counts
        by_index = merge.arbiter is not None and merge.strategy in (
            MergeStrategy.UPSERT,
            MergeStrategy.REPLACE,
        )
        return counts.upserts + counts.deletes >= ANALYZE_ROWS_MIN and (
            not by_index or self._is_late(merge)
        )

    @contextmanager
    def _by_index(self, merge: MergeSql) -> Iterator[None]:
        """Find the rows of many keys by the key's index, as single statements would.

        By default the planner reads the whole table rather than look up a tenth of its rows: it
        assumes that a look-up in memory costs five times what it does.
        """
        counts = merge.merge.counts
        many = counts.upserts + counts.deletes >= MANY_ROWS
        if not many or merge.arbiter is None:
            yield
            return
        table = merge.table.name
        self._run("set local enable_hashjoin = off; set local enable_mergejoin = off", table)
        yield
        self._run(
            "set local enable_hashjoin to default; set local enable_mergejoin to default", table
        )

    def _is_late(self, merge: MergeSql) -> bool:
        """Return whether rows must be deleted last, because rows of other tables may refer to them
        until those are updated.
        """
        hung_on = bool(merge.table.children) or merge.table.self_reference
        return hung_on and not self.target.replica and merge.strategy is not MergeStrategy.COUNT

    def _fill(self, merge: MergeSql) -> int:
        """Fill unsent columns; return the number of rows that remain to be updated in place."""
        fill = merge.fill_absent()
        if fill is None:
            return 0
        filled, in_place = self._counts(merge.count_absent(), merge.table.name)
        if filled:
            with self._by_index(merge):
                self._expect(merge, fill, filled)
        return in_place

    def _delete(self, merge: MergeSql) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            copies, _ = self._counts(merge.count_copies(), merge.table.name)
            if copies:
                self._expect(merge, merge.delete_copies(), copies)
        elif merge.strategy is MergeStrategy.REPLACE:
            with self._by_index(merge):
                self._run(merge.delete_affected(), merge.table.name)
        elif merge.merge.counts.deletes:
            with self._by_index(merge):
                self._run(merge.delete_gone(), merge.table.name)

    def _upsert(self, merge: MergeSql, in_place: int) -> None:
        if merge.strategy is MergeStrategy.COUNT:
            _, copies = self._counts(merge.count_copies(), merge.table.name)
            if copies:
                self._expect(merge, merge.insert_copies(), copies)
            return
        update = merge.update_in_place()
        if update is not None and in_place:
            with self._by_index(merge):
                self._expect(merge, update, in_place)
        wanted = merge.merge.counts.upserts - in_place
        if not wanted:
            return
        if merge.strategy is MergeStrategy.PLACE:
            self._place(merge, wanted)
        elif (
            merge.strategy is MergeStrategy.UPSERT and wanted >= MANY_ROWS and merge.changed_columns
        ):
            self._update_and_insert(merge, wanted - merge.merge.counts.new)
        elif merge.counts_all_rows:
            self._expect(merge, merge.insert(), wanted)
        else:
            self._run(merge.insert(), merge.table.name)

    def _update_and_insert(self, merge: MergeSql, known: int) -> None:
        """Upsert many rows as new or existing, as the log says; where it is wrong, by trying."""
        new, table = merge.merge.counts.new, merge.table.name
        if known:
            with self._by_index(merge):
                found = self._run(merge.update_known(), table).rowcount
            if found != known:
                logger.warning("rows that should be in the target are not", table=str(table))
                self._expect(merge, merge.upsert_known(), known)
        if not new:
            return
        try:
            with self.target.connection.transaction():
                self._expect(merge, merge.insert_new(), new)
        except UniqueBlocked:
            logger.warning("rows that should not be in the target are", table=str(table))
            self._expect(merge, merge.insert_new(upsert=True), new)

    def _place(self, merge: MergeSql, wanted: int) -> None:
        """Upsert at once, or, if a unique constraint refuses, in an order that satisfies it."""
        connection = self.target.connection
        try:
            with connection.transaction():
                connection.execute(merge.insert())
                return
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation) as error:
            objection = error
        except psycopg.Error as error:
            raise self._error(error, merge.table.name) from error
        harmless = all(key.on_delete in ("a", "r") for key in merge.table.children)
        if merge.merge.counts.deletes and harmless and not merge.table.self_reference:
            self._run(merge.delete_gone(), merge.table.name)
        waiting = wanted
        while waiting:
            self._run(merge.insert(extra=merge.without_conflict()), merge.table.name)
            self._run(merge.mark_done(), merge.table.name)
            (left,) = self._counts(merge.count_waiting(), merge.table.name)
            if left >= waiting:
                raise self._error(objection, merge.table.name) from objection
            waiting = left

    # --- running ----------------------------------------------------------------------------------

    def _counts(self, sql: str, table: TableName) -> tuple[int, ...]:
        row = self._run(sql, table).fetchone()
        assert row is not None
        return tuple(int(value) for value in row)

    def _expect(self, merge: MergeSql, sql: str, rows: int) -> None:
        found = self._run(sql, merge.table.name).rowcount
        if found != rows:
            name = merge.table.name
            raise TargetRowMissing(
                f"target table {name}: {rows} rows were to be changed, {found} were found",
                hint="Another client writes to the table, or its rows are not the source's: run "
                f"`penstock verify`. {LOAD_AFRESH}",
                table=str(name),
                expected=rows,
                actual=found,
            )

    def _run(self, sql: str, table: TableName) -> psycopg.Cursor[Any]:
        try:
            return self.target.connection.execute(sql)
        except psycopg.Error as error:
            raise self._error(error, table) from error

    def _error(self, error: psycopg.Error, table: TableName) -> PenstockError:
        naming = {
            spec.staging: naming_objects(MergeLayout(spec.relation))
            for spec in self.phase.merges
            if spec.table == table
        }
        return apply_error(error, table, user=self.target.connection.info.user, naming=naming)


def parents_first(merges: Sequence[MergeSql]) -> list[MergeSql]:
    """Sort tables by foreign keys, parents before children.

    In a cycle the keys that are checked at once decide; if these form a cycle too, names do.
    """
    waiting = {merge.table.name: merge for merge in sorted(merges, key=lambda m: m.table.name)}
    result: list[MergeSql] = []
    while waiting:
        held = {
            name: [key for key in merge.table.parents if key.parent in waiting]
            for name, merge in waiting.items()
        }
        free = [name for name, keys in held.items() if not keys]
        loose = [name for name, keys in held.items() if all(key.deferrable for key in keys)]
        for name in free or loose[:1] or [next(iter(waiting))]:
            result.append(waiting.pop(name))
    return result
