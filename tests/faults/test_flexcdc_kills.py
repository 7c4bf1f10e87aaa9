"""FlexCDC is killed repeatedly: the changelogs add up to the source, and no number repeats."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest

from harness.faults.kills import AnyServer, make_database, make_server
from harness.pipelines.bank import CONTENTS, Bank
from harness.pipelines.bank_engines import MYSQL, dialect_of
from harness.pipelines.flexcdc import Command, Flex, until
from harness.pipelines.pipeline import write_pipeline
from harness.servers.kinds import Kinds
from penstock.host.process import holder_of
from penstock.log.layout import LOCK_NAME

TABLES = tuple(CONTENTS)
POINTS = (
    "flexcdc.append.before",
    "flexcdc.append.after",
    "flexcdc.units.before",
    "flexcdc.commit.before",
    "flexcdc.commit.after",
)
STUCK_S = 60.0  # after so long without changes a difference is an error
SEED = int(os.environ.get("PENSTOCK_KILL_SEED", "16"))
Pair = tuple[str, str]


@pytest.fixture
def servers() -> Iterator[Callable[[str], AnyServer]]:
    """Make servers of a kind for one test; they run until its end."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(make_server(kind))


def make_pair(servers: Callable[[str], AnyServer], kinds: str) -> Pair:
    """Make source and destination, such as "mysql-mariadb"; one name means both on one server."""
    from_kind, _, to_kind = kinds.partition("-")
    server = servers(from_kind)
    source = make_database(server, MYSQL.namespace)
    return source, make_database(servers(to_kind), "copy") if to_kind else source


@pytest.fixture(params=["mysql", "mariadb", "postgres", "postgres-mysql"])
def pair(request: pytest.FixtureRequest, servers: Callable[[str], AnyServer]) -> Pair:
    """Source and destination."""
    return make_pair(servers, request.param)


@pytest.fixture(params=["mysql-mariadb", "postgres-postgres"])
def apart(request: pytest.FixtureRequest, servers: Callable[[str], AnyServer]) -> Pair:
    """Source and destination on two servers."""
    return make_pair(servers, request.param)


class BankFlex:
    """A bank under load, and FlexCDC over it as a process that is killed."""

    def __init__(
        self, pair: Pair, folder: Path, seed: int, *, kinds: bool = False, **settings: object
    ) -> None:
        """Prepare bank and FlexCDC; kinds adds a table for each type, also under load."""
        self.random = random.Random(seed)
        source, dest = pair
        # With less load it keeps up although it is killed all the time.
        self.bank = Bank(source, seed, xa=True, pause_s=0.05 if kinds else 0.002)
        self.kinds = Kinds(source, seed) if kinds else None
        self.tables = TABLES + (self.kinds.tables if self.kinds is not None else ())
        namespace = dialect_of(source).namespace
        sections = {"flexcdc": {"dest": dest, **settings}}
        if source.startswith("postgres"):
            sections["changeExtractor"] = {
                "replicationSlot": "flex_kills",
                "publication": "flex_kills",
            }
        file = write_pipeline(
            folder, source, None, directory=".", tables=[f"{namespace}.*"], sections=sections
        )
        self.lock = folder / "log" / LOCK_NAME
        self.command = Command(file)
        self.flex = Flex(source, dest, folder, **settings)
        self.flex.namespace = namespace
        if source.startswith("postgres"):
            self.flex.source_sql(*(f"alter table {t} replica identity full" for t in TABLES))
        self.command("setup")
        for table in self.tables:
            self.flex.add(table)

    def kill(self, number: int) -> None:
        """Start it, and let it die at a point or at any moment; each third time with its child."""
        fault = ""
        if number % 6 != 5:
            fault = f"{POINTS[number % 6]}:{self.random.randint(1, 9)}:kill"
        self.command.start(fault=fault)
        if number % 3 == 2:
            time.sleep(self.random.uniform(1, 4))
            self._kill_extraction()
        if not fault:
            time.sleep(self.random.uniform(0.5, 5))
            self.command.process.kill()
        self.command.process.wait(60)
        assert self.command.process.returncode < 0, self.command.out.read_text()[-3000:]

    def _kill_extraction(self) -> None:
        """End the process that writes the log, if there is one; its rows that are not durable are
        cut off.
        """
        with suppress(ProcessLookupError):
            if child := holder_of(self.lock):
                os.kill(child, signal.SIGKILL)

    def settle(self) -> None:
        """Let it catch up, however large its backlog is, and stop it; everything must add up."""
        self.command.start()
        seen, moved_s = -1, time.monotonic()
        while True:
            last = self.flex.state_rows("mview_uow", "uow_id desc limit 1")[0]["uow_id"]
            if last != seen:
                seen, moved_s = last, time.monotonic()
            elif self.adds_up(is_late=time.monotonic() > moved_s + STUCK_S):
                break
            assert self.command.process.poll() is None, self.command.out.read_text()[-3000:]
            time.sleep(1)
        assert self.command.stop() == 0, self.command.out.read_text()[-3000:]
        images = [row for table in self.tables for row in self.flex.images(table) if row[0]]
        units = self.flex.state_rows("mview_uow", "uow_id")
        assert sorted(gsn for _, _, gsn in images) == [*range(2, len(images) + 2)]
        assert [u["uow_id"] for u in units] == [*range(1, len(units) + 1)]
        highs = {u["uow_id"]: u["gsn_hwm"] for u in units}
        assert all(highs[uow - 1] < gsn <= highs[uow] for _, uow, gsn in images)

    def adds_up(self, *, is_late: bool) -> bool:
        """Return whether the changelogs add up to the source; raises if is_late and they do not."""
        try:
            self.flex.check(*self.tables)
        except AssertionError:
            if is_late:
                raise
            return False
        return True

    def run(self, count: int) -> None:
        """Kill it so often under load, then settle."""
        try:
            with self.bank, self.kinds or nullcontext():
                for number in range(count):
                    self.kill(number)
            self.settle()
        finally:
            self.command.close()


@pytest.mark.promise
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_changelogs_add_up_after_kills(pair: Pair, tmp_path: Path) -> None:
    """The changelogs add up after one kill at each point and one at any moment."""
    BankFlex(pair, tmp_path, 15).run(6)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "row"])
def test_changelogs_add_up_after_fifty_kills(apart: Pair, bulk: bool, tmp_path: Path) -> None:
    """The changelogs add up under constant load by the bank and by a table of every type, in both
    modes.
    """
    BankFlex(apart, tmp_path, SEED, kinds=True, bulk_insert=bulk).run(50)


@pytest.mark.faults
def test_a_destination_that_goes_away(servers: Callable[[str], AnyServer], tmp_path: Path) -> None:
    """FlexCDC ends with a typed error and exit code 1; after a restart it continues."""
    source, dest = servers("mysql"), servers("mariadb")
    one = BankFlex(
        (make_database(source, MYSQL.namespace), make_database(dest, "copy")), tmp_path, 17
    )
    try:
        with one.bank:
            one.command.start()
            until(lambda: one.flex.images("transfer"), one.command)
            dest.stop()
            assert one.command.process.wait(60) == 1
            said = one.command.out.read_text()
            assert "error HS" in said
            assert "next:" in said
            dest.start()
        one.settle()
    finally:
        one.command.close()
