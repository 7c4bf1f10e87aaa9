"""Writing the mutations of one table: the user's module, conflicts, dead letters.

Not here: the order of tables (`order.py`), staging (`sequencer.py`), SQL (the engines).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from penstock.feeds.apply.order import Step
from penstock.feeds.metrics import ApplyMetrics, labels
from penstock.feeds.script import (
    ApplyOperation,
    Dispatch,
    Document,
    MergeOperation,
    MergeResult,
    Script,
    SourceRules,
    StandardMerge,
    TableRules,
    TargetTransaction,
    Unmerged,
    UserModuleFailed,
    calling,
    document_of,
    in_transaction,
    meta_of,
    name_of,
    text_of,
)
from penstock.model import PenstockError, Retry, TableDefinition
from penstock.ports.feeds import Group, Mutation, StagedTable, batch_of, group_name, mutations_of
from penstock.ports.row_apply import Conflict, DeadLetter, RowRules, RowSession

COLUMNS = ("dlq_name", "source_nanos", "source_logical", "data_after", "data_before")
DEFAULT_NAME = "replicator_dlq"


class DeadLetterTableUnfit(PenstockError):
    """The table of dead letters is missing, or some of its columns are."""

    code = "ST68"
    retry: ClassVar[Retry] = "operator"


def dead_letter_table(
    group: Group, tables: Mapping[str, TableDefinition], name: str
) -> TableDefinition:
    """Return the table. Raises DeadLetterTableUnfit, which names the missing parts."""
    full = f"{group_name(group)}.{name}"
    found = tables.get(name)
    if found is None:
        raise DeadLetterTableUnfit(
            f"dead-letter table {full} is missing",
            hint=f"Create it in the target: create table {name} (event char(36) primary key "
            "default (...), dlq_name varchar(255) not null, source_nanos bigint not null, "
            "source_logical bigint not null, data_after json not null, data_before json not null);",
            table=full,
        )
    there = {column.name for column in found.columns}
    missing = [column for column in COLUMNS if column not in there]
    if missing:
        raise DeadLetterTableUnfit(
            f"dead-letter table {full} lacks the columns {', '.join(missing)}",
            hint=f"Add them in the target: alter table {name} add column ...;",
            table=full,
        )
    return found


class ConflictUnmerged(PenstockError):
    """A row changed in the source and in the target, and no rule says which change counts."""

    code = "ST69"
    retry: ClassVar[Retry] = "operator"


class TableNotThere(PenstockError):
    """Mutations are for a table that the target does not have."""

    code = "ST70"
    retry: ClassVar[Retry] = "operator"


def table_not_there(table: StagedTable, why: str) -> TableNotThere:
    """Return the error for a table that does not exist.

    why: the setting or feed that names it.
    """
    return TableNotThere(
        f"{why} a table ({table}) which does not exist in the target schema",
        hint="Create it in the target, or correct the user's module.",
        table=str(table),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writer of steps into the target.

    tables: those of the schema; dlq_table: the name of the table of dead letters.
    """

    group: Group
    tables: Mapping[str, TableDefinition]
    script: Script
    metrics: ApplyMetrics
    dlq_table: str = DEFAULT_NAME

    def write(self, session: RowSession, step: Step) -> None:
        """Write one step, in an open transaction.

        Raises ConflictUnmerged, DeadLetterTableUnfit, UserModuleFailed, TableNotThere, and the
        errors of the session.
        """
        definition = self.definition(step.table)
        work = _TableWork(self, session, step.table, definition, self.script.table(step.table))
        with self.metrics.measure(self.metrics.seconds, step.table):
            work.write(step)

    def definition(self, table: StagedTable, why: str = "a mutation is for") -> TableDefinition:
        """Return the table in the target. Raises TableNotThere."""
        found = self.tables.get(table.name)
        if found is None:
            raise table_not_there(table, why)
        return found


