"""Choice of log files: every log of a window from the right file, or a reason, never fewer rows."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime

import pytest

from penstock.engines.oracle.source.log_choice import (
    ArchivedLog,
    Lack,
    LogFile,
    LogViews,
    Member,
    Missing,
    OnlineLog,
    RedoThread,
    choose_logs,
    oldest_scn,
)

HUGE = 2**64 - 1
NOW = (100, datetime(2026, 1, 1))  # noqa: DTZ001 - DATE has no zone
BEFORE = (50, datetime(2025, 1, 1))  # noqa: DTZ001


def archive(sequence: int, first: int, following: int, **fields: object) -> ArchivedLog:
    """Return an archived log of thread 1."""
    one = ArchivedLog(
        name=f"/arch/{sequence}", destination=1, thread=1, sequence=sequence, resetlogs=NOW,
        first_scn=first, next_scn=following,
    )  # fmt: skip
    return replace(one, **fields)  # type: ignore[arg-type]


def online(sequence: int, first: int, following: int = HUGE, **fields: object) -> OnlineLog:
    """Return an online log of thread 1, the CURRENT one by default."""
    one = OnlineLog(
        group=sequence, thread=1, sequence=sequence, is_archived=False, status="CURRENT",
        first_scn=first, next_scn=following,
    )  # fmt: skip
    return replace(one, **fields)  # type: ignore[arg-type]


def member(group: int, name: str = "", status: str = "", kind: str = "ONLINE") -> Member:
    """Return a file of a group."""
    return Member(group=group, status=status, kind=kind, name=name or f"/redo/{group}")


THREAD = RedoThread(
    number=1, is_open=True, enabled="PUBLIC", enable_scn=1, checkpoint_scn=0, last_scn=1000
)


def make_views(
    *logs: ArchivedLog | OnlineLog, threads: tuple[RedoThread, ...] = (THREAD,), **fields: object
) -> LogViews:
    """Return views with these logs, each group with one file."""
    live = [one for one in logs if isinstance(one, OnlineLog)]
    views = LogViews(
        resetlogs=NOW,
        online=live,
        members=[member(one.group) for one in live],
        archived=[one for one in logs if isinstance(one, ArchivedLog)],
        threads=threads,
    )
    return replace(views, **fields)  # type: ignore[arg-type]


def names(found: list[LogFile] | Missing) -> list[str]:
    """Return the names of the chosen files."""
    assert not isinstance(found, Missing), str(found)
    return [one.name for one in found]


def lack(found: list[LogFile] | Missing) -> Lack:
    """Return why nothing was chosen."""
    assert isinstance(found, Missing), found
    assert str(found)
    return found.lack


def test_archives_and_the_current_log() -> None:
    """A window gets the logs that overlap it, in order."""
    views = make_views(archive(5, 100, 200), archive(6, 200, 300), online(7, 300))
    assert names(choose_logs(views, 150, 250)) == ["/arch/5", "/arch/6"]
    assert names(choose_logs(views, 200, 400)) == ["/arch/6", "/redo/7"]
    assert names(choose_logs(views, 199, 199)) == ["/arch/5"]
    assert views.end_scn == 1000


def test_a_current_log_that_is_listed_as_archived() -> None:
    """The CURRENT log is read online (O3), once."""
    views = make_views(archive(5, 100, 200), archive(6, 200, HUGE), online(6, 200))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6"]


@pytest.mark.parametrize("status", ["ACTIVE", "INACTIVE"])
def test_a_full_log(status: str) -> None:
    """A full log is read from its archive, and online while it has none."""
    full = online(6, 200, 300, status=status)
    views = make_views(archive(5, 100, 200), full, online(7, 300))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6", "/redo/7"]
    views = make_views(archive(5, 100, 200), archive(6, 200, 300), full, online(7, 300))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/arch/6", "/redo/7"]
    gone = replace(full, is_archived=True)  # and its archive was removed
    views = make_views(archive(5, 100, 200), gone, online(7, 300))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6", "/redo/7"]


@pytest.mark.parametrize("status", ["UNUSED", "CLEARING", "CLEARING_CURRENT"])
def test_a_group_without_a_log(status: str) -> None:
    """A group that has no redo is left out."""
    views = make_views(
        archive(5, 100, 200), online(6, 200), online(7, 0, status=status), online(0, 0)
    )
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6"]


def test_members() -> None:
    """The first usable file of a group is read; without one, the log is missing."""
    views = make_views(online(6, 100))
    files = [member(6, "/b"), member(6, "/a", status="INVALID"), member(6, "/0", kind="STANDBY")]
    assert names(choose_logs(replace(views, members=files), 150, 400)) == ["/b"]
    found = choose_logs(replace(views, members=files[1:]), 150, 400)
    assert lack(found) is Lack.FILE
    # A log that ends before the window may be unreadable.
    views = make_views(online(6, 100, 140, status="ACTIVE"), online(7, 140), members=[member(7)])
    assert names(choose_logs(views, 140, 400)) == ["/redo/7"]


def test_destinations() -> None:
    """Each log is read from the first destination that has it; others are left out."""
    logs = [
        archive(5, 100, 200, name="/a/5", destination=1),
        archive(5, 100, 200, name="/b/5", destination=2),
        archive(6, 200, 300, name="/b/6", destination=2),
        archive(6, 200, 300, name="/c/6", destination=3),
    ]
    views = make_views(*logs, online(7, 300))
    assert names(choose_logs(views, 150, 250)) == ["/a/5", "/b/6"]
    views = replace(views, destinations=(2, 1))
    assert names(choose_logs(views, 150, 250)) == ["/b/5", "/b/6"]
    found = choose_logs(replace(views, destinations=(1,)), 150, 350)
    assert lack(found) is Lack.HOLE


def test_another_incarnation() -> None:
    """Archives from before OPEN RESETLOGS are left out, whatever their numbers are."""
    old = archive(5, 100, 200, resetlogs=BEFORE)
    views = make_views(old, archive(6, 200, 300), online(7, 300))
    assert lack(choose_logs(views, 150, 400)) is Lack.BEGIN
    assert names(choose_logs(views, 200, 400)) == ["/arch/6", "/redo/7"]


def test_gaps() -> None:
    """A missing number is a hole; a step between the SCNs of consecutive logs is none (O4)."""
    views = make_views(archive(5, 100, 200), online(7, 300))
    found = choose_logs(views, 150, 400)
    assert isinstance(found, Missing)
    assert (found.lack, found.sequence) == (Lack.HOLE, 6)
    views = make_views(archive(5, 100, 200), archive(6, 240, 300), online(7, 300))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/arch/6", "/redo/7"]
    assert names(choose_logs(views, 220, 400)) == ["/arch/6", "/redo/7"]
    assert lack(choose_logs(make_views(archive(6, 240, 300), online(7, 300)), 220, 400)) is (
        Lack.BEGIN
    )


def test_the_begin_and_the_end() -> None:
    """Redo before the first log, and after the last one, is missing."""
    views = make_views(archive(5, 100, 200), online(6, 200))
    found = choose_logs(views, 99, 400)
    assert isinstance(found, Missing)
    assert (found.lack, found.sequence, found.scn) == (Lack.BEGIN, 4, 99)
    assert lack(choose_logs(make_views(archive(5, 100, 200)), 150, 200)) is Lack.END
    assert names(choose_logs(make_views(archive(5, 100, 200)), 150, 199)) == ["/arch/5"]
    assert lack(choose_logs(make_views(), 150, 200)) is Lack.BEGIN


def other(**fields: object) -> RedoThread:
    """Return a second thread."""
    return replace(replace(THREAD, number=2), **fields)  # type: ignore[arg-type]


def test_threads() -> None:
    """Each thread contributes; an open one without logs is missing."""
    first = [archive(5, 100, 200), online(6, 200)]
    second = [
        archive(70, 90, 210, thread=2, name="/arch/2_70"),
        online(71, 210, thread=2),
    ]
    views = make_views(*first, *second, threads=(THREAD, other(last_scn=700)))
    assert views.end_scn == 700
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6", "/arch/2_70", "/redo/71"]
    views = make_views(*first, second[1], threads=(THREAD, other()))
    found = choose_logs(views, 150, 400)
    assert isinstance(found, Missing)
    assert (found.lack, found.thread) == (Lack.BEGIN, 2)
    assert lack(choose_logs(make_views(*first, threads=(THREAD, other())), 150, 400)) is Lack.BEGIN


def test_a_thread_that_is_enabled_later() -> None:
    """A thread has redo from its ENABLE_CHANGE# on."""
    first = [archive(5, 100, 200), online(6, 200)]
    late = other(enable_scn=250)
    views = make_views(*first, threads=(THREAD, late))
    assert names(choose_logs(views, 150, 249)) == ["/arch/5", "/redo/6"]
    assert lack(choose_logs(views, 150, 250)) is Lack.BEGIN
    views = make_views(*first, online(71, 250, thread=2), threads=(THREAD, late))
    assert names(choose_logs(views, 150, 300)) == ["/arch/5", "/redo/6", "/redo/71"]


