"""Recorded change tables of the samples: each case gives the transactions that it expects.

The file's facts are those of the reference, sections 2 to 8; `tests/data` has a copy of it.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.servers.change_table_log import LACKING, ChangeLog, Seen
from harness.servers.change_tables import ChangeServer, FakeColumn, FakeInstance, FakeTable
from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.engines.sqlserver.errors import (
    ChangesLost,
    InstanceUnreadable,
    PositionAhead,
)
from penstock.engines.sqlserver.source import statements
from penstock.model import TableName

SAMPLES = Path(__file__).parents[1] / "data" / "sqlserver_cdc_samples.jsonl"
RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()
]
CASES = [
    one["case"] for one in RECORDS if one["record"] == "outcome" and one["case"] != "positions"
]
BEFORE_ALL = 0x00000027000007000000
COMPUTED = {"c_comp"}
LARGE = {"body", "data", "old_text", "c_xml"}  # the log has none of them in old rows
TIMES = frozenset(("datetime", "smalldatetime"))


def of_case(record: str, case: str) -> list[dict[str, Any]]:
    """Return the records of one kind of a case."""
    return [one for one in RECORDS if one["record"] == record and one.get("case") == case]


def raw(value: Any, type_text: str = "") -> Any:
    """Return a tagged value as the driver returns it."""
    if not isinstance(value, dict):
        return value
    ((tag, text),) = value.items()
    if tag == "$hex":
        return bytes.fromhex(text)
    if tag == "$num":
        return Decimal(text)
    if tag == "$date":
        return datetime.date.fromisoformat(text)
    if tag == "$time":
        whole, _, part = text.partition(".")
        time = datetime.time.fromisoformat(whole)
        seconds = (time.hour * 60 + time.minute) * 60 + time.second
        return seconds * 10**9 + int(part.ljust(9, "0"))
    if tag == "$ts" and (type_text in TIMES or not type_text):
        return datetime.datetime.fromisoformat(text)
    assert tag in ("$ts", "$tstz", "$uuid")
    return text


def server_of(case: str) -> ChangeServer:
    """Return a server with everything that a case recorded."""
    server = ChangeServer()
    rows = of_case("row", case)
    used = {one["capture_instance"] for one in rows}
    for record in (one for one in RECORDS if one["record"] == "capture_instance"):
        if record["capture_instance"] in used:
            add_instance(server, record)
    types = {(one.name, it.name): it.type_text for one in server.instances for it in one.columns}
    instances = {one.name: one for one in server.instances}
    for row in rows:
        name = row["capture_instance"]
        found = {
            key: raw(value, types.get((name, key), ""))
            for key, value in row.items()
            if key.startswith("__$") or (name, key) in types
        }
        instances[name].rows.append(found)
    for one in of_case("lsn_time_mapping", case):
        number = int(one["start_lsn"]["$hex"], 16)
        server.commits.append((number, raw(one["tran_end_time"]), raw(one["tran_id"])))
    server.commits.sort()
    for one in of_case("ddl_history", case):
        number = int(one["ddl_lsn"]["$hex"], 16)
        instances[one["capture_instance"]].ddl.append((number, one["ddl_command"]))
    return server


def add_instance(server: ChangeServer, record: dict[str, Any]) -> None:
    """Add a recorded capture instance; a second one of a table gives it its columns."""
    columns = [
        FakeColumn(
            name=one["column_name"],
            type_text=one["type"],
            column_id=one["column_ordinal"],
            is_computed=one["column_name"] in COMPUTED,
        )
        for one in record["captured_columns"]
    ]
    name = TableName(record["source_schema"], record["source_table"])
    known = next((one for one in server.tables.values() if one.name == name), None)
    if known is None:
        known = FakeTable(name, 1000 + len(server.tables), [], ())
        server.tables[known.object_id] = known
    known.columns = columns
    known.key = tuple(record["index_column_list"])
    server.instances.append(
        FakeInstance(
            name=record["capture_instance"],
            object_id=5000 + len(server.instances),
            source_id=known.object_id,
            columns=columns,
            start=int(record["start_lsn"]["$hex"], 16),
            created=f"2026-03-04T05:00:{len(server.instances):02}",
        )
    )


def as_samples(seen: Seen) -> list[dict[str, Any]]:
    """Return a change as the samples write it; an update of the key as its two rows."""
    before = seen.before
    if before is not None:
        before = {
            name: {"$unavailable": True} if name in LARGE else value
            for name, value in before.items()
        }
    after = seen.after
    if after is not None:
        after = {
            name: {"$unavailable": True} if value == LACKING else value
            for name, value in after.items()
        }
    change = {"table": seen.table, "op": seen.op, "before": before, "after": after}
    if seen.op == "u" and before is not None and after is not None:
        key = {"orders": "id"}.get(seen.table, "")
        if key and before[key] != after[key]:
            return [{**change, "op": "d", "after": None}, {**change, "op": "c", "before": None}]
    return [change]


def in_expected_form(change: dict[str, Any]) -> dict[str, Any]:
    """Return an expected change in the form of `as_samples`."""
    types = {
        one["column_name"]: one["type"]
        for record in RECORDS
        if record["record"] == "capture_instance" and record["source_table"] == change["table"]
        for one in record["captured_columns"]
    }

    def image(values: dict[str, Any] | None, *, is_before: bool) -> dict[str, Any] | None:
        if values is None:
            return None
        return {
            name: {"$unavailable": True} if is_before and name in LARGE else in_log(value)
            for name, value in values.items()
            if name not in COMPUTED
        }

    def in_log(value: Any) -> Any:
        if not isinstance(value, dict) or "$unavailable" in value:
            return value
        ((tag, text),) = value.items()
        if tag == "$uuid":
            return bytes.fromhex(text.replace("-", ""))
        if tag in ("$ts", "$time", "$tstz"):
            return ("moment", text)
        return raw(value)

    assert types
    return {
        "table": change["table"],
        "op": change["op"],
        "before": image(change["before"], is_before=True),
        "after": image(change["after"], is_before=False),
    }


def same(found: Any, wanted: Any) -> bool:
    """Return whether a value of the log is an expected one; moments are compared as texts."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, tuple):
        text = str(wanted[1]).replace("T", " ")
        if isinstance(found, str):
            return _plain(found) == _plain(text)
        return isinstance(found, datetime.datetime) and found == datetime.datetime.fromisoformat(
            text
        )
    return bool(found == wanted) and type(found) is type(wanted)


