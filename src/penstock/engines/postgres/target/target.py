"""Tables of the target to which changes are applied, from its catalogue, and their names and types.

Read only. Namespaces are mapped on their way to the target, values staged and cast. Not here:
creating and altering tables (`schema.py`, `alter.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from penstock.codec.columns import arrow_type
from penstock.engines.postgres.connect import quote
from penstock.model import Column, TableName
from penstock.ports.target import TargetTableMissing

_TOKEN = re.compile(
    r"""
      (?P<string>  [eE]?'(?:[^'\\]|''|\\.)*' )
    | (?P<dollar>  \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<quoted>  "(?:[^"]|"")*" )
    | (?P<word>    [^\W\d][\w$]* )
    | (?P<other>   \d[\w.]* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z")


def map_namespaces(sql: str, namespaces: Mapping[str, str]) -> str:
    """Replace mapped schema names in a piece of SQL that the source's server printed.

    A name counts as schema when a dot follows it and none precedes it; string literals stay as
    they are. Made for type names, index and constraint definitions and default expressions.
    """
    if not namespaces:
        return sql
    tokens = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(sql)]
    result: list[str] = []
    for place, (kind, text) in enumerate(tokens):
        before = tokens[place - 1][1] if place else ""
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if kind in ("quoted", "word") and after == "." and before != ".":
            name = text[1:-1].replace('""', '"') if kind == "quoted" else text
            result.append(quote(namespaces[name]) if name in namespaces else text)
        else:
            result.append(text)
    return "".join(result)


def same_type(left: str, right: str) -> bool:
    """Return whether two printed types are equal: needless quotes around names are ignored."""
    return _unquote(left) == _unquote(right)


def _unquote(text: str) -> str:
    def bare(match: re.Match[str]) -> str:
        inner = match[0][1:-1]
        # "char" and "bit" with quotes are other types than char and bit without.
        plain = _PLAIN.match(inner) and inner not in ("char", "bit")
        return inner if plain else match[0]

    return re.sub(r'"(?:[^"]|"")*"', bare, text)


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """Staging of a column in a merge table.

    Attributes:
        arrow: the type as which its values are sent.
        sql: the column's type there.
        needs_cast: whether the apply statement must cast it to the target column's type.
        head: bytes that the server's binary form has before each value.
    """

    arrow: pa.DataType
    sql: str
    needs_cast: bool
    head: bytes = b""


AS_TEXT = StagedColumn(pa.string(), "text", needs_cast=True)
# The version of the binary form, then the text. It is parsed by the backends that stage, which are
# several: all wait for the one that applies. Source: PostgreSQL, src/backend/utils/adt/jsonb.c.
AS_JSONB = StagedColumn(pa.binary(), "jsonb", needs_cast=True, head=b"\x01")

_STAGED_SQL = {
    "bool": "boolean",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "uuid": "uuid",
    "binary": "bytea",
}


