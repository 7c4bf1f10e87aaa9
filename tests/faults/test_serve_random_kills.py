"""Server, subscriber and extractor are killed at random: no row differs, no slot is ahead.

PENSTOCK_SERVE_KILLS sets the number of kills, PENSTOCK_KILL_SEED their seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.servers.engines import Place, new_place
from harness.servers.serve import open_source_log, saved_slots, views_of
from harness.servers.subscribers import Served, Subscriber
from penstock.codec.postgres.lsn import Lsn
from plugins.postgres import Server
from plugins.shared import SharedServers

pytestmark = [pytest.mark.faults, pytest.mark.long]
KILLS = int(os.environ.get("PENSTOCK_SERVE_KILLS", "9"))
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "17"))
TABLE = "create table item (id int primary key, n int not null, note text)"
ROWS = "select id, n, note from item order by id"


class Writer(threading.Thread):
    """A thread that writes small transactions at the source until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url, self._dice, self._ended = url, random.Random(seed), threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Commit transactions until the thread is stopped or an error ends it."""
        try:
            with psycopg.connect(self._url) as connection:
                while not self._ended.is_set():
                    for _ in range(self._dice.randint(1, 4)):
                        connection.execute(*self._statement())  # type: ignore[arg-type]
                    connection.commit()
                    self.count += 1
                    time.sleep(self._dice.choice((0, 0.002, 0.02)))
        except BaseException as error:
            self.error = error

    def _statement(self) -> tuple[str, tuple[int, ...]]:
        one, other = self._dice.randrange(500), self._dice.randrange(500)
        roll = self._dice.random()
        if roll < 0.5:
            text = (
                "insert into item values (%s, %s, 'new') "
                "on conflict (id) do update set n = excluded.n"
            )
            return text, (one, self.count)
        if roll < 0.7:
            return "update item set note = repeat('x', %s) where id = %s", (other, one)
        if roll < 0.8:
            text = (
                "update item set id = %s where id = %s "
                "and not exists (select from item where id = %s)"
            )
            return text, (other, one, other)
        return "delete from item where id = %s", (one,)

    def end(self) -> None:
        """Stop it and wait. Raises the error that ended it earlier, if there is one."""
        self._ended.set()
        self.join(30)
        if self.error is not None:
            raise self.error


@pytest.fixture
def place(postgres: Server, shared_servers: SharedServers) -> Iterator[Place]:
    """A source of the version under test."""
    with new_place(shared_servers, f"pg{postgres.version}") as found:
        found.run(TABLE)
        yield found


def read_confirmed(served: Served) -> int:
    """Return the position up to which the client has confirmed, according to the slot's file."""
    saved = saved_slots(served.folder / "shop" / "state")
    assert saved is not None
    (slot,) = saved.slots
    return slot.confirmed


def read_applied(subscriber: Subscriber) -> int:
    """Return the END of the last transaction that the subscriber has, durably after a crash."""
    rows = subscriber.run(
        "select remote_lsn::text from pg_replication_origin_status s join pg_subscription b "
        f"on s.external_id = 'pg_' || b.oid where b.subname = '{subscriber.name}'"
    )
    return Lsn.parse(rows[0][0]).ordinal if rows else 0


def check_slot(served: Served, subscriber: Subscriber) -> None:
    """Check that no transaction lies between the subscriber's position and that of its slot."""
    said = read_confirmed(served)
    has = read_applied(subscriber)
    if said <= has or not has:
        return
    from harness.servers.serve import blocks_of

    with open_source_log(served.folder / "shop") as log:
        for _, block in blocks_of(log, views_of(), has):
            between = [end for end in block.ends.tolist() if has < end <= said]
            assert not between, (has, said, between)


def test_killed_at_random(place: Place, own_postgres: Server, tmp_path: Path) -> None:
    """Each of the three is killed repeatedly while rows are written to the source."""
    dice = random.Random(SEED)
    served = Served(place, tmp_path)
    subscriber = None
    writer = Writer(place.url, SEED)
    try:
        served.extract()
        served.serve()
        subscriber = Subscriber(own_postgres, served, TABLE)
        subscriber.subscribe()
        writer.start()
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.2, 2.0))
            kill(dice.choice(("server", "subscriber", "extractor")), served, subscriber)
        writer.end()
        expected = place.run(ROWS)
        subscriber.until(lambda: rows_of(subscriber) == expected, "no row differs")
        assert writer.count > KILLS
        check_slot(served, subscriber)
    finally:
        if subscriber is not None:
            subscriber.drop()
        served.close()
        place.forget_log()


def rows_of(subscriber: Subscriber) -> object:
    """Return the subscriber's rows, or None while it recovers."""
    try:
        return subscriber.run(ROWS)
    except psycopg.OperationalError:
        return None


def kill(victim: str, served: Served, subscriber: Subscriber) -> None:
    """Kill one of them and start it again."""
    if victim == "server":
        assert served.server is not None
        served.server.send(signal.SIGKILL)
        served.server.wait_for_end()
        check_slot(served, subscriber)
        served.serve()
    elif victim == "extractor":
        assert served.extractor is not None
        served.extractor.send(signal.SIGKILL)
        served.extractor.wait_for_end()
        served.extract()
    else:
        subscriber.server.crash()
        subscriber.server.start()
        check_slot(served, subscriber)
