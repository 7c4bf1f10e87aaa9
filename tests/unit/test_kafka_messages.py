"""Messages of Kafka in each format, read by other libraries, against the changes they are of."""

from __future__ import annotations

import base64
import datetime
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.kafka.formats import (
    AvroReader,
    JsonReader,
    ProtobufReader,
    Reader,
    SchemaJsonReader,
)
from harness.pipelines.consume import FULL, write_segment
from harness.pipelines.log import COMMIT_TIME_US, EVENT, ITEM, ITEM_2, Change, changes
from penstock.consume.batches import batches_of
from penstock.kafka.envelope import NEW_KEY, OLD_KEY, Style, TableMessages, find_moved
from penstock.kafka.errors import ValueOutOfRange
from penstock.kafka.fields import field_of
from penstock.kafka.modes import Modes
from penstock.kafka.schemas import STRUCT, Schema, struct
from penstock.kafka.texts import text_kernel
from penstock.kafka.transactions import KEY, VALUE, TransactionCounts
from penstock.model import Column, Op, Relation, TypeDefinition

READERS = [JsonReader, SchemaJsonReader, AvroReader, ProtobufReader]
WITH_SCHEMAS = READERS[1:]
UNAVAILABLE = "__debezium_unavailable_value"
PREFIX = "shop"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Fields of tests have names that all formats have.
PLACE = replace(EVENT, schema="odd", name="place")
ITEM_3 = replace(ITEM_2, name="item3", source_id=9, version=1)


def style(**others: Any) -> Style:
    """Return the form of messages of a PostgreSQL database."""
    return Style(prefix=PREFIX, modes=Modes(engine="postgresql"), database="db", **others)


def messages(groups: list[list[Change]], reader: Reader, form: Style | None = None) -> list[Any]:
    """Return the messages of these transactions, table by table in each run: table, key, value and
    headers, read.
    """
    found = []
    tables: dict[Any, TableMessages] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        write_segment(Path(folder), groups, keys_have_two=True) as segment,
    ):
        for piece in batches_of(segment, takes=lambda _: True, gsn_after=0):
            for one in piece.events:
                known = one.relation.full_name, one.relation.version
                if known not in tables:
                    topic = f"{PREFIX}.{one.table}"
                    tables[known] = TableMessages(
                        one.relation, topic, form or style(), reader.format
                    )
                moved = find_moved(one.batch, one.relation)
                for key, value, headers in tables[known].of_batch(one, moved, None):
                    found.append(
                        (
                            one.table,
                            None if key is None else reader.read(key),
                            None if value is None else reader.read(value),
                            {name: reader.read(each) for name, each in (headers or {}).items()},
                        )
                    )
    return found


# -- the reference: one change after another ---------------------------------------------------


def plain(relation: Relation, place: int, value: Any) -> Any:
    """Return a value as messages have it."""
    neutral = relation.columns[place].neutral
    if value is None:
        return None
    if neutral == "uuid":
        return str(UUID(bytes=value))
    if neutral == "timestamptz":
        moment = EPOCH + datetime.timedelta(microseconds=value)
        text = moment.isoformat().replace("+00:00", "")
        return (text.rstrip("0") if "." in text else text) + "Z"
    return value


def row_after(change: Change) -> dict[str, Any] | None:
    """Return the row after a change."""
    if change.after is None:
        return None
    relation = change.relation
    mask = int.from_bytes(change.absent or b"", "little")
    row = {}
    for place, column in enumerate(relation.columns):
        value = change.after[place]
        if mask >> place & 1:
            value = None
            if change.before is not None and place in relation.before:
                value = change.before[relation.before.index(place)]
            elif column.neutral in ("string", "binary"):
                value = UNAVAILABLE if column.neutral == "string" else UNAVAILABLE.encode()
        row[column.name] = plain(relation, place, value)
    return row


def row_before(change: Change) -> dict[str, Any] | None:
    """Return the row before a change; columns that were not sent are null."""
    if change.before is None:
        return None
    relation = change.relation
    row: dict[str, Any] = {column.name: None for column in relation.columns}
    for place, value in zip(relation.before, change.before, strict=True):
        row[relation.columns[place].name] = plain(relation, place, value)
    return row