class _TableWork(TargetTransaction):
    """One table's part of a transaction, which get_tx() also returns."""

    def __init__(
        self,
        writer: Writer,
        session: RowSession,
        table: StagedTable,
        definition: TableDefinition,
        rules: TableRules,
    ) -> None:
        self._writer, self._session = writer, session
        self._table, self._definition, self._rules = table, definition, rules
        self._schema = group_name(writer.group)

    def write(self, step: Step) -> None:
        """Write a step as the user's module says."""
        mutations = self._map(step)
        if not mutations:
            return
        if self._rules.apply is None:
            self._write(step.is_delete, mutations)
        else:
            operations = [self._operation(one) for one in mutations]
            with self._calls("apply"):
                self._rules.apply(operations)
        nanos = [one.time.nanos for one in step.mutations]
        self._writer.metrics.note_applied(step.table, nanos)

    # --- functions of the user's module -----------------------------------------------------------

    @contextmanager
    def _calls(self, function: str) -> Iterator[None]:
        """Prepare the calls of a function: they are timed, can use get_tx(), and raise typed
        errors.
        """
        metrics = self._writer.metrics
        with (
            metrics.measure(metrics.script_seconds, self._table),
            calling(function, self._table),
            in_transaction(self),
        ):
            yield

    def _meta(self, mutation: Mutation) -> Document:
        return meta_of(mutation, self._schema, self._table.name)

    def _map(self, step: Step) -> list[Mutation]:
        function = self._rules.delete_key if step.is_delete else self._rules.map
        if function is None:
            return step.mutations
        found = []
        with self._calls("delete_key" if step.is_delete else "map"):
            for one in step.mutations:
                given = document_of(one.key.encode() if one.after is None else one.after)
                made = function(given, self._meta(one))
                if made is None or (step.is_delete and not made):
                    continue
                found.append(_change(one, made))
        return found

    def _operation(self, mutation: Mutation) -> ApplyOperation:
        operation: ApplyOperation = {
            "action": "delete" if mutation.after is None else "upsert",
            "meta": self._meta(mutation),
            "pk": document_of(mutation.key.encode()),
        }
        if mutation.after is not None:
            operation["data"] = document_of(mutation.after)
        if mutation.before is not None:
            operation["before"] = document_of(mutation.before)
        return _Operation(operation, mutation)

    # --- the transaction that get_tx() returns ----------------------------------------------------

    def apply(self, operations: Sequence[ApplyOperation]) -> None:
        for is_delete in (True, False):
            chosen = [
                _mutation_of(one)
                for one in operations
                if (one.get("action") == "delete") is is_delete
            ]
            if chosen:
                self._write(is_delete, chosen)

    def columns(self) -> list[Document]:
        key = self._definition.primary_key
        by_name = {column.name: column for column in self._definition.columns}
        ordered = [*(by_name.pop(name) for name in key), *by_name.values()]
        return [
            {
                "name": self._session.quote(column.name),
                "type": column.type_text,
                "primary": column.name in key,
                "ignored": bool(column.generated) or column.name in self._rules.rows.ignore,
                "default": column.default,
            }
            for column in ordered
        ]

    def exec(self, sql: str, *parameters: Any) -> None:
        self._session.query(sql, parameters)

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._session.query(sql, parameters)

    def schema(self) -> str:
        return self._session.quote(self._definition.name.schema)

    def table(self) -> str:
        return self._session.quote(*self._definition.name)

    # --- rows and conflicts -----------------------------------------------------------------------

    def _write(self, is_delete: bool, mutations: Sequence[Mutation]) -> None:
        rules, metrics, names = self._rules.rows, self._writer.metrics, labels(self._table)
        if is_delete:
            metrics.deletes.labels(*names).inc(
                self._session.delete(self._definition, rules, mutations)
            )
            return
        conflicts = self._session.upsert(self._definition, rules, mutations)
        metrics.upserts.labels(*names).inc(len(mutations) - len(conflicts))
        if conflicts:
            metrics.conflicts.labels(*names).inc(len(conflicts))
            self._resolve([one for one in conflicts if one.target is not None])

    def _resolve(self, conflicts: Sequence[Conflict]) -> None:
        """Write refused rows as the user's merge function decides, or put them among the dead
        letters; drop the rest.
        """
        if self._rules.merge is None:
            return
        rows, letters = [], []
        for conflict in conflicts:
            mutation, result = conflict.mutation, self._merge(conflict)
            if "apply" in result:
                rows.append(_change(mutation, result["apply"]))
            elif "dlq" in result:
                letters.append(
                    DeadLetter(
                        queue=str(result["dlq"]),
                        time=mutation.time,
                        after=mutation.after,
                        before=mutation.before,
                    )
                )
        if rows:
            unconditional = RowRules(extras=self._rules.rows.extras, ignore=self._rules.rows.ignore)
            self._session.upsert(self._definition, unconditional, rows)
        if letters:
            table = dead_letter_table(
                self._writer.group, self._writer.tables, self._writer.dlq_table
            )
            self._session.add_dead_letters(table, letters)
        self._writer.metrics.resolves.labels(*labels(self._table)).inc(len(conflicts))

    def _merge(self, conflict: Conflict) -> MergeResult:
        assert conflict.target is not None
        assert conflict.proposed is not None
        operation = MergeOperation(
            before=None if conflict.before is None else document_of(conflict.before),
            meta=self._meta(conflict.mutation),
            proposed=document_of(conflict.proposed),
            target=document_of(conflict.target),
        )
        merge = self._rules.merge
        assert merge is not None
        try:
            with self._calls("merge"):
                result = (
                    merge.merge(operation, key=self._definition.primary_key)
                    if isinstance(merge, StandardMerge)
                    else merge(operation)
                )
                _check_result(result)
        except Unmerged as unmerged:
            place = f"{self._table}: key {conflict.mutation.key}@{conflict.mutation.time}"
            raise ConflictUnmerged(
                f"unmerged data conflict: {', '.join(unmerged.properties)} in {place}",
                hint='Give standard_merge a fallback, such as lambda op: {"dlq": "conflicts"}, in '
                "the user's module.",
                table=str(self._table),
                columns=unmerged.properties,
            ) from None
        return result


