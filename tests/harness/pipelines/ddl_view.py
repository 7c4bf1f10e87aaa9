"""A consumer that keeps tables by key, as a user's class would, and its comparison.

It fails now and then in the middle of a call, is run again, and skips the events that it has.
"""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.pipelines.ddl_processes import Mark
from harness.pipelines.ddl_sides import Row, Side, kind_of_value, neutral_row, show_row
from harness.pipelines.ddl_types import POSTGRES
from penstock.consume import CdcConsumer, CdcType, run
from penstock.consume.images import KeyNotSent

Key = tuple[str | None, ...]
Signature = tuple[Any, ...]
CRASHES = 0.03
REFUSALS = 0.1
ERRORS_MAX = 5
JOIN_S = 30.0
SECTION = {
    "class": "harness.pipelines.ddl_view:View",
    "start": "snapshot",
    "keepBinary": False,
    "checkFrequency": 50,
}


class Crash(BaseException):
    """Error: the consumer fails on purpose."""


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A row after its last events.

    Attributes:
        values: text by column.
        since: GSN of the oldest event that gave a value; None if a value is unknown.
        cache_id: of the table.
        signatures: possible identities of the key's columns.
    """

    values: Mapping[str, str | None]
    since: int | None
    cache_id: int
    signatures: frozenset[Signature]


@dataclass(slots=True)
class ViewTable:
    """The rows of a table by key.

    Attributes:
        key: names of the key's columns in the last shape, in order.
        signatures: identities of the key's columns in the shapes that events may have now.
        is_known: False once the log lacked the key of a row.
    """

    rows: dict[Key, ViewRow] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    is_known: bool = True


class View(CdcConsumer):
    """Tables by name. Called in the consumer's thread, read in another one."""

    def __init__(self, dice: random.Random | None = None) -> None:
        """Begin without tables; dice chooses failures, and without it there are none."""
        self._dice = dice
        self.lock = threading.Lock()
        self.tables: dict[str, ViewTable] = {}
        self._gsn: int | None = None

    def table(self, name: str) -> ViewTable:
        """Return the table of this name, `schema.table`."""
        return self.tables.setdefault(name, ViewTable())

    def on_types(self, types: Iterator[CdcType]) -> None:
        """Record the key's columns: of the last shape, and of those that may follow it."""
        with self.lock:
            for table in self.tables.values():
                table.signatures = table.signatures[-1:]
            for one in types:
                columns = [one.relation.columns[at] for at in one.relation.key]
                table = self.table(one.table)
                table.key = tuple(column.name for column in columns)
                signature = tuple(column.id or column.name for column in columns)
                table.signatures = (*table.signatures, signature)

    def on_events(self, events: Any) -> bool:
        """Apply each event that is not applied yet."""
        with self.lock:
            for event in events:
                if self._gsn is not None and event.gsn <= self._gsn:
                    continue
                self._apply(event)
                self._gsn = event.gsn
                if self._is_drawn(CRASHES):
                    raise Crash
        return not self._is_drawn(REFUSALS)

    def on_truncate(self, table: str, gsn: int) -> None:
        """Forget all rows."""
        with self.lock:
            if self._gsn is None or self._gsn <= gsn:
                self.table(table).rows.clear()

    def on_reload(self, table: str, gsn: int) -> None:
        """Forget all rows: those that exist follow."""
        self.on_truncate(table, gsn)

    def on_cache_destroy(self, caches: Iterator[int], gsn: int) -> None:
        """Forget the rows of dropped tables."""
        gone = set(caches)
        with self.lock:
            if self._gsn is not None and self._gsn > gsn:
                return
            for table in self.tables.values():
                table.rows = {k: row for k, row in table.rows.items() if row.cache_id not in gone}

    def _is_drawn(self, chance: float) -> bool:
        return self._dice is not None and self._dice.random() < chance

    def _apply(self, event: Any) -> None:
        table = self.table(event.table)
        try:
            key = tuple(text_of(value) for value in event.key)
        except KeyNotSent:
            table.is_known = False
            return
        old = table.rows.pop(key, None)
        if event.value is None:
            return
        values = {name: text_of(value) for name, value in event.value.items()}
        since: int | None = event.gsn
        if event.absent:
            kept = {} if old is None else old.values
            since = old.since if old and event.absent <= kept.keys() else None
            values |= {name: kept[name] for name in event.absent if name in kept}
        table.rows[key] = ViewRow(values, since, event.cache_id, frozenset(table.signatures))


def text_of(value: Any) -> str | None:
    """Return a value as text for the neutral rules."""
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case bytes():
            return f"\\x{value.hex()}"
        case Decimal():
            return format(value, "f")
        case datetime.datetime():
            return value.isoformat(" ").replace("+00:00", "+00")
        case datetime.date() | datetime.time():
            return value.isoformat()
    return str(value)


