"""`penstock.read_log`: the change log as tables, frames and one change after another."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from harness.pipelines.log import (
    COMMIT_TIME_US,
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    announced_batch,
    changes,
    end_point,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock import ABSENT, cli, read_log
from penstock.codec.exact_text import date_text, timestamp_text
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.config_text import ConfigUnreadable
from penstock.control.status.log_view import LogArgumentInvalid, LogNotFound, LogTimeInvalid
from penstock.log import SegmentMissing, Writer
from penstock.log.changes import ChangeLog, TableNotInLog
from penstock.model import Marker, MarkerKind, Op, Run

TOKEN = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
STORY = [
    [Change(relation=ITEM, op=Op.INSERT, after=(1, None))],
    [Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02")],
    [Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,))],
    [Change(relation=ITEM, op=Op.DELETE, after=None, before=(2,))],
    [Change(relation=ITEM_2, op=Op.INSERT, after=(3, "", Decimal("-0.05")))],
    [
        Change(
            relation=EVENT,
            op=Op.INSERT,
            after=(COMMIT_TIME_US, b"\x00\xff", True, 0.5, 0, TOKEN.bytes),
        )
    ],
]


def write(root: Path, *runs: Run, last_open: bool = False) -> Path:
    """Write a pipeline's directory whose log has a segment per run; last_open leaves the last one
    open.
    """
    with Writer.open(root / "log", log_id=None, source=SOURCE) as log:
        for at, run in enumerate(runs):
            log.write(run)
            if last_open and at == len(runs) - 1:
                log.flush()
            else:
                log.rotate()
    return root


def story(root: Path, **options: Any) -> Path:
    """Write a log of one transaction per segment."""
    return write(root, *(run_of(group) for group in number_rows(STORY)), **options)


def rows(log: ChangeLog, name: str) -> list[dict[str, Any]]:
    """Return a table's changes as dicts, without what is the same in every test."""
    found = log.table(name).drop_columns(["_trx", "_position", "_commit_time"]).to_pylist()
    return [dict(row) for row in found]


def test_a_table_has_every_change_and_names_what_was_not_sent(tmp_path: Path) -> None:
    """NULL and ABSENT differ; a delete shows the deleted row."""
    log = read_log(story(tmp_path))
    assert log.tables() == ["Odd Schema.événement", "public.item"]
    common = {"price": None, "_before": None}
    assert rows(log, "public.item") == [
        {"_gsn": 1, "_op": "insert", "_absent": ["price"], "id": 1, "note": None, **common},
        {"_gsn": 2, "_op": "update", "_absent": ["note", "price"], "id": 1, "note": None, **common},
        {
            **{"_gsn": 3, "_op": "update", "_absent": ["price"], "id": 2, "note": "x"},
            **{"price": None, "_before": {"id": 1}},
        },
        {
            **{"_gsn": 4, "_op": "delete", "_absent": ["note", "price"], "id": 2, "note": None},
            **{"price": None, "_before": {"id": 2}},
        },
        {
            **{"_gsn": 5, "_op": "insert", "_absent": [], "id": 3, "note": ""},
            **{"price": Decimal("-0.05"), "_before": None},
        },
    ]


def test_changes_come_in_order_as_python_values(tmp_path: Path) -> None:
    """NULL is None, an unsent column ABSENT; bytes, times and uuids have Python's types."""
    found = list(read_log(story(tmp_path)))
    assert [(c.gsn, c.op, c.table) for c in found] == [
        (1, "insert", "public.item"),
        (2, "update", "public.item"),
        (3, "update", "public.item"),
        (4, "delete", "public.item"),
        (5, "insert", "public.item"),
        (6, "insert", "Odd Schema.événement"),
    ]
    assert [c.row for c in found[:5]] == [
        {"id": 1, "note": None},
        {"id": 1, "note": ABSENT},
        {"id": 2, "note": "x"},
        {"id": 2, "note": ABSENT},
        {"id": 3, "note": "", "price": Decimal("-0.05")},
    ]
    assert [c.before for c in found[1:4]] == [
        None,
        {"id": 1, "note": ABSENT},
        {"id": 2, "note": ABSENT},
    ]
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    assert found[5].row == {
        **{"at": moment, "data": b"\x00\xff", "ok": True, "ratio": 0.5},
        **{"day": datetime.date(1970, 1, 1), "token": str(TOKEN)},
    }
    assert found[0].commit_time == moment + datetime.timedelta(microseconds=1)
    assert (found[5].trx, found[5].position) == (6, 600)


