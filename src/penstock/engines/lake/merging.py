"""Rows that Spark merges into a table: the statements, and a session of their own for them.

Staged rows are Parquet files (`WriterSpec.merges`). One statement changes the table, so that it is
one commit with the batch's mark: MERGE, or INSERT OVERWRITE and DELETE for a table that is emptied.
Not here: how a format keeps a mark with Spark's commit (`LakeTable.merge` of the engines).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from penstock.engines.lake.format import LakeColumn, Merge
from penstock.engines.lake.java import as_seq, class_names, java_path, join_texts, message_of
from penstock.engines.lake.writer import flag_field, key_field
from penstock.model import PenstockError, TableName
from penstock.ports.jobs import Jobs
from penstock.ports.target import TargetRowMissing, ValueRefused

ROWS, OPEN, DELETED = "penstock_rows", "penstock_open", "penstock_deleted"
"""Views of staged rows: whole ones, those without some columns, deleted keys."""

_FIXED: Mapping[str, str] = {
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}
# Simple names of the exceptions for a row that a rule of the table refuses.
_RULES = frozenset({"DeltaInvariantViolationException", "InvariantViolationException"})
_SPARK = {
    "bool": "boolean",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}


class MergeKeyMissing(PenstockError):
    """A table without a key cannot be merged."""

    code = "LK13"


def key_missing(table: TableName) -> MergeKeyMissing:
    """Return the error for a table without a key. table: the source's."""
    return MergeKeyMissing(
        f'{table} has no key, and apply = "merge" finds rows by their keys',
        hint='Write apply = "position" in [target], which takes tables without a key; or leave the '
        "table out; or give it a primary key at the source.",
        table=str(table),
    )


class Merger:
    """Sessions that merge, one for each thread, because the mark is a property of the session.

    Errors are the JVM's; see `java.typed_errors`.
    """

    def __init__(self, jobs: Jobs, conf: Mapping[str, str] | None = None) -> None:
        """Keep the loader's session. conf: properties that the new ones get, too."""
        self._jobs = jobs
        self._conf = {**_FIXED, **(conf or {})}
        self._threads = threading.local()

    def run(
        self, name: TableName, target: str, merge: Merge, marks: Mapping[str, str]
    ) -> int | None:
        """Merge rows; return the number of rows that were updated or deleted, if Spark tells it.

        Args:
            name: The table, for messages.
            target: The table in SQL.
            merge: The rows.
            marks: Properties of the session by which the format keeps the mark.

        Raises TargetRowMissing, ValueRefused.
        """
        session = self._session()
        for key, value in marks.items():
            session.conf().set(key, value)
        try:
            views = self._make_views(session, merge)
            if OPEN in views and not merge.is_emptied:
                self._check_open(session, name, target, merge)
            text = emptying_sql(target, merge, views) if merge.is_emptied else None
            text = text or merge_sql(target, merge, views)
            try:
                lines = session.sql(text).toJSON().collectAsList()
            except Exception as error:
                raise self._convert_refusal(name, error) from error
            return _count_found(join_texts(self._jobs.jvm, lines))
        finally:
            for key in marks:
                session.conf().unset(key)

    def _session(self) -> Any:
        """Return the calling thread's session, which has its own properties and views."""
        if getattr(self._threads, "session", None) is None:
            session = self._jobs.spark.newSession()
            for key, value in self._conf.items():
                session.conf().set(key, value)
            self._threads.session = session
        return self._threads.session

    def _make_views(self, session: Any, merge: Merge) -> frozenset[str]:
        """Make views of the staged files; return the names of those that have rows."""
        places = {
            ROWS: [file.location for part in merge.parts for file in part.adds],
            OPEN: [part.open_rows for part in merge.parts if part.open_rows],
            DELETED: [part.keys for part in merge.parts if part.keys],
        }
        schemas = view_schemas(merge)
        for view, locations in places.items():
            if locations:
                self._make_view(session, view, schemas[view], locations)
        return frozenset(view for view, locations in places.items() if locations)

    def _make_view(self, session: Any, view: str, schema: str, locations: Sequence[str]) -> None:
        jvm = self._jobs.jvm
        paths = jvm.java.util.ArrayList()
        for location in locations:
            paths.add(_spark_path(location))
        # Spark would read characters of a folder's name as a pattern.
        reader = session.read().option("__globPaths__", "false").schema(schema)
        reader.parquet(as_seq(jvm, paths)).createOrReplaceTempView(view)

    def _check_open(self, session: Any, name: TableName, target: str, merge: Merge) -> None:
        """Raise TargetRowMissing if rows to complete are not in the table."""
        lines = session.sql(missing_sql(target, merge)).toJSON().collectAsList()
        if missing := int(json.loads(join_texts(self._jobs.jvm, lines))["missing"]):
            raise TargetRowMissing(
                f"the lake's table {name} lacks {missing} rows that the log changes without all of "
                "their columns",
                hint="Another client wrote there, or it drifted. Copy it again: penstock table "
                f"resync FILE {name}",
                table=str(name),
            )

    def _convert_refusal(self, name: TableName, error: Exception) -> Exception:
        """Return the error for a row that a rule of the table refuses; others as they are."""
        if not _RULES.intersection(class_names(error)):
            return error
        return ValueRefused(
            f"a rule of the lake's table {name} refuses a row: {message_of(error)}",
            hint="Drop the rule in Spark (ALTER TABLE ... DROP CONSTRAINT ...), or correct the row "
            "at the source; penstock applies the batch again.",
            table=str(name),
        )


