"""Summary of one run, for its end: time, rows, transactions, and where the next one goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.control.pipeline.display import human_count, human_seconds
from penstock.control.status.status import Status
from penstock.model.words import count_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of a pipeline at one moment. Loaded ones are None if the target was away."""

    extracted_rows: int
    extracted_transactions: int
    loaded_rows: int | None
    loaded_transactions: int | None
    copied_rows: int


def counters_of(status: Status) -> Counters:
    """Return the counters that a status has."""
    is_known = status.has_target and not status.target.unknown
    applied, bulk = status.target.applied, status.target.bulk
    return Counters(
        extracted_rows=status.log.end.gsn,
        extracted_transactions=status.log.end.trx,
        loaded_rows=applied.gsn if is_known else None,
        loaded_transactions=applied.trx if is_known else None,
        copied_rows=bulk.rows_done if bulk is not None else 0,
    )


class RunSummary:
    """Difference between the first and the newest status of a run."""

    def __init__(self, began_s: float) -> None:
        """Begin. began_s: monotonic seconds."""
        self._began_s = began_s
        self._first: Counters | None = None
        self._newest: Status | None = None
        self._seconds = 0.0
        self.alteration_count = 0

    def add(self, status: Status, now_s: float) -> None:
        """Take the newest status. now_s: monotonic seconds."""
        counters = counters_of(status)
        if self._first is None or self._first.loaded_rows is None:
            before = self._first or counters
            self._first = Counters(
                extracted_rows=before.extracted_rows,
                extracted_transactions=before.extracted_transactions,
                loaded_rows=counters.loaded_rows,
                loaded_transactions=counters.loaded_transactions,
                copied_rows=before.copied_rows,
            )
        self._newest, self._seconds = status, now_s - self._began_s

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the last event; empty if no status was read."""
        if self._first is None or self._newest is None:
            return {}
        first, last = self._first, counters_of(self._newest)
        position = self._newest.log.end.position
        return {
            "run_seconds": round(self._seconds, 1),
            "run_extracted_rows": _since(first.extracted_rows, last.extracted_rows),
            "run_extracted_transactions": _since(
                first.extracted_transactions, last.extracted_transactions
            ),
            "run_loaded_rows": _since(first.loaded_rows, last.loaded_rows),
            "run_loaded_transactions": _since(first.loaded_transactions, last.loaded_transactions),
            "run_copied_rows": _since(first.copied_rows, last.copied_rows),
            "run_schema_changes": self.alteration_count,
            "goes_on_at": self._newest.positions.text(position) if position else None,
        }

    def lines(self) -> list[str]:
        """Return the lines for people: what this run did, and where the next one goes on."""
        found = self.as_dict()
        if not found or self._newest is None:
            return []
        parts = []
        if found["run_copied_rows"]:
            parts.append(f"{count_words(found['run_copied_rows'], 'row')} copied")
        if self._newest.mode != "data":
            rows, transactions = found["run_extracted_rows"], found["run_extracted_transactions"]
            parts.append(
                f"{count_words(rows, 'row')} in {count_words(transactions, 'transaction')} "
                "extracted"
            )
            if self._newest.has_target:
                parts.append(_loaded_words(found))
        if self.alteration_count:
            parts.append(f"{count_words(self.alteration_count, 'schema change')} applied")
        lines = [f"this run: {human_seconds(self._seconds)}; {', '.join(parts) or 'no rows'}"]
        if found["goes_on_at"] is not None:
            lines.append(f"it goes on at {found['goes_on_at']}{_left_words(self._newest)}")
        return lines


def _since(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(last - first, 0)


def _loaded_words(found: dict[str, Any]) -> str:
    rows, transactions = found["run_loaded_rows"], found["run_loaded_transactions"]
    if rows is None:
        return "loaded rows unknown, because the target was away"
    return f"{human_count(rows)} in {human_count(transactions)} loaded"


def _left_words(status: Status) -> str:
    """Return how many rows of the log the next run loads first; empty if none or unknown."""
    if not status.has_target or status.target.unknown or status.mode == "data":
        return ""
    left = status.log.end.gsn - status.target.applied.gsn
    return f", after loading {count_words(left, 'row')} that the log holds" if left > 0 else ""
