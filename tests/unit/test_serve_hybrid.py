"""LSNs that are commit times: given once, whatever the times, and the same after any restart."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.log import SOURCE, Row, commit_position, inserts, number_rows, run_of
from harness.servers.serve import Running, open_source_log, saved_slots, settings_of
from harness.servers.serve_client import Raw, wait_until
from penstock.codec.columns import transactions_batch
from penstock.host.clock import REAL_CLOCK
from penstock.log import Writer, WriterOptions
from penstock.serve.hybrid import Anchor, HybridTimes, commits_behind

BEGAN_US = 1_700_000_000_000_000
COUNT = 60
CREATE = "CREATE_REPLICATION_SLOT {} LOGICAL yboutput NOEXPORT_SNAPSHOT HYBRID_TIME"
START = "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names 'p')"


def times_of(seed: int) -> list[int]:
    """Return commit times of `COUNT` transactions: many are equal, some decrease."""
    dice = random.Random(seed)
    found = [BEGAN_US]
    while len(found) < COUNT:
        found.append(found[-1] + dice.choice((0, 0, 0, 1, 2, 900, -1, -700)))
    return found


def write(
    root: Path, rows: Sequence[Sequence[Row]], times: Sequence[int], *, per_segment: int = 1000
) -> None:
    """Write transactions of these commit times into the log of `root`, with the server's links."""
    options = WriterOptions(consumers=root / "cdc")
    with Writer.open(root / "log", log_id=None, source=SOURCE, options=options) as writer:
        for count, group in enumerate(rows, 1):
            trx = group[0].trx
            at, time_us = commit_position(trx), times[trx - 1]
            run = run_of(group)
            assert run.end is not None
            batch = transactions_batch([(at, at + 50, time_us, 700 + trx)])
            end = replace(run.end, commit_time_us=time_us)
            writer.write(replace(run, transactions=batch, end=end))
            writer.flush()
            if count % per_segment == 0:
                writer.rotate()


def plain(before: int, times: Sequence[int]) -> list[int]:
    """Return the result of the rule, computed one by one."""
    found = []
    for time_us in times:
        before = max(time_us << 12, before + 2)
        found.append(before)
    return found


@given(
    st.integers(1, 2**62),
    st.lists(st.integers(0, 2**50) | st.integers(BEGAN_US, BEGAN_US + 3), max_size=40),
    st.integers(0, 40),
)
def test_numbers_rise_and_do_not_depend_on_where_reading_began(
    before: int, times: list[int], cut: int
) -> None:
    """Numbers equal those computed one by one, in two pieces or one; there is room for each END."""
    array = np.array(times, np.int64)
    found = commits_behind(before, array).tolist()
    assert found == plain(before, times)
    first = commits_behind(before, array[:cut]).tolist()
    rest = commits_behind(first[-1] if first else before, array[cut:]).tolist()
    assert first + rest == found
    assert all(two >= one + 2 for one, two in zip([before, *found], found, strict=False))


def take_transactions(client: Raw, count: int) -> list[tuple[int, list[int]]]:
    """Return whole transactions as they arrive: each END, and the numbers of all their messages."""
    found: list[tuple[int, list[int]]] = []
    inside: list[int] = []
    while len(found) < count:
        kind, body = client.message()
        assert kind == b"d", (kind, body)
        if body[:1] != b"w" or body[25:26] == b"R":
            continue
        (position,) = struct.unpack_from(">Q", body, 1)
        if body[25:26] == b"C":
            commit, end = struct.unpack_from(">QQ", body, 27)
            assert position == end == commit + 1
            assert set(inside) == {commit}, "BEGIN and rows have the number of the COMMIT"
            found.append((end, inside))
            inside = []
        else:
            if body[25:26] == b"B":
                assert not inside
                assert struct.unpack_from(">Q", body, 26)[0] == position
            inside.append(position)
    return found


def slot(running: Running, name: str = "s") -> Any:
    """Return the slot's row, as a DBA sees it."""
    return next(one for one in running.serving.slot_rows() if one.slot_name == name)


def begin_stream(running: Running, place: str = "0/0", name: str = "s") -> Raw:
    """Return a client that streams."""
    client = Raw(running)
    client.query(START.format(name, place))
    assert client.message()[0] == b"W"
    return client


