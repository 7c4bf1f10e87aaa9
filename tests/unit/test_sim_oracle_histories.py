"""Histories of the simulated Oracle: a reader that knows the rules replays them, others do not."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from harness.servers.oracle_reader import DEFECTS, Reader
from sim_oracle import oracledb
from sim_oracle.database import Committed
from sim_oracle.driver_servers import listen
from sim_oracle.histories import Habits, History
from sim_oracle.session import Server

STEPS = 250
READ_EVERY = 12
State = dict[tuple[str, str], dict[str, Any]]


def open_reader(history: History, defects: frozenset[str]) -> tuple[Reader, Server]:
    """Return a reader of a history's database."""
    server = Server(history.database)
    address = listen(server)
    login = {"user": "c##penstock", "password": "secret"}
    root = oracledb.connect(f"{address}/ORCL", **login)
    pdb = oracledb.connect(f"{address}/shoppdb", **login)
    return Reader(root, pdb, "SHOPPDB", defects), server


def play(
    seed: int, defects: frozenset[str] = frozenset(), habits: Habits | None = None
) -> tuple[History, Reader, State]:
    """Play a history while a reader follows it; return them and the state of the snapshot."""
    history = History(seed, habits)
    reader, _ = open_reader(history, defects)
    for _ in range(60):
        history.step()
    scn = reader.begin()
    snapshot: State = {}
    for table in history.database.tables.values():
        for row_id, row in history.database.rows_at(table, scn):
            snapshot[(table.name, row_id)] = row

    def catch_up() -> None:
        history.database.beat()
        history.database.beat()
        while reader.step():
            pass

    history.before_ddl = catch_up
    reader.before_fetch = history.disturb
    for number in range(STEPS):
        history.step()
        if number % READ_EVERY == 0:
            reader.step()
            history.safe_scn = reader.low
    history.finish()
    while reader.step():
        pass
    return history, reader, snapshot


def plain(value: Any) -> Any:
    """Return a value in the form in which both sides have it."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().timestamp()
    return None if value in ("", b"") else value


def change_state(state: State, table: str, row_id: str | None, row: Any) -> None:
    """Apply a change to a state."""
    if row_id is None:
        for key in [key for key in state if key[0] == table]:
            del state[key]
    elif row is None:
        del state[(table, row_id)]
    else:
        old = state.get((table, row_id), {})
        state[(table, row_id)] = {**old, **{name: plain(one) for name, one in row.items()}}


def replay_truth(snapshot: State, truth: list[Committed]) -> list[Any]:
    """Return id, SCN and state of the touched rows for each transaction."""
    state = {key: {name: plain(one) for name, one in row.items()} for key, row in snapshot.items()}
    out = []
    for one in truth:
        for change in one.changes:
            change_state(state, change.table, change.row_id, change.after)
        touched = {(change.table, change.row_id) for change in one.changes}
        out.append((tuple(one.xid), one.scn, {key: dict(state.get(key, {})) for key in touched}))
    return out


def replay_emitted(snapshot: State, reader: Reader) -> list[Any]:
    """Return the same of what the reader emitted."""
    state = {key: {name: plain(one) for name, one in row.items()} for key, row in snapshot.items()}
    out = []
    for one in reader.emitted:
        for table, row_id, values in one.changes:
            change_state(state, table, row_id, values)
        touched = {(table, row_id) for table, row_id, _ in one.changes}
        out.append((one.xid, one.scn, {key: dict(state.get(key, {})) for key in touched}))
    return out


def is_same(ours: Any, theirs: Any) -> bool:
    """Return whether two transactions are one; an absent value is NULL, as in a new column."""
    if ours[:2] != theirs[:2] or ours[2].keys() != theirs[2].keys():
        return False
    for key, row in theirs[2].items():
        found = ours[2][key]
        if bool(found) != bool(row) or any(found.get(name) != one for name, one in row.items()):
            return False
    return True


def is_equal(
    seed: int, defects: frozenset[str] = frozenset(), habits: Habits | None = None
) -> bool:
    """Return whether a reader replays a history right; an error is a difference."""
    try:
        history, reader, snapshot = play(seed, defects, habits)
        emitted = replay_emitted(snapshot, reader)
    except (AssertionError, ValueError, KeyError, oracledb.Error):
        return False
    truth = replay_truth(snapshot, history.database.truth(reader.start_scn))
    if len(emitted) != len(truth):
        return False
    return all(is_same(ours, theirs) for ours, theirs in zip(emitted, truth, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_a_history_is_replayed(seed: int) -> None:
    """The reader emits every committed transaction once, in commit order, with its rows."""
    habits = (Habits(disturbances=0.05), Habits(threads=1), Habits(disturbances=0.3))[seed % 3]
    history, reader, snapshot = play(seed, habits=habits)
    emitted = replay_emitted(snapshot, reader)
    truth = replay_truth(snapshot, history.database.truth(reader.start_scn))
    assert [one[:2] for one in emitted] == [one[:2] for one in truth]
    for ours, theirs in zip(emitted, truth, strict=True):
        assert is_same(ours, theirs), (ours, theirs)
    assert len(truth) > 5


HABITS = {
    DEFECTS[2]: Habits(threads=1),
    DEFECTS[5]: Habits(disturbances=0.3),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    """One of few histories is replayed wrongly by a reader with a defect."""
    habits = HABITS.get(defect)
    assert any(not is_equal(seed, frozenset([defect]), habits) for seed in range(8))


@pytest.mark.parametrize("seed", range(2))
def test_windows_by_scn_are_right_without_late_redo(seed: int) -> None:
    """The defect of closed windows is found because of late redo alone."""
    habits = Habits(lates=("no",), has_ddl=False)
    assert is_equal(seed, frozenset([DEFECTS[7]]), habits)
