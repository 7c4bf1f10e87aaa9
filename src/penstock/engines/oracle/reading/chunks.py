"""Cut a table into ranges, so that several readers can share it.

A heap is cut into ranges of row ids that begin where an extent begins: of the table, or of each of
its partitions, whose row ids have a number of their own. An index-organized table has no stable row
ids and is cut by its key, as is a heap whose extents the user may not see. Together the ranges hold
every row once, whatever extents are added or freed meanwhile: the first is open below, the last
above, and each begins where the previous one ends. A table that can be cut in neither way is one
chunk. Follows section 1b.18 of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from penstock.codec.oracle.types import parse_type
from penstock.engines.oracle.connect import Connection, literal, quote
from penstock.engines.oracle.reading import statements
from penstock.engines.oracle.reading.definitions import BLOCK_BYTES
from penstock.host.errors import PrivilegeMissing
from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName
from penstock.sql.key_ranges import Bound, at_least, between

logger = structlog.get_logger(__name__)
CHUNK_BYTES_MIN = 4 * 2**20
_KEY_TYPES = frozenset(("NUMBER", "CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "DATE", "RAW"))
_KEY_TYPES |= {"TIMESTAMP"}
_NATIONAL = ("NCHAR", "NVARCHAR2")
_DATE_MASK = "SYYYY-MM-DD HH24:MI:SS"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """A range of a table's rows.

    Attributes:
        number: counted from 1.
        condition: the range as SQL; empty for the whole table.
        row_estimate: for planning and progress.
        size_bytes: likewise.
    """

    table: TableName
    number: int
    condition: str = ""
    row_estimate: int = 0
    size_bytes: int = 0


def plan_chunks(
    connection: Connection,
    definition: TableDefinition,
    *,
    scn: int,
    is_index_organized: bool,
    bytes_target: int,
    rows_target: int,
    pieces: int = 1,
) -> list[RowChunk]:
    """Cut a table into chunks.

    Args:
        connection: A session of the container that has the table.
        definition: The table.
        scn: The SCN as of which it is read.
        is_index_organized: Whether its rows are in the index of its key.
        bytes_target: Size of a range of row ids, as far as extents allow it.
        rows_target: Rows of a range of keys.
        pieces: Number of ranges of row ids in which a table of fewer is cut, if they are not small.

    Raises the errors of statements.
    """
    if bytes_target < 1 or pieces < 1 or rows_target < 1:
        raise ValueError(f"not a size of chunks: {bytes_target}, {pieces}, {rows_target}")
    if not is_index_organized:
        try:
            return _by_extents(connection, definition, bytes_target, pieces)
        except PrivilegeMissing as error:
            logger.warning(
                "a table is cut by its key, because the user may not see its extents",
                table=str(definition.name),
                error=error.message,
            )
    return _by_key(connection, definition, scn, rows_target)


def _by_extents(
    connection: Connection, definition: TableDefinition, bytes_target: int, pieces: int
) -> list[RowChunk]:
    owner, name = definition.name
    extents = connection.execute(statements.EXTENTS, owner=owner, name=name)
    total_bytes = sum(int(count) for _, count in extents) * BLOCK_BYTES
    target = min(bytes_target, max(total_bytes // pieces, CHUNK_BYTES_MIN))
    starts: list[str] = []
    blocks: list[int] = [0]
    for row_id, count in extents:
        if blocks[-1] * BLOCK_BYTES >= target:
            starts.append(str(row_id))
            blocks.append(0)
        blocks[-1] += int(count)
    total = sum(blocks) or 1
    ends = [None, *((f"CHARTOROWID('{one}')",) for one in starts), None]
    return [
        RowChunk(
            table=definition.name,
            number=place + 1,
            condition=between(["ROWID"], ends[place], ends[place + 1]),
            row_estimate=definition.row_estimate * count // total,
            size_bytes=count * BLOCK_BYTES,
        )
        for place, count in enumerate(blocks)
    ]


# -- by key ----------------------------------------------------------------------------------------


def _by_key(
    connection: Connection, definition: TableDefinition, scn: int, target: int
) -> list[RowChunk]:
    key = usable_key(definition)
    names = [quote(column.name) for column in key]
    bounds = _step(connection, definition.name, key, scn, target) if key else []
    ends: list[Bound | None] = [None, *bounds, None]
    estimate = target if bounds else definition.row_estimate
    row_bytes = definition.size_bytes / definition.row_estimate if definition.row_estimate else 0.0
    return [
        RowChunk(
            table=definition.name,
            number=place + 1,
            condition=between(names, ends[place], ends[place + 1]),
            row_estimate=estimate,
            size_bytes=int(estimate * row_bytes),
        )
        for place in range(len(ends) - 1)
    ]


def usable_key(definition: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns of the key if each of them has an exact text; else an empty list."""
    if definition.identity is Identity.FULL:
        return []
    by_name = {column.name: column for column in definition.columns}
    names = definition.primary_key or definition.identity_columns
    key = [by_name[name] for name in names if name in by_name]
    is_known = all(parse_type(column.type_text).base in _KEY_TYPES for column in key)
    return key if is_known and len(key) == len(names) else []


def _step(
    connection: Connection,
    table: TableName,
    key: Sequence[ColumnDefinition],
    scn: int,
    target: int,
) -> list[Bound]:
    """Return every target-th key, each found from the previous one."""
    names = [quote(column.name) for column in key]
    printers = [read_and_write(column) for column in key]
    listed = [text for text, _ in printers]
    bounds: list[Bound] = []
    while True:
        where = at_least(names, bounds[-1]) if bounds else ""
        sql = statements.next_key(table, listed, names, scn, where)
        found = connection.execute(sql, skipped=target)
        if not found:
            return bounds
        bounds.append(
            tuple(write(str(value)) for (_, write), value in zip(printers, found[0], strict=True))
        )


def read_and_write(column: ColumnDefinition) -> tuple[str, Callable[[str], str]]:
    """Return the expression for a value's exact text, and the function that makes SQL of it."""
    name, base = quote(column.name), parse_type(column.type_text).base
    if base == "NUMBER":
        return f"TO_CHAR({name}, 'TM9')", lambda text: text
    if base == "RAW":
        return f"RAWTOHEX({name})", lambda text: f"HEXTORAW('{text}')"
    if base == "DATE":
        return f"TO_CHAR({name}, '{_DATE_MASK}')", lambda text: f"TO_DATE('{text}', '{_DATE_MASK}')"
    if base == "TIMESTAMP":
        mask = f"{_DATE_MASK}.FF9"
        return f"TO_CHAR({name}, '{mask}')", lambda text: f"TO_TIMESTAMP('{text}', '{mask}')"
    if base in _NATIONAL:
        return name, lambda text: f"N{literal(text)}"
    return name, literal