def create(running: Running, name: str = "s") -> None:
    """Create a slot at the log's end."""
    client = Raw(running)
    client.query(CREATE.format(name))
    assert client.message()[0] == b"T"
    client.until(b"Z")
    client.close()


def end_stream(running: Running, client: Raw) -> None:
    """End a stream, and wait until the slot is free."""
    client.close()
    wait_until(lambda: not running.serving.senders)


def wait_until_confirmed(running: Running, end: int) -> None:
    """Wait until the slot has this confirmed position."""
    wait_until(lambda: slot(running).confirmed_flush_lsn == end)


def serve_log(root: Path) -> Running:
    """Return a server of this dialect."""
    return Running(root, settings=settings_of(dialect="yugabyte"))


@pytest.mark.parametrize("seed", range(3))
def test_the_same_after_every_restart_and_nothing_is_lost(seed: int, tmp_path: Path) -> None:
    """Clients confirm at times, servers end, segments go; some times are equal or decrease."""
    times, dice = times_of(seed), random.Random(seed)
    rows = number_rows([inserts(2, first=2 * at) for at in range(COUNT)])
    write(tmp_path, rows[:3], times)
    with serve_log(tmp_path) as running:
        create(running)
    write(tmp_path, rows[3:], times, per_segment=4)
    wanted = [one + 1 for one in plain(plain(1, times[:3])[-1], times[3:])]
    got: list[int] = []
    first = tmp_path / "cdc" / "serve" / "0.ckt"
    while len(got) < len(wanted):
        with serve_log(tmp_path) as running:
            assert slot(running).yb_lsn_type == "HYBRID_TIME"
            assert slot(running).confirmed_flush_lsn == (got[-1] if got else slot_start(times))
            client = begin_stream(running)
            # All unconfirmed transactions are sent, whole and in order, with the same numbers.
            count = min(dice.randint(4, 25), len(wanted) - len(got))
            found = [end for end, _ in take_transactions(client, count)]
            assert found == wanted[len(got) : len(got) + count]
            keep = dice.randint(0, count)
            if keep:
                got += found[:keep]
                client.status(found[keep - 1])
                wait_until_confirmed(running, got[-1])
            end_stream(running, client)
            if len(got) == len(wanted):
                wait_until(lambda: not first.exists())  # a server may end before it does that
    saved = saved_slots(tmp_path / "state")
    assert saved is not None
    assert saved.anchor is not None
    assert saved.anchor.segment > 0, "segments were let go, and the numbers went on"


def slot_start(times: Sequence[int]) -> int:
    """Return the END after the three transactions that were there when the slot was created."""
    return plain(1, times[:3])[-1] + 1


def test_a_client_that_asks_for_a_later_place_or_a_time(tmp_path: Path) -> None:
    """The higher of requested and confirmed counts; a time may be up to now, and no later."""
    times = times_of(9)
    rows = number_rows([inserts(1, first=at) for at in range(COUNT)])
    write(tmp_path, rows[:1], times)
    with serve_log(tmp_path) as running:
        create(running)
        write(tmp_path, rows[1:], times)
        wanted = [one + 1 for one in plain(plain(1, times[:1])[-1], times[1:])]
        place = wanted[20]
        client = begin_stream(running, f"{place >> 32:X}/{place & 0xFFFFFFFF:X}")
        assert [end for end, _ in take_transactions(client, 3)] == wanted[21:24]
        end_stream(running, client)
        # The COMMIT's own number says that the transaction may lack its END: it is sent again.
        client = begin_stream(running, f"{(place - 1) >> 32:X}/{(place - 1) & 0xFFFFFFFF:X}")
        assert take_transactions(client, 1)[0][0] == place
        end_stream(running, client)
        now = REAL_CLOCK.now_us() << 12
        client = begin_stream(running, f"{now >> 32:X}/{now & 0xFFFFFFFF:X}")
        kind, body = client.message()  # no transaction of the log is later
        assert (kind, body[:1]) == (b"d", b"k")
        assert struct.unpack_from(">Q", body, 1)[0] == now
        end_stream(running, client)
        client = Raw(running)
        late = (REAL_CLOCK.now_us() + 3_600_000_000) << 12
        client.query(START.format("s", f"{late >> 32:X}/{late & 0xFFFFFFFF:X}"))
        assert b"C55000\0" in client.message()[1]
        client.close()