def key_of(change: Change, row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the key of a row."""
    names = [change.relation.columns[at].name for at in change.relation.key]
    return {name: row[name] for name in names} if names and row is not None else None


def reference(changes_: list[Change]) -> list[Any]:
    """Return table, key, op, before, after and headers of the messages; op None for a tombstone."""
    found: list[Any] = []
    for change in changes_:
        table, before, after = change.relation.full_name, row_before(change), row_after(change)
        old, new = key_of(change, before), key_of(change, after)
        mask = int.from_bytes(change.absent or b"", "little")
        is_sent = not any(mask >> at & 1 for at in change.relation.key)
        is_moved = change.op is Op.UPDATE and old is not None and is_sent and old != new
        if is_moved or change.op is Op.DELETE:
            headers = {NEW_KEY: new} if is_moved else {}
            found.append((table, old, "d", before, None, headers))
            if old is not None:
                found.append((table, old, None, None, None, {}))
        if change.op is not Op.DELETE:
            is_create = is_moved or change.op is Op.INSERT
            headers = {OLD_KEY: old} if is_moved else {}
            shown = None if is_create else before
            found.append((table, new, "c" if is_create else "u", shown, after, headers))
    return found


def shape(found: list[Any]) -> list[Any]:
    """Return messages in the form of the reference."""
    return [
        (table, key, None, None, None, headers)
        if value is None
        else (table, key, value["op"], value["before"], value["after"], headers)
        for table, key, value, headers in found
    ]


def by_table(found: list[Any]) -> dict[str, list[Any]]:
    """Return messages by table: within a run, order is that of each table."""
    tables: dict[str, list[Any]] = {}
    for one in found:
        tables.setdefault(one[0], []).append(one)
    return tables


def near(value: Any) -> bool:
    """Return whether Python and Protobuf have the value; a key is never NULL."""
    return not isinstance(value, int) or abs(value) < 2**53


@st.composite
def draw_keyed(draw: st.DrawFn, relation: Relation) -> Change:
    """Return a change whose keys are not NULL."""
    change = draw(changes(relation))

    def fill(image: tuple[Any, ...] | None, columns: tuple[int, ...]) -> tuple[Any, ...] | None:
        if image is None:
            return None
        return tuple(
            draw(st.integers(0, 9)) if at in relation.key and value is None else value
            for at, value in zip(columns, image, strict=True)
        )

    mask = int.from_bytes(change.absent or b"", "little")
    for at in relation.key:  # a source sends the key
        mask &= ~(1 << at)
    everything = tuple(range(len(relation.columns)))
    absent = mask.to_bytes(1, "little") if mask else None
    return replace(
        change,
        after=fill(change.after, everything),
        before=fill(change.before, relation.before),
        absent=absent,
    )


ANY = st.one_of(
    draw_keyed(ITEM), draw_keyed(ITEM_3), draw_keyed(replace(FULL, source_id=7)), draw_keyed(PLACE)
)


@pytest.mark.parametrize("kind", WITH_SCHEMAS)
@settings(max_examples=60, deadline=None)
@given(groups=st.lists(st.lists(ANY, min_size=1, max_size=6), min_size=1, max_size=4))
def test_messages_are_the_changes(kind: Callable[[], Reader], groups: list[list[Change]]) -> None:
    """Keys, images, operations, tombstones and headers are those of each change, in order."""
    found = by_table(shape(messages(groups, kind())))
    expected = by_table(reference([one for group in groups for one in group]))
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.lists(ANY, min_size=1, max_size=6), min_size=1, max_size=4))
def test_plain_json_is_the_payload(groups: list[list[Change]]) -> None:
    """JSON without schemas is what the payload is with schemas."""

    class Payloads(SchemaJsonReader):
        def read(self, data: bytes) -> Any:
            return json.loads(data)["payload"]

    def without_time(found: list[Any]) -> list[Any]:
        for _, _, value, _ in found:
            for name in ("ts_ms", "ts_us", "ts_ns"):
                if value is not None:
                    del value[name]
        return found

    plain_, payloads = (without_time(messages(groups, one)) for one in (JsonReader(), Payloads()))
    assert plain_ == payloads


@pytest.mark.parametrize("kind", WITH_SCHEMAS)
@settings(max_examples=20, deadline=None)
@given(rows=st.lists(draw_keyed(ITEM_3), min_size=1, max_size=6))
def test_flat_rows(kind: Callable[[], Reader], rows: list[Change]) -> None:
    """Flat values are the rows; a delete is a tombstone, or a row that says so."""
    expected = [one for one in reference(rows) if one[2] != "d"]
    found = messages([rows], kind(), style(is_flat=True))
    assert [(key, value) for _, key, value, _ in found] == [(one[1], one[4]) for one in expected]
    found = messages([rows], kind(), style(is_flat=True, deletes="rewrite"))
    assert [(key, value) for _, key, value, _ in found] == [
        (
            one[1],
            None
            if one[2] is None
            else {**(one[4] or one[3]), "__deleted": str(one[2] == "d").lower()},
        )
        for one in reference(rows)
    ]


def test_the_source_block_and_the_gsns() -> None:
    """An update that changes the key has two numbers: of its delete and of its creation."""
    moved = Change(relation=ITEM, op=Op.UPDATE, before=(1,), after=(2, "b"))
    first = Change(relation=ITEM, op=Op.INSERT, after=(1, "a"))
    for kind in READERS:
        found = messages([[first], [moved]], kind())
        sources = [value["source"] for _, _, value, _ in found if value is not None]
        assert [(one["gsn"], one["txId"], one["lsn"]) for one in sources] == [
            (1, 1, 100),
            (2, 2, 200),
            (3, 2, 200),
        ]
        assert sources[0] | {"version": ""} == {
            "version": "",
            "connector": "postgresql",
            "name": PREFIX,
            "ts_ms": COMMIT_TIME_US // 1000,
            "ts_us": COMMIT_TIME_US + 1,
            "ts_ns": (COMMIT_TIME_US + 1) * 1000,
            "snapshot": "false",
            "db": "db",
            "sequence": '[null,"100"]',
            "schema": "public",
            "table": "item",
            "txId": 1,
            "lsn": 100,
            "gsn": 1,
        }
        assert [one["after"]["note"] for _, _, one, _ in found if one and one["after"]] == [
            "a",
            "b",
        ]


@pytest.mark.parametrize("kind", READERS)
def test_a_truncate(kind: Callable[[], Reader]) -> None:
    """The message has no key and no rows. The latest schema serves a table that was not seen."""
    reader = kind()
    known = TableMessages(ITEM, "shop.public.item", style(), reader.format)
    value = reader.read(known.of_truncate(7))
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)
    assert (value["source"]["gsn"], value["source"]["table"]) == (7, "item")
    unseen = TableMessages(
        replace(ITEM, columns=(), key=(), before=()), "shop.public.item", style(), reader.format
    )
    again = reader.read(unseen.of_truncate(8))
    assert (again["op"], again["source"]["gsn"]) == ("t", 8)
    if hasattr(reader, "ids"):
        assert len(reader.ids.schemas) == 1


@pytest.mark.parametrize("kind", READERS)
def test_boundaries_of_transactions(kind: Callable[[], Reader]) -> None:
    """BEGIN and END have what Debezium's have, over runs of one transaction."""
    reader = kind()
    end = {
        "status": "END",
        "id": "4",
        "event_count": 3,
        "data_collections": [{"data_collection": "a.b", "event_count": 3}],
        "ts_ms": 1,
    }
    begin = {**end, "status": "BEGIN", "event_count": None, "data_collections": None}
    for value in (begin, end):
        read = reader.read(reader.format.encode_one(VALUE, value, "t-value"))
        read["data_collections"] = read["data_collections"] or None
        assert read == value
    assert reader.read(reader.format.encode_one(KEY, {"id": "4"}, "t-key")) == {"id": "4"}


def test_orders_go_on_over_runs() -> None:
    """Events of a transaction are counted over tables and runs; a moved row counts twice."""
    import numpy as np

    def batch(gsns: list[int], trxs: list[int]) -> Any:
        return pa.RecordBatch.from_pydict({"gsn": gsns, "trx": trxs})

    counts = TransactionCounts()
    orders, told = counts.of_run(
        ["a", "b"],
        [batch([1, 4, 5], [1, 1, 2]), batch([3, 6], [1, 2])],
        [np.array([False, False, False]), np.array([True, False])],
    )
    assert [one.total.tolist() for one in orders] == [[1, 4, 1], [2, 2]]
    assert [one.collection.tolist() for one in orders] == [[1, 2, 1], [1, 1]]
    assert [(one["status"], name) for name, one in told] == [
        ("BEGIN", "1"),
        ("END", "1"),
        ("BEGIN", "2"),
    ]
    assert told[1][1]["data_collections"] == [
        {"data_collection": "a", "event_count": 2},
        {"data_collection": "b", "event_count": 2},
    ]
    orders, told = counts.of_run(
        ["a", "a"],
        [batch([7], [2]), batch([8, 9], [2, 3])],
        [np.array([False]), np.array([False, False])],
    )
    assert [one.total.tolist() for one in orders] == [[3], [4, 1]]
    assert [one.collection.tolist() for one in orders] == [[2], [3, 1]]
    assert [(one["status"], name, one["event_count"]) for name, one in told] == [
        ("END", "2", 4),
        ("BEGIN", "3", None),
    ]
    ((_, last),) = counts.end()
    assert (last["event_count"], counts.end()) == (1, [])


# -- columns -----------------------------------------------------------------------------------


def value_of(column: Column, values: Any, modes: Modes, **others: Any) -> tuple[Any, list[Any]]:
    """Return the JSON schema of a column's field, and its values in JSON."""
    relation = Relation(schema="s", name="t", columns=(column,), **others)
    field = field_of(column, relation, modes, optional=True)
    schema = Schema(kind=STRUCT, name="v", fields={"c": field.schema})
    reader = SchemaJsonReader()
    texts = reader.format.encode(struct(schema, [field.cells(values)]), len(values), "")
    found = [json.loads(one) for one in text_kernel().cut(*texts)]
    shown = {key: one for key, one in found[0]["schema"]["fields"][0].items() if key != "field"}
    assert shown.pop("optional")
    return shown, [one["payload"]["c"] for one in found]


def column(neutral: str, source_type: str) -> Column:
    """Return a column of this type."""
    return Column(name="c", neutral=neutral, source_type=source_type)


DAY = datetime.date(2024, 2, 29)
TIME = datetime.time(1, 2, 3, 456789)
MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 456789)  # noqa: DTZ001 - a timestamp has no zone
MOMENT_US = 1_709_168_523_456_789


