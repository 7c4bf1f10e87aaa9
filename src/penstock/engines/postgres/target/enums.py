"""Types that the source got after the target's tables were created, and labels of enums.

A shape of the log brings the types of its columns, with the labels that they had then.
The server sends no message for ALTER TYPE ... ADD VALUE; the first row that uses the label shows
it. A label is added after the others, because its place is not known: that only affects sorting by
the type. Outside a transaction, because a new label cannot be used in the one that adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg
import structlog

from penstock.engines.postgres.connect import literal, quote
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.schema import ensure_type
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.target import SCHEMA

logger = structlog.get_logger(__name__)


class EnumLabelMissing(PenstockError):
    """The target's enum lacks a label, and this role may not add it."""

    code = "TG36"


# Through domains over domains, and one array of any of them.
ENUM_COLUMNS = """
    with recursive below(name, id, arrays) as (
        select a.attname, a.atttypid, 0
          from pg_attribute a
         where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
         union all
        select b.name, case t.typtype when 'd' then t.typbasetype else t.typelem end,
               b.arrays + case t.typtype when 'd' then 0 else 1 end
          from below b
          join pg_type t on t.oid = b.id
         where t.typtype = 'd' or t.typcategory = 'A'
    )
    select b.name, e.oid, n.nspname, e.typname, b.arrays = 1
      from below b
      join pg_type e on e.oid = b.id and e.typtype = 'e'
      join pg_namespace n on n.oid = e.typnamespace
     where b.arrays < 2
"""


def add_missing_labels(
    connection: psycopg.Connection, merges: Iterable[tuple[TableName, str, MergeLayout]]
) -> int:
    """Add the labels that filled merge tables use to the target's enums; return their number.

    merges: target table, the name of its merge table and its layout. Raises EnumLabelMissing with
    the statement to type if the role does not own the type.
    """
    added = 0
    for table, staging, layout in merges:
        places = {column.name: place for place, column in enumerate(layout.relation.columns)}
        for column, oid, schema, name, is_array in connection.execute(
            ENUM_COLUMNS, (quote(*table),)
        ).fetchall():
            if column not in places or layout.relation.columns[places[column]].neutral != "string":
                continue  # the target's own, or one that had this name before
            source = f"{quote(SCHEMA, staging)} as m"
            value = layout.reference(places[column], "m")
            if is_array:
                source += f", unnest({value}::text[]) as label"
                value = "label"
            labels = connection.execute(
                f"select distinct {value} from {source} where {value} is not null and not exists"
                f" (select from pg_enum e where e.enumtypid = %s and e.enumlabel = {value})"
                " order by 1",
                (oid,),
            ).fetchall()
            for (label,) in labels:
                _add(connection, quote(schema, name), label)
                added += 1
    return added


def prepare_types(
    connection: psycopg.Connection, relations: Iterable[Relation], namespaces: Mapping[str, str]
) -> None:
    """Create the types that shapes need and the target lacks; add the labels that its enums lack.

    Call this before the transaction that alters tables, because a label cannot be used in the
    transaction that adds it. If the target refuses a type, the error appears when a table needs it.
    """
    for kind in dict.fromkeys(kind for relation in relations for kind in relation.types):
        try:
            ensure_type(connection, kind, namespaces)
        except (PenstockError, psycopg.errors.InsufficientPrivilege) as error:
            logger.warning("type not created in the target", type=kind.name, reason=str(error))


def _add(connection: psycopg.Connection, enum: str, label: str) -> None:
    statement = f"alter type {enum} add value if not exists {literal(label)}"
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise EnumLabelMissing(
            f"the target's enum {enum} lacks a label that the source has",
            hint=f"As its owner, run: {statement};",
        ) from error
    logger.warning("label added to an enum of the target, behind the others", enum=enum)