def test_years_that_python_does_not_have_come_as_text(tmp_path: Path) -> None:
    """Such years are valid values of these types nevertheless, and raise no error."""
    far = Change(
        relation=EVENT, op=Op.INSERT, after=(2**58, b"", False, 0.1, -(10**6), TOKEN.bytes)
    )
    (change,) = read_log(write(tmp_path, run_of(number_rows([[far]])[0])))
    assert change.row is not None
    assert (change.row["at"], change.row["day"]) == (
        timestamp_text(2**58, "+00"),
        date_text(-(10**6)),
    )


def test_truncates_stand_in_their_places(tmp_path: Path) -> None:
    """Truncates and reloads are after their row and before the next, in tables and the iterator."""
    (group,) = number_rows([inserts(3)])
    reload = replace(truncate(3, 1, "item"), kind=MarkerKind.RELOAD)
    other = truncate(2, 1, "other")
    log = read_log(
        write(tmp_path, run_of(group, markers=[truncate(1, 1, "item"), other, reload])),
        tables="public.item",
    )
    expected = [(1, "insert"), (1, "truncate"), (2, "insert"), (3, "insert"), (3, "truncate")]
    assert [(change.gsn, change.op) for change in log] == expected
    table = log.table()
    assert list(zip(*(table[n].to_pylist() for n in ("_gsn", "_op")), strict=True)) == expected
    assert table["_absent"].to_pylist()[1] == ["id", "note"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tables": "public.*"}, [1, 2, 3, 4, 5]),
        ({"tables": ["*.*", "!public.item"]}, [6]),
        ({"gsn_after": 4}, [5, 6]),
        ({"gsn_after": 1, "gsn_through": 3}, [2, 3]),
        ({"since": "2023-11-14T22:13:20.000003+00:00"}, [3, 4, 5, 6]),
        ({"until": "2023-11-14T23:13:20.000003+01:00"}, [1, 2]),
        ({"since": datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)}, []),
    ],
)
def test_what_is_asked_for_is_read(
    tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    """The request is by table, number and time; tables and iterator agree."""
    log = read_log(story(tmp_path), **options)
    assert [change.gsn for change in log] == expected
    in_tables = [n for table in log.to_arrow().values() for n in table["_gsn"].to_pylist()]
    assert sorted(in_tables) == expected


def test_the_open_segment_is_read_as_far_as_it_is_durable(tmp_path: Path) -> None:
    """The reader does not wait for a rotation while an extractor runs."""
    root = story(tmp_path, last_open=True)
    assert (root / "log" / "5.ckt_").exists()
    assert [change.gsn for change in read_log(root)] == [1, 2, 3, 4, 5, 6]
    with (root / "log" / "5.ckt_").open("r+b") as file:
        file.truncate(0)
    assert [change.gsn for change in read_log(root)] == [1, 2, 3, 4, 5]


def test_a_segment_that_is_closed_while_it_is_read_is_found(tmp_path: Path) -> None:
    """A `1.ckt_` of the listing is `1.ckt` when its turn comes."""
    first, second = number_rows([inserts(1), inserts(1, first=1)])
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as log:
        log.write(run_of(first))
        log.rotate()
        log.write(run_of(second))
        log.flush()
        reading = iter(read_log(tmp_path))
        assert next(reading).gsn == 1
        log.rotate()
        assert [change.gsn for change in reading] == [2]


@pytest.mark.parametrize(
    ("left", "options", "said"),
    [
        ((), {"gsn_after": 3}, "has no segment: changes 4 to 6 are"),
        ((), {"gsn_after": 0, "gsn_through": 2}, "has no segment: changes 1 to 2 are"),
        ((2, 3), {"gsn_after": 2}, "ends with gsn 4: changes 5 to 6 are"),
        ((2, 3), {"gsn_after": 2, "gsn_through": 5}, "ends with gsn 4: changes 5 to 5 are"),
        ((2, 3), {"gsn_after": 2, "gsn_through": 4}, ""),
        ((2, 3), {}, ""),
        ((), {"gsn_after": 6}, ""),
        ((), {"gsn_after": 3, "gsn_through": 3}, ""),
        ((), {}, "changes 1 to 6 have been removed"),
    ],
)
def test_segments_that_are_gone_at_the_end_are_never_passed_over(
    tmp_path: Path, left: tuple[int, ...], options: dict[str, int], said: str
) -> None:
    """The log's own state knows its last change, also if no segment is left."""
    story(tmp_path)
    for number in {*range(6)} - {*left}:
        (tmp_path / "log" / f"{number}.ckt").unlink()
    log = read_log(tmp_path, **options)
    if said:
        with pytest.raises(SegmentMissing, match=said):
            list(log)
        with pytest.raises(SegmentMissing, match=said):
            log.tables()
    else:
        assert len(list(log)) == len(left)


def test_what_is_gone_is_never_passed_over(tmp_path: Path) -> None:
    """The log begins later if the first ones are gone, unless earlier changes were requested."""
    root = story(tmp_path)
    (root / "log" / "0.ckt").unlink()
    assert next(change.gsn for change in read_log(root)) == 2
    assert next(change.gsn for change in read_log(root, gsn_after=1)) == 2
    with pytest.raises(SegmentMissing, match="changes 1 to 1 are not in it any more"):
        list(read_log(root, gsn_after=0))
    reading = iter(read_log(root))
    next(reading)
    (root / "log" / "2.ckt").unlink()
    with pytest.raises(SegmentMissing, match=r"2\.ckt was removed"):
        list(reading)
    with pytest.raises(SegmentMissing, match=r"2\.ckt is not there but 3\.ckt is"):
        read_log(root).table("public.item")


def test_what_cannot_be_read_is_said_with_what_to_do(tmp_path: Path) -> None:
    """There is no log, no such table, several tables, or a time without zone."""
    with pytest.raises(LogNotFound):
        read_log(tmp_path)
    with pytest.raises(ConfigUnreadable):
        read_log(tmp_path / "shop")
    log = read_log(story(tmp_path))
    with pytest.raises(TableNotInLog) as missing:
        log.table("public.items")
    assert "public.item" in missing.value.hint
    with pytest.raises(TableNotInLog, match="2 tables; which one"):
        log.table()
    with pytest.raises(LogTimeInvalid, match="no time zone"):
        read_log(tmp_path, since=datetime.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(LogTimeInvalid, match="cannot be read"):
        read_log(tmp_path, until="yesterday")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gsn_after": "17"}, "gsn_after is '17', of type str"),
        ({"gsn_after": True}, "gsn_after is True, of type bool"),
        ({"gsn_through": 1.5}, "gsn_through is 1.5, of type float"),
        ({"gsn_after": -1}, "gsn_after is negative: -1"),
        ({"tables": 5}, "tables is 5, of type int"),
        ({"tables": None}, "tables is None, of type NoneType"),
        ({"tables": ["public.item", 5]}, "of type list"),
        ({"gsn_after": 5, "gsn_through": 4}, "gsn_through is before gsn_after"),
        (
            {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            "until is before since",
        ),
    ],
)
def test_a_wrong_argument_is_a_typed_error(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """The error names the argument, and its hint says what to pass."""
    with pytest.raises(LogArgumentInvalid, match=message) as wrong:
        read_log(story(tmp_path), **options)
    assert wrong.value.hint


def test_a_path_or_time_of_a_wrong_type_is_a_typed_error(tmp_path: Path) -> None:
    """A date has no time of day, so it is refused, too."""
    with pytest.raises(LogArgumentInvalid, match="path is 5, of type int"):
        read_log(5)  # type: ignore[arg-type]
    for time in (5, datetime.date(2026, 1, 1)):
        with pytest.raises(LogTimeInvalid, match="since is"):
            read_log(story(tmp_path / str(time)), since=time)  # type: ignore[arg-type]


def test_patterns_that_match_no_table_are_an_error(tmp_path: Path) -> None:
    """A misspelled pattern does not silently give an empty result, however the log is read."""
    log = read_log(story(tmp_path), tables=["public.itme"])
    for read in (list, ChangeLog.tables, ChangeLog.to_arrow, ChangeLog.table):
        with pytest.raises(TableNotInLog, match=r"match public\.itme") as missing:
            read(log)
        assert "public.item" in missing.value.hint
    assert list(read_log(write(tmp_path / "new"), tables="public.itme")) == [], "nothing yet"


def test_a_known_table_without_later_changes_is_an_empty_table(tmp_path: Path) -> None:
    """A reader that continues from a gsn gets an empty table with the table's own columns."""
    root = story(tmp_path)
    log = read_log(root, tables="public.item", gsn_after=5)
    assert list(log) == []
    for table in (log.table(), log.table("public.item")):
        assert (table.num_rows, "note" in table.column_names) == (0, True)
    for number in range(5):
        (root / "log" / f"{number}.ckt").unlink()
    assert list(read_log(root, tables="public.item", gsn_after=5)) == []


def test_a_table_with_only_a_truncate_is_in_the_log(tmp_path: Path) -> None:
    """The table's one change is a row."""
    run = Run(
        end=end_point(1, 0),
        transactions=announced_batch([1]),
        markers=(truncate(0, 1, "item"),),
    )
    log = read_log(write(tmp_path, run))
    assert log.tables() == ["public.item"]
    assert log.table()["_op"].to_pylist() == ["truncate"]
    assert [change.op for change in log] == ["truncate"]


def remove_segments(root: Path, *numbers: int) -> None:
    """Remove segments as penstock does once they are old."""
    for number in numbers:
        (root / "log" / f"{number}.ckt").unlink()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gsn_through": 3},
        {"gsn_after": 3},
        {"since": "2023-11-14T22:13:20Z"},
        {"tables": "*.*"},
    ],
)
def test_a_log_whose_segments_are_all_gone_never_says_that_there_was_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The log's state knows how many changes it had."""
    root = story(tmp_path)
    remove_segments(root, *range(6))
    log = read_log(root, **options)
    for read in (list, ChangeLog.tables, ChangeLog.to_arrow, lambda log: log.table("public.item")):
        with pytest.raises(SegmentMissing, match="6") as gone:
            read(log)
        assert "keepAppliedHours" in gone.value.hint


