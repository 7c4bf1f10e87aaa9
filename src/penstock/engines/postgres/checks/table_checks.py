"""Doctor's checks of the wanted tables on the source (PG14 to PG16, PG21, PG22, PG24, PG30).

Not here: the replica identity (`identity.py`), how they look in the target (`target_checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.engines.postgres.checks.probe import SOURCE_CHECKS, Probe
from penstock.engines.postgres.checks.server import finding
from penstock.engines.postgres.connect import quote, server_errors, statement
from penstock.engines.postgres.source.catalog import Excluded, Exclusion
from penstock.host.errors import PrivilegeMissing
from penstock.model import TableName
from penstock.model.words import count_words
from penstock.ports.checks import Finding, Severity

NAMES_SHOWN_MAX = 10
GRANTED_MAX = 20  # tables in one statement; more are granted as all of their schema
UNLOGGED = (Exclusion.UNLOGGED, Exclusion.PART_UNLOGGED)
TOLD_ELSEWHERE = (Exclusion.PART_IDENTITY, *UNLOGGED)
# Exclusions that are expected, and only reported for tables that are named.
EXPECTED = (Exclusion.VIEW, Exclusion.MATERIALIZED_VIEW, Exclusion.OWN)


@SOURCE_CHECKS.check("PK06", "captured tables")
def any_table(probe: Probe) -> Iterator[Finding]:
    """Check that the patterns match tables, and that each named table exists and is capturable."""
    listing = (
        "select schemaname, tablename from pg_tables order by 1, 2;  -- and correct [source] tables"
    )
    near = ", ".join(str(name) for name in probe.survey.near)
    for pattern in probe.survey.unmatched:
        yield finding(
            "PK06",
            Severity.ERROR,
            f"there is no table {pattern} in the source" + (f"; there is {near}" if near else ""),
            "names are compared as the catalogue has them: case counts",
            listing,
        )
    for gone in probe.survey.gone:
        yield finding(
            "PK06",
            Severity.WARNING,
            f"{gone} was followed and has been dropped at the source",
            "what was committed before that is applied, and the target keeps its rows; take it "
            "out of [source] tables once you know",
        )
    for left_out in probe.survey.excluded:
        if left_out.reason in TOLD_ELSEWHERE or _is_expected(left_out):
            continue
        yield finding(
            "PK06",
            Severity.ERROR if left_out.is_named else Severity.WARNING,
            str(left_out),
            "the configuration names it" if left_out.is_named else "it is left out",
            left_out.fix,
        )
    if not (probe.tables or probe.survey.unmatched or probe.survey.gone):
        patterns = ", ".join(probe.config.source.tables)
        yield finding(
            "PK06",
            Severity.ERROR,
            f"no table of the source matches tables = {patterns}",
            "there is nothing to do",
            listing,
        )


def _is_expected(left_out: Excluded) -> bool:
    if left_out.reason in (Exclusion.PATTERN, Exclusion.PARTITION):
        return True
    return left_out.reason in EXPECTED and not left_out.is_named


@SOURCE_CHECKS.check("PK06", "captured tables")
def left_out(probe: Probe) -> Iterator[Finding]:
    """Report tables that the patterns match but that are not captured, one finding per reason."""
    by_reason: dict[str, list[str]] = {}
    for excluded in probe.survey.excluded:
        if _is_expected(excluded):
            reason = f'"{excluded.pattern}" takes it out' if excluded.pattern else excluded.reason
            by_reason.setdefault(reason, []).append(str(excluded.name))
    for reason, names in by_reason.items():
        count = f"{len(names)} tables are" if len(names) > 1 else "1 table is"
        yield finding(
            "PK06", Severity.INFO, f"{count} left out: {_names(names)}", f"of each: {reason}"
        )


@SOURCE_CHECKS.check("PG14", "unchanged TOAST values", change_only=True)
def toast(probe: Probe) -> Iterator[Finding]:
    """Report large columns: values that an UPDATE leaves unchanged are not sent, and the target
    keeps its own.
    """
    rows = probe.rows(
        """
        select c.oid::regclass::text as name
          from pg_class as c
         where c.oid = any(%(ids)s)
           and c.relkind = 'r'
           and c.relreplident <> 'f'
           and c.reltoastrelid <> 0
           and pg_relation_size(c.reltoastrelid) > 0
         order by 1
        """,
        ids=probe.table_ids,
    )
    if rows:
        yield finding(
            "PG14",
            Severity.INFO,
            f"large values are stored out of line in {_names([row['name'] for row in rows])}",
            "an UPDATE that leaves them alone does not send them: tables in the target keep what "
            "they have; other consumers of the log see them as ABSENT",
            f"alter table {rows[0]['name']} replica identity full;  -- only if a consumer needs "
            "whole rows",
        )


def _names(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    left = len(listed) - NAMES_SHOWN_MAX
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + (f" and {left} more" if left > 0 else "")


@SOURCE_CHECKS.check("PG15", "logged tables")
def unlogged_tables(probe: Probe) -> Iterator[Finding]:
    """Report unlogged tables: their changes are not in the WAL, so none of them are captured."""
    for left_out in probe.survey.excluded:
        if left_out.reason in UNLOGGED and left_out.fix:  # the root, not its parts
            yield finding(
                "PG15",
                Severity.ERROR if left_out.is_named else Severity.WARNING,
                str(left_out),
                "the table cannot be followed" if left_out.is_named else "it is left out",
                left_out.fix,
            )


@SOURCE_CHECKS.check("PG16", "generated columns")
def generated_columns(probe: Probe) -> Iterator[Finding]:
    """Report generated columns: they are not replicated, and the target computes its own."""
    for table in probe.tables:
        names = [column.name for column in table.columns if column.generated]
        if names:
            yield finding(
                "PG16",
                Severity.INFO,
                f"{table.name} has generated columns: {_names(names)}",
                "they are not replicated: a target table made by penstock computes its own",
            )


@SOURCE_CHECKS.check("PG21", "SELECT privilege")
def readable(probe: Probe) -> Iterator[Finding]:
    """Select no rows from each table; that takes USAGE on its schema and SELECT on its columns."""
    refused: list[TableName] = []
    for table in probe.tables:
        try:
            with server_errors(f"reading {table.name}"):
                name = quote(*table.name)
                probe.connection.execute(statement(f"select * from {name} limit 0"))
        except PrivilegeMissing as error:
            if "row-level security" not in error.message:  # PG22 says so
                refused.append(table.name)
    if refused:
        yield finding(
            "PG21",
            Severity.ERROR,
            f"{probe.user} may not read {_names(map(str, refused))}",
            "the bulk load and `penstock verify` read the tables themselves",
            _grants(refused, quote(probe.user)),
        )


def _grants(tables: Sequence[TableName], user: str) -> str:
    """Return the statements with which a user may read these tables, for each schema."""
    statements = []
    for schema in sorted({table.schema for table in tables}):
        names = [quote(*table) for table in tables if table.schema == schema]
        listed = ", ".join(names)
        if len(names) > GRANTED_MAX:
            listed = f"all tables in schema {quote(schema)}"
        statements.append(f"grant usage on schema {quote(schema)} to {user};")
        statements.append(f"grant select on {listed} to {user};")
    return " ".join(statements)


@SOURCE_CHECKS.check("PG22", "row security")
def row_security(probe: Probe) -> Iterator[Finding]:
    """Report policies that hide rows from the bulk load. They never hide rows from the stream."""
    rows = probe.rows(
        """
        select n.nspname as schema, c.relname as name
          from pg_class as c
          join pg_namespace as n on n.oid = c.relnamespace
         where c.oid = any(%(ids)s)
           and c.relrowsecurity
           and not (select rolsuper or rolbypassrls from pg_roles where rolname = current_user)
           and (c.relforcerowsecurity or not pg_has_role(c.relowner, 'usage'))
         order by 1, 2
        """,
        ids=probe.table_ids,
    )
    if rows:
        names = _names([f"{row['schema']}.{row['name']}" for row in rows])
        has = "has" if len(rows) == 1 else "have"
        yield finding(
            "PG22",
            Severity.ERROR if probe.config.pipeline.mode.has_data else Severity.WARNING,
            f"{names} {has} row security, and {probe.user} may not pass it",
            "the bulk load stops rather than copy only a part of the table",
            f"alter role {quote(probe.user)} bypassrls;",
        )


@SOURCE_CHECKS.check("PG24", "types that need care")
def careful_types(probe: Probe) -> Iterator[Finding]:
    """Report columns of type money, whose text depends on the locale, and of the reg* types, whose
    names may mean something else in the target.
    """
    for row in probe.rows(
        """
        select c.oid::regclass::text as name,
               a.attname as column,
               format_type(a.atttypid, a.atttypmod) as type
          from pg_attribute as a
          join pg_class as c on c.oid = a.attrelid
          join pg_type as t on t.oid = a.atttypid
         where c.oid = any(%(ids)s)
           and a.attnum > 0
           and not a.attisdropped
           and (a.atttypid in ('money'::regtype, 'money[]'::regtype)
                or t.typname ~ '^_?reg[a-z]+$' and t.typnamespace = 'pg_catalog'::regnamespace)
         order by 1, a.attnum
        """,
        ids=[table.source_id for table in probe.tables],
    ):
        money = str(row["type"]).startswith("money")
        yield finding(
            "PG24",
            Severity.WARNING,
            f"{row['name']}.{row['column']} is of type {row['type']}",
            "its text depends on lc_monetary: penstock reads and writes it as C, with cents"
            if money
            else "it names an object of the source, which the target must have too",
            f"alter table {row['name']} alter column {quote(row['column'])} type "
            + ("numeric;" if money else "text;"),
        )


@SOURCE_CHECKS.check("PG30", "not replicated")
def not_replicated(probe: Probe) -> Iterator[Finding]:
    """Report large objects and sequences: logical replication does not send them."""
    large = probe.value("select count(*) from pg_largeobject_metadata")
    if large:
        yield finding(
            "PG30",
            Severity.INFO,
            f"the source has {count_words(large, 'large object')}",
            "logical replication does not include them",
        )
    sequences = probe.value(
        """
        select count(*)
          from pg_class as c
          join pg_namespace as n on n.oid = c.relnamespace
         where c.relkind = 'S'
           and n.nspname = any(%(schemas)s)
        """,
        schemas=sorted({table.name.schema for table in probe.tables}),
    )
    if sequences:
        yield finding(
            "PG30",
            Severity.INFO,
            f"the schemas of the wanted tables have {count_words(sequences, 'sequence')}",
            "their state is not replicated: set them when the applications move to the target",
            "select setval(pg_get_serial_sequence('TABLE', 'COLUMN'), max(COLUMN)) from TABLE;",
        )


CHECKS_OF_TABLES = """
    select 'alter table ' || conrelid::regclass || ' add constraint ' || quote_ident(conname) || ' '
           || pg_get_constraintdef(oid) || ';'
      from pg_constraint as k
     where (contype in ('c', 'x') or coalesce(to_jsonb(k) ->> 'conperiod', 'false') = 'true')
       and conrelid = any(%(ids)s::bigint[]::oid[])
     order by conrelid::regclass::text, conname