def _plain(text: str) -> str:
    whole, dot, rest = text.replace("T", " ").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :].removesuffix(":00") if ":" in rest else rest[len(digits) :]
    return f"{whole}{dot}{digits.rstrip('0')}{zone}" if dot else whole


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [5000, 1], ids=["whole", "one commit at a time"])
def test_the_recorded_transactions_are_in_the_log(case: str, count: int) -> None:
    """Order, values, absent values and old rows are those of the samples."""
    server = server_of(case)
    (outcome,) = of_case("outcome", case)
    log = ChangeLog(server, begin=BEFORE_ALL, is_whole=True, count=count)
    log.follow()
    found = [[one for seen in some for one in as_samples(seen)] for some in log.transactions()]
    wanted = [
        [in_expected_form(change) for change in one["changes"]] for one in outcome["transactions"]
    ]
    if case == "restart_inside_transaction":
        # A transaction is in the log whole or not at all: it is read again from its beginning.
        first = of_case("row", case)[0]
        assert first["expect"]["already_emitted"]
        found[0] = found[0][1:]
    assert [len(one) for one in found] == [len(one) for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one["table"], one["op"]) == (other["table"], other["op"])
            assert same(one["before"], other["before"]), (one["before"], other["before"])
            assert same(one["after"], other["after"]), (one["after"], other["after"])
    texts = [str(SqlServerLsn(position)) for position in log.positions()]
    assert texts == [one["commit_lsn"] for one in outcome["transactions"]]
    if "position_after" in outcome:
        assert str(SqlServerLsn(log.end.position)) == outcome["position_after"]


def test_the_second_instance_is_read_from_its_start() -> None:
    """The log knows the new column once the newer instance begins, and logs the statement."""
    log = ChangeLog(server_of("second_capture_instance"), begin=BEFORE_ALL)
    log.follow()
    shapes = [[column.name for column in one.columns] for one in log.relations]
    assert shapes == [["id", "name"], ["id", "name", "phone"]]
    assert [one.version for one in log.relations] == [1, 2]


ERRORS = {
    "data_loss": ChangesLost,
    "no_access_or_no_instance": InstanceUnreadable,
    "future_position": PositionAhead,
}


@pytest.mark.parametrize("record", of_case("check", "positions"), ids=lambda one: one["expect"])
def test_recorded_checks_of_positions(record: dict[str, Any]) -> None:
    """Loss, idleness, missing access and positions of the future have errors of their own."""
    server = ChangeServer()
    table = server.add_table("orders", [("id", "int")])
    least = int(record["fn_cdc_get_min_lsn"]["$hex"], 16)
    stored = SqlServerLsn.parse(record["stored"]).ordinal
    instance = server.capture(table, start=min(least, stored) or 1)
    log = ChangeLog(server, begin=stored)
    newest = record["fn_cdc_get_max_lsn"]
    log.book.saw_newest(stored if record["expect"].startswith("future") else 0)
    instance.start, instance.is_readable = least, bool(least)
    server.newest = int(newest["$hex"], 16) if newest is not None else None
    kind = record["expect"].partition(":")[0]
    if kind == "no_access_or_no_instance":
        server.newest = stored + 1  # nothing is asked while nothing is new
    if kind in ERRORS:
        with pytest.raises(ERRORS[kind]):
            log.follow()
        return
    log.follow()
    assert log.runs == []
    asked = [sql for sql, _ in server.sent if sql != statements.GUID]
    if kind == "idle":
        # The scan of the log tells whether the log's end may move past the newest commit.
        assert asked == [statements.NEWEST, statements.LAST_SCAN]
    else:
        assert asked == [statements.NEWEST, statements.SERVICES]
