"""Transactions of the log's own in the stream of change tables, at exact positions.

Not here: rows that are sent again, which need a server (`tests/servers/test_sqlserver_resend.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.servers.change_case import Case
from penstock.codec.columns import transactions_batch
from penstock.engines.sqlserver.source.stream import Visit
from penstock.model import FlushPoint, Marker, MarkerKind, Run


def reload_at(start: FlushPoint) -> Iterator[Run]:
    """Yield a transaction with a marker alone."""
    end = replace(start, trx=start.trx + 1)
    marker = Marker(
        kind=MarkerKind.RELOAD,
        gsn=end.gsn,
        trx=end.trx,
        position=end.position,
        commit_time_us=1,
        tables=(("dbo", "t"),),
    )
    told = transactions_batch([(end.position, end.position, 1, 0)])
    yield Run(markers=(marker,), transactions=told, end=end)


def test_a_visit_is_between_the_changes_up_to_its_position_and_later_ones() -> None:
    """A change after the position waits, also if one batch would have both."""
    case = Case()
    case.insert(1)
    case.log.follow()
    case.insert(2)
    position = case.writer.last
    case.insert(3)
    visit = Visit(position, reload_at)
    case.log.open().visit(visit)
    case.log.follow()
    (marker,) = case.log.markers
    assert (marker.kind, marker.gsn, marker.position) == (MarkerKind.RELOAD, 2, position)
    assert [
        [seen.after and seen.after["id"] for seen in one] for one in case.log.transactions()
    ] == [
        [1],
        [2],
        [3],
    ]
    assert visit.is_in_log(case.log.end)


def test_a_visit_without_runs_changes_nothing() -> None:
    """The stream continues, and the visit is never in the log."""
    case = Case()
    visit = Visit(0, lambda _: iter(()))
    case.log.open().visit(visit)
    case.insert(1)
    case.log.follow()
    assert len(case.log.transactions()) == 1
    assert not visit.is_in_log(case.log.end)


def test_a_visit_is_in_the_log_once_it_is_durable() -> None:
    """A flush point before it does not count."""
    case = Case()
    case.insert(1)
    case.log.follow()
    before = case.log.end
    visit = Visit(before.position, reload_at)
    case.log.open().visit(visit)
    case.log.follow()
    assert not visit.is_in_log(before)
    assert visit.is_in_log(case.log.end)