def _spark_path(location: str) -> str:
    """Return a location as Spark reads it. A path without a scheme is a disk's."""
    place = java_path(location)
    return f"file://{place}" if place.startswith("/") else place


def _count_found(line: str) -> int | None:
    """Return the updated and deleted rows in the answer of a statement."""
    if not line.strip():
        return None
    answer = json.loads(line.splitlines()[0])
    if "num_updated_rows" not in answer:
        return None
    return int(answer["num_updated_rows"]) + int(answer["num_deleted_rows"])


# -- statements ------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Return a name as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def spark_type(kind: str) -> str:
    """Return Spark's type for a type of `format`."""
    return _SPARK.get(kind, kind)


def view_schemas(merge: Merge) -> Mapping[str, str]:
    """Return the schema of each view, as text."""
    rows = [f"{name} {spark_type(column.type)}" for name, column in merge.columns.items()]
    keys = [
        f"{key_field(place)} {spark_type(merge.columns[name].type)}"
        for place, name in enumerate(merge.key)
    ]
    flags = [f"{flag_field(name)} boolean" for name in merge.columns]
    return {
        ROWS: ", ".join(rows),
        OPEN: ", ".join([*flags, *keys, *rows]),
        DELETED: ", ".join(keys),
    }


def emptying_sql(target: str, merge: Merge, views: frozenset[str]) -> str:
    """Return the statement that puts rows in place of all rows of a table."""
    if ROWS not in views:
        return f"DELETE FROM {target}"
    names = ", ".join(quote(column.name) for column in merge.columns.values())
    return f"INSERT OVERWRITE {target} ({names}) SELECT {', '.join(merge.columns)} FROM {ROWS}"


def merge_sql(target: str, merge: Merge, views: frozenset[str]) -> str:
    """Return the statement that merges the rows of views into a table."""
    pairs = [(quote(column.name), f"s.{name}") for name, column in merge.columns.items()]
    lines = [
        f"MERGE INTO {target} t USING ({_source_sql(target, merge, views)}) s",
        "ON " + " AND ".join([*_same_key(merge, "s", merge.key), *_bounds_sql(merge)]),
    ]
    if DELETED in views:
        lines.append("WHEN MATCHED AND NOT s.is_row THEN DELETE")
    if views & {ROWS, OPEN}:
        updates = ", ".join(f"t.{column} = {value}" for column, value in pairs)
        columns, values = zip(*pairs, strict=True)
        lines += [
            f"WHEN MATCHED THEN UPDATE SET {updates}",
            f"WHEN NOT MATCHED AND s.is_row THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(values)})",
        ]
    return "\n".join(lines)


def missing_sql(target: str, merge: Merge) -> str:
    """Return the query for the number of rows to complete that a table lacks."""
    same = " AND ".join(_same_key(merge, "o", _origin(merge)))
    return f"SELECT count(*) AS missing FROM {OPEN} o LEFT ANTI JOIN {target} t ON {same}"


def _source_sql(target: str, merge: Merge, views: frozenset[str]) -> str:
    """Return the query for all rows: whether it is one to keep, and its columns."""
    found = []
    if ROWS in views:
        found.append(f"SELECT true AS is_row, {', '.join(merge.columns)} FROM {ROWS}")
    if OPEN in views:
        values = [
            f"CASE WHEN o.{flag_field(name)} THEN t.{quote(column.name)} ELSE o.{name} END "
            f"AS {name}"
            for name, column in merge.columns.items()
        ]
        same = " AND ".join(_same_key(merge, "o", _origin(merge)))
        found.append(
            f"SELECT true AS is_row, {', '.join(values)} FROM {OPEN} o JOIN {target} t ON {same}"
        )
    if DELETED in views:
        places = {name: key_field(place) for place, name in enumerate(merge.key)}
        values = [
            f"CAST({places.get(name, 'NULL')} AS {spark_type(column.type)}) AS {name}"
            for name, column in merge.columns.items()
        ]
        found.append(f"SELECT false AS is_row, {', '.join(values)} FROM {DELETED}")
    return " UNION ALL ".join(found)


def _origin(merge: Merge) -> Sequence[str]:
    """Return the columns with the key that a row to complete has in the table."""
    return [key_field(place) for place in range(len(merge.key))]


def _same_key(merge: Merge, alias: str, names: Sequence[str]) -> list[str]:
    return [
        f"t.{quote(merge.columns[key].name)} = {alias}.{name}"
        for key, name in zip(merge.key, names, strict=True)
    ]


def _bounds_sql(merge: Merge) -> list[str]:
    """Return conditions by which Spark passes over files that have none of the keys.

    A row whose key is outside is new, so it matches none.
    """
    found = []
    for name in merge.key:
        column = merge.columns[name]
        bounds = [part.key_bounds.get(column.name) for part in merge.parts if part.key_count]
        known = [one for one in bounds if one is not None]
        if not known or len(known) < len(bounds):
            continue
        low, high = min(one[0] for one in known), max(one[1] for one in known)
        if texts := _literals(column, low, high):
            found.append(f"t.{quote(column.name)} BETWEEN {texts[0]} AND {texts[1]}")
    return found


def _literals(column: LakeColumn, low: Any, high: Any) -> tuple[str, str] | None:
    """Return the literals of bounds; None for types whose literals are not exact."""
    if column.type in ("int32", "int64"):
        return f"{int(low)}", f"{int(high)}"
    if column.type == "date" and isinstance(low, date) and isinstance(high, date):
        return f"DATE'{low.isoformat()}'", f"DATE'{high.isoformat()}'"
    return None