class _Operation(dict[str, Any]):
    """Operation that remembers its mutation, so that data which the function does not change stays
    as it arrived.
    """

    def __init__(self, values: ApplyOperation, mutation: Mutation) -> None:
        super().__init__(values)
        self.mutation = mutation


def _mutation_of(operation: ApplyOperation) -> Mutation:
    if not isinstance(operation, _Operation):
        raise UserModuleFailed(
            "get_tx().apply() was given something that is not an operation",
            hint="Give it those that the function apply was called with; their data may be "
            "changed.",
        )
    old = operation.mutation
    data = operation.get("data")
    return Mutation(
        time=old.time,
        key=text_of(operation["pk"]).decode(),
        after=None if operation["action"] == "delete" else text_of(data),
        before=old.before,
    )


def _change(mutation: Mutation, made: Any) -> Mutation:
    """Return the mutation with another row, or, if it deletes, with another key."""
    text = text_of(made)
    is_delete = mutation.after is None
    return Mutation(
        time=mutation.time,
        key=text.decode() if is_delete else mutation.key,
        after=None if is_delete else text,
        before=mutation.before,
    )


def _check_result(result: Any) -> None:
    """Raise ValueError unless a merge's result has the right form."""
    given = {"apply", "dlq", "drop"} & set(result if isinstance(result, dict) else ())
    if len(given) != 1 or len(result) != 1:
        raise ValueError('a merge gives {"apply": row}, {"dlq": name} or {"drop": True}')
    if "apply" in given and not isinstance(result["apply"], dict):
        raise ValueError("apply is not a row")


Batches = Mapping[StagedTable, pa.RecordBatch]
Definition = Callable[[StagedTable, str], TableDefinition]
"""Returns a table of the target. The text says who named it, for the error that it is missing."""


def dispatch(group: Group, batches: Batches, script: Script, definition: Definition) -> Batches:
    """Return the mutations of a request by their target tables, in the order of their times.

    Raises UserModuleFailed, TableNotThere.
    """
    if not script.sources:
        return batches
    found: dict[StagedTable, list[Mutation]] = {}
    for table, batch in batches.items():
        source = script.source(table)
        if source is None:
            found.setdefault(table, []).extend(mutations_of(batch))
            continue
        sender = _Sender(group, table, source, definition)
        for mutation in mutations_of(batch):
            for target, one in sender.send(mutation):
                found.setdefault(target, []).append(one)
    return {
        table: batch_of(sorted(mutations, key=lambda one: one.time))
        for table, mutations in found.items()
    }


class _Sender:
    """Sender of one table's mutations."""

    def __init__(
        self, group: Group, table: StagedTable, source: SourceRules, definition: Definition
    ) -> None:
        self._group, self._table, self._source = group, table, source
        self._definition = definition

    def send(self, mutation: Mutation) -> list[tuple[StagedTable, Mutation]]:
        if self._source.target:
            return [(self._target("configure_source names", self._source.target), mutation)]
        if mutation.after is None:
            deletes_to = self._source.deletes_to
            if isinstance(deletes_to, str):
                return [(self._target("deletes_to names", deletes_to), mutation)]
            assert deletes_to is not None
            given = self._key(mutation)
            return self._call("deletes_to", deletes_to, mutation, given)
        assert self._source.dispatch is not None
        return self._call("dispatch", self._source.dispatch, mutation, mutation.after)

    def _key(self, mutation: Mutation) -> bytes:
        """Return the row to delete: its previous image if that is known, otherwise the columns of
        its key.
        """
        if mutation.before is not None:
            return mutation.before
        values = document_of(mutation.key.encode())
        try:
            names: Sequence[str] = self._definition(self._table, "").primary_key
        except TableNotThere:
            names = ()
        if len(names) != len(values):
            return text_of({"key": values})
        return text_of(dict(zip(names, values, strict=True)))

    def _target(self, why: str, name: str) -> StagedTable:
        table = StagedTable(self._group, name_of(name)[-1])
        self._definition(table, why)
        return table

    def _call(
        self, name: str, function: Dispatch, mutation: Mutation, document: bytes
    ) -> list[tuple[StagedTable, Mutation]]:
        meta = meta_of(mutation, group_name(self._group), self._table.name)
        with calling(name, self._table):
            made = function(document_of(document), meta)
            found = []
            for target_name, rows in (made or {}).items():
                target = self._target(f"{name} returned", target_name)
                key = self._definition(target, "").primary_key
                found += [
                    (target, self._mutation(mutation, row, key, is_delete=mutation.after is None))
                    for row in rows
                ]
        return found

    def _mutation(
        self, mutation: Mutation, row: Document, key: Sequence[str], *, is_delete: bool
    ) -> Mutation:
        missing = [name for name in key if name not in row]
        if missing:
            raise ValueError(f"a row lacks the key's columns {', '.join(missing)}")
        values: list[Any] = [row[name] for name in key]
        return Mutation(
            time=mutation.time,
            key=text_of(values).decode(),
            after=None if is_delete else text_of(row),
        )
