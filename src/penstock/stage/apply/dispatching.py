"""Sending a feed's mutations for a table to the tables that the user's module names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.model import TableDefinition
from penstock.ports.staging import Group, Mutation, StagedTable, batch_of, group_name, mutations_of
from penstock.stage.apply.tables import TableNotThere
from penstock.stage.documents import Document, document_of, meta_of, text_of
from penstock.stage.script import Dispatch, Script, SourceRules, calling, name_of

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
        """Return the row to delete: the known columns of its key, or the row before."""
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
