"""Statements that bring one merge table into its base table. Pure: catalogue in, SQL out.

Rows of a table with a key are applied by DELETE and MERGE: two statements, where DELETE, UPDATE and
INSERT are three, and where an UPDATE of joined tables would need a unique index on the merge table.
One MERGE for all three cannot delete children before parents, and must update a row before it
deletes it. The number of rows that MERGE changed tells whether all were there to be changed. Its
ON columns cannot be updated (ORA-38104), and are not: a changed key is a delete and an insert.

- KEYED: deleted keys by DELETE, the others by MERGE.
- COUNT: tables without a key: so many copies of a row are deleted, so many inserted. Rows are
  compared whole and exactly, NULL equals NULL (DECODE; DBMS_LOB.COMPARE for LOBs).

Text is compared by its bytes, because sessions have NLS_COMP=BINARY. Not here: the order of
statements and tables (`phase.py`), and the transaction (`apply.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.target.catalog import TargetColumn, TargetTable
from penstock.engines.oracle.target.layout import MergeLayout, Staged
from penstock.engines.oracle.target.progress import OWNER
from penstock.model import Column, Relation
from penstock.ports.target import Counts, KeyNotInTarget, TargetShapeDiffers
from penstock.sql.row_translation import fill_template

COPY_BITS_MAX = 63
_PADDED = frozenset(("CHAR", "NCHAR"))
_ZONED = "TIMESTAMP WITH TIME ZONE"
_LONGS = frozenset(("LONG", "LONG RAW"))


class MergeStrategy(Enum):
    """Strategy by which a table's rows are applied; described at the top of this module."""

    KEYED = "keyed"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Merge table of one phase, and the table that it is applied to.

    Attributes:
        relation: Shape of the rows.
        staging: The merge table's name in schema WIREKITE.
        absent_columns: Indexes of the columns that some row leaves to the target.
        forms: Forms in which columns are staged.
        templates: Conversions of staged values, by column.
        dropped: Columns of the rows that the table does not have, or no longer has.
        renamed: Names that columns of the rows have in the table, if they differ.
    """

    relation: Relation
    table: TargetTable
    staging: str
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    forms: tuple[Staged, ...] = ()
    templates: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)


class MergeSql:
    """Statements of one merge. Raises KeyNotInTarget, TargetShapeDiffers when created."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.table = merge.table
        self.layout = MergeLayout(merge.relation, merge.forms)
        self.staging = quote(OWNER, merge.staging)
        self._columns = {
            place: (column, self._target(column))
            for place, column in enumerate(merge.relation.columns)
            if column.name not in merge.dropped
        }
        self._key = [place for place in merge.relation.key if place in self._columns]
        self._absent_columns = sorted(merge.absent_columns & self._columns.keys())
        self.strategy = MergeStrategy.KEYED if merge.relation.key else MergeStrategy.COUNT
        self._check_readable()

    def _target(self, column: Column) -> TargetColumn:
        name = self.merge.renamed.get(column.name, column.name)
        found = self.table.column(name)
        if found is None:
            raise KeyNotInTarget(
                f"target table {self.table.name} has no column {name}",
                hint=f"Add it as the source has it: ALTER TABLE {self.table.sql_name} ADD "
                f"({quote(name)} ...);",
                table=str(self.table.name),
            )
        return found

    def _check_readable(self) -> None:
        for _, target in self._columns.values():
            if target.kind.base in _LONGS:
                raise TargetShapeDiffers(
                    f"column {target.name} of target table {self.table.name} is a "
                    f"{target.kind.base}, which statements cannot read",
                    hint=f"Run: ALTER TABLE {self.table.sql_name} MODIFY ({quote(target.name)} "
                    f"{'BLOB' if target.kind.base == 'LONG RAW' else 'CLOB'});",
                    table=str(self.table.name),
                )

    # --- pieces -----------------------------------------------------------------------------------

    def _value(self, place: int, reference: str = "") -> str:
        """Return the value of a column of the merge table for the column of the target."""
        column, target = self._columns[place]
        staged = reference or self.layout.reference(place)
        value = fill_template(staged, column.name, self.merge.templates)
        is_long = self.layout.forms[place] is Staged.LONG
        if is_long and value == staged and target.is_text:
            return f"TO_CHAR({staged})"
        return value

    def _equal(self, place: int, value: str) -> str:
        """Return the condition that the target's row has this value in a column of the key."""
        target = self._columns[place][1]
        return f"t.{quote(target.name)} = {_pad(target, value)}"

    def _match(self) -> str:
        return " AND ".join(self._equal(place, self._value(place)) for place in self._key)

    def _match_origin(self) -> str:
        names = dict(zip(self.merge.relation.key, self.layout.origin, strict=True))
        return " AND ".join(
            self._equal(place, self._value(place, f"m.{quote(names[place])}"))
            for place in self._key
        )

    @property
    def _n(self) -> str:
        return f"m.{quote(self.layout.count)}"

    @property
    def _absent(self) -> str:
        return f"m.{quote(self.layout.absent)}"

    def _is_absent(self, place: int) -> str:
        """Return the condition that a row was sent without the column of this index."""
        return f"SUBSTR({self._absent}, {place + 1}, 1) = '1'"

    @property
    def _stays(self) -> str:
        """Condition for a row with unsent columns to keep its key."""
        pairs = [
            f"{self.layout.reference(place)} = m.{quote(origin)}"
            for place, origin in zip(self.merge.relation.key, self.layout.origin, strict=True)
        ]
        return " AND ".join(pairs)

    @property
    def _writable(self) -> list[int]:
        """Return the columns that may be written: all that the server does not compute."""
        return [place for place, (_, target) in self._columns.items() if not target.is_generated]

    @property
    def changed_columns(self) -> list[int]:
        """Return the columns that MERGE updates: all but the key's."""
        return [place for place in self._writable if place not in self._key]

    def _name(self, place: int) -> str:
        return quote(self._columns[place][1].name)

    # --- unsent columns ---------------------------------------------------------------------------

    def count_absent(self) -> str | None:
        """Return the query for the rows with unsent columns: all, those whose row is in the
        target, and those whose key changed. None if all columns were sent.
        """
        if not self._absent_columns or self.strategy is MergeStrategy.COUNT:
            return None
        return (
            f"SELECT COUNT(*), COUNT(t.ROWID),"
            f" COUNT(CASE WHEN {self._stays} THEN NULL ELSE 1 END)\n"
            f"  FROM {self.staging} m\n  LEFT JOIN {self.table.sql_name} t"
            f" ON {self._match_origin()}\n WHERE {self._absent} IS NOT NULL"
        )

    def fill_absent(self) -> str:
        """Fill unsent columns of the merge table from the target's row with the origin key.

        Only rows whose key changed need it: MERGE leaves the others' columns as they are, so that
        large values stay where they are.
        """
        sets = ", ".join(
            f"{self.layout.reference(place)} = CASE WHEN {self._is_absent(place)}"
            f" THEN {self._staged_again(place)} ELSE {self.layout.reference(place)} END"
            for place in self._absent_columns
        )
        return (
            f"MERGE INTO {self.staging} m\nUSING {self.table.sql_name} t\n"
            f"   ON ({self._match_origin()} AND {self._absent} IS NOT NULL AND NOT ({self._stays}))"
            f"\n WHEN MATCHED THEN UPDATE SET {sets}"
        )

    def _staged_again(self, place: int) -> str:
        """Return the target's value in the form that a template reads."""
        column, target = self._columns[place]
        own = f"t.{quote(target.name)}"
        if column.name not in self.merge.templates:
            return own
        if self.layout.forms[place] is Staged.OWN and target.kind.base == _ZONED:
            return f"SYS_EXTRACT_UTC({own})"
        if self.layout.forms[place] is Staged.OWN:
            return f"CAST({own} AS TIMESTAMP(6))"
        if target.kind.base == _ZONED:
            return f"TO_CHAR({own}, 'SYYYY-MM-DD HH24:MI:SS.FF9 TZH:TZM')"
        if target.kind.base == "TIMESTAMP":
            return f"TO_CHAR({own}, 'SYYYY-MM-DD HH24:MI:SS.FF9')"
        if target.kind.base == "DATE":
            return f"TO_CHAR({own}, {_date_picture(self.merge.templates[column.name])})"
        return f"TO_CHAR({own})"

    # --- rows with a key --------------------------------------------------------------------------

    def delete_gone(self) -> str:
        """Delete the keys that the log deletes."""
        return (
            f"DELETE FROM {self.table.sql_name} t\n WHERE EXISTS (SELECT 1 FROM {self.staging} m"
            f" WHERE {self._n} < 0 AND {self._match()})"
        )

    def delete_others(self) -> str:
        """Delete the rows whose keys the merge table lacks, because it holds the whole table."""
        return (
            f"DELETE FROM {self.table.sql_name} t\n WHERE NOT EXISTS (SELECT 1 FROM {self.staging}"
            f" m WHERE {self._n} > 0 AND {self._match()})"
        )

    def merge_rows(self) -> str:
        """Update the rows whose keys are there, and insert the others."""
        update = ", ".join(
            f"t.{self._name(place)} = {self._value_or_own(place)}" for place in self.changed_columns
        )
        names = ", ".join(map(self._name, self._writable))
        values = ", ".join(map(self._value, self._writable))
        matched = f" WHEN MATCHED THEN UPDATE SET {update}\n" if update else ""
        return (
            f"MERGE INTO {self.table.sql_name} t\n"
            f"USING (SELECT m.* FROM {self.staging} m WHERE {self._n} > 0) m\n"
            f"   ON ({self._match()})\n{matched}"
            f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )

    def _value_or_own(self, place: int) -> str:
        value = self._value(place)
        if place not in self._absent_columns:
            return value
        own, is_left = f"t.{self._name(place)}", f"{self._is_absent(place)} AND {self._stays}"
        return f"CASE WHEN {is_left} THEN {own} ELSE {value} END"

    # --- rows without a key -----------------------------------------------------------------------

    def _same(self) -> str:
        """Return the condition that a row of the target is the staged one."""
        return " AND ".join(self._equals())

    def _equals(self) -> Iterator[str]:
        for place, (_, target) in self._columns.items():
            if target.is_generated:
                continue
            own, value = f"t.{quote(target.name)}", self._value(place)
            if target.is_large:
                yield (
                    f"(DBMS_LOB.COMPARE({own}, {value}) = 0 OR ({own} IS NULL AND {value} IS NULL))"
                )
            elif target.kind.base == _ZONED:  # moments are equal if their offsets differ
                yield f"DECODE(TO_CHAR({own}), TO_CHAR({value}), 1, 0) = 1"
            else:
                yield f"DECODE({own}, {_pad(target, value)}, 1, 0) = 1"

    def delete_copies(self) -> str:
        """Return SQL of strategy COUNT: delete the counted copies of each row.

        Copies are numbered, since each is deleted as often as the log says.
        """
        return (
            f"DELETE FROM {self.table.sql_name}\n WHERE ROWID IN (\n"
            "    SELECT c.place FROM (\n"
            f"        SELECT t.ROWID AS place, {self._n} AS copies,\n"
            "               ROW_NUMBER() OVER (PARTITION BY m.ROWID ORDER BY t.ROWID) AS copy\n"
            f"          FROM {self.staging} m\n"
            f"          JOIN {self.table.sql_name} t ON {self._same()}\n"
            f"         WHERE {self._n} < 0) c\n     WHERE c.copy <= -c.copies)"
        )

    def insert_copies(self, bit: int) -> str:
        """Return SQL of strategy COUNT: insert 2 to the power of `bit` copies of each row whose
        number of copies has that bit.
        """
        doubled = "".join(
            f"\n CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b{place}"
            for place in range(1, bit + 1)
        )
        names = ", ".join(map(self._name, self._writable))
        values = ", ".join(map(self._value, self._writable))
        return (
            f"INSERT INTO {self.table.sql_name} ({names})\nSELECT {values}\n"
            f"  FROM {self.staging} m{doubled}\n"
            f" WHERE {self._n} > 0 AND BITAND({self._n}, {1 << bit}) = {1 << bit}"
        )

    def count_copies(self) -> str:
        """Return SQL of strategy COUNT: the copies to delete and to insert, and the greatest number
        of copies of one row.
        """
        return (
            f"SELECT COALESCE(SUM(CASE WHEN {self._n} < 0 THEN -{self._n} ELSE 0 END), 0),"
            f" COALESCE(SUM(CASE WHEN {self._n} > 0 THEN {self._n} ELSE 0 END), 0),"
            f" COALESCE(MAX({self._n}), 0) FROM {self.staging} m"
        )


def _pad(target: TargetColumn, value: str) -> str:
    """Return a value with the blanks that a column of fixed length has."""
    return f"CAST({value} AS {target.type_text})" if target.kind.base in _PADDED else value


def _date_picture(template: str) -> str:
    """Return the picture by which a template reads a text of a DATE."""
    has_time = "HH24" in template
    return "'SYYYY-MM-DD HH24:MI:SS'" if has_time else "'SYYYY-MM-DD'"
