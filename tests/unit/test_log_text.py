"""A segment as lines: the form of `penstock log cat`."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults.disk import Disk
from harness.pipelines.log import (
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock.codec.exact_text import date_text, time_text, timestamp_text
from penstock.log import Writer, WriterOptions, open_segment
from penstock.log.text import escape, lines
from penstock.model import Column, Marker, MarkerKind, Op, Relation, Run

LOG = Path("/log")


def print_run(run: Run, options: WriterOptions | None = None) -> list[str]:
    """Return the lines of a log of this run."""
    disk = Disk()
    with Writer.open(LOG, log_id=None, source=SOURCE, options=options, files=disk) as log:
        log.write(run)
        log.rotate()
    with open_segment(LOG / "0.ckt", files=disk) as segment:
        return list(lines(segment, hex))


def test_each_operation_prints_what_the_source_sent() -> None:
    r"""NULL is \N, ABSENT is \A, a before image follows \B."""
    changes = [
        Change(relation=ITEM, op=Op.INSERT, after=(1, None)),
        Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02"),
        Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,)),
        Change(relation=ITEM, op=Op.DELETE, after=None, before=(2,)),
        Change(relation=ITEM_2, op=Op.INSERT, after=(3, "", Decimal("-0.05"))),
    ]
    assert print_run(run_of(number_rows([changes])[0])) == [
        "0\tR\tpublic\titem\tid integer\tnote text",
        "1\tI\tpublic\titem\t1\t\\N",
        "2\tU\tpublic\titem\t1\t\\A",
        "3\tU\tpublic\titem\t2\tx\t\\B\t1\t\\A",
        "4\tD\tpublic\titem\t2\t\\A",
        "4\tR\tpublic\titem\tid integer\tnote text\tprice numeric(12,2)",
        "5\tI\tpublic\titem\t3\t\t-0.05",
    ]


def test_values_of_every_kind_print_exactly() -> None:
    """Values print as PostgreSQL writes them; bytes as hex; years may exceed those of datetime."""
    changes = [
        Change(
            relation=EVENT,
            op=Op.INSERT,
            after=(
                1_700_000_000_120_000,
                b"\x00\xff",
                True,
                float("inf"),
                -719_528,
                bytes(range(16)),
            ),
        ),
        Change(
            relation=EVENT, op=Op.INSERT, after=(-(2**55), b"", False, 0.1, 10**6, b"\xab" * 16)
        ),
    ]
    found = [line.split("\t")[4:] for line in print_run(run_of(number_rows([changes])[0]))[1:]]
    assert found == [
        [
            "2023-11-14 22:13:20.12+00",
            "00ff",
            "t",
            "Infinity",
            "0001-01-01 BC",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
        ],
        [
            timestamp_text(-(2**55), "+00"),
            "",
            "f",
            "0.1",
            "4707-11-29",
            "abababab-abab-abab-abab-abababababab",
        ],
    ]


def test_values_cannot_be_taken_for_separators_or_words() -> None:
    """Tabs, line ends and backslashes in values, names and JSON are escaped."""
    assert escape("a\tb\nc\rd\\e\b\f\v") == "a\\tb\\nc\\rd\\\\e\\b\\f\\v"
    odd = Relation(
        schema="a\tb",
        name="c\nd",
        columns=(Column(name="e\\f", source_type="text", neutral="string"),),
    )
    changes = [Change(relation=odd, op=Op.INSERT, after=(text,)) for text in ("\\N", "\\A", "\t")]
    assert print_run(run_of(number_rows([changes])[0])) == [
        "0\tR\ta\\tb\tc\\nd\te\\\\f text",
        "1\tI\ta\\tb\tc\\nd\t\\\\N",
        "2\tI\ta\\tb\tc\\nd\t\\\\A",
        "3\tI\ta\\tb\tc\\nd\t\\t",
    ]


def test_markers_stand_in_their_places() -> None:
    """A truncate has a line per table; others have tables and details as JSON."""
    group = number_rows([inserts(2)])[0]
    ddl = Marker(
        kind=MarkerKind.DDL,
        gsn=2,
        trx=1,
        position=1,
        commit_time_us=0,
        tables=(("public", "item"),),
        data={"sql": "alter\n"},
    )
    run = run_of(group, markers=[truncate(1, 1, "item", "other"), ddl])
    assert print_run(run) == [
        "0\tR\tpublic\titem\tid integer\tnote text",
        "1\tI\tpublic\titem\t0\tnote 0",
        "1\tT\tpublic\titem\t{}",
        "1\tT\tpublic\tother\t{}",
        "2\tI\tpublic\titem\t1\tnote 1",
        '2\tM\t\t\tddl\t[["public","item"]]\t{"sql":"alter\\\\n"}',
    ]


def test_begin_and_commit_enclose_their_rows_with_process_commits() -> None:
    """A transaction that starts with a truncate is enclosed too, and one in a run of several."""
    groups = number_rows([inserts(1), inserts(2, first=1)])
    rows = [row for group in groups for row in group]
    run = run_of(rows, markers=[truncate(1, 2, "item")])
    assert not {line.split("\t")[1] for line in print_run(run)} & {"B", "C"}
    wanted = WriterOptions(process_commits=True)
    assert [line.split("\t")[:2] for line in print_run(run, wanted)] == [
        ["0", "R"],
        ["0", "B"],
        ["1", "I"],
        ["1", "C"],
        ["1", "B"],
        ["1", "T"],
        ["2", "I"],
        ["3", "I"],
        ["3", "C"],
    ]
    assert print_run(run, wanted)[1] == "0\tB\t\t\t1\t701"
    assert print_run(run, wanted)[-1] == "3\tC\t\t\t2\t0xc8\t2023-11-14 22:13:20.000002+00"


@given(st.dates())
def test_dates_print_as_datetime_prints_them(day: datetime.date) -> None:
    """This covers all dates that datetime has."""
    days = day.toordinal() - datetime.date(1970, 1, 1).toordinal()
    assert date_text(days) == day.isoformat()


@given(st.datetimes())
def test_timestamps_print_as_datetime_prints_them(moment: datetime.datetime) -> None:
    """Fractions have no zeros at the end, as in PostgreSQL."""
    since = moment - datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without zone
    text = moment.isoformat(sep=" ")
    expected = text.rstrip("0") if "." in text else text
    assert timestamp_text(since // datetime.timedelta(microseconds=1)) == expected


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (-719_162, "0001-01-01"),
        (-719_163, "0001-12-31 BC"),
        (-735_160, "0044-03-15 BC"),
        (107_000_000, "294926-01-19"),
        (-2_440_588, "4714-11-24 BC"),
    ],
)
def test_dates_outside_of_datetime(days: int, text: str) -> None:
    """The texts were compared with PostgreSQL: select date '1970-01-01' + days."""
    assert date_text(days) == text


def test_times_of_day() -> None:
    """Fractions have no zeros at the end."""
    assert time_text(0) == "00:00:00"
    assert time_text(86_399_999_999) == "23:59:59.999999"
    assert time_text(1_500_000) == "00:00:01.5"
