"""The types below a table's columns, where altering one changes rows that are not sent.

An enum's label may get another name, and a composite type gain or lose an attribute, under a table
that uses it: the server then prints every row differently, and says nothing. New labels need no
action: no row has them yet. Pure but for the SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.engines.postgres.connect import quote
from penstock.model import PenstockError, TableName

# Of the user's own types below the columns of table k: enums by the oids of their labels, composite
# types by the numbers of their attributes. Row types of tables are watched with those tables.
TYPES = """(
    with recursive needed(id) as (
        select a.atttypid
          from pg_attribute as a
         where a.attrelid = k.id
           and a.attnum > 0
           and not a.attisdropped
           and a.atttypid >= 16384
         union
        select d.id
          from needed as w
          join pg_type as t on t.oid = w.id
         cross join lateral (
               select t.typelem as id
                union all
               select t.typbasetype
                union all
               select f.atttypid
                 from pg_attribute as f
                where t.typtype = 'c'
                  and f.attrelid = t.typrelid
                  and f.attnum > 0
                  and not f.attisdropped
                union all
               select case when r.rngtypid = t.oid then r.rngsubtype else r.rngtypid end
                 from pg_range as r
                where t.oid in (r.rngtypid, r.rngmultitypid)
               ) as d
         where d.id >= 16384
    )
    select json_agg(json_build_array(
               t.oid::bigint, s.nspname, t.typname,
               case when t.typtype = 'e' then (
                        select json_agg(json_build_array(e.oid::bigint, e.enumlabel) order by e.oid)
                          from pg_enum as e
                         where e.enumtypid = t.oid)
                    else (
                        select json_agg(json_build_array(
                                   f.attnum, f.attname || ' ' || f.atttypid) order by f.attnum)
                          from pg_attribute as f
                         where f.attrelid = t.typrelid
                           and f.attnum > 0
                           and not f.attisdropped) end,
               t.typtype) order by t.oid)
      from needed as w
      join pg_type as t on t.oid = w.id
      join pg_namespace as s on s.oid = t.typnamespace
      left join pg_class as y on y.oid = t.typrelid
     where t.typtype = 'e'
        or y.relkind = 'c')
"""


class TypeAltered(PenstockError):
    """A composite type of a captured column has other attributes: rows print differently."""

    code = "PG66"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShape:
    """An enum with its labels by oid, or a composite type with its attributes by number."""

    id: int
    name: TableName
    is_enum: bool
    parts: tuple[tuple[int, str], ...]


def label_renamed(before: Iterable[TypeShape], after: Iterable[TypeShape]) -> bool:
    """Return whether an existing label has another name."""
    old = {kind.id: dict(kind.parts) for kind in before if kind.is_enum}
    return any(
        old.get(kind.id, {}).get(label_id, label) != label
        for kind in after
        if kind.is_enum
        for label_id, label in kind.parts
    )


def find_altered(
    before: Iterable[TypeShape], after: Iterable[TypeShape], table: TableName
) -> TypeAltered | None:
    """Return the error that stops a pipeline: attributes were added or dropped; names are
    ignored.
    """
    old = {kind.id: kind for kind in before if not kind.is_enum}
    for kind in after:
        last = old.get(kind.id)
        if last is None or [n for n, _ in last.parts] == [n for n, _ in kind.parts]:
            continue
        name = quote(*kind.name)
        return TypeAltered(
            f"composite type {kind.name} has other attributes now: every row of {table} that has "
            "a value of it is printed differently, and none was sent",
            hint="Let the loader finish, do the same in the target "
            f"(alter type {name} add attribute ..., or drop attribute ...), and start again.",
            table=str(table),
        )
    return None