def test_what_is_after_the_removed_segments_is_answered(tmp_path: Path) -> None:
    """Without new changes the answer is empty; limits wholly in removed segments are an error."""
    root = story(tmp_path)
    remove_segments(root, 0, 1, 2)
    assert [change.gsn for change in read_log(root)] == [4, 5, 6]
    with pytest.raises(SegmentMissing, match="changes 1 to 3"):
        list(read_log(root, gsn_through=3))
    with pytest.raises(SegmentMissing, match="changes 1 to 3"):
        list(read_log(root, until="2023-11-14T22:13:20.000002Z"))
    remove_segments(root, 3, 4, 5)
    assert list(read_log(root, gsn_after=6)) == []
    assert list(read_log(root, since="2100-01-01T00:00:00Z")) == []


def test_shapes_come_into_one_without_loss(tmp_path: Path) -> None:
    """Int and bigint are merged to bigint, decimals to the wider one, others to exact text."""
    id_, note = ITEM.columns
    v2 = replace(ITEM, version=2, columns=(replace(id_, neutral="int64"), note))
    v3 = replace(ITEM, version=3, columns=(id_, replace(note, neutral="decimal(12,2)")))
    group = [
        Change(relation=ITEM, op=Op.INSERT, after=(1, "a\tb")),
        Change(relation=v2, op=Op.INSERT, after=(2**40, None)),
        Change(relation=v3, op=Op.INSERT, after=(3, Decimal("7.50"))),
    ]
    table = read_log(write(tmp_path, run_of(number_rows([group])[0]))).table()
    assert table["id"].to_pylist() == [1, 2**40, 3]
    assert table["note"].to_pylist() == ["a\tb", None, "7.50"]