def test_a_closed_thread() -> None:
    """A closed thread is complete up to its checkpoint, and does not bound the window."""
    first = [archive(5, 100, 200), online(6, 200)]
    closed = other(is_open=False, checkpoint_scn=180, last_scn=180)
    views = make_views(*first, threads=(THREAD, closed))
    assert views.end_scn == 1000
    assert names(choose_logs(views, 180, 400)) == ["/arch/5", "/redo/6"]
    assert lack(choose_logs(views, 179, 400)) is Lack.BEGIN
    last = archive(70, 90, 180, thread=2, name="/arch/2_70")
    views = make_views(*first, last, threads=(THREAD, closed))
    assert names(choose_logs(views, 150, 400)) == ["/arch/5", "/redo/6", "/arch/2_70"]
    crashed = replace(closed, checkpoint_scn=190)  # it wrote more than its logs have
    views = make_views(*first, last, threads=(THREAD, crashed))
    assert lack(choose_logs(views, 150, 400)) is Lack.END
    private = replace(closed, enabled="PRIVATE", checkpoint_scn=0)
    assert names(choose_logs(make_views(*first, threads=(THREAD, private)), 150, 400))


def test_a_removed_thread() -> None:
    """Logs of a thread that V$THREAD no longer has are read, without holes."""
    first = [archive(5, 100, 200), online(6, 200)]
    old = [archive(at, at, at + 10, thread=3, name=f"/arch/3_{at}") for at in (160, 161)]
    views = make_views(*first, *old)
    assert names(choose_logs(views, 150, 400))[2:] == ["/arch/3_160", "/arch/3_161"]
    views = make_views(*first, old[0], replace(old[1], sequence=162))
    assert lack(choose_logs(views, 150, 400)) is Lack.HOLE


