"""Redo: records, the logs that have them, and the threads that write them.

A record gets its SCN when the change is made and its address when the thread writes it. Records of
a private strand are written later than records with higher SCNs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_oracle.columns import Row

if TYPE_CHECKING:
    from sim_oracle.tables import Segment, TableVersion

INTERNAL, INSERT, DELETE, UPDATE, DDL, START, COMMIT = 0, 1, 2, 3, 5, 6, 7
LOCATOR, LOB_WRITE, LOB_TRIM, SELECT_FOR_UPDATE, LOB_ERASE = 9, 10, 11, 25, 29
MISSING_SCN, ROLLBACK = 34, 36
XML_BEGIN, XML_WRITE, XML_END = 68, 70, 71
LONG_BEGIN, LONG_WRITE, LONG_END = 91, 92, 93
UNSUPPORTED = 255
OPERATIONS = {
    INTERNAL: "INTERNAL",
    INSERT: "INSERT",
    DELETE: "DELETE",
    UPDATE: "UPDATE",
    DDL: "DDL",
    START: "START",
    COMMIT: "COMMIT",
    LOCATOR: "SEL_LOB_LOCATOR",
    LOB_WRITE: "LOB_WRITE",
    LOB_TRIM: "LOB_TRIM",
    SELECT_FOR_UPDATE: "SELECT_FOR_UPDATE",
    LOB_ERASE: "LOB_ERASE",
    MISSING_SCN: "MISSING_SCN",
    ROLLBACK: "ROLLBACK",
    XML_BEGIN: "XML DOC BEGIN",
    XML_WRITE: "XML DOC WRITE",
    XML_END: "XML DOC END",
    LONG_BEGIN: "32K_BEGIN",
    LONG_WRITE: "32K_WRITE",
    LONG_END: "32K_END",
    UNSUPPORTED: "UNSUPPORTED",
}
OPEN_END = 2**64 - 1  # NEXT_CHANGE# of a log that is being written
PARTIAL_SEQUENCE = 2**32 - 1  # XIDSQN of a transaction whose start the window does not have
LOG_BYTES = 1 << 30
BLOCK_BYTES = 512


class Xid(NamedTuple):
    """Id of a transaction: undo segment, slot, sequence."""

    usn: int
    slot: int
    sequence: int

    @property
    def raw(self) -> bytes:
        """Return the RAW(8) of a little-endian server."""
        parts = ((self.usn, 2), (self.slot, 2), (self.sequence, 4))
        return b"".join(value.to_bytes(size, "little") for value, size in parts)


class Address(NamedTuple):
    """Redo byte address: sequence of the log, block, offset."""

    sequence: int
    block: int
    offset: int

    def text(self, piece: int = 0) -> str:
        """Return the RS_ID of a piece of the record."""
        return f" 0x{self.sequence:06x}.{self.block:08x}.{self.offset + piece:04x} "


NO_ADDRESS = " 0x000000.00000000.0000 "


@dataclass(slots=True, eq=False)
class Record:
    """One record, which LogMiner shows as one row or as several pieces.

    Attributes:
        scn: SCN at which the change was made.
        thread: Number of the redo thread.
        xid: Transaction.
        code: Operation code.
        start_scn: SCN of the transaction's start.
        rollback: 1 for an undo record.
        version: Table as it was then; None for records without a table.
        segment: Table's or partition's segment; None for records without a table.
        physical_id: DATA_OBJECT_ID of the segment then.
        row_id: Row id; None shows as the placeholder.
        old: Values before; complete rows.
        new: Values that an insert or an update sets.
        where: Columns of `old` that the statement's condition has.
        text: Statement, of records whose text does not depend on the session.
        status: STATUS of the row.
        info: INFO of the row.
        operation: OPERATION, where it differs from the code's usual one.
        array: Record whose address it shares; None if it has one of its own.
        parent: PXID of parallel DML.
        hides_address: Whether RS_ID shows zeros.
        hides_thread: Whether THREAD# shows 0.
        has_empty_lobs: Whether LOBs of the statement are EMPTY_CLOB() and EMPTY_BLOB().
        is_final: Whether the text has no marks for table and condition.
        named: Owner and table that the row shows without a table.
        address: Place in the log; None until the thread writes it.
        shown: Rows that the last mining session showed, with what they depend on.
    """

    scn: int
    thread: int
    xid: Xid
    code: int
    start_scn: int
    time: datetime
    user: str
    container: str
    rollback: int = 0
    version: TableVersion | None = None
    segment: Segment | None = None
    physical_id: int = 0
    row_id: str | None = None
    old: Row | None = None
    new: Row | None = None
    where: tuple[str, ...] = ()
    text: str | None = None
    status: int = 0
    info: str | None = None
    operation: str | None = None
    array: Record | None = None
    parent: Xid | None = None
    hides_address: bool = False
    hides_thread: bool = False
    has_empty_lobs: bool = False
    is_final: bool = False
    named: tuple[str, str] | None = None
    address: Address | None = None
    shown: tuple[Any, list[tuple[Any, ...]]] | None = None


@dataclass(slots=True, eq=False)
class LogFile:
    """One sequence of a thread's redo.

    Attributes:
        first_scn: FIRST_CHANGE#.
        next_scn: NEXT_CHANGE#; None while it is being written.
        incarnation: Number of the incarnation that wrote it.
        archives: Archived copies, by destination.
        records: Records in the order of their addresses.
    """

    thread: int
    sequence: int
    first_scn: int
    first_time: datetime
    incarnation: int
    next_scn: int | None = None
    next_time: datetime | None = None
    archives: dict[int, Archive] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    block: int = 2
    has_dictionary: bool = False
    has_gap: bool = False

    @property
    def is_archived(self) -> bool:
        """Return whether a copy was made."""
        return bool(self.archives)

    def write(self, record: Record) -> None:
        """Give a record its address."""
        if record.array is not None:
            record.address = record.array.address
        else:
            self.block += 3
            record.address = Address(self.sequence, self.block, 16)
        self.records.append(record)


@dataclass(slots=True, eq=False)
class Archive:
    """An archived copy of a log.

    Attributes:
        name: NAME; None after RMAN deleted the file.
        status: A, D (deleted), X (expired) or U.
        exists: Whether the file can be opened.
        is_standby: Whether it is at a standby.
    """

    name: str | None
    destination: int
    log: LogFile
    time: datetime
    status: str = "A"
    exists: bool = True
    is_standby: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """An online log group: files that are used again and again.

    Attributes:
        log: Log in it; None before its first use.
        members: Names of its files, which have the same content.
    """

    number: int
    thread: int
    members: list[str]
    log: LogFile | None = None
    is_readable: bool = True


@dataclass(slots=True, eq=False)
class RedoThread:
    """A redo thread of one instance.

    Attributes:
        groups: Its online logs.
        status: OPEN or CLOSED.
        enabled: PUBLIC, PRIVATE or DISABLED.
        enable_scn: SCN from which it has redo.
        last_scn: Highest SCN that was written.
        checkpoint_scn: SCN up to which a closed thread is complete.
    """

    number: int
    groups: list[Group]
    enable_scn: int
    status: str = "OPEN"
    enabled: str = "PUBLIC"
    last_scn: int = 0
    checkpoint_scn: int = 0
    current: Group | None = None

    @property
    def log(self) -> LogFile:
        """Return the log that is being written."""
        assert self.current is not None
        assert self.current.log is not None
        return self.current.log

    def write(self, record: Record) -> None:
        """Write a record into the current log."""
        self.log.write(record)
        self.last_scn = max(self.last_scn, record.scn)
