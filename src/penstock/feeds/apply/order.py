"""The order in which mutations are written into tables with foreign keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import pyarrow as pa

from penstock.model import PenstockError, Retry, TableDefinition
from penstock.ports.feeds import Group, Mutation, StagedTable, mutations_of

Parents = Mapping[StagedTable, frozenset[StagedTable]]


class TablesInCycle(PenstockError):
    """Tables refer to each other in a circle, so that none can be written first."""

    code = "ST65"
    retry: ClassVar[Retry] = "operator"


def parents_of(group: Group, tables: Mapping[str, TableDefinition]) -> Parents:
    """Return the tables to which each table of a target schema refers; itself is left out."""
    found = {}
    for name, definition in tables.items():
        references = {key.target for key in definition.foreign_keys} - {definition.name}
        found[StagedTable(group, name)] = frozenset(
            StagedTable(group, one.name)
            for one in references
            if one.schema == definition.name.schema and one.name in tables
        )
    return found


def levels_of(parents: Parents) -> dict[StagedTable, int]:
    """Return the length of the longest path from a table to one that refers to none.

    Raises TablesInCycle.
    """
    levels: dict[StagedTable, int] = {}
    waiting = dict(parents)
    while waiting:
        ready = [table for table, above in waiting.items() if above <= levels.keys()]
        if not ready:
            names = ", ".join(str(table) for table in sorted(_circle(waiting)))
            raise TablesInCycle(
                f"cycle detected in tables: {names}",
                hint="Drop one of the foreign keys between them in the target, or make it there "
                "after the feed has ended.",
            )
        for table in ready:
            levels[table] = max((levels[one] + 1 for one in waiting.pop(table)), default=0)
    return levels


def _circle(waiting: Parents) -> set[StagedTable]:
    """Return the tables that wait for themselves, of tables that wait for each other."""
    return {table for table in waiting if table in _above(waiting, table)}


def _above(parents: Parents, table: StagedTable) -> set[StagedTable]:
    found: set[StagedTable] = set()
    asked = [table]
    while asked:
        new = parents.get(asked.pop(), frozenset()) - found
        found |= new
        asked += new
    return found


def components_of(parents: Parents) -> dict[StagedTable, frozenset[StagedTable]]:
    """Return, for each table, all tables that foreign keys connect with it, and itself."""
    near: dict[StagedTable, set[StagedTable]] = {
        table: set(above) for table, above in parents.items()
    }
    for table, above in parents.items():
        for one in above:
            near.setdefault(one, set()).add(table)
    connected = {table: frozenset(above) for table, above in near.items()}
    return {table: frozenset({table} | _above(connected, table)) for table in parents}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Upserts or deletes of one table, each key once."""

    table: StagedTable
    is_delete: bool
    mutations: list[Mutation]


@dataclass(slots=True)
class _Collected:
    """Mutations by table and key."""

    of: dict[StagedTable, dict[str, Mutation]] = field(default_factory=dict)

    def steps(self, levels: Mapping[StagedTable, int], *, is_delete: bool) -> Iterator[Step]:
        sign = -1 if is_delete else 1
        for table in sorted(self.of, key=lambda table: (sign * levels.get(table, 0), table)):
            mutations = list(self.of[table].values())
            if mutations:
                yield Step(table=table, is_delete=is_delete, mutations=mutations)
        self.of.clear()


def steps_of(
    batches: Mapping[StagedTable, pa.RecordBatch], levels: Mapping[StagedTable, int]
) -> Iterator[Step]:
    """Yield mutations of some times in the order in which they are written.

    Upserts of one time after the other are gathered, and written parents first. A time with
    deletes writes the gathered upserts, then its deletes, children first; its own upserts are then
    gathered. Of several upserts of a key the last one counts, for each property that it has.
    """
    upserts, deletes = _Collected(), _Collected()
    ordered = sorted(
        ((one.time, table, one) for table, batch in batches.items() for one in mutations_of(batch)),
        key=lambda item: item[0],
    )
    for place, (time, table, one) in enumerate(ordered):
        if one.after is None:
            deletes.of.setdefault(table, {})[one.key] = one
        ends = place + 1 == len(ordered) or ordered[place + 1][0] != time
        if not ends:
            continue
        first = place
        while first and ordered[first - 1][0] == time:
            first -= 1
        if deletes.of:
            yield from upserts.steps(levels, is_delete=False)
            yield from deletes.steps(levels, is_delete=True)
        for _, written, new in ordered[first : place + 1]:
            if new.after is not None:
                rows = upserts.of.setdefault(written, {})
                old = rows.get(new.key)
                rows[new.key] = new if old is None else fold(old, new)
    yield from upserts.steps(levels, is_delete=False)


def net_steps_of(
    slices: Iterable[Mapping[StagedTable, pa.RecordBatch]], levels: Mapping[StagedTable, int]
) -> Iterator[Step]:
    """Yield the net result of all these whole times for each key: upserts, then deletes.

    Upserts are written parents first. This is for cases that the published order cannot write: a
    row that refers to another parent from the moment on in which its old one is deleted, and times
    that are applied already but were not marked before a crash, so that rows of the beginning refer
    to rows that no longer exist at the end.
    """
    upserts, deletes = _Collected(), _Collected()
    for batches in slices:
        for table, batch in batches.items():
            rows = upserts.of.setdefault(table, {})
            gone = deletes.of.setdefault(table, {})
            for one in sorted(mutations_of(batch), key=lambda mutation: mutation.time):
                if one.after is None:
                    rows.pop(one.key, None)
                    gone[one.key] = one
                else:
                    gone.pop(one.key, None)
                    old = rows.get(one.key)
                    rows[one.key] = one if old is None else fold(old, one)
    yield from upserts.steps(levels, is_delete=False)
    yield from deletes.steps(levels, is_delete=True)


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def fold(old: Mutation, new: Mutation) -> Mutation:
    """Return one upsert for two of a key: newer properties win, the older row before is kept.

    A row that is not an object is left to its writer.
    """
    assert old.after is not None
    assert new.after is not None
    try:
        after = msgspec.json.encode({**_OBJECT.decode(old.after), **_OBJECT.decode(new.after)})
    except msgspec.DecodeError:
        after = new.after
    return Mutation(time=new.time, key=new.key, after=after, before=old.before)
