"""Doctor's check of the replica identity, by which updated and deleted rows are found (PG12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.engines.postgres.checks.probe import SOURCE_CHECKS, Probe
from penstock.engines.postgres.checks.server import finding
from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.source.catalog import Exclusion
from penstock.ports.checks import Finding, Severity

# A table's columns, and the unique index that could be its replica identity, the primary key first.
TABLE = """
    select c.oid::bigint as id,
           n.nspname as schema,
           c.relname as name,
           c.relkind::text as kind,
           c.relreplident::text as identity,
           u.name as usable_index,
           coalesce(u.indisprimary, false) as usable_is_primary,
           exists (select from pg_attribute as a
                    where a.attrelid = c.oid and not a.attisdropped and a.attgenerated <> ''
                  ) as has_generated
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
      left join lateral (
           select i.relname as name, x.indisprimary
             from pg_index as x
             join pg_class as i on i.oid = x.indexrelid
            where x.indrelid = c.oid
              and x.indisunique and x.indisvalid and x.indimmediate
              and x.indpred is null and x.indexprs is null
              and not exists (select from pg_attribute as a
                               where a.attrelid = c.oid
                                 and a.attnum = any(x.indkey)
                                 and (not a.attnotnull or a.attgenerated <> ''))
            order by not x.indisprimary, x.indnkeyatts, i.relname
            limit 1) as u on true
     where c.oid = any(%(ids)s)
"""
# Updates and deletes of a table that is published fail at the source when it has no identity. Of a
# partitioned table the server looks at the partitions; their changes are sent with its columns.
WITHOUT_IDENTITY = f"""
    {TABLE}
       and (c.relreplident = 'n' and c.relkind = 'r'
            or c.relreplident = 'd'
               and not exists (select from pg_index as i
                                where i.indrelid = c.oid
                                  and i.indisprimary and i.indisvalid and i.indimmediate)
            or c.relreplident = 'i'
               and not exists (select from pg_index as i
                                where i.indrelid = c.oid and i.indisreplident))
     order by 2, 3
"""
WITHOUT = {
    "d": "has no primary key and replica identity DEFAULT",
    "n": "has replica identity NOTHING",
    "i": "has a replica identity index that was dropped",
}

NOT_FULL = f"""
    {TABLE}
       and c.relkind = 'r' and c.relreplident <> 'f'
     order by 2, 3
"""

# From 18 on the server refuses to update a table whose identity has columns that are not sent;
# earlier versions send changes without them.
GENERATED_IDENTITY = f"""
    {TABLE}
       and exists (
           select
             from pg_attribute as a
            where a.attrelid = c.oid
              and not a.attisdropped
              and a.attgenerated <> ''
              and (c.relreplident = 'f' and %(refuses)s
                   or exists (
                      select
                        from pg_index as i
                       cross join unnest(i.indkey::int2[]) with ordinality as k(number, place)
                       where i.indrelid = c.oid
                         and k.number = a.attnum
                         and k.place <= i.indnkeyatts
                         and (c.relreplident = 'd' and i.indisprimary
                              or c.relreplident = 'i' and i.indisreplident))))
     order by 2, 3
"""
REFUSES_GENERATED = 180000


@SOURCE_CHECKS.check("PG12", "replica identity", change_only=True)
def identity(probe: Probe) -> Iterator[Finding]:
    """Check that each table has a primary key or another replica identity. NOTHING is enough for
    inserts.
    """
    reported = set()
    for row in probe.rows(WITHOUT_IDENTITY, ids=probe.table_ids):
        what = f"{row['schema']}.{row['name']} {WITHOUT[row['identity']]}"
        if row["identity"] != "n":
            yield finding("PG12", Severity.ERROR, what, _without(row), _identity_sql(probe, row))
            continue
        root = next(t for t in probe.tables if row["id"] in (t.source_id, *t.partition_leaves))
        if root.name not in reported:  # one partition is reported for all
            yield finding(
                "PG12",
                Severity.WARNING,
                what + (f", a partition of {root.name}" if root.is_partitioned else ""),
                "inserts and TRUNCATE are replicated; UPDATE and DELETE fail at the source while "
                "it "
                f'is published: cannot update table "{row["name"]}" because it does not have a '
                "replica identity and publishes updates",
                _identity_sql(probe, row),
            )
        reported.add(root.name)
    for left_out in probe.survey.excluded:
        if left_out.reason is Exclusion.PART_IDENTITY and left_out.fix:  # the root, not its parts
            yield finding(
                "PG12",
                Severity.ERROR,
                str(left_out),
                "updates and deletes of its rows come without the key that identifies them",
                left_out.fix,
            )


def _without(row: dict[str, Any]) -> str:
    """Return the consequences of a table without an identity."""
    if row["kind"] == "p":
        return (
            "UPDATE and DELETE work at the source where its partitions have an identity, and are "
            "sent as changes of the partitioned table: without a key of its own it is not known "
            "which rows they are"
        )
    return "once it is published, every UPDATE and DELETE on it fails at the source"


def _identity_sql(probe: Probe, row: dict[str, Any]) -> str:
    """Return the SQL that gives a table an identity with which it can be updated."""
    table = quote(row["schema"], row["name"])
    if row["usable_is_primary"]:
        return f"alter table {table} replica identity default;"
    if row["usable_index"]:
        return f"alter table {table} replica identity using index {quote(row['usable_index'])};"
    if probe.version < REFUSES_GENERATED or not row["has_generated"]:
        return f"alter table {table} replica identity full;"
    key = quote(f"{row['name']}_row_id")
    return (
        f"alter table {table} add column row_id bigint generated always as identity "
        f"constraint {key} unique; alter table {table} replica identity using index {key};"
    )


@SOURCE_CHECKS.check("PG12", "replica identity", change_only=True)
def generated_identity(probe: Probe) -> Iterator[Finding]:
    """Report replica identities with a generated column: it is not sent, so it cannot identify a
    row.
    """
    refuses = probe.version >= REFUSES_GENERATED
    for row in probe.rows(GENERATED_IDENTITY, ids=probe.table_ids, refuses=refuses):
        yield finding(
            "PG12",
            Severity.ERROR,
            f"the replica identity of {row['schema']}.{row['name']} has a generated column",
            "once it is published, every UPDATE and DELETE on it fails at the source"
            if refuses
            else "generated columns are not sent: changed rows cannot be identified",
            _identity_sql(probe, row),
        )


@SOURCE_CHECKS.check("PG12", "replica identity", change_only=True)
def full_identity(probe: Probe) -> Iterator[Finding]:
    """Report tables without replica identity FULL if fullBeforeImages is set: their whole old rows
    are not sent.
    """
    if not probe.config.change_extractor.full_before_images:
        return
    for row in probe.rows(NOT_FULL, ids=probe.table_ids):
        yield finding(
            "PG12",
            Severity.ERROR,
            f"{row['schema']}.{row['name']} does not have replica identity FULL",
            "fullBeforeImages asks for the whole old row of each update and delete, and the "
            "server sends only the columns of the replica identity",
            f"alter table {quote(row['schema'], row['name'])} replica identity full;",
        )
