"""Row images as lines of JSON in Debezium's envelope."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from penstock import __version__
from penstock.consume.plugins.base import Instance, Row, RowValues
from penstock.consume.plugins.collecting import (
    Action,
    Change,
    CollectingPlugin,
    PluginSection,
    json_text,
    json_value,
)
from penstock.consume.plugins.line_file import LineFile
from penstock.model import TableName

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone
_MICROSECOND = datetime.timedelta(microseconds=1)
_OPS = {
    Action.INSERT: "c",
    Action.UPDATE_AFTER: "u",
    Action.DELETE: "d",
    Action.TRUNCATE: "t",
}


class DebeziumFile(CollectingPlugin):
    """File with one line for each event: destination, key and value, as Debezium's engine has
    them.

    `plugin = "penstock.consume.plugins:DebeziumFile"`.
    """

    row_values = RowValues.PYTHON
    section: ClassVar[str] = "debezium_file"
    keys: ClassVar[dict[str, str | None]] = {
        "path": None,
        "topic_prefix": None,
        "tombstones_on_delete": "1",
    }

    def __init__(self) -> None:
        super().__init__()
        self._file: LineFile | None = None
        self._prefix = ""
        self._has_tombstones = True

    def configure(self, settings: PluginSection, instance: Instance, /) -> None:
        self._prefix = settings.text("topic_prefix")
        self._has_tombstones = settings.flag("tombstones_on_delete")
        self._file = LineFile(
            instance.directory / settings.text("path"), _unit_of, section=self.section
        )

    def deliver(
        self, changes: Sequence[Change], uow_id: int, _gsn: int, instance: Instance, /
    ) -> None:
        assert self._file is not None, "configured"
        lines = [*self._lines(changes, uow_id, instance)]
        self._file.append(uow_id, lines, same=_without_time)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _lines(self, changes: Sequence[Change], uow_id: int, instance: Instance) -> Iterator[bytes]:
        orders: dict[str, int] = {}
        now_ns = time.time_ns()
        for total, (change, op, before, after) in enumerate(_events(changes), 1):
            orders[change.name] = orders.get(change.name, 0) + 1
            key = _key(change, before if after is None else after)
            value = {
                "before": None if before is None else _row(before),
                "after": None if after is None else _row(after),
                "source": self._source(change, uow_id, total - 1, instance),
                "op": op,
                **_times(now_ns),
                "transaction": {
                    "id": str(uow_id),
                    "total_order": total,
                    "data_collection_order": orders[change.name],
                },
            }
            yield self._line(change, key, value)
            if op == "d" and key is not None and self._has_tombstones:
                yield self._line(change, key, None)

    def _line(self, change: Change, key: Any, value: Any) -> bytes:
        destination = f"{self._prefix}.{change.name}"
        return json_text({"destination": destination, "key": key, "value": value}).encode()

    def _source(self, change: Change, uow_id: int, row: int, instance: Instance) -> dict[str, Any]:
        transaction = instance.transaction
        committed = transaction.commit_time
        return {
            "version": __version__,
            "name": self._prefix,
            **_times(None if committed is None else _microseconds(committed) * 1000),
            "snapshot": "false",
            "table": change.table,
            **instance.origin(
                TableName(change.db, change.table),
                unit=uow_id,
                where=(transaction.file, transaction.offset),
                row=row,
            ),
        }


def _events(
    changes: Sequence[Change],
) -> Iterator[tuple[Change, str, Row | None, Row | None]]:
    """Yield change, op, before and after; a changed key is a delete and a creation."""
    old: Row | None = None
    for change in changes:
        if change.action is Action.UPDATE_BEFORE:
            old = change.row
            continue
        op, before, after = _OPS[change.action], old, change.row
        old = None
        if op == "u" and before is not None and _key(change, before) != _key(change, after):
            yield change, "d", before, None
            yield change, "c", None, after
        elif op == "d":
            yield change, op, after, None
        elif op == "t":
            yield change, op, None, None
        else:
            yield change, op, before, after


def _key(change: Change, row: Row | None) -> dict[str, Any] | None:
    return {name: _value(row[name]) for name in change.key} if change.key and row else None


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    """Return a value in Debezium's form: dates in days, times and timestamps in microseconds."""
    match value:
        case datetime.datetime():
            if value.tzinfo is None:
                return _microseconds(value)
            return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        case datetime.date():
            return value.toordinal() - _EPOCH.toordinal()
        case datetime.time():
            return _microseconds(datetime.datetime.combine(_EPOCH, value.replace(tzinfo=None)))
        case datetime.timedelta():
            return value // _MICROSECOND
        case list() | tuple():
            return [_value(inner) for inner in value]
    return json_value(value)


def _times(moment_ns: int | None) -> dict[str, int | None]:
    """Return a moment in Debezium's three fields."""
    units = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
    return {name: None if moment_ns is None else moment_ns // unit for name, unit in units.items()}


def _microseconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _unit_of(line: bytes) -> int | None:
    """Return the transaction of a line; None for a tombstone, which belongs to the previous line's
    delete.
    """
    value = json.loads(line)["value"]
    return None if value is None else int(value["transaction"]["id"])


def _without_time(line: bytes) -> Any:
    """Return a line without the time at which it was written."""
    event = json.loads(line)
    if event["value"] is not None:
        for name in _times(None):
            del event["value"][name]
    return event
