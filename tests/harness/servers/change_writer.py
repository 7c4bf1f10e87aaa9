"""Writer of change tables: transactions of statements, as SQL Server's capture job records them.

Follows the reference's section 2: __$start_lsn is the commit's LSN, __$seqval rises within a
transaction, __$command_id numbers statements, an update has two rows, one of a key column is a
delete and an insert with one seqval and two commands (S1), large values are missing where they did
not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.servers.change_table_log import LACKING, Seen
from harness.servers.change_tables import ChangeServer, FakeInstance, FakeTable, Row, lsn

BLOCK = 1 << 16  # step between two LSNs


@dataclass
class Transaction:
    """Transaction under way. expected: what the log must have of it."""

    writer: ChangeWriter
    sequence: int
    command: int = 0
    expected: list[Seen] = field(default_factory=list)
    written: list[tuple[FakeInstance, Row]] = field(default_factory=list)

    def insert(self, table: FakeTable, row: Row) -> None:
        """Insert a row."""
        self.command += 1
        self._insert(table, row, self._next())
        self.expected.append(Seen("c", table.name.name, None, dict(row)))

    def delete(self, table: FakeTable, row: Row) -> None:
        """Delete a row."""
        self.command += 1
        self._delete(table, row, self._next())
        key = {name: row[name] if name in table.key else LACKING for name in row}
        self.expected.append(Seen("d", table.name.name, key, None))

    def update(self, table: FakeTable, old: Row, new: Row) -> None:
        """Update a row, as one statement."""
        self.command += 1
        self.update_more(table, old, new)

    def update_more(self, table: FakeTable, old: Row, new: Row) -> None:
        """Update another row in the same statement."""
        if any(old[name] != new[name] for name in table.key):
            self._update_key(table, old, new)
            return
        sequence = self._next()
        changed = [name for name in old if old[name] != new[name]]
        for instance in self._instances(table):
            large = [one.name for one in instance.columns if one.kind.is_large]
            unsent = [name for name in large if name not in changed]
            mask = instance.mask(changed)
            for operation, row in ((3, old), (4, new)):
                values = {name: None if name in unsent else row[name] for name in row}
                self._write(instance, operation, values, sequence, mask)
        after = {
            name: LACKING if self._is_unsent(table, name, changed) else value
            for name, value in new.items()
        }
        self.expected.append(Seen("u", table.name.name, None, after))

    def commit(self) -> list[Seen]:
        """Commit: the rows get the commit's LSN and appear in the change tables."""
        number = self.writer.next_lsn()
        for instance, row in self.written:
            row["__$start_lsn"] = lsn(number)
            if number >= instance.start:
                instance.rows.append(row)
        self.writer.server.commit(number)
        return self.expected

    def _is_unsent(self, table: FakeTable, name: str, changed: Sequence[str]) -> bool:
        kind = next(one.kind for one in table.columns if one.name == name)
        return kind.is_large and name not in changed

    def _update_key(self, table: FakeTable, old: Row, new: Row) -> None:
        sequence = self._next()
        self._delete(table, old, sequence)
        self.command += 1
        self._insert(table, new, sequence)
        key = {name: old[name] if name in table.key else LACKING for name in old}
        self.expected.append(Seen("u", table.name.name, key, dict(new)))

    def _insert(self, table: FakeTable, row: Row, sequence: int) -> None:
        for instance in self._instances(table):
            self._write(instance, 2, row, sequence, instance.mask())

    def _delete(self, table: FakeTable, row: Row, sequence: int) -> None:
        for instance in self._instances(table):
            told = {
                one.name: None if one.kind.base in ("text", "ntext", "image") else row[one.name]
                for one in instance.columns
            }
            self._write(instance, 1, told, sequence, instance.mask())

    def _write(
        self, instance: FakeInstance, operation: int, values: Row, sequence: int, mask: bytes
    ) -> None:
        row: Row = {
            "__$seqval": lsn(sequence),
            "__$command_id": self.command,
            "__$operation": operation,
            "__$update_mask": mask,
            **{
                one.name: None if one.is_computed else values.get(one.name)
                for one in instance.columns
            },
        }
        self.written.append((instance, row))

    def _instances(self, table: FakeTable) -> list[FakeInstance]:
        return [one for one in self.writer.server.instances if one.source_id == table.object_id]

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence


@dataclass
class ChangeWriter:
    """Writer of one server's change tables. last: the newest LSN."""

    server: ChangeServer
    last: int = 0x00000027000007000000

    def next_lsn(self) -> int:
        """Return the next LSN."""
        self.last += BLOCK
        return self.last

    def begin(self) -> Transaction:
        """Begin a transaction: it may overlap others, and commits when it is told to."""
        return Transaction(self, self.last + 1)

    def idle(self) -> int:
        """Let the capture job note that it has read the log, without a transaction."""
        return self.server.commit(self.next_lsn(), transaction=b"\0")