class ViewFollower:
    """A view that follows the log of a pipeline in a thread."""

    name = "consumer"

    def __init__(self, file: Path, dice: random.Random) -> None:
        """Prepare to follow; file is that of the pipeline, with the section."""
        self.view = View(dice)
        self.errors: list[Exception] = []
        self._file = file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def tend(self) -> None:
        """Do nothing, as it restarts on its own."""

    def disturb(self) -> None:
        """Do nothing, as it fails on its own."""

    def has_passed(self, fence: str, number: int) -> bool:
        """Return whether a row of the table of fences arrived."""
        with self.view.lock:
            return (str(number),) in self.view.table(fence).rows

    def finish(self) -> None:
        """Do nothing, as there is nothing more to start."""

    @property
    def error(self) -> str:
        """Error that ended it for good; empty while it runs."""
        return "" if len(self.errors) < ERRORS_MAX else str(self.errors[-1])

    def differences(self, source: Side, schema: str, table: str, mark: Mark | None) -> list[str]:
        """Return the differences of the view. mark: see `view_differences`."""
        with self.view.lock:
            return view_differences(source, self.view, schema, table, mark)

    def close(self) -> None:
        """End it."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _work(self) -> None:
        while not self._ended.is_set() and not self.error:
            try:
                run(self._file, "view", self.view, stop=self._ended.is_set)
            except Crash:
                continue
            except Exception as error:
                self.errors.append(error)
                self._ended.wait(1)


def view_differences(
    source: Side, view: View, schema: str, table: str, mark: Mark | None
) -> list[str]:
    """Return differences of a view's table from the source, if a user can expect equality.

    The keys are equal unless the key's columns changed. The values are equal for rows whose events
    all followed the last DDL that concerns the table; its end is a row of the table of fences.

    mark: this table and the number of the row; None: no DDL concerns the table. Of a renamed table
    only the rows that changed since it was captured are known.
    """
    facts = source.facts(schema, table)
    if facts is None or not facts.key:
        return []
    facts = facts.without_unsent()
    seen = view.table(f"{schema}.{table}")
    last = seen.signatures[-1:]
    is_stable = all(row.signatures == {*last} for row in seen.rows.values())
    if not seen.is_known or not is_stable or (seen.rows and set(seen.key) != facts.key):
        return []
    names = list(seen.key or sorted(facts.key))
    if any(len(key) != len(names) for key in seen.rows):
        return []  # the key changed between these rows
    kinds = {name: kind_of_value(source.kind, of) for name, of in facts.types.items()}
    places = [list(kinds).index(name) for name in names]
    texts = source.texts(schema, table, kinds)
    ours = {
        tuple(row[place] for place in places): row
        for row in (neutral_row(list(kinds.values()), text) for text in texts)
    }
    key_kinds = [kinds[name] for name in names]
    theirs = {neutral_row(key_kinds, key): row for key, row in seen.rows.items()}
    since = _gsn_of(view, mark)
    found = [f"{table}: lacks {show_row(names, key)}" for key in ours.keys() - theirs.keys()]
    found += [f"{table}: has {show_row(names, key)}" for key in theirs.keys() - ours.keys()]
    for key in ours.keys() & theirs.keys():
        row = theirs[key]
        if row.since is None or (since is not None and since >= 0 and row.since <= since):
            continue
        copied = {n: _digits(kinds.get(n), v, source.kind) for n, v in row.values.items()}
        found += _value_differences(table, kinds, ours[key], copied)
    return [f"consumer: {line}" for line in sorted(found)[:8]]


def _gsn_of(view: View, mark: Mark | None) -> int | None:
    """Return the GSN of a row of the table of fences; None without a mark."""
    if mark is None:
        return None
    return view.table(mark.fence).rows[(str(mark.number),)].since


def _value_differences(
    table: str, kinds: Mapping[str, str], ours: Row, theirs: Mapping[str, str | None]
) -> list[str]:
    if kinds.keys() != theirs.keys():
        return [f"{table}: columns {sorted(kinds)} became {sorted(theirs)}"]
    copied = neutral_row(list(kinds.values()), tuple(theirs[name] for name in kinds))
    if ours == copied:
        return []
    names = list(kinds)
    return [f"{table}: lacks {show_row(names, ours)}", f"{table}: has {show_row(names, copied)}"]


def _digits(kind: str | None, value: str | None, source: str) -> str | None:
    """Return a bit value as digits: the log of MySQL and MariaDB has it as a number."""
    if kind != "bits" or value is None or source == POSTGRES:
        return value
    return format(int(value), "b")
