"""A log that reads the model of Oracle: runs of the stream, checked as the log checks them.

Rows are replayed by key, as a target applies them, and compared with the model's truth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.codec.columns import bits
from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.source.assembly import Limits
from penstock.engines.oracle.source.source_engine import OracleEngine
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.log.writer import advance, start_of
from penstock.model import (
    ColumnDefinition,
    FlushPoint,
    Identity,
    Marker,
    MarkerKind,
    Relation,
    Run,
    TableDefinition,
    TableName,
)
from penstock.model.position import to_ordinal
from penstock.ports.source import EnginePlace, ExtractOptions
from sim_oracle.columns import Column
from sim_oracle.database import Committed, Database
from sim_oracle.session import Server
from sim_oracle.tables import Table

Key = tuple[Any, ...]
State = dict[str, dict[Key, dict[str, Any]]]
FIRST = FlushPoint(position=0)
MOVES_MAX = 8  # runs in a row that only move the position: a reader that is watched disturbs


class FakeClock:
    """Clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        """Return the seconds so far."""
        return self.now_s

    def now_us(self) -> int:
        """Return the time of day."""
        return REAL_CLOCK.now_us()

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.now_s += max(seconds, 0.001)


@dataclass
class States:
    """State files in memory."""

    files: dict[str, Any] = field(default_factory=dict)

    def load(self, name: str, kind: type[Any]) -> Any:
        """Return a file's content, None without one."""
        found = self.files.get(name)
        assert found is None or isinstance(found, kind)
        return found

    def save(self, name: str, state: Any) -> None:
        """Replace a file's content."""
        self.files[name] = state


def type_text(column: Column) -> str:
    """Return a column's type as SQL writes it."""
    kind = column.kind
    if kind == "NUMBER" and column.precision is not None:
        return f"NUMBER({column.precision},{column.scale or 0})"
    if kind in ("VARCHAR2", "CHAR", "NVARCHAR2", "NCHAR", "RAW"):
        return f"{kind}({column.length})"
    if kind.startswith("TIMESTAMP"):
        return kind.replace("TIMESTAMP", f"TIMESTAMP({column.scale})", 1)
    if kind == "INTERVAL YEAR TO MONTH":
        return f"INTERVAL YEAR({column.precision}) TO MONTH"
    if kind == "INTERVAL DAY TO SECOND":
        return f"INTERVAL DAY({column.precision}) TO SECOND({column.scale})"
    return kind


def define(table: Table) -> TableDefinition:
    """Return the definition of a table of the model."""
    version = table.version
    return TableDefinition(
        name=TableName(version.owner, version.name),
        source_id=version.object_id,
        columns=tuple(
            ColumnDefinition(name=one.name, type_text=type_text(one), type_oid=0, typmod=-1, id=at)
            for at, one in enumerate(version.columns, 1)
        ),
        primary_key=version.key,
        identity=Identity.DEFAULT,
    )