def test_the_oldest_scn() -> None:
    """Redo is complete from the begin of the logs of the thread that has least."""
    views = make_views(archive(3, 50, 100), archive(5, 150, 200), online(6, 200))
    assert oldest_scn(views) == 150
    two = make_views(
        archive(5, 150, 200), online(6, 200), online(71, 180, thread=2), threads=(THREAD, other())
    )
    assert oldest_scn(two) == 180
    late = replace(two, threads=(THREAD, other(enable_scn=180)))
    assert oldest_scn(late) == 150
    assert oldest_scn(make_views()) == 0


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_any_logs(first_seed: int) -> None:
    """A choice has each needed log once; it is refused exactly if one of them is missing."""
    for seed in range(first_seed, first_seed + 50):
        check_logs(seed)


def check_logs(seed: int) -> None:
    """Check the choice among the random logs of a seed."""
    rng = random.Random(seed)
    threads, logs, needed = [], [], set()
    low = rng.randrange(120, 400)
    high = low + rng.randrange(0, 300)
    for number in range(1, rng.randrange(2, 4)):
        enable = rng.choice([1, 1, rng.randrange(100, 500)])
        at = max(100, enable)
        sequence = rng.randrange(1, 90)
        is_lost = False
        while at <= 800:
            following = at + rng.randrange(1, 150)
            is_last = following > 800
            end = HUGE if is_last else following
            wanted = end > low and at <= high and end > enable and enable <= high
            has_archive = not is_last or rng.random() < 0.2
            has_online = is_last or rng.random() < 0.3
            if rng.random() < 0.06:
                has_archive = has_online = False
            group = number * 1000 + sequence
            if has_archive:
                for place in rng.sample([1, 2], rng.randrange(1, 3)):
                    name = f"/arch{place}/{number}_{sequence}"
                    logs.append(
                        archive(sequence, at, end, thread=number, name=name, destination=place)
                    )
            if has_online:
                status = "CURRENT" if is_last else rng.choice(["ACTIVE", "INACTIVE"])
                logs.append(online(sequence, at, end, thread=number, group=group, status=status))
            if wanted:
                needed.add((number, sequence))
                is_lost |= not (has_archive or has_online)
            sequence += 1
            at = following
        threads.append(replace(THREAD, number=number, enable_scn=enable))
        if is_lost:
            needed.add((number, 0))
    found = choose_logs(make_views(*logs, threads=tuple(threads)), low, high)
    if any(sequence == 0 for _, sequence in needed):
        lack(found)
        return
    assert not isinstance(found, Missing), str(found)
    assert [(one.thread, one.sequence) for one in found] == sorted(needed)
    for one in found:
        live: list[OnlineLog] = [log for log in logs if isinstance(log, OnlineLog)]
        states = {(each.thread, each.sequence): each.status for each in live}
        archived = {(log.thread, log.sequence) for log in logs if isinstance(log, ArchivedLog)}
        key = one.thread, one.sequence
        assert one.is_online == (states.get(key) == "CURRENT" or key not in archived)