"""


@SOURCE_CHECKS.check("PG30", "not replicated")
def constraints_not_made(probe: Probe) -> Iterator[Finding]:
    """Report CHECK and exclusion constraints, which the target does not get: the source has checked
    every row that arrives.
    """
    ids = [table.source_id for table in probe.tables]
    listed = [
        row["sql"] for row in probe.rows(f"select sql from ({CHECKS_OF_TABLES}) as c(sql)", ids=ids)
    ]
    if listed:
        yield finding(
            "PG30",
            Severity.INFO,
            f"the wanted tables have {count_words(len(listed), 'CHECK or exclusion constraint')}",
            "tables that penstock makes do not get them, as the source checks every row; make them "
            "in the target when the applications move there",
            " ".join(listed),
        )


@SOURCE_CHECKS.check("PG30", "not replicated")
def inheritance(probe: Probe) -> Iterator[Finding]:
    """Report tables that inherit from another: in the target they are tables of their own."""
    rows = probe.rows(
        """
        select distinct i.inhparent::regclass::text as name
          from pg_inherits as i
          join pg_class as c on c.oid = i.inhrelid and not c.relispartition
         where i.inhparent = any(%(ids)s::bigint[]::oid[])
           and c.relkind = 'r'
         order by 1
        """,
        ids=[table.source_id for table in probe.tables],
    )
    if rows:
        yield finding(
            "PG30",
            Severity.INFO,
            f"other tables inherit from {_names([row['name'] for row in rows])}",
            "each table is copied with its own rows alone: tables that penstock makes do not "
            "inherit, so that a query of the parent does not show its children's rows",
        )