class RedoLog:
    """Log in memory of a model's database.

    Attributes:
        begin: Position of the log's begin.
        end: The last flush point.
        runs: All runs up to it.
    """

    def __init__(
        self,
        server: Server,
        address: str,
        directory: Path,
        *,
        takes: Callable[[TableName], bool] = lambda one: one.schema == "SHOP",
        start_scn: str | None = None,
        limits: Limits | None = None,
        is_whole: bool = False,
        spill_bytes: int | None = None,
    ) -> None:
        self.database: Database = server.database
        self.server = server
        self.url = f"oracle://c%23%23penstock:secret@{address}/ORCL?pdb=SHOPPDB"
        self.clock = FakeClock()
        self.states = States()
        self.takes = takes
        self.start_scn, self.limits, self.is_whole = start_scn, limits, is_whole
        self.spill_bytes = spill_bytes
        self.directory = directory
        self.stack = ExitStack()
        self.begin = 0
        self.end = FIRST
        self.runs: list[Run] = []
        self.pending: list[Run] = []
        self.start()

    def _open(self) -> Connection:
        return connect_root(self.url)

    def _open_tables(self) -> Connection:
        return connect(self.url)

    def definitions(self) -> list[TableDefinition]:
        """Return the definitions of the captured tables."""
        found = (define(one) for one in self.database.tables.values() if not one.is_temporary)
        return sorted((one for one in found if self.takes(one.name)), key=lambda one: one.name)

    def start(self) -> None:
        """Begin as a new process does, from the state files and the last flush point."""
        self.engine = OracleEngine(
            self._open,
            self._open_tables,
            tables=self.definitions,
            selects=self.takes,
            options=ExtractOptions(full_before_images=self.is_whole),
            container="SHOPPDB",
            start_scn=self.start_scn,
            limits=self.limits,
            poll_s=0.4,
        )
        origin = self.engine.begin(
            EnginePlace(
                state=self.states,
                spill=self.directory / "spill",
                run=self.directory,
                log_id=lambda: "log",
                files=REAL_FILES,
                clock=self.clock,
            )
        )
        if self.end.position == 0:
            self.begin = origin.begin
            self.end = FlushPoint(position=origin.begin)
        self.reconnect()

    def reconnect(self) -> None:
        """Lose the stream, and what was not flushed."""
        self.engine.close()
        self.pending = []
        self._sequence = start_of(self.end)
        self.stack.close()
        self.stream = self.stack.enter_context(self.engine.stream(self.end))
        if self.spill_bytes is not None:
            self.stream._spill_bytes = self.spill_bytes

    def follow(self, *, runs: int | None = None, flush: bool = True) -> int:
        """Read until nothing more comes, or so many runs; return how many came."""
        count = moves = 0
        while (runs is None or count < runs) and moves < MOVES_MAX:
            run = self._next()
            if run is None:
                self.clock.sleep(20)
                run = self._next()
            if run is None:
                break
            count += 1
            moves = 0 if run.rows or run.markers or run.relations else moves + 1
            self._sequence = advance(self._sequence, run)
            self.pending.append(run)
            if run.end is not None and flush:
                self.flush()
        return count

    def _next(self) -> Run | None:
        while True:
            run = self.stream.next_run(0.5)
            if run is not None or not self.stream.is_reading:
                return run

    def flush(self) -> None:
        """Make everything durable that was read; the last run must end at a flush point."""
        end = self.pending[-1].end
        assert end is not None
        self.engine.before_flush(end)
        self.runs += self.pending
        self.pending, self.end = [], end
        self.stream.acknowledge(end.position)

    def catch_up(self) -> None:
        """Read all that the database has done."""
        self.database.beat()
        self.database.beat()
        self.follow()

    # ------------------------------------------------------------------ content

    @property
    def begin_scn(self) -> int:
        """Return the SCN after which the log begins."""
        return self.begin >> 64

    @property
    def markers(self) -> list[Marker]:
        """Return all markers."""
        return [one for run in self.runs for one in run.markers]

    def transactions(self) -> list[tuple[int, bytes]]:
        """Return position and XID of each transaction."""
        found = []
        for run in self.runs:
            if run.transactions is not None:
                for row in run.transactions.to_pylist():
                    xid = row["source_id"].to_bytes(8)
                    found.append((to_ordinal(row["position"]), xid))
        return found

    def events(self) -> Iterator[tuple[int, int, Any]]:
        """Yield transaction number, row number and row or marker, in order."""
        found: list[tuple[int, int, int, Any]] = []
        for run in self.runs:
            for rows in run.rows:
                for one in read_rows(rows.relation, rows.batch):
                    found.append((one.trx, one.gsn, 0, one))
            found += [(one.trx, one.gsn, 1, one) for one in run.markers]
        for trx, gsn, _, event in sorted(found, key=lambda one: one[:3]):
            yield trx, gsn, event


@dataclass(frozen=True)
class LogRow:
    """Row of the log. absent: columns that it lacks."""

    gsn: int
    trx: int
    op: str
    relation: Relation
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    absent: frozenset[str]


def read_rows(relation: Relation, batch: Any) -> Iterator[LogRow]:
    """Yield the rows of a batch."""
    names = [one.name for one in relation.columns]
    for row in batch.to_pylist():
        yield LogRow(
            gsn=row["gsn"],
            trx=row["trx"],
            op=chr(row["op"]),
            relation=relation,
            before=row["before"],
            after=row["after"],
            absent=frozenset(names[at] for at in bits(row["absent"])),
        )


# ---------------------------------------------------------------------- replay


def plain(value: Any, column: Any = None) -> Any:
    """Return a value in the form in which both sides have it."""
    kind = column.source_type if column is not None else ""
    if isinstance(value, str) and (kind.startswith(("NUMBER", "FLOAT"))):
        return Decimal(value)
    if isinstance(value, str) and "WITH TIME ZONE" in kind:
        text, _, zone = value.rpartition(" ") if " " in value[11:] else (value[:-6], "", value[-6:])
        return datetime.fromisoformat(text + zone).astimezone(UTC)
    if isinstance(value, str) and kind.startswith("INTERVAL DAY"):
        return _seconds(value)
    if isinstance(value, str) and kind.startswith("INTERVAL YEAR"):
        return _months(value)
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return None if value in ("", b"") else value


_DURATION = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[0-9.]+)S)?)?"
)


def _months(text: str) -> Decimal:
    match = _DURATION.fullmatch(text)
    assert match is not None, text
    return Decimal(int(match[1] or 0) * 12 + int(match[2] or 0))


