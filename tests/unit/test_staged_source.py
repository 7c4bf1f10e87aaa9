"""Staged mutations as a source of the change log: values, shapes, windows."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engines.feeds.extraction import HlcPosition, StagedStream
from penstock.engines.feeds.rows import (
    SchemaDriftDetected,
    ShapeChanged,
    Shapes,
    StagedTableUnknown,
    default_of,
)
from penstock.engines.feeds.values import NotNeutral, column_of
from penstock.engines.feeds.windows import WindowReader
from penstock.log.writer import advance, start_of
from penstock.model import (
    Column,
    ColumnDefinition,
    FlushPoint,
    MarkerKind,
    Op,
    Run,
    TableDefinition,
    TableName,
)
from penstock.model.hlc import ZERO, Hlc
from penstock.model.position import PositionInvalid
from penstock.ports.feeds import (
    Mutation,
    Slice,
    StagedTable,
    Window,
    batch_of,
    position_behind,
    time_through,
)

GROUP = ("shop", "public")
ITEM, LINE = StagedTable(GROUP, "item"), StagedTable(GROUP, "line")


def column(name: str, kind: str, neutral: str, **more: Any) -> ColumnDefinition:
    """Return a column of the target."""
    return ColumnDefinition(
        name=name, type_text=kind, type_oid=0, typmod=-1, base_type=kind, neutral=neutral, **more
    )


ITEM_TABLE = TableDefinition(
    name=TableName("public", "item"),
    source_id=1,
    columns=(
        column("id", "bigint", "int64", not_null=True),
        column("name", "text", "string"),
        column("price", "numeric(8,2)", "decimal(8,2)"),
        column("twice", "numeric(8,2)", "decimal(8,2)", generated="s"),
        column("note", "text", "string"),
    ),
    primary_key=("id",),
)
LINE_TABLE = TableDefinition(
    name=TableName("public", "line"),
    source_id=2,
    columns=(
        column("item", "bigint", "int64", not_null=True),
        column("number", "int", "int32", not_null=True),
        column("at", "timestamp with time zone", "timestamptz"),
    ),
    primary_key=("item", "number"),
)


class Kept:
    """State files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}

    def load(self, name: str, _kind: Any) -> Any:
        """Return the state that was saved under this name, or None."""
        return self.files.get(name)

    def save(self, name: str, state: Any) -> None:
        """Keep the state under this name."""
        self.files[name] = state


@dataclass
class Session:
    """The part of a staging session with which a source reads."""

    staged: dict[StagedTable, list[Mutation]] = field(default_factory=dict)

    def put(self, table: StagedTable, time: Hlc, key: list[Any], after: Any) -> None:
        """Stage one mutation."""
        text = None if after is None else json.dumps(after).encode()
        mutation = Mutation(time=time, key=json.dumps(key), after=text)
        self.staged.setdefault(table, []).append(mutation)

    def window(self, _group: Any) -> Window:
        """Return a window in which no row is applied yet."""
        return Window(committed=ZERO, proposed=ZERO)

    def staged_tables(self, _group: Any) -> tuple[StagedTable, ...]:
        """Return the tables that have staged mutations, of any group."""
        return tuple(self.staged)

    def read(
        self,
        tables: Collection[StagedTable],
        after: Hlc,
        through: Hlc,
        *,
        limit: int,
        with_applied: bool = False,
    ) -> Iterator[Slice]:
        """Return slices of whole times, unless one time has more rows than the limit."""
        found = sorted(
            (one.time, table, one.key, one)
            for table in tables
            for one in self.staged.get(table, [])
            if after < one.time <= through
        )
        for start in range(0, len(found), limit):
            part = found[start : start + limit]
            rows = {
                table: batch_of([one for _, its, _, one in part if its == table])
                for table in {table for _, table, _, _ in part}
            }
            yield Slice(through=part[-1][0], rows=rows)
        yield Slice(through=through, rows={})


def reader(
    session: Any,
    tables: Mapping[StagedTable, TableDefinition] | None = None,
    *,
    splits: bool = False,
    rows_max: int = 3,
    kept: Kept | None = None,
) -> WindowReader:
    """Return a reader of windows."""
    tables = {ITEM: ITEM_TABLE, LINE: LINE_TABLE} if tables is None else tables
    shapes = Shapes(definitions=lambda: tables, files=kept or Kept())
    shapes.load()
    return WindowReader(
        session=session, group=GROUP, shapes=shapes, splits=splits, rows_max=rows_max
    )