def test_columns_of_the_change_never_hide_one_of_the_table(tmp_path: Path) -> None:
    """A table with a column `_op` keeps it; those of the change get one underscore more."""
    odd = replace(ITEM, columns=(ITEM.columns[0], replace(ITEM.columns[1], name="_op")))
    table = read_log(write(tmp_path, run_of(number_rows([inserts(1, odd)])[0]))).table()
    assert (table["_op"].to_pylist(), table["__op"].to_pylist()) == (["note 0"], ["insert"])


@given(
    st.lists(
        st.lists(changes(ITEM) | changes(EVENT), min_size=1, max_size=5), min_size=1, max_size=4
    )
)
def test_tables_and_changes_tell_the_same(tmp_path_factory: Any, groups: Any) -> None:
    """Both have as many changes, the same absent columns, and the same values."""
    root = write(tmp_path_factory.mktemp("log"), *(run_of(group) for group in number_rows(groups)))
    log = read_log(root)
    for name in log.tables():
        one_by_one = [change for change in log if change.table == name]
        table = log.table(name)
        lacking = table["_absent"].to_pylist()
        assert table["_gsn"].to_pylist() == [change.gsn for change in one_by_one]
        assert [sorted(names) for names in lacking] == [
            sorted(n for n, value in (change.row or {}).items() if value is ABSENT)
            for change in one_by_one
        ]
        for column in ("id", "note", "ok", "data", "ratio"):
            if column in table.column_names:
                values = [(change.row or {})[column] for change in one_by_one]
                assert table[column].to_pylist() == [
                    None if value is ABSENT else value for value in values
                ]


