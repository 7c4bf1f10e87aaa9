"""Several sessions apply tables with foreign keys that the target checks."""

from __future__ import annotations

from contextlib import closing

import pytest

from harness.pipelines.loader import Applying, LogMaker
from harness.pipelines.merge import CHILD, FAMILY, ITEM, PARENT, TABLE, Start, delete, insert
from penstock.load import apply_parts, division
from penstock.ports.target import ForeignKeyBlocked

FAMILY_OF_T = FAMILY.format(unique="", action="no action", deferrable="") + TABLE


@pytest.fixture
def applying(start: Start, log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> Applying:
    """A loader that may not switch foreign keys off, and has applied a row of each table."""
    monkeypatch.setattr(division, "PART_S_MIN", 1e-9)
    applying = start(FAMILY_OF_T, poor=True)
    applying.target.progress.ensure_ahead()
    log.transaction(insert(PARENT, 3, "c"), insert(CHILD, 30, 3), insert(ITEM, 1, "x", 1))
    log.close_segment()
    applying.batch()
    assert not applying.target.replica
    return applying


def open_parted(applying: Applying) -> apply_parts.PartedTarget:
    """Return the loader's target with up to three sessions."""
    target = apply_parts.PartedTarget(
        applying.target,
        lambda: applying.engine.open_target(applying.url, {}),
        session_count=3,
    )
    target.bind("test-log")
    return target


def test_parents_and_children_are_one_part(
    applying: Applying, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move between parents that are deleted and inserted in the same batch."""
    parts: list[list[str]] = []
    apply_part = apply_parts._PartedBatch._apply_part

    def note(self: apply_parts._PartedBatch, session: object, part: apply_parts.Part) -> None:
        parts.append(sorted(spec.table.name for phase in part for spec in phase.merges))
        apply_part(self, session, part)  # type: ignore[arg-type]

    monkeypatch.setattr(apply_parts._PartedBatch, "_apply_part", note)
    log.transaction(
        insert(PARENT, 4, "d"),
        insert(CHILD, 40, 4),
        delete(CHILD, 30, None),
        delete(PARENT, 3, None),
        insert(ITEM, 2, "y", 2),
    )
    log.close_segment()
    with closing(open_parted(applying)) as target:
        target.apply(applying.stage())
        assert sorted(parts) == [["child", "parent"], ["t"]]
        assert applying.rows("select id from public.parent order by 1") == [(1,), (2,), (4,)]
        assert applying.rows("select id from public.child order by 1") == [
            (10,),
            (11,),
            (20,),
            (40,),
        ]
        assert applying.rows("select id from public.t order by 1") == [(1,), (2,)]
        assert applying.rows("select * from wirekite.wirekite_ahead") == []


def test_a_refused_key_leaves_the_other_part_ahead(applying: Applying, log: LogMaker) -> None:
    """The table with rows of its own is ahead; nothing of the family is applied."""
    log.transaction(insert(CHILD, 50, 9), insert(ITEM, 2, "y", 2))
    log.close_segment()
    with closing(open_parted(applying)) as target:
        with pytest.raises(ForeignKeyBlocked):
            target.apply(applying.stage())
        ahead = applying.rows("select source_name from wirekite.wirekite_ahead")
        assert applying.rows("select id from public.child where id = 50") == []
        assert applying.rows("select id from public.t order by 1") == (
            [(1,), (2,)] if ahead else [(1,)]
        )
        assert ahead in ([], [("t",)])
