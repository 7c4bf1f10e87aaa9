"""Rows of change tables for a transaction (reference, sections 2 and 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sim_sqlserver.pgoutput import Change, Note, Row, Transaction

DELETE, INSERT, OLD, NEW = 1, 2, 3, 4
_TEXT_TYPES = frozenset({"text", "ntext", "image"})


@dataclass(slots=True)
class Instance:
    """A capture instance.

    Attributes:
        number: Object id of its change table.
        start: First LSN that it captures, 10 bytes.
        columns: Captured columns by ordinal.
        large: Places of the columns of max types.
        texts: Places of text, ntext and image.
        dropped: Places of columns that the table no longer has.
    """

    number: int
    table: int
    name: str
    start: bytes
    columns: list[str]
    large: frozenset[int]
    texts: frozenset[int]
    dropped: set[int] = field(default_factory=set)


@dataclass(slots=True)
class CapturedRow:
    """Row of a change table."""

    seqval: bytes
    operation: int
    mask: bytes
    values: Row
    command: int


def lsn_bytes(place: int) -> bytes:
    """Return the LSN for one of PostgreSQL: VLF, block and slot."""
    return (
        (39 + (place >> 28)).to_bytes(4, "big")
        + ((place >> 8) & 0xFFFFF).to_bytes(4, "big")
        + (place & 0xFF).to_bytes(2, "big")
    )


def mask_of(places: Sequence[int] | range, count: int) -> bytes:
    """Return the update mask; its last byte has the first eight ordinals."""
    size = (count + 7) // 8
    return sum(1 << place for place in places).to_bytes(size, "big")


@dataclass(slots=True)
class _Statement:
    changes: list[tuple[bytes, Change]] = field(default_factory=list)


def _statements(transaction: Transaction) -> Iterator[_Statement]:
    """Yield the changes of each statement, with their seqvals; these rise in a transaction."""
    current = _Statement()
    last = 0
    for part in transaction.parts:
        if isinstance(part, Note):
            if part.prefix == "sim" and current.changes:
                yield current
                current = _Statement()
        else:
            last = max(last + 1, part.place)
            current.changes.append((lsn_bytes(last), part))
    if current.changes:
        yield current


def rows_of(
    transaction: Transaction,
    instances: Mapping[int, Sequence[Instance]],
    keys: Mapping[int, Sequence[str]],
) -> Iterator[tuple[Instance, CapturedRow]]:
    """Yield the rows that a transaction writes.

    Args:
        transaction: Committed changes.
        instances: Capture instances by the id of their table.
        keys: Columns of the primary key by table.
    """
    command = 0
    for statement in _statements(transaction):
        command += 1
        shifted = [c for _, c in statement.changes if _has_new_key(c, keys.get(c.table, ()))]
        is_single = len(shifted) == 1 and len(statement.changes) == 1
        inserts: list[tuple[bytes, Change]] = []
        for seqval, change in statement.changes:
            if not _has_new_key(change, keys.get(change.table, ())):
                yield from _plain(seqval, change, command, instances)
                continue
            yield from _side(seqval, change, DELETE, command, instances)
            if is_single:
                command += 1
                yield from _side(seqval, change, INSERT, command, instances)
            else:
                inserts.append((seqval, change))
        # The inserts of a statement that changes several keys come after all its deletes.
        last = int.from_bytes(statement.changes[-1][0], "big")
        for number, (_, change) in enumerate(inserts, 1):
            seqval = (last + number).to_bytes(10, "big")
            yield from _side(seqval, change, INSERT, command, instances)


def _has_new_key(change: Change, key: Sequence[str]) -> bool:
    if change.kind != "U":
        return False
    places = [change.columns.index(name) for name in key if name in change.columns]
    return any(change.old[place] != change.new[place] for place in places)


def _find_places(
    change: Change, instances: Mapping[int, Sequence[Instance]]
) -> Iterator[tuple[Instance, list[int]]]:
    """Yield the table's instances with the places of their columns in the change; -1 if absent."""
    found = {name: place for place, name in enumerate(change.columns)}
    for instance in instances.get(change.table, ()):
        yield (
            instance,
            [
                -1 if place in instance.dropped else found.get(name, -1)
                for place, name in enumerate(instance.columns)
            ],
        )


def _pick(row: Row, places: list[int]) -> Row:
    return [row[place] if place >= 0 else None for place in places]


def _side(
    seqval: bytes,
    change: Change,
    operation: int,
    command: int,
    instances: Mapping[int, Sequence[Instance]],
) -> Iterator[tuple[Instance, CapturedRow]]:
    for instance, places in _find_places(change, instances):
        values = _pick(change.old if operation == DELETE else change.new, places)
        if operation == DELETE:
            values = [None if p in instance.texts else v for p, v in enumerate(values)]
        count = len(instance.columns)
        mask = mask_of(range(count), count)
        yield instance, CapturedRow(seqval, operation, mask, values, command)


def _plain(
    seqval: bytes,
    change: Change,
    command: int,
    instances: Mapping[int, Sequence[Instance]],
) -> Iterator[tuple[Instance, CapturedRow]]:
    if change.kind != "U":
        operation = INSERT if change.kind == "I" else DELETE
        yield from _side(seqval, change, operation, command, instances)
        return
    if change.old == change.new:
        return  # the server writes nothing to its log
    for instance, places in _find_places(change, instances):
        old, new = _pick(change.old, places), _pick(change.new, places)
        changed = [p for p in range(len(places)) if old[p] != new[p]]
        if not changed:
            continue
        mask = mask_of(changed, len(places))
        hidden = instance.large - set(changed)
        old = [None if p in hidden or p in instance.texts else v for p, v in enumerate(old)]
        new = [None if p in hidden else v for p, v in enumerate(new)]
        yield instance, CapturedRow(seqval, OLD, mask, old, command)
        yield instance, CapturedRow(seqval, NEW, mask, new, command)
