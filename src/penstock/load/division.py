"""Divide a batch's tables into parts of about equal cost, by what their rows cost before. Pure.

Not here: which tables must stay together (`SqlTarget.find_groups`), applying parts
(`apply_parts.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from penstock.model import TableName
from penstock.ports.target import MergeSpec, PhaseSpec

ROW_S = 5e-6  # cost of a row of a table that was not measured yet
PART_S_MIN = 0.05  # of less work, the rest of a part's cost is not worth it
ROWS_MEASURED_MIN = 1_000  # of fewer, the cost is not that of rows


@dataclass(slots=True)
class RowCosts:
    """Seconds that a row of each target table costs, as measured in earlier batches."""

    _row_s: dict[TableName, float] = field(default_factory=dict)

    def estimate_s(self, phase: PhaseSpec) -> float:
        """Return the expected duration of applying these merges."""
        return sum(self._row_s.get(spec.table, ROW_S) * count_rows([spec]) for spec in phase.merges)

    def note(self, phase: PhaseSpec, seconds: float) -> None:
        """Record the measured duration of applying these merges."""
        count = count_rows(phase.merges)
        if count < ROWS_MEASURED_MIN:
            return
        for spec in phase.merges:
            before = self._row_s.get(spec.table, seconds / count)
            self._row_s[spec.table] = (before + seconds / count) / 2


def count_rows(merges: Iterable[MergeSpec]) -> int:
    """Return the number of rows that these merges change."""
    return sum(spec.counts.upserts + spec.counts.deletes for spec in merges)


def is_divisible(phases: Sequence[PhaseSpec]) -> bool:
    """Return whether a batch only has rows: no table is emptied, or altered between two rows."""
    if len(phases) != 1:
        return False
    [phase] = phases
    return not (phase.truncated or phase.reloaded or phase.emptyings or phase.histories)


def split_phase(phase: PhaseSpec, groups: Iterable[Collection[TableName]]) -> list[PhaseSpec]:
    """Return a phase for each group of target tables, with that group's rows and shapes."""
    found = []
    for group in groups:
        merges = tuple(spec for spec in phase.merges if spec.table in group)
        sources = {(spec.relation.schema, spec.relation.name) for spec in merges}
        relations = tuple(one for one in phase.relations if (one.schema, one.name) in sources)
        found.append(replace(phase, merges=merges, relations=relations))
    return found


def divide(
    phases: Sequence[PhaseSpec], costs: RowCosts, *, count_max: int
) -> list[list[PhaseSpec]]:
    """Return the phases in parts of about equal cost; nothing if that is not worth it.

    count_max: greatest number of parts.
    """
    estimated = sorted(
        ((costs.estimate_s(phase), place) for place, phase in enumerate(phases)), reverse=True
    )
    total_s = sum(seconds for seconds, _ in estimated)
    count = min(count_max, len(phases), int(total_s / PART_S_MIN))
    if count < 2:
        return []
    loads = [0.0] * count
    parts: list[list[PhaseSpec]] = [[] for _ in range(count)]
    for seconds, place in estimated:
        lightest = loads.index(min(loads))
        loads[lightest] += seconds
        parts[lightest].append(phases[place])
    return [part for part in parts if part]
