"""Merged logs that begin with their logs' bases: they have all logs' rows, after any crash."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.log import ITEM
from harness.pipelines.merged import (
    BASE_US,
    JOIN_US,
    OPTIONS,
    OWN,
    SECTION,
    LogOf,
    World,
    rows_for,
    world,
)
from harness.pipelines.merged import merge as merge_plain
from penstock.base.held import BaseNotReady, Holder
from penstock.base.manifest import BaseTable, Manifest, save_manifest
from penstock.extract import extractor
from penstock.extract.extractor import Extractor
from penstock.host import faults
from penstock.host.state_file import StateFile
from penstock.log import links
from penstock.log.layout import load_state
from penstock.log.reader import check
from penstock.merge.extraction import MergeEngine, begin_merge
from penstock.merge.state import STATE_FILE, BaseLacking, MergeState
from penstock.model import Op, TableName
from penstock.model.sections import MergeSection

POINTS = (
    "merge.first.rows",
    "extract.write.after",
    "extract.flush.before",
    "log.flush.before",
    "log.flush.after",
    "merge.shapes.before",
    "merge.state.before",
    "merge.state.after",
    "extract.acknowledge.after",
    "log.footer.before",
    "log.rename.before",
)


def write_base(log: LogOf, relations: Sequence[Any]) -> None:
    """Write a base of a log as of its beginning: every change is in the later segments."""
    state = load_state(log.directory / "log")
    assert state is not None
    tables = tuple(
        BaseTable(schema=one.schema, name=one.name, relations=(one,)) for one in relations
    )
    (log.directory / "base").mkdir(exist_ok=True)
    made = Manifest(log_id=state.log_id, number=1, segment=0, gsn=0, tables=tables)
    save_manifest(log.directory / "base", made)


def merge(
    logs: Sequence[LogOf], directory: Path, *, section: MergeSection = SECTION, **more: Any
) -> Extractor:
    """Return the extractor of a merge that begins with the bases."""
    places = [
        replace(
            log.place,
            holder=Holder(
                log.directory / "base", owner="merge", log=log.directory / "log", links=(log.links,)
            ),
        )
        for log in logs
    ]
    engine = MergeEngine(
        name="all",
        scheme="merged-postgresql",
        types="postgresql",
        places=places,
        section=section,
        has_base=True,
    )
    links.enable(directory / "cdc" / "base")
    return Extractor(engine, directory, options=replace(OPTIONS, events_per_flush=3), **more)


def fold_logs(logs: Sequence[LogOf]) -> dict[str, dict[int, Any]]:
    """Return the rows of all logs by table and key, as a dictionary applies them."""
    found: dict[str, dict[int, Any]] = {}
    for log in logs:
        for rows in log.numbered:
            for row in rows:
                change = row.change
                table = found.setdefault(change.relation.name, {})
                if change.before is not None:
                    table.pop(change.before[0], None)
                if change.op is not Op.DELETE:
                    assert change.after is not None
                    table[change.after[0]] = change.after
    return found


def read_merged(directory: Path, names: Sequence[str]) -> dict[str, dict[int, Any]]:
    """Return the same of a merged log, by its base as of its beginning."""
    log = LogOf(directory, [], [])
    shapes = {name: replace(ITEM if name == "item" else OWN, name=name) for name in names}
    write_base(log, shapes.values())
    holder = Holder(
        directory / "base",
        owner="test",
        log=directory / "log",
        links=(directory / "cdc" / "base",),
    )
    held, _ = holder.hold_now()
    found: dict[str, dict[int, Any]] = {}
    for name in names:
        rows = [
            tuple(row.values())
            for piece in held.pieces(TableName("public", name))
            for row in piece.rows.to_pylist()
        ]
        assert len({row[0] for row in rows}) == len(rows)
        if rows:
            found[name] = {row[0]: row for row in rows}
    held.release()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_of_all_logs(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge begins at any place of each log, which grow meanwhile; the process ends at any
    point.
    """
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)
    rng = random.Random(seed)
    of = world(rng)
    relations = [ITEM if index < 2 else replace(OWN, name=f"own{index}") for index in range(9)]
    rows = rows_for(rng, of, relations)
    logs = [
        LogOf(tmp_path / f"s{index}", transactions, rows[index])
        for index, transactions in enumerate(of.inputs)
    ]
    for index, log in enumerate(logs):
        log.write(rng.randint(1, 9), rotates=rng.random() < 0.5)
        write_base(log, [relations[index]])
    for _ in range(5):
        left = iter([False] * rng.randint(1, 30))
        stop = lambda left=left: next(left, True)  # noqa: E731
        with faults.arming(f"{rng.choice(POINTS)}:1:error=EIO"), suppress(OSError):
            merge(logs, tmp_path / "all", stop=stop).run()
        for log in rng.sample(logs, rng.randint(0, len(logs))):
            log.write(rng.randint(1, 8), rotates=rng.random() < 0.5)
    for log in logs:
        log.end()
    merge(logs, tmp_path / "all").run()
    assert check(tmp_path / "all" / "log") == []
    wanted = {name: table for name, table in fold_logs(logs).items() if table}
    names = sorted({relations[index].name for index in range(len(logs))})
    assert read_merged(tmp_path / "all", names) == wanted
    entries = StateFile(tmp_path / "all" / "state" / STATE_FILE, list[MergeState]).load()
    assert entries is not None
    assert entries[-1].has_base
    assert not entries[-1].settles_us or entries[-1].watermark_us < entries[-1].settles_us
    for log in logs:
        held = log.directory / "base" / "held" / "merge"
        assert not held.exists() or not list(held.iterdir())


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_began_with_a_base_is_split(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new logs add no existing rows to the merged log: these came with the old one."""
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)
    rng = random.Random(seed)
    times = [[(1000 + rng.randint(0, 3) + 5 * at, None) for at in range(12)] for _ in range(4)]
    rows = rows_for(rng, World(inputs=[list(of) for of in times]), [ITEM] * 9)
    logs = [LogOf(tmp_path / f"s{at}", list(times[at]), rows[at]) for at in range(4)]
    for log in logs[:2]:
        log.write(rng.randint(1, 9), rotates=rng.random() < 0.5)
        write_base(log, [ITEM])
    left = iter([False] * 20)
    merge(logs[:2], tmp_path / "all", stop=lambda: next(left, True)).run()
    logs[0].write(12, rotates=True)
    logs[0].close()
    for log in logs[2:]:
        log.write(rng.randint(1, 5), rotates=True)
        write_base(log, [ITEM])
    section = replace(SECTION, split={"s0": ("s2", "s3")})
    for _ in range(2):
        left = iter([False] * rng.randint(1, 20))
        with faults.arming(f"{rng.choice(POINTS)}:1:error=EIO"), suppress(OSError):
            stop = lambda left=left: next(left, True)  # noqa: E731
            merge(logs, tmp_path / "all", section=section, stop=stop).run()
    for log in logs[1:]:
        log.end()
    merge(logs, tmp_path / "all", section=section).run()
    assert read_merged(tmp_path / "all", ["item"]) == fold_logs(logs)


def test_it_is_settled_behind_all_states_of_the_beginning(tmp_path: Path) -> None:
    """The merge settles join_us after the latest state of its logs at the beginning, not earlier.

    Parts of a transaction may be that far apart.
    """
    commits = ([1000, 1010, 1090, 1200], [1000, 1050, 1095, 1200])
    logs = []
    for index, of in enumerate(commits):
        times: list[tuple[int, Any]] = [(at, None) for at in of]
        log = LogOf(tmp_path / f"s{index}", times, [[] for _ in times])
        log.write(2, rotates=True)
        write_base(log, [ITEM])
        logs.append(log)
    settles = []
    for _ in range(3):
        left = iter([False] * 30)
        merge(logs, tmp_path / "all", stop=lambda left=left: next(left, True)).run()
        entries = StateFile(tmp_path / "all" / "state" / STATE_FILE, list[MergeState]).load()
        assert entries is not None
        settles.append(entries[-1].settles_us - BASE_US if entries[-1].settles_us else 0)
        for log in logs:
            log.write(1, rotates=True)
    assert settles == [1050 + JOIN_US, 0, 0]
    for log in logs:
        log.close()


def test_a_merge_that_began_without_bases_is_refused(tmp_path: Path) -> None:
    """The earlier rows of its logs are not in it."""
    log = LogOf(tmp_path / "s0", [(1000, None), (1001, None)], [[], []])
    log.end()
    merge_plain([log], tmp_path / "all").run()
    with pytest.raises(BaseLacking) as caught:
        merge([log], tmp_path / "all").run()
    assert (caught.value.code, caught.value.retry) == ("MG07", "operator")


def test_a_log_that_has_no_base_yet_is_waited_for(tmp_path: Path) -> None:
    """The merge waits for a base, also if one lacks a table that the log follows."""
    rng = random.Random(1)
    of = world(rng)
    log = LogOf(tmp_path / "s0", of.inputs[0], rows_for(rng, of, [ITEM] * 9)[0])
    log.write(3)
    holder = Holder(
        log.directory / "base", owner="merge", log=log.directory / "log", links=(log.links,)
    )
    place = replace(log.place, holder=holder)
    with pytest.raises(BaseNotReady, match="s0: there is no base") as caught:
        begin_merge([place], join_us=1)
    assert caught.value.code == "BA04"
    write_base(log, [ITEM])
    late = TableName("public", "late")
    with pytest.raises(BaseNotReady, match=r"table public\.late is not in the base"):
        begin_merge([replace(place, followed=lambda: [late])], join_us=1)
    state, held = begin_merge(
        [replace(place, followed=lambda: [TableName("public", "item")])], join_us=1
    )
    assert state.settles_us == held[0][1].end.commit_time_us + 1
    held[0][1].release()
    log.close()