def _seconds(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    assert match is not None, text
    days, hours, minutes = (int(match[at] or 0) for at in (3, 4, 5))
    micros = round(Decimal(match[6] or 0) * 10**6)
    return timedelta(days=days, hours=hours, minutes=minutes, microseconds=micros)


def replay_log(log: RedoLog, state: State) -> Iterator[tuple[int, State]]:
    """Apply the log's transactions by key; yield each one's number and the state after it."""
    last = 0
    for trx, _, event in log.events():
        if last and trx != last:
            yield last, state
        last = trx
        if isinstance(event, Marker):
            table = event.tables[0][1]
            if event.kind is MarkerKind.TRUNCATE:
                state[table] = {}
            else:
                state.pop(table)
        else:
            apply_row(state.setdefault(event.relation.name, {}), event)
    if last:
        yield last, state


def apply_row(rows: dict[Key, dict[str, Any]], row: LogRow) -> None:
    """Apply a row of the log; a keyless table has counts of rows."""
    relation = row.relation
    columns = {one.name: one for one in relation.columns}
    key_names = [relation.columns[at].name for at in relation.key]
    after = {
        name: plain(value, columns[name])
        for name, value in (row.after or {}).items()
        if name not in row.absent
    }
    before = {name: plain(value, columns[name]) for name, value in (row.before or {}).items()}
    if not key_names:
        names = [relation.columns[at].name for at in relation.before]
        if row.op != "I":
            old = find_keyless(rows, {name: before[name] for name in names})
            rows[old]["count"] -= 1
            if not rows[old]["count"]:
                del rows[old]
        if row.op != "D":
            new = tuple(sorted((name, after.get(name)) for name in names))
            rows.setdefault(new, {"count": 0})["count"] += 1
        return
    old_key = tuple(before.get(name, after.get(name)) for name in key_names)
    old_row = {} if row.op == "I" else rows.pop(old_key)
    if row.op != "D":
        new_key = tuple(after[name] for name in key_names)
        assert row.op == "U" or new_key not in rows, f"{new_key} exists in {relation.name}"
        rows[new_key] = {**old_row, **after}


def find_keyless(rows: dict[Key, dict[str, Any]], values: dict[str, Any]) -> Key:
    """Return the stored form of a row of a table without a key."""
    return tuple(sorted(values.items()))


class Truth:
    """State of the model by its committed transactions, in the same form."""

    def __init__(self, database: Database, snapshot: State) -> None:
        self._database = database
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._snapshot = snapshot

    def load(self, scn: int) -> None:
        """Take the rows as of an SCN."""
        for table in self._database.tables.values():
            if table.version.owner == "SHOP" and not table.is_temporary:
                for row_id, row in self._database.rows_at(table, scn):
                    self._rows[(table.name, row_id)] = row

    def apply(self, committed: Committed) -> None:
        """Apply a transaction."""
        for change in committed.changes:
            key = (change.table, change.row_id or "")
            if change.op == "t":
                for one in [one for one in self._rows if one[0] == change.table]:
                    del self._rows[one]
            elif change.after is None:
                del self._rows[key]
            else:
                self._rows[key] = change.after

    def state(self) -> State:
        """Return the rows by key."""
        out: State = {}
        tables = {one.name: one for one in self._database.tables.values()}
        counts: Counter[tuple[str, Key]] = Counter()
        for (name, _), row in self._rows.items():
            values = {one: plain(value) for one, value in row.items()}
            key_names = tables[name].version.key
            if key_names:
                out.setdefault(name, {})[tuple(values[one] for one in key_names)] = values
            else:
                counts[(name, tuple(sorted(values.items())))] += 1
        for (name, key), count in counts.items():
            out.setdefault(name, {})[key] = {"count": count}
        return out


def show_difference(ours: State, theirs: State) -> str:
    """Return the first difference of two states; empty if they are equal.

    A column that one side does not know is NULL on the other: it was added later.
    """
    for name in ours.keys() | theirs.keys():
        mine, true = ours.get(name, {}), theirs.get(name, {})
        for key in mine.keys() ^ true.keys():
            return f"{name} {key}: {mine.get(key)} / {true.get(key)}"
        for key in mine:
            for column in true[key]:
                if mine[key].get(column) != true[key][column]:
                    return (
                        f"{name} {key} {column}: {mine[key].get(column)!r} / {true[key][column]!r}"
                    )
    return ""


def check_log(log: RedoLog, snapshot: Truth, *, after_scn: int) -> int:
    """Check the log's transactions against the truth; return their number.

    snapshot: the state at the begin of the log.
    """
    truth = log.database.truth(after_scn)
    found = log.transactions()
    expected = [
        (OraclePosition.of_commit(one.scn, one.thread, one.address.text()).ordinal, one.xid.raw)
        for one in truth
        if one.address is not None and is_visible(one)
    ]
    assert found == expected
    state = snapshot.state()
    by_number = {number: found[number - 1] for number in range(1, len(found) + 1)}
    committed = {one.xid.raw + one.scn.to_bytes(8): one for one in truth}
    for trx, now in replay_log(log, state):
        position, xid = by_number[trx]
        snapshot.apply(committed[xid + (position >> 64).to_bytes(8)])
        difference = show_difference(now, snapshot.state())
        assert not difference, f"transaction {trx} at {OraclePosition(position)}: {difference}"
    return len(found)


def is_visible(committed: Committed) -> bool:
    """Return whether a transaction has something for the log: a change, or the end of a table."""
    text = (committed.ddl or "").lower()
    return bool(committed.changes) or text.startswith(("truncate", "drop table"))