def staging_of(column: Column) -> StagedColumn:
    """Return the staging of a column by its neutral type.

    Values kept as text, and unsigned numbers, which the bulk protocol would wrap, are staged as
    text and cast when applied. PostgreSQL's own jsonb, which is valid, is staged as jsonb, decimals
    as numeric, and all others as their own type.
    """
    if column.neutral in ("string", "uint32", "uint64"):
        is_jsonb = (column.base_type or column.source_type) == "jsonb"
        return AS_JSONB if is_jsonb else AS_TEXT
    sql = _STAGED_SQL.get(column.neutral, "numeric")
    return StagedColumn(arrow_type(column.neutral), sql, needs_cast=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column of a target table.

    type_text: with modifiers; cast_type: without, fit for a cast that does not cut values short.
    generated: the target computes it. identity: `a` always, `d` by default, or none. origin: the
    table, highest in a tree, that this one inherits the column from; only there it can be altered.
    """

    name: str
    type_text: str
    cast_type: str
    not_null: bool
    generated: bool
    identity: str
    has_default: bool
    origin: TableName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIndex:
    """A unique index or an exclusion constraint's. columns: empty when it has expressions.

    immediate: checked at once (not deferrable). plain: unique over columns, whole table, valid.
    operators: per column the qualified equality operator that the index goes by.
    """

    name: str
    columns: tuple[str, ...]
    primary: bool
    immediate: bool
    plain: bool
    nulls_not_distinct: bool = False
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForeignKey:
    """A foreign key between two tables of the target. on_delete: `a` no action, `r` restrict,
    `c` cascade, `n` set null, `d` set default.
    """

    name: str
    child: TableName
    parent: TableName
    deferrable: bool
    on_delete: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A target table as the apply statements need to know it.

    triggers: user triggers and their tgenabled letter. parents, children: foreign keys from and
    to this table, self references left out of both. self_reference: whether it has one.
    partitioned: its rows are in partitions. in_tree: it inherits from others, or others from it.
    """

    name: TableName
    columns: tuple[TargetColumn, ...]
    unique: tuple[TargetIndex, ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    rules: tuple[str, ...] = ()
    parents: tuple[TargetForeignKey, ...] = ()
    children: tuple[TargetForeignKey, ...] = ()
    self_reference: bool = False
    partitioned: bool = False
    in_tree: bool = False

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def sql_name(self) -> str:
        """The quoted, qualified name."""
        return quote(*self.name)

    @property
    def own_rows(self) -> str:
        """Name for statements about rows. Excludes rows of tables that inherit from the table."""
        return own_rows(self.name, partitioned=self.partitioned)


def own_rows(table: TableName, *, partitioned: bool) -> str:
    """Return a table's name for statements about its rows. ONLY of a partitioned one would select
    no row.
    """
    return quote(*table) if partitioned else f"only {quote(*table)}"


COLUMNS = """
    select n.nspname, c.relname, a.attname,
           format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1),
           a.attnotnull, a.attgenerated <> '', a.attidentity::text, a.atthasdef,
           c.relkind = 'p',
           c.relkind = 'r' and not c.relispartition
           and exists (select from pg_inherits i where c.oid in (i.inhparent, i.inhrelid)),
           case when a.attinhcount > 0 and not c.relispartition then (
               with recursive above(id) as (
                   select i.inhparent from pg_inherits i where i.inhrelid = c.oid
                    union
                   select i.inhparent from above u join pg_inherits i on i.inhrelid = u.id
               )
               select array[o.relnamespace::regnamespace::text, o.relname::text]
                 from above u
                 join pg_class o on o.oid = u.id
                 join pg_attribute p on p.attrelid = u.id and p.attname = a.attname
                                    and p.attinhcount = 0
                order by o.oid
                limit 1)
           end
      from unnest(%s::text[], %s::text[]) as w(schema_name, table_name)
      join pg_namespace n on n.nspname = w.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname = w.table_name
                     and c.relkind in ('r', 'p')
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     order by n.nspname, c.relname, a.attnum
"""

UNIQUE_INDEXES = """
    select n.nspname, c.relname, x.relname, i.indisprimary, i.indimmediate,
           i.indisunique and not i.indisexclusion and i.indpred is null and i.indexprs is null
           and i.indisvalid,
           coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false')::boolean,
           array(select a.attname::text
                   from unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality as k(attnum, place)
                   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where i.indexprs is null
                  order by k.place),
           array(select quote_ident(s.nspname) || '.' || o.oprname
                   from unnest(i.indclass[0:i.indnkeyatts - 1]) with ordinality as k(opc, place)
                   join pg_opclass f on f.oid = k.opc
                   join pg_amop m on m.amopfamily = f.opcfamily and m.amopstrategy = 3
                                 and m.amoplefttype = f.opcintype
                                 and m.amoprighttype = f.opcintype
                   join pg_operator o on o.oid = m.amopopr
                   join pg_namespace s on s.oid = o.oprnamespace
                  where i.indexprs is null and not i.indisexclusion
                  order by k.place)
      from unnest(%s::text[], %s::text[]) as w(schema_name, table_name)
      join pg_namespace n on n.nspname = w.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname = w.table_name
                     and c.relkind in ('r', 'p')
      join pg_index i on i.indrelid = c.oid and (i.indisunique or i.indisexclusion)
      join pg_class x on x.oid = i.indexrelid
     order by 1, 2, i.indisprimary desc, 3
"""

TRIGGERS = """
    select n.nspname, c.relname, t.tgname, t.tgenabled::text
      from unnest(%s::text[], %s::text[]) as w(schema_name, table_name)
      join pg_namespace n on n.nspname = w.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname = w.table_name
      join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal and t.tgenabled <> 'D'
     order by 1, 2, 3
"""

RULES = """
    select n.nspname, c.relname, r.rulename
      from unnest(%s::text[], %s::text[]) as w(schema_name, table_name)
      join pg_namespace n on n.nspname = w.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname = w.table_name
                     and c.relkind in ('r', 'p')
      join pg_rewrite r on r.ev_class = c.oid and r.ev_enabled <> 'D'
     order by 1, 2, 3
"""

PARTITIONED = """
    select relkind = 'p'
      from pg_class
     where oid = to_regclass(%(name)s)
"""

FOREIGN_KEYS = """
    select f.conname, cn.nspname, c.relname, pn.nspname, p.relname,
           f.condeferrable, f.confdeltype::text
      from pg_constraint f
      join pg_class c on c.oid = f.conrelid
      join pg_namespace cn on cn.oid = c.relnamespace
      join pg_class p on p.oid = f.confrelid
      join pg_namespace pn on pn.oid = p.relnamespace
     where f.contype = 'f' and f.conparentid = 0
     order by 2, 3, 1
"""


def read_target_tables(
    connection: psycopg.Connection, names: Iterable[TableName]
) -> dict[TableName, TargetTable]:
    """Read the catalogue for these target tables; those that do not exist are left out."""
    wanted = sorted(set(names))
    schemas = [name.schema for name in wanted]
    tables = [name.name for name in wanted]

    def group(query: str) -> dict[TableName, list[tuple[Any, ...]]]:
        found: dict[TableName, list[tuple[Any, ...]]] = {}
        for row in connection.execute(query, (schemas, tables)).fetchall():
            found.setdefault(TableName(row[0], row[1]), []).append(row[2:])
        return found

    columns = group(COLUMNS)
    indexes = group(UNIQUE_INDEXES)
    triggers = group(TRIGGERS)
    rules = group(RULES)
    keys = _foreign_keys(connection)
    return {
        name: TargetTable(
            name=name,
            columns=tuple(_column(row) for row in columns[name]),
            unique=tuple(_index(row) for row in indexes.get(name, ())),
            triggers=tuple((row[0], row[1]) for row in triggers.get(name, ())),
            rules=tuple(row[0] for row in rules.get(name, ())),
            parents=tuple(k for k in keys if k.child == name and k.parent != name),
            children=tuple(k for k in keys if k.parent == name and k.child != name),
            self_reference=any(k.parent == name == k.child for k in keys),
            partitioned=columns[name][0][7],
            in_tree=columns[name][0][8],
        )
        for name in wanted
        if name in columns
    }


def read_own_rows(connection: psycopg.Connection, table: TableName) -> str:
    """Return `own_rows` of one table, as the catalogue has it."""
    row = connection.execute(PARTITIONED, {"name": quote(*table)}).fetchone()
    return own_rows(table, partitioned=row is not None and bool(row[0]))


def require(tables: dict[TableName, TargetTable], name: TableName) -> TargetTable:
    """Return the table of this name; raises TargetTableMissing."""
    if name not in tables:
        raise TargetTableMissing(
            f"the target has no table {name}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it.",
            table=str(name),
        )
    return tables[name]


def _column(row: tuple[Any, ...]) -> TargetColumn:
    return TargetColumn(
        name=row[0],
        type_text=row[1],
        cast_type=row[2],
        not_null=row[3],
        generated=row[4],
        identity=row[5],
        has_default=row[6],
        origin=TableName(*row[9]) if row[9] else None,
    )


def _index(row: tuple[Any, ...]) -> TargetIndex:
    return TargetIndex(
        name=row[0],
        primary=row[1],
        immediate=row[2],
        plain=row[3],
        nulls_not_distinct=row[4],
        columns=tuple(row[5]),
        operators=tuple(row[6]),
    )


def _foreign_keys(connection: psycopg.Connection) -> tuple[TargetForeignKey, ...]:
    return tuple(
        TargetForeignKey(
            name=row[0],
            child=TableName(row[1], row[2]),
            parent=TableName(row[3], row[4]),
            deferrable=row[5],
            on_delete=row[6],
        )
        for row in connection.execute(FOREIGN_KEYS).fetchall()
    )