WITHOUT_PANDAS = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from penstock import read_log
from penstock.log.changes import PandasMissing
try:
    read_log(sys.argv[1]).to_pandas("public.item")
except PandasMissing as error:
    print(error.hint)
"""


def test_a_frame_without_pandas_says_what_to_do(tmp_path: Path) -> None:
    """Pandas is optional. The test is a process of its own: pyarrow looks for pandas once."""
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, story(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "penstock[pandas]" in done.stdout


def test_a_frame_holds_absent_where_a_cell_was_not_sent(tmp_path: Path) -> None:
    """NULL is as pandas has it; whole numbers stay whole."""
    pytest.importorskip("pandas")
    frame = read_log(story(tmp_path)).to_pandas("public.item")
    assert list(frame["note"].isna()) == [True, False, False, False, False]
    assert list(frame["note"][1:]) == [ABSENT, "x", ABSENT, ""]
    assert list(frame["id"]) == [1, 1, 2, 2, 3]
    assert list(frame["price"][:4]) == [ABSENT] * 4


def test_importing_penstock_loads_nothing() -> None:
    """Neither importing it nor reading a directory needs a driver, Spark or the command line."""
    heavy = "pyspark psycopg pymysql click rich starlette pandas numpy pyarrow structlog"
    program = (
        "import sys, penstock; names = sys.argv[1].split(); "
        "assert not [n for n in names if n in sys.modules], sys.modules.keys(); "
        "penstock.read_log; penstock.ABSENT; "
        'found = [n for n in names[:6] if n != "rich" if n in sys.modules]; assert not found, found'
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program, heavy], check=True, env=environment)


def test_names_of_the_package_are_those_it_lists() -> None:
    """Every name in __all__ exists."""
    assert {name for name in penstock.__all__ if not hasattr(penstock, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'read_logs'"):
        _ = penstock.read_logs  # type: ignore[attr-defined]


def test_markers_that_empty_nothing_are_no_changes(tmp_path: Path) -> None:
    """Messages, DDL and heartbeats are not rows."""
    (group,) = number_rows([inserts(1)])
    ddl = Marker(
        kind=MarkerKind.DDL,
        gsn=1,
        trx=1,
        position=1,
        commit_time_us=0,
        tables=(("public", "item"),),
    )
    log = read_log(write(tmp_path, run_of(group, markers=[ddl])))
    assert [change.op for change in log] == ["insert"]
    assert log.table().num_rows == 1


@pytest.mark.parametrize("position", [1, 0x16_B374_D848, 2**64 - 1])
def test_positions_convert_to_text_as_the_page_says(position: int) -> None:
    """The expressions in docs/python.md give what the servers print."""
    text = f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
    assert text == str(Lsn(position))
    binlog = BinlogPosition(position)
    assert (binlog.number, binlog.offset) == (position >> 40, position & (1 << 40) - 1)


def run_log(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Return what `penstock log` with these arguments prints, and its standard error."""
    with suppress(SystemExit):
        cli.run_guarded(["log", *arguments])
    printed = capsys.readouterr()
    return printed.out, printed.err


@pytest.mark.parametrize("removed", [3, 6])
@pytest.mark.parametrize("command", ["ls", "cat"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_log_commands_say_that_segments_have_been_removed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    removed: int,
    command: str,
    options: tuple[str, ...],
) -> None:
    """An empty list alone would say that there never was a change."""
    root = story(tmp_path)
    remove_segments(root, *range(removed))
    _, told = run_log(capsys, command, str(root), *options)
    assert f"the segments of changes 1 to {removed} have been removed" in told
    assert "have been removed" not in run_log(capsys, command, str(story(tmp_path / "new")))[1]


def test_log_cat_of_a_table_without_changes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelled name gives no silent nothing; the hint has the nearest name."""
    root = story(tmp_path)
    out, told = run_log(capsys, "cat", str(root), "--table", "public.itme")
    assert (out, "LG30" in told, "Changes there are of public.item." in told) == ("", True, True)
    out, told = run_log(capsys, "cat", str(root), "5", "--table", "public.item")
    assert (out, "in these segments" in told) == ("", True)
    out, told = run_log(capsys, "cat", str(root), "--table", "public.item")
    assert (len(out.splitlines()) > 4, told) == (True, "")