def apply_runs(runs: list[Run], model: dict[str, Any]) -> None:
    """Apply runs to a model of tables, in order of the rows' numbers."""
    changes = []
    for run in runs:
        for rows in run.rows:
            names = [one.name for one in rows.relation.columns]
            for row in rows.batch.to_pylist():
                changes.append((row["gsn"], rows.relation, names, row))
    for _, relation, names, row in sorted(changes, key=lambda change: change[0]):
        table = model.setdefault(relation.name, {})
        if row["op"] == Op.DELETE:
            table.pop(tuple(row["before"][names[at]] for at in relation.key), None)
            continue
        assert row["before"] is None
        key = tuple(row["after"][names[at]] for at in relation.key)
        bits = row["absent"] or b""
        old = table.get(key, {})
        table[key] = {
            name: old.get(name) if bits and bits[at // 8] >> at % 8 & 1 else row["after"][name]
            for at, name in enumerate(names)
        }


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_windows_are_whole_transactions_in_order(seed: int, splits: bool) -> None:
    """The log gets one transaction for each timestamp, for any size of slices."""
    draw = random.Random(seed)
    session, model, at = Session(), dict[str, Any](), start_of(FlushPoint(position=0))
    expected: dict[str, Any] = {"item": {}, "line": {}}
    times, seen = reader(session, splits=splits, rows_max=draw.choice([1, 2, 3, 50])), 0
    clock = 0
    for _ in range(12):
        stamps = []
        for _ in range(draw.randrange(5)):
            clock += draw.randrange(1, 3)
            stamp = Hlc(10**18 + clock // 2, clock % 2)
            stamps.append(stamp)
            _random_transaction(draw, session, stamp, expected)
        clock += draw.randrange(2)
        resolved = Hlc(10**18 + clock // 2, clock % 2)
        if resolved <= time_through(at.end.position):
            continue
        runs = _window(times, at.end, resolved)
        for run in runs:
            at = advance(at, run)
            seen += 0 if run.transactions is None else run.transactions.num_rows
            if not splits:
                assert (run.end is None) == (run.markers == ())
        assert at.at_commit
        assert runs[-1].markers[0].kind is MarkerKind.RESOLVED
        assert time_through(at.end.position) == resolved
        apply_runs(runs, model)
        for name, rows in expected.items():
            assert model.get(name, {}) == rows
    assert seen == at.trx


def _window(made: WindowReader, start: FlushPoint, resolved: Hlc) -> list[Run]:
    """Return a window's runs; read again after an unknown shape, as the extractor does."""
    while True:
        try:
            return list(made.runs(time_through(start.position), resolved, start))
        except ShapeChanged:
            continue


def _random_transaction(
    draw: random.Random, session: Session, stamp: Hlc, expected: dict[str, Any]
) -> None:
    for key in draw.sample(range(6), draw.randrange(1, 6)):
        if draw.random() < 0.3:
            session.put(ITEM, stamp, [key], None)
            expected["item"].pop((key,), None)
        else:
            row = {"id": key, "name": draw.choice(["a", None, 'q"\\'])}
            session.put(ITEM, stamp, [key], row)
            expected["item"][key,] = row
    if draw.random() < 0.5:
        session.put(LINE, stamp, [1, 2], {"item": 1, "number": 2})
        expected["line"][1, 2] = {"item": 1, "number": 2}


def test_a_line_that_lacks_a_column_leaves_it_as_it_is() -> None:
    """Once a line had it, it is ABSENT in lines without it; one never seen is not in the shape."""
    session = Session()
    session.put(ITEM, Hlc(5), [1], {"id": 1, "name": "a", "price": 2.5, "twice": 5})
    session.put(ITEM, Hlc(6), [1], {"id": 1, "name": "b"})
    runs = list(reader(session).runs(ZERO, Hlc(9), FlushPoint(position=0)))
    [rows] = runs[0].rows
    assert [one.name for one in rows.relation.columns] == ["id", "name", "price"]
    assert rows.batch.column("absent").to_pylist() == [None, b"\x04"]


def test_a_row_that_is_made_again_has_defaults_for_what_it_lacks() -> None:
    """The row's delete may be in the same batch of the target, where its old values are unknown."""
    session = Session()
    full = {"id": 1, "name": "a", "price": 2.5, "note": "x"}
    session.put(ITEM, Hlc(5), [1], full)
    session.put(ITEM, Hlc(6), [1], None)
    session.put(ITEM, Hlc(7), [1], {"id": 1, "name": "b"})
    session.put(ITEM, Hlc(8), [1], {"id": 1, "name": "c"})
    session.put(ITEM, Hlc(9), [2], None)
    session.put(ITEM, Hlc(12), [2], {"id": 2, "name": "d"})
    table = replace(
        ITEM_TABLE,
        columns=tuple(
            replace(one, default="'it''s'::text") if one.name == "note" else one
            for one in ITEM_TABLE.columns
        ),
    )
    made = reader(session, {ITEM: table}, rows_max=9)
    runs = list(made.runs(ZERO, Hlc(10), FlushPoint(position=0)))
    [rows] = runs[0].rows
    assert rows.batch.column("absent").to_pylist() == [None, None, None, b"\x0c", None]
    found = rows.batch.column("after").to_pylist()[2]
    assert (found["price"], found["note"]) == (None, "it's")
    runs += list(made.runs(Hlc(10), Hlc(20), runs[-1].end or FlushPoint(position=0)))
    assert runs[2].rows[0].batch.column("absent").to_pylist() == [None]
    again = reader(session, {ITEM: table}, rows_max=9)  # a restart: the target may lag
    again.go_on(Hlc(10))
    again.shapes.grow(ITEM, seen=["name", "note"])  # as kept beside the log
    runs = list(again.runs(Hlc(10), Hlc(20), FlushPoint(position=0)))
    assert runs[0].rows[0].batch.column("after").to_pylist()[0]["note"] == "it's"


def test_a_window_that_is_read_again_knows_the_same_deletes() -> None:
    """The row that was recreated in its first slice has defaults the second time, too."""
    session = Session()
    session.put(ITEM, Hlc(5), [1], {"id": 1, "name": "a"})
    session.put(ITEM, Hlc(6), [1], None)
    session.put(ITEM, Hlc(11), [1], {"id": 1})
    session.put(ITEM, Hlc(12), [2], {"id": 2, "note": "new"})
    made = reader(session, rows_max=1)
    runs = list(made.runs(ZERO, Hlc(10), FlushPoint(position=0)))
    end = runs[-1].end or FlushPoint(position=0)
    with pytest.raises(ShapeChanged, match="note"):
        list(made.runs(Hlc(10), Hlc(20), end))
    runs = list(made.runs(Hlc(10), Hlc(20), end))
    assert runs[0].rows[0].batch.column("absent").to_pylist() == [None]


class NoTime:
    """A clock that advances with waits."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """Return how long was waited."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        self.now_s += seconds


def test_a_stream_gives_each_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream returns nothing afterwards, until a later time is proposed."""
    session = Session()
    session.put(ITEM, Hlc(5), [1], {"id": 1, "name": "a"})
    proposed = [Hlc(10)]
    monkeypatch.setattr(
        session, "window", lambda _group: Window(committed=ZERO, proposed=proposed[-1])
    )
    stream = StagedStream(
        session=session,  # type: ignore[arg-type]
        group=GROUP,
        reader=reader(session),
        end=FlushPoint(position=0),
        clock=NoTime(),  # type: ignore[arg-type]
    )

    def take_positions() -> list[int]:
        found = []
        while (run := stream.next_run(0.5)) is not None and len(found) < 9:
            found.append(run.end.position if run.end is not None else 0)
        return found

    assert take_positions() == [0, position_behind(Hlc(10))]
    assert stream.end.position == position_behind(Hlc(10))
    assert take_positions() == []
    session.put(ITEM, Hlc(12), [1], {"id": 1, "name": "b"})
    proposed.append(Hlc(20))
    assert take_positions() == [0, position_behind(Hlc(20))]


@pytest.mark.parametrize(
    ("default", "not_null", "expected"),
    [
        (None, False, b"null"),
        (None, True, None),
        ("5", True, b"5"),
        ("(-5)", True, b"-5"),
        ("'5'::bigint", True, b'"5"'),
        ("true", True, b"true"),
        ("NULL::text", False, b"null"),
        ("now()", False, b"null"),
        ("now()", True, None),
        ("nextval('s'::regclass)", True, None),
    ],
)
def test_constant_defaults_are_known(
    default: str | None, not_null: bool, expected: bytes | None
) -> None:
    """Defaults are JSON; a computed one is NULL if allowed, else unknown."""
    assert default_of(column("c", "text", "string", default=default, not_null=not_null)) == expected


def test_a_new_column_in_the_middle_of_a_window_has_it_read_again() -> None:
    """The whole window has one shape, and a batch never ends inside it."""
    session, kept = Session(), Kept()
    for number in range(5):
        session.put(ITEM, Hlc(5 + number), [number], {"id": number, "name": "a"})
    session.put(ITEM, Hlc(20), [7], {"id": 7, "name": "a", "note": "new", "price": 123.456})
    made = reader(session, kept=kept)
    with pytest.raises(ShapeChanged, match="note, price"):
        list(made.runs(ZERO, Hlc(30), FlushPoint(position=0)))
    with pytest.raises(ShapeChanged, match="price"):  # 123.456 has too many digits for it
        list(made.runs(ZERO, Hlc(30), FlushPoint(position=0)))
    runs = list(made.runs(ZERO, Hlc(30), FlushPoint(position=0)))
    relations = {rows.relation for run in runs for rows in run.rows}
    [relation] = relations
    assert [(one.name, one.neutral) for one in relation.columns] == [
        ("id", "int64"),
        ("name", "string"),
        ("price", "string"),
        ("note", "string"),
    ]
    assert relation.version > 1, "the log has another shape of this version"
    again = reader(Session(), kept=kept)  # a restart knows it
    assert again.shapes.of(ITEM).relation == relation


@pytest.mark.parametrize(
    ("table", "key", "after", "message"),
    [
        (ITEM, [1], {"id": 1, "colour": 2}, "unknown field `colour`"),
        (ITEM, [1], {"name": "a"}, "key column id is missing"),
        (ITEM, [1], {"id": None}, "key column id is missing"),
        (LINE, [1], None, "a delete names 1 key columns, the table has 2"),
        (ITEM, [1, 2], None, "a delete names 2 key columns, the table has 1"),
        (LINE, [2, 1], {"item": 1, "number": 2}, "the key columns (item, number) are in another"),
    ],
)
def test_what_the_target_cannot_take_is_named(
    table: StagedTable, key: list[Any], after: Any, message: str
) -> None:
    """Examples are a property without a column, and a key that is incomplete."""
    session = Session()
    session.put(ITEM, Hlc(5), [1], {"id": 1, "name": "a"})
    session.put(table, Hlc(6), key, after)
    with pytest.raises(SchemaDriftDetected, match="schema drift detected in shop") as info:
        list(reader(session, rows_max=50).runs(ZERO, Hlc(30), FlushPoint(position=0)))
    assert message in info.value.message


def test_a_table_that_the_target_does_not_have_is_named() -> None:
    """No part of the window is skipped."""
    shapes = Shapes(definitions=dict, files=Kept())
    shapes.load()
    with pytest.raises(StagedTableUnknown, match="no such table"):
        shapes.of(ITEM)


VALUES: list[tuple[str, str, list[str], list[Any]]] = [
    ("bigint", "int64", ["1", "null", "-9007199254740993"], [1, None, -9007199254740993]),
    ("tinyint(1)", "int16", ["true", "false", "null"], [1, 0, None]),
    ("int", "int32", ["4E+2", '"7"'], [400, 7]),
    ("bit(4)", "uint64", ['"1011"', "null"], [11, None]),
    (
        "double precision",
        "float64",
        ["1.5", "2", '"NaN"', '"-Infinity"'],
        [1.5, 2.0, "nan", "-inf"],
    ),
    ("boolean", "bool", ["true", "null", "false"], [True, None, False]),
    ("numeric(8,2)", "decimal(8,2)", ["1.5", "4E+2", "null"], ["1.50", "400.00", None]),
    ("numeric", "string", ["1.50", "4E+2", "null", '"NaN"'], ["1.50", "400", None, "NaN"]),
    ("text", "string", ['"a\\u00e9\\n"', "null", "12", "true"], ["aé\n", None, "12", "true"]),
    ("jsonb", "string", ['"a"', '{"b": [1]}', "null", "1"], ['"a"', '{"b": [1]}', None, "1"]),
    ("uuid", "uuid", ['"00000000-0000-0000-0000-0000000000ff"'], [b"\0" * 15 + b"\xff"]),
    ("bytea", "binary", ['"\\\\x00ff"', "null", '"abc"'], [b"\0\xff", None, b"abc"]),
    ("date", "date", ['"2026-01-02"', "null"], ["2026-01-02", None]),
    ("time", "time", ['"15:04:05.25"', "null"], ["15:04:05.250000", None]),
    ("timestamp", "timestamp", ['"2026-01-02T03:04:05.5"'], ["2026-01-02 03:04:05.500000"]),
    ("datetime", "timestamp", ['"2026-01-02T03:04:05Z"'], ["2026-01-02 03:04:05"]),
    (
        "timestamp with time zone",
        "timestamptz",
        ['"2026-01-02T03:04:05Z"', "null"],
        ["2026-01-02 03:04:05+00:00", None],
    ),
    (
        "text[]",
        "string",
        ['["a", null, "b\\"c", "NULL"]', "[]"],
        ['{"a",NULL,"b\\"c","NULL"}', "{}"],
    ),
    ("integer[]", "string", ["[[1, 2], [3, null]]", "null"], ["{{1,2},{3,NULL}}", None]),
    ("text", "string", ["1.50", "null", "-0"], ["1.50", None, "-0"]),
    (
        "text",
        "string",
        ['"a,1"', "1.50", "1e3", "true", "null", "[1,2]", '{"e":1}'],
        ["a,1", "1.50", "1000", "true", None, "[1,2]", '{"e":1}'],
    ),
    ("text", "string", ["[1,2]", "3"], ["[1,2]", "3"]),
    ("numeric(8,2)", "decimal(8,2)", ["1.5", "null", "-2"], ["1.50", None, "-2.00"]),
]


@pytest.mark.parametrize(("kind", "neutral", "texts", "expected"), VALUES)
def test_values_of_each_type(
    kind: str, neutral: str, texts: list[str], expected: list[Any]
) -> None:
    """JSON as changefeeds write it becomes the value that the target's column has."""
    made = column_of(
        Column(name="a", source_type=kind, neutral=neutral, base_type=kind.split("(")[0]),
        [text.encode() for text in texts],
    )
    shown = [
        value if value is None or isinstance(value, int | str | bytes) else str(value)
        for value in made.to_pylist()
    ]
    assert shown == [str(one) if isinstance(one, float) else one for one in expected]


@pytest.mark.parametrize(
    ("kind", "neutral", "text"),
    [
        ("numeric(8,2)", "decimal(8,2)", "1.555"),
        ("numeric(8,2)", "decimal(8,2)", '"NaN"'),
        ("bigint", "int64", "1.5"),
        ("smallint", "int16", "99999"),
        ("date", "date", '"infinity"'),
        ("timestamp", "timestamp", '"294276-01-02T00:00:00"'),
        ("time", "time", '"24:00:00"'),
        ("uuid", "uuid", '"x"'),
        ("boolean", "bool", "7"),
        ("numeric(38,2)", "decimal(38,2)", "340282366920938463463374607431768211457.00"),
        ("numeric(38,10)", "decimal(38,10)", "340282366920938463463374607431768211457.00"),
        ("numeric(38,2)", "decimal(38,2)", "1e500"),
        ("numeric(38,2)", "decimal(38,2)", '"1e500"'),
        ("real", "float32", "1e39"),
        ("real", "float32", "-1e-60"),
        ("real", "float32", '"1e39"'),
        ("double precision", "float64", "1e400"),
        ("double precision", "float64", "1e-400"),
        ("double precision", "float64", '"-1e400"'),
    ],
)
def test_a_value_that_the_neutral_type_cannot_hold_is_found(
    kind: str, neutral: str, text: str
) -> None:
    """The column is then kept as text, exactly as it was sent."""
    made = Column(name="a", source_type=kind, neutral=neutral, base_type=kind.split("(")[0])
    with pytest.raises(NotNeutral) as info:
        column_of(made, [b"null", text.encode()])
    assert info.value.args == (1, text)


def test_positions_are_times() -> None:
    """Positions are printed and read as changefeeds write them; a log's end is after its time."""
    time = Hlc(1_700_000_000_000_000_000, 12)
    assert str(HlcPosition(time.number)) == "1700000000000000000.0000000012"
    assert HlcPosition.parse(str(HlcPosition(time.number))).ordinal == time.number
    assert time_through(position_behind(time)) == time
    assert time_through(0) == ZERO
    assert pa.array([time.number.to_bytes(16)]).type == pa.binary()
    for text in ("", "5", "a.b"):
        with pytest.raises(PositionInvalid):
            HlcPosition.parse(text)
    with pytest.raises(PositionInvalid):
        HlcPosition(-1)