def test_two_kinds_of_slots_and_the_time_that_is_confirmed(tmp_path: Path) -> None:
    """Each has its own numbers; `yb_restart_commit_ht` moves with confirmations, and when idle."""
    times = times_of(5)
    rows = number_rows([inserts(1, first=at) for at in range(COUNT)])
    write(tmp_path, rows[:1], times)
    with serve_log(tmp_path) as running:
        create(running)
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT q LOGICAL yboutput NOEXPORT_SNAPSHOT")
        client.until(b"Z")
        client.close()
        assert slot(running, "q").yb_lsn_type == "SEQUENCE"
        assert slot(running, "q").yb_stream_id != slot(running).yb_stream_id
        write(tmp_path, rows[1:], times)
        wanted = [one + 1 for one in plain(plain(1, times[:1])[-1], times[1:])]
        for name in ("s", "q"):
            wait_until(
                lambda n=name: slot(running, n).yb_restart_commit_ht == times[0] << 12
            )  # the log has more
            client = begin_stream(running, name=name)
            if name == "s":
                end = take_transactions(client, len(wanted))[-1][0]
                assert end == wanted[-1]
            else:
                end = running.serving.head.position
                while not (
                    (body := client.message()[1])[25:26] == b"C"
                    and struct.unpack_from(">Q", body, 1)[0] == end
                ):
                    pass
            client.status(end)
            last_us = max(times[0], times[-1])
            wait_until(lambda n=name, us=last_us: slot(running, n).yb_restart_commit_ht == us << 12)
            # The source is idle: the slot goes as far as the extractor says that the log is
            # complete.
            running.serving.known_us = lambda us=last_us: us + 5_000_000
            assert slot(running, name).yb_restart_commit_ht == last_us + 5_000_000 << 12
            running.serving.known_us = lambda: 0
            client.close()


def test_a_slot_made_behind_a_dropped_one_has_its_own_numbers(tmp_path: Path) -> None:
    """The anchor belongs to present slots; earlier blocks are not sent."""
    times = [BEGAN_US] * COUNT
    rows = number_rows([inserts(1, first=at) for at in range(COUNT)])
    write(tmp_path, rows[:1], times)
    with serve_log(tmp_path) as running:
        create(running)
        write(tmp_path, rows[1:10], times, per_segment=4)
        client = begin_stream(running)
        old = take_transactions(client, 9)
        end_stream(running, client)
        client = Raw(running)
        client.query("DROP_REPLICATION_SLOT s")
        client.until(b"Z")
        assert running.serving.slots.anchor is None
        client.close()
        create(running, "t")
        write(tmp_path, rows[10:14], times)
        client = begin_stream(running, name="t")
        new = take_transactions(client, 4)
        client.close()
        start = running.serving.slots.get("t").saved.confirmed_lsn
        assert [end for end, _ in new] == [start + 2 * n for n in range(1, 5)]
        assert old[0][0] == plain(1, times[:2])[-1] + 1


def test_numbers_of_a_log_without_transactions(tmp_path: Path) -> None:
    """The very first one is never 0/0."""
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE, options=WriterOptions()):
        pass
    with open_source_log(tmp_path) as log:
        head = log.head()
        found: list[Anchor] = []
        times = HybridTimes(log, lambda: found[0])
        found.append(times.first_anchor(head))
        assert times.head(head) == 2


def test_a_place_in_front_of_a_segment_that_has_not_begun(tmp_path: Path) -> None:
    """A client that confirmed a whole closed segment is there; the log's end was read earlier."""
    times = times_of(2)
    rows = number_rows([inserts(1, first=at) for at in range(COUNT)])
    write(tmp_path, rows[:2], times)
    with open_source_log(tmp_path) as log:
        seen = log.head()
        found = Anchor(segment=0, before=1)
        numbers = HybridTimes(log, lambda: found)
        end = numbers.head(seen)
        assert end == plain(1, times[:2])[-1] + 1
        # a writer that opens a log closes the segment that was left open
        write(tmp_path, [], times)
        assert numbers.end_at(1, 2, seen) == end
