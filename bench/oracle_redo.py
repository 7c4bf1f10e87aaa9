"""Redo of V$LOGMNR_CONTENTS as a driver returns it, without a server.

Not here: the model of a database (`tests/sim_oracle`), which takes longer for a row than penstock.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from penstock.model import ColumnDefinition, Identity, TableDefinition, TableName

STARTED = datetime(2026, 3, 1)  # noqa: DTZ001 - DATE has no zone
FIRST_SCN = 8_800_000
OBJECT = 90_001
NAME = TableName("SHOP", "T")
ARRAY_ROWS = 2000
HUGE = 2**64 - 1
_CODES = {"i": 1, "u": 3, "d": 2}
Row = tuple[Any, ...]


def xid_of(number: int) -> bytes:
    """Return the XID of a transaction."""
    usn, slot = 1 + number % 900, number // 900 % 60_000
    return usn.to_bytes(2, "little") + slot.to_bytes(2, "little") + number.to_bytes(4, "little")


class Redo:
    """Rows of a window: transactions with `size` changes each, made while they are read.

    Attributes:
        end: SCN of the last row.
        peak_kib: The most memory that the process had while the rows were read.
    """

    def __init__(
        self, texts: Sequence[str], count: int, size: int, *, is_committed: bool = True
    ) -> None:
        """Keep the arguments. texts: statements, which repeat. count: of all changes."""
        self._texts, self._count, self._size = texts, count, size
        self._is_committed = is_committed
        self.end = FIRST_SCN + -(-count // size) + 1
        self.peak_kib = 0

    def rows(self, low: int = 0, high: int = HUGE) -> Iterator[list[Row]]:
        """Yield the rows of a window, in lists as `fetchmany` returns them.

        Transactions that begin or end outside of it are whole.
        """
        part: list[Row] = []
        texts, size = self._texts, self._size
        begin, end = max(low - FIRST_SCN - 1, 0), min(high - FIRST_SCN + 1, -(-self._count // size))
        for number in range(begin, end):
            first, xid, scn = number * size, xid_of(number), FIRST_SCN + number
            part.append((*_ends(scn, xid, 6), "set transaction read write"))
            for at in range(first, min(first + size, self._count)):
                text = texts[at % len(texts)]
                part.append(
                    (
                        scn, xid, xid, _CODES[text[0]], 0, 0, 0, 1, "SHOP", "T",
                        f"AAAVM+AAH{at:09}", f" 0x0001a4.{at:08x}.0010 ", OBJECT, 1, None,
                        STARTED, text,
                    )
                )  # fmt: skip
                if len(part) >= ARRAY_ROWS:
                    yield part
                    part = []
            if self._is_committed:
                part.append((*_ends(scn + 1, xid, 7), "commit"))
        yield part
        self.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _ends(scn: int, xid: bytes, code: int) -> Row:
    address = f" 0x0001a4.{scn & 0xFFFFFFFF:08x}.0010 "
    return (scn, xid, xid, code, 0, 0, 0, 1, None, None, "A" * 18, address, 0, 0, None, STARTED)


class Connection:
    """Connection to a database that has some redo."""

    def __init__(self, redo: Redo, columns: dict[str, str]) -> None:
        self._redo, self._columns = redo, columns
        self._low, self._high = 0, HUGE

    def execute(self, sql: str, **_: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a view."""
        end = self._redo.end + 1
        if "CURRENT_SCN" in sql:
            return [(end,)]
        if "SYSTIMESTAMP" in sql:
            return [("2026-03-01 00:00:00.000000 +00:00",)]
        if "ALL_TAB_COLS" in sql:
            return [
                (name, kind.partition("(")[0], 0, None, None, 0, None)
                for name, kind in self._columns.items()
            ]
        if "FROM V$DATABASE" in sql:
            return [(1, "ORCL", 1, STARTED, "YES")]
        if "V$LOGFILE" in sql:
            return [(1, None, "ONLINE", "/redo")]
        if "V$ARCHIVED_LOG" in sql:
            return []
        if "V$LOG" in sql:
            return [(1, 1, 420, 1, "NO", "CURRENT", FIRST_SCN - 1000, HUGE)]
        if "V$THREAD" in sql:
            return [(1, "OPEN", "PUBLIC", 1, 1, end)]
        return []

    def rows(self, _sql: str, **_: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of the window."""
        for part in self._redo.rows(self._low, self._high):
            if part and self._low <= part[0][0] and part[-1][0] <= self._high:
                yield part
            else:
                yield [row for row in part if self._low <= row[0] <= self._high]

    def run(self, _sql: str, low: int | None = None, high: int | None = None, **_: Any) -> int:
        """Note the bounds of a window."""
        if low is not None and high is not None:
            self._low, self._high = low, high
        return 0

    def close(self) -> None:
        """Do nothing."""


def define(columns: dict[str, str]) -> TableDefinition:
    """Return the definition of the table."""
    return TableDefinition(
        name=NAME,
        source_id=OBJECT,
        columns=tuple(
            ColumnDefinition(name=name, type_text=kind, type_oid=0, typmod=-1)
            for name, kind in columns.items()
        ),
        primary_key=("ID",),
        identity=Identity.DEFAULT,
    )