@pytest.mark.parametrize(
    ("neutral", "source_type", "mode", "name", "value"),
    [
        ("date", "date", "adaptive", "io.debezium.time.Date", 19782),
        ("date", "date", "connect", "org.apache.kafka.connect.data.Date", 19782),
        ("time", "time", "adaptive", "io.debezium.time.MicroTime", 3_723_456_789),
        ("time", "time(3)", "adaptive", "io.debezium.time.Time", 3_723_456),
        ("time", "time(3)", "adaptive_time_microseconds", "io.debezium.time.MicroTime",
         3_723_456_789),
        ("time", "time", "connect", "org.apache.kafka.connect.data.Time", 3_723_456),
        ("timestamp", "timestamp without time zone", "adaptive", "io.debezium.time.MicroTimestamp",
         MOMENT_US),
        ("timestamp", "timestamp(3) without time zone", "adaptive", "io.debezium.time.Timestamp",
         MOMENT_US // 1000),
        ("timestamp", "datetime", "", "io.debezium.time.Timestamp", MOMENT_US // 1000),
        ("timestamp", "datetime(6)", "", "io.debezium.time.MicroTimestamp", MOMENT_US),
        ("timestamp", "datetime2", "", "io.debezium.time.MicroTimestamp", MOMENT_US),
        ("timestamp", "timestamp", "connect", "org.apache.kafka.connect.data.Timestamp",
         MOMENT_US // 1000),
        ("timestamptz", "timestamptz", "connect", "io.debezium.time.ZonedTimestamp",
         "2024-02-29T01:02:03.456789Z"),
    ],
)  # fmt: skip
def test_moments(neutral: str, source_type: str, mode: str, name: str, value: Any) -> None:
    """Types and units are those of time.precision.mode."""
    kinds = {"date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us")}
    kind = kinds.get(neutral, pa.timestamp("us", "UTC"))
    given_ = {"date": DAY, "time": TIME, "timestamp": MOMENT}.get(
        neutral, MOMENT.replace(tzinfo=datetime.UTC)
    )
    schema, found = value_of(
        column(neutral, source_type), pa.array([given_, None], kind), Modes(times=mode)
    )
    assert (schema["name"], found) == (name, [value, None])


def test_time_of_mysql_has_microseconds_by_default() -> None:
    """The default of each connector is its own."""
    values = pa.array([TIME], pa.time64("us"))
    for engine, name in (("mysql", "MicroTime"), ("mariadb", "MicroTime"), ("postgresql", "Time")):
        schema, _ = value_of(column("time", "time(3)"), values, Modes(engine=engine))
        assert schema["name"] == f"io.debezium.time.{name}"


def test_decimals() -> None:
    """Modes are precise, string and double; without a scale each value has its own."""
    values = pa.array([Decimal("-1.50"), Decimal("0.00"), None], pa.decimal128(6, 2))
    kind = column("decimal(6,2)", "numeric(6,2)")
    schema, found = value_of(kind, values, Modes())
    assert schema == {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "6"},
    }
    assert found == [base64.b64encode(b"\xff\x6a").decode(), "AA==", None]
    assert value_of(kind, values, Modes(decimals="string"))[1] == ["-1.50", "0.00", None]
    assert value_of(kind, values, Modes(decimals="double"))[1] == [-1.5, 0, None]
    small = pa.array([Decimal("1E-10")], pa.decimal128(12, 10))
    tiny = column("decimal(12,10)", "numeric(12,10)")
    assert value_of(tiny, small, Modes(decimals="string"))[1] == ["0.0000000001"]
    free = column("string", "numeric")
    values = pa.array(["1.25", "-300", "12e3", None])
    schema, found = value_of(free, values, Modes())
    assert schema["name"] == "io.debezium.data.VariableScaleDecimal"
    assert [None if one is None else one["scale"] for one in found] == [2, 0, 0, None]
    assert [base64.b64decode(one["value"]) for one in found[:3]] == [
        b"\x7d",
        b"\xfe\xd4",
        b"\x2e\xe0",
    ]
    assert value_of(free, values, Modes(decimals="string"))[1] == ["1.25", "-300", "12e3", None]
    with_nan = pa.array(["NaN", "1"])
    with pytest.raises(ValueOutOfRange, match="not a finite decimal"):
        value_of(free, with_nan, Modes())
    assert value_of(free, with_nan, Modes(decimals="double"))[1] == ["NaN", 1]


def test_unsigned_numbers() -> None:
    """Mode long refuses what does not fit, and precise keeps it."""
    kind = column("uint64", "bigint unsigned")
    small, large = pa.array([2**63 - 1, None], pa.uint64()), pa.array([2**64 - 1], pa.uint64())
    assert value_of(kind, small, Modes())[1] == [2**63 - 1, None]
    with pytest.raises(ValueOutOfRange, match="9223372036854775807"):
        value_of(kind, large, Modes())
    schema, found = value_of(kind, large, Modes(unsigned="precise"))
    assert schema["name"] == "org.apache.kafka.connect.data.Decimal"
    assert base64.b64decode(found[0]) == b"\0" + b"\xff" * 8


def test_bytes_and_texts() -> None:
    """Bytes have binary.handling.mode, texts their semantic type."""
    values = pa.array([b"\xfb\xff", None], pa.binary())
    kind = column("binary", "bytea")
    for mode, value in (
        ("bytes", "+/8="),
        ("base64", "+/8="),
        ("base64-url-safe", "-_8="),
        ("hex", "fbff"),
    ):
        schema, found = value_of(kind, values, Modes(binaries=mode))
        assert (schema["type"], found) == ("bytes" if mode == "bytes" else "string", [value, None])
    mood = TypeDefinition(schema="public", name="mood", kind="e", create_sql="", labels=("a", "b"))
    text = pa.array(["a"])
    for source_type, name, allowed in (
        ("jsonb", "io.debezium.data.Json", None),
        ("xml", "io.debezium.data.Xml", None),
        ("public.mood", "io.debezium.data.Enum", "a,b"),
        ("enum('a','it''s')", "io.debezium.data.Enum", "a,it's"),
        ("set('a','b')", "io.debezium.data.EnumSet", "a,b"),
        ("text", None, None),
    ):
        schema, found = value_of(column("string", source_type), text, Modes(), types=(mood,))
        parameters = schema.get("parameters", {})
        assert (schema.get("name"), parameters.get("allowed")) == (name, allowed)
        assert found == ["a"]


def test_floats_that_are_not_numbers() -> None:
    """NaN and the infinities are names, as Connect's converter writes them."""
    values = pa.array([float("nan"), float("inf"), float("-inf"), 0.1, 1e300, None])
    _, found = value_of(column("float64", "float8"), values, Modes())
    assert found == ["NaN", "Infinity", "-Infinity", 0.1, 1e300, None]
    _, found = value_of(column("float32", "real"), pa.array([0.1], pa.float32()), Modes())
    assert found == [0.1]
