"""A bank's history into a lake: source, extractor, lives of loaders, and readers of other makes.

Money moves between rows of three tables, so its sum is the same after every transaction. A reader
looks at each row of the table of batches, at the versions that it names: the sum, the number of
accounts, no key twice. In the end all tables equal the source's. Not here: which kills there are
(`tests/faults/test_lake_kills.py`, `tests/soak_lake.py`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError
from pyiceberg.table import StaticTable

from harness.faults.kills import Half
from harness.lake.iceberg import hadoop_place
from harness.lake.lives import END_TIMEOUT_S, Life
from harness.pipelines.bank import TOTAL as BANK_TOTAL
from harness.pipelines.bank import Bank
from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.run.resend import resend
from penstock.control.tables.table_commands import resync
from penstock.engines.lake.state import LakeState, UpkeepState
from penstock.engines.lake.storage import Folder
from penstock.engines.lake.url import parse_url
from penstock.load.session import Session
from penstock.model import TableName
from plugins.postgres import Server

# Otherwise polars warns that a faster planner is not installed.
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")

TILL_COUNT, TILL_AMOUNT = 40, 100
TOTAL = BANK_TOTAL + TILL_COUNT * TILL_AMOUNT
MONEY = {"account": "balance", "vault": "amount", "till": "amount"}
"""Tables with money, and the column that has it."""

KEYS = {"account": ("id",), "vault": ("id",), "till": ("id", "name"), "transfer": ("id",)}
TABLES = ("account", "vault", "transfer", "journal", "till", "extra")
EXTRA = "extra"
"""Table whose rows another program deletes in the lake."""

RESYNCED = "transfer"
"""Table that is copied again: one without money, as it is apart from the others meanwhile."""

RESENT = "account"
"""Table whose rows come again in the log."""

SCHEMA = (
    "create table till (id int, name text, amount bigint not null, primary key (id, name))",
    f"insert into till select i, 'till ' || i, {TILL_AMOUNT} from generate_series(1, {TILL_COUNT}) "
    "i",
    "create table extra (id int primary key, note text)",
    "insert into extra select i, 'note ' || i from generate_series(1, 30) i",
)
POLL_S = 0.05
LOOK_S = 1.0
"""Pause between two looks into the lake, which cost more than a look at a file."""

READY_TIMEOUT_S = 900.0
PAUSE_S = 0.15
"""Pause between two transactions: each changes a few rows, and the machine is shared."""

FOREIGN_PAUSE_S = 8.0
"""Pause between two statements of another program, each of which costs as much as some batches."""

COLUMNS_MAX = 4
"""Number of columns that the source adds to a table; each one with a value rewrites its files."""

Rows = list[tuple[Any, ...]]


def say(line: str) -> None:
    """Print a line now: a history takes long, and may be watched."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Kind(ABC):
    """A lake of one format, its readers, and maintenance by another program."""

    url: str

    @abstractmethod
    def read(self, name: str, version: int | None = None) -> dict[str, pa.Table]:
        """Return a table's rows by each reader. version: None for the newest."""

    @abstractmethod
    def read_batches(self) -> pa.Table | None:
        """Return the table of batches; None if it is not there yet."""

    @abstractmethod
    def disturb(self, choose: random.Random, name: str) -> str:
        """Run one statement of maintenance on a table; return what it was."""

    @abstractmethod
    def delete_extra(self, number: int) -> None:
        """Delete a row of the table that is another program's too."""

    @abstractmethod
    def clean(self, name: str) -> None:
        """Remove the files that no kept version has, while no loader runs."""


class DeltaKind(Kind):
    """Delta, read by delta-rs and polars."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self.url = f"delta+file://{folder}"

    def _path(self, schema: str, name: str) -> str:
        return str(self._folder / schema / name)

    def read(self, name: str, version: int | None = None) -> dict[str, pa.Table]:
        path = self._path("public", name)
        frame = polars.scan_delta(path, version=version)
        rows = _query(DeltaTable(path, version=version))
        return {"delta-rs": rows, "polars": frame.collect().to_arrow()}

    def read_batches(self) -> pa.Table | None:
        try:
            return _query(DeltaTable(self._path("penstock", "batches")))
        except TableNotFoundError:
            return None

    def _sql(self, text: str) -> None:
        self._session.spark.sql(text).collect()

    def disturb(self, choose: random.Random, name: str) -> str:
        table = f"delta.`{self._path('public', name)}`"
        what = choose.choice(("optimize", "vacuum", "delete nothing"))
        if what == "delete nothing":
            self._sql(f"delete from {table} where 1 = 0")
        else:
            self._sql(f"{what} {table}")
        return what

    def delete_extra(self, number: int) -> None:
        self._sql(f"delete from delta.`{self._path('public', EXTRA)}` where id = {number}")

    def clean(self, name: str) -> None:
        self._sql(f"vacuum delta.`{self._path('public', name)}` retain 0 hours")


class IcebergKind(Kind):
    """Iceberg, read by pyiceberg and polars."""

    def __init__(self, session: Session, folder: Path, version: int) -> None:
        self._session = session
        self._folder = folder
        self._place = hadoop_place(folder)
        self._place.register(session)
        self.url = self._place.url(version)

    def _open(self, schema: str, name: str) -> StaticTable | None:
        metadata = self._folder / self._place.namespace / schema / name / "metadata"
        hint = metadata / "version-hint.text"
        if not hint.exists():
            return None
        number = int(hint.read_text())
        while (metadata / f"v{number + 1}.metadata.json").exists():
            number += 1  # the hint follows the commit
        return StaticTable.from_metadata(f"file://{metadata}/v{number}.metadata.json")

    def read(self, name: str, version: int | None = None) -> dict[str, pa.Table]:
        table = self._open("public", name)
        assert table is not None, name
        frame = polars.scan_iceberg(table, snapshot_id=version, reader_override="native")
        return {
            "pyiceberg": table.scan(snapshot_id=version).to_arrow(),
            "polars": frame.collect().to_arrow(),
        }

    def read_batches(self) -> pa.Table | None:
        table = self._open("penstock", "batches")
        return None if table is None else table.scan().to_arrow()

    def _sql(self, text: str) -> None:
        self._session.spark.sql(text).collect()

    def _table(self, name: str) -> str:
        return f"{self._place.name}.{self._place.namespace}.public.{name}"

    def _call(self, what: str, name: str, more: str = "") -> None:
        table = self._table(name).removeprefix(f"{self._place.name}.")
        self._sql(f"call {self._place.name}.system.{what}(table => '{table}'{more})")

    def disturb(self, choose: random.Random, name: str) -> str:
        what = choose.choice(("rewrite_data_files", "expire_snapshots", "delete nothing"))
        if what == "delete nothing":
            self._sql(f"delete from {self._table(name)} where 1 = 0")
        elif what == "expire_snapshots":
            self._call(what, name)
        else:
            self._call(what, name, ", options => map('rewrite-all', 'true')")
        return what

    def delete_extra(self, number: int) -> None:
        self._sql(f"delete from {self._table(EXTRA)} where id = {number}")

    def clean(self, name: str) -> None:
        self._call("expire_snapshots", name, ", older_than => now(), retain_last => 1")


def make_kind(kind: str, session: Session, folder: Path) -> Kind:
    """Return a lake. kind: `delta`, `iceberg-3` or `iceberg-2`."""
    if kind == "delta":
        return DeltaKind(session, folder)
    return IcebergKind(session, folder, int(kind.partition("-")[2]))


def _query(table: DeltaTable) -> pa.Table:
    return pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all())


class Teller:
    """Workload beside the bank's: tills that are opened and closed, new columns, empty tables."""

    def __init__(self, url: str, seed: int) -> None:
        """Create its tables."""
        self._url = url
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._error: BaseException | None = None
        self._wanted: list[str] = []
        self._columns = 0
        self._extra = 1000
        self._till = 1000
        with psycopg.connect(url, autocommit=True) as sql:
            for statement in SCHEMA:
                sql.execute(statement)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End. Raises the error of the work."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def truncate(self) -> None:
        """Empty a table without a key soon."""
        self._wanted.append("truncate journal")

    def add_column(self) -> bool:
        """Add a column with a value for existing rows soon; return False if there are enough."""
        if self._columns >= COLUMNS_MAX:
            return False
        self._columns += 1
        table = ("vault", "account", "till", "transfer")[self._columns % 4]
        column = f"more_{self._columns}"
        self._wanted.append(f"alter table {table} add column {column} int default {self._columns}")
        return True

    def _work(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as sql:
                while not self._stop.wait(PAUSE_S * 2):
                    if self._wanted:
                        sql.execute(self._wanted.pop(0))  # type: ignore[arg-type]
                    with sql.transaction():
                        self._transact(sql)
        except BaseException as error:
            self._error = error

    def _transact(self, sql: psycopg.Connection) -> None:
        roll, amount = self._random.random(), self._random.randint(1, 9)
        account = self._random.randint(1, 200)
        pick = "(select id from till order by random() limit 1 for update)"
        if roll < 0.3:  # money goes to a new row
            self._till += 1
            sql.execute(
                "update account set balance = balance - %s where id = %s", (amount, account)
            )
            sql.execute("insert into till values (%s, 'new', %s)", (self._till, amount))
        elif roll < 0.55:  # a row goes, and its money comes back
            sql.execute(
                f"with gone as (delete from till where id in {pick} returning amount) "
                "update account set balance = balance + coalesce((select sum(amount) from gone), 0)"
                " where id = %s",
                (account,),
            )
        elif roll < 0.7:  # a row gets another key
            self._till += 1
            sql.execute(f"update till set id = %s where id in {pick}", (self._till,))
        elif roll < 0.9:
            vault = 1 + account % 5
            sql.execute(f"update till set amount = amount + %s where id in {pick}", (amount,))
            sql.execute("update vault set amount = amount - %s where id = %s", (amount, vault))
            # There may be no till at this moment.
            sql.execute(
                "update vault set amount = amount + %s where id = %s and not exists "
                "(select from till)",
                (amount, vault),
            )
        else:
            self._extra += 1
            sql.execute("insert into extra values (%s, %s)", (self._extra, f"note {amount}"))


class Books:
    """Reader of each batch; it records every one that is not as it must be."""

    def __init__(self, kind: Kind) -> None:
        """Keep the lake."""
        self._kind = kind
        self._seen: set[tuple[int, int]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.read_count = 0
        self.wrong: list[str] = []

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End, once all batches that are there now are read."""
        self._stop.set()
        self._thread.join()
        self.look()

    def _work(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:
                self.wrong.append(f"cannot be read: {type(error).__name__}: {error}")
                return

    def look(self) -> None:
        """Read the batches that were not read yet.

        Iceberg removes old metadata files, among them one that a reader may be about to open.
        """
        for _ in range(3):
            with suppress(FileNotFoundError):
                self._look()
                return
        self._look()

    def _look(self) -> None:
        batches = self._kind.read_batches()
        if batches is None:
            return
        rows = sorted(batches.select(["gsn", "applied_at", "versions"]).to_pylist(), key=_gsn)
        for row in rows:
            place = (row["gsn"], row["applied_at"].timestamp())
            if place in self._seen:
                continue
            if row["versions"] is not None:
                self._check(row["gsn"], json.loads(row["versions"]))
            self._seen.add(place)

    def _check(self, gsn: int, versions: dict[str, int]) -> None:
        """Read the tables with money at the versions of a batch."""
        found: dict[str, dict[str, pa.Table]] = {}
        for name in KEYS:
            if f"public.{name}" not in versions:
                self.wrong.append(f"gsn {gsn}: {name} has no version: {versions}")
                return
            found[name] = self._kind.read(name, versions[f"public.{name}"])
        for reader in found["account"]:
            money = sum(pc.sum(found[one][reader][column]).as_py() for one, column in MONEY.items())
            if money != TOTAL:
                self.wrong.append(f"gsn {gsn}, {reader}: {money} in place of {TOTAL}: {versions}")
            for name, key in KEYS.items():
                twice = count_twice(found[name][reader], key)
                if twice:
                    self.wrong.append(f"gsn {gsn}, {reader}: {twice} keys of {name} twice")
        self.read_count += 1


def _gsn(row: dict[str, Any]) -> int:
    return int(row["gsn"])


def count_twice(rows: pa.Table, key: tuple[str, ...]) -> int:
    """Return the number of rows whose key another row has as well."""
    keys = Counter(zip(*(rows[name].to_pylist() for name in key), strict=True))
    return sum(count - 1 for count in keys.values())


class LakeBank:
    """All parts of one history. Leaving the with block kills what still runs."""

    def __init__(
        self, folder: Path, server: Server, session: Session, kind: str, seed: int
    ) -> None:
        """Create the source and the pipeline file. Nothing runs yet."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.seed = seed
        self._session = session
        self.random = random.Random(seed)
        self._stack = ExitStack()
        name = f"bank_{folder.name}_{time.time_ns()}".replace("-", "_")
        server.execute(f"create database {name}")
        self.source_url = server.url(name)
        self.kind = make_kind(kind, session, folder / "lake")
        self.bank = Bank(self.source_url, seed, pause_s=PAUSE_S)
        self.teller = Teller(self.source_url, seed)
        self._sections: dict[str, dict[str, Any]] = {
            "target": {"batchSeconds": 0.2},
            "changeExtractor": {"flushIntervalSeconds": 0.8, "exitWhenIdle": False},
            "changeLoader": {"maxFilesPerBatch": 40},
            "spark": {"master": "local[2]"},
        }
        self.file = self._write()
        self.extract = Half("extract", self.file)
        self.load = Life(self.file, session)
        self.books = Books(self.kind)
        self._foreign_stop = threading.Event()
        self._loaded = threading.Event()
        self._foreign = threading.Thread(target=self._disturb, daemon=True)
        self.foreign: Counter[str] = Counter()
        self._deleted: set[int] = set()
        self.kill_count = self.refused_count = 0

    def _write(self) -> Path:
        return write_pipeline(
            self.folder,
            self.source_url,
            self.kind.url,
            name="bank",
            directory="bank",
            sections=self._sections,
            file="bank.toml",
        )

    def __enter__(self) -> Self:
        self._stack.callback(self._kill_all)
        self.bank.__enter__()
        self.teller.start()
        self.extract.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        self._foreign_stop.set()
        with suppress(BaseException):
            self.bank.__exit__()
        with suppress(BaseException):
            self.teller.stop()
        for one in (self.extract, self.load):
            if one.running:
                one.kill()
        with suppress(BaseException):
            self._drop_slots()

    def _drop_slots(self) -> None:
        """Drop the slots of this story, whose names the next one on the server needs."""
        mine = "from pg_replication_slots where database = current_database()"
        with psycopg.connect(self.source_url, autocommit=True) as sql:
            sql.execute(f"select pg_terminate_backend(active_pid) {mine} and active".encode())
            while sql.execute(f"select 1 {mine} and active".encode()).fetchone():
                time.sleep(POLL_S)
            sql.execute(f"select pg_drop_replication_slot(slot_name) {mine}".encode())

    # -- waits ---------------------------------------------------------------------------------

    def until(
        self,
        condition: Callable[[], Any],
        what: str,
        *,
        by: str = "extract load",
        pause_s: float = POLL_S,
    ) -> None:
        """Wait for a condition. by: the halves that may not end meanwhile."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not condition():
            self._start_again()
            for half in (self.extract, self.load):
                name = "extract" if half is self.extract else "load"
                said = f"seed {self.seed}: {name} ended: {half.read_output()}"
                assert name not in by or half.running, said
            assert time.monotonic() < deadline, (
                f"seed {self.seed}: not within {READY_TIMEOUT_S:.0f} s: {what}: "
                f"{self.load.read_output()}"
            )
            time.sleep(pause_s)

    def _start_again(self, fault: str = "") -> bool:
        """Start the loader again as `penstock run` does, if it ended because of another one."""
        if self.load.start_count == 0 or self.load.running or not self.load.is_refused:
            return False
        self.refused_count += 1
        self.load.start(fault)
        return True

    def until_loaded(self) -> None:
        """Let the loader finish the bulk load and apply batches, and begin to read the books."""
        self.load.start()
        self.until_batches(2)
        self.load.kill()
        self.books.start()
        self._loaded.set()

    def batch_count(self) -> int:
        """Return the number of batches in the lake."""
        batches = self.kind.read_batches()
        return 0 if batches is None else batches.num_rows

    def until_batches(self, count: int) -> None:
        """Wait for more batches than there are now; the loader must run."""
        goal = self.batch_count() + count
        self.until(lambda: self.batch_count() >= goal, f"{count} more batches", pause_s=LOOK_S)

    def tell(self, number: int, action: str, point: str, outcome: str) -> None:
        """Print a line about a kill."""
        said = {
            "seed": self.seed,
            "number": number,
            "action": action,
            "point": point,
            "outcome": outcome,
            "read": self.books.read_count,
            "foreign": sum(self.foreign.values()),
        }
        say(json.dumps(said))

    # -- kills ---------------------------------------------------------------------------------

    def kill_at(self, point: str, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Start a life that kills itself at `name:nth`; return False if it had to be killed."""
        self.load.start(f"{point}:kill")
        self.kill_count += 1
        deadline = time.monotonic() + timeout_s
        while self._is_alive(f"{point}:kill") and time.monotonic() < deadline:
            assert self.extract.running, self.extract.read_output()
            time.sleep(POLL_S)
        if self.load.running:
            self.load.kill()
            return False
        code = self.load.exit_code
        reached = self.load.has_reached
        assert code == -signal.SIGKILL, f"{point}: ended with {code}: {self.load.read_output()}"
        return reached

    def _is_alive(self, fault: str) -> bool:
        return self.load.running or self._start_again(fault)

    def kill_after(self, seconds: float) -> str:
        """Start a life and kill it after so many seconds; return how it ended."""
        self.load.start()
        time.sleep(seconds)
        assert self.load.running or self.load.is_refused, self.load.read_output()
        self.load.kill()
        self.kill_count += 1
        return "killed"

    def revive(self, point: str, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Pause a loader at `name:nth`, let another one go on, and continue the first.

        Returns how the first one ended: `refused` or `killed`.
        """
        old = self.load
        old.start(f"{point}:sleep=0.5")
        self.kill_count += 1
        deadline = time.monotonic() + timeout_s
        while not old.has_reached:
            assert self._is_alive(f"{point}:sleep=0.5"), old.read_output()
            if time.monotonic() > deadline:
                old.kill()
                return "point not reached"
            time.sleep(POLL_S / 5)
        old.signal(signal.SIGSTOP)
        self.load = Life(self.file, self._session)
        self.load.start(is_second=True)
        self.until_batches(2)
        old.signal(signal.SIGCONT)
        deadline = time.monotonic() + 30.0
        while old.running and time.monotonic() < deadline:
            time.sleep(POLL_S)
        ended = "refused"
        if old.running:
            ended = "killed"
            old.kill()
        if self.load.running:
            self.load.kill()
        return ended

    def resend(self) -> None:
        """Put the rows of a table with money into the log again; the loader replaces its rows."""
        resend(load_config(self.file), [TableName("public", RESENT)])

    def make_expiry_due(self) -> None:
        """Let the next loader find that earlier versions were removed long ago."""
        state = LakeState(Folder(parse_url(self.kind.url).state, {}))
        state.write_upkeep(UpkeepState(expired_us=1, vacuumed_us=1))

    def resync(self) -> None:
        """Request that a table without money is copied again, apart from the others."""
        resync(load_config(self.file), TableName("public", RESYNCED))

    # -- another program -----------------------------------------------------------------------

    def disturb_always(self) -> None:
        """Begin maintenance by another program, in a loop, once the tables are loaded."""
        self._foreign.start()

    def _disturb(self) -> None:
        choose = random.Random(self.seed)
        while not (self._loaded.wait(POLL_S) or self._foreign_stop.is_set()):
            pass
        while not self._foreign_stop.wait(FOREIGN_PAUSE_S):
            name = choose.choice(TABLES)
            what = "delete a row"
            try:
                if choose.random() < 0.25:
                    number = 1 + len(self._deleted)
                    if number <= 30:
                        self.kind.delete_extra(number)
                        self._deleted.add(number)
                else:
                    what = self.kind.disturb(choose, name)
                self.foreign[what] += 1
            except Exception as error:
                # The other program loses against the loader's commit: it is what locks are for.
                self.foreign[f"{what}: {type(error).__name__}"] += 1

    # -- the ending ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise an error if a batch was wrong or a workload failed."""
        self.bank.check()
        assert not self.books.wrong, f"seed {self.seed}: {self.books.wrong[:3]}"

    def finish(self) -> dict[str, int]:
        """Apply everything, and compare all tables with the source; return counts."""
        if not self._loaded.is_set():
            self.until_loaded()
        self._foreign_stop.set()
        if self._foreign.is_alive():
            self._foreign.join()
        self.bank.__exit__()
        self.teller.stop()
        for half in (self.extract, self.load):
            if half.running:
                half.stop(END_TIMEOUT_S)
        self._sections["changeExtractor"] |= {"exitWhenIdle": True, "idleWaitSeconds": 1.0}
        self._write()
        self.extract.start()
        self.load.start()
        assert self.extract.finish(END_TIMEOUT_S) == 0, (
            f"seed {self.seed}: {self.extract.read_output()}"
        )
        while self.load.finish() and self._start_again():
            pass
        assert self.load.exit_code == 0, f"seed {self.seed}: {self.load.read_output()}"
        self.books.stop()
        self.check()
        differing = self.differences()
        assert not differing, f"seed {self.seed}: {differing}"
        for name in TABLES:
            self.kind.clean(name)
        differing = self.differences()
        assert not differing, f"seed {self.seed}: after the clean-up: {differing}"
        return {
            "kills": self.kill_count,
            "batches read": self.books.read_count,
            "foreign": sum(self.foreign.values()),
            "started again": self.refused_count,
        }

    def differences(self) -> list[str]:
        """Return the tables whose rows differ from the source's, for each reader."""
        found = []
        for name in TABLES:
            columns, ours = self._rows_of_source(name)
            for reader, rows in self.kind.read(name).items():
                theirs = sorted(
                    (tuple(row[one] for one in columns) for row in rows.to_pylist()), key=repr
                )
                if ours != theirs:
                    lacking, surplus = (
                        Counter(ours) - Counter(theirs),
                        Counter(theirs) - Counter(ours),
                    )
                    found.append(
                        f"{name} by {reader}: {len(ours)} rows here, {len(theirs)} there; "
                        f"lacking {list(lacking)[:2]}, surplus {list(surplus)[:2]}"[:600]
                    )
        return found

    def _rows_of_source(self, name: str) -> tuple[list[str], Rows]:
        with psycopg.connect(self.source_url) as sql:
            sql.execute("set timezone to 'UTC'")
            where = f" where id <> all(array[{','.join(map(str, sorted(self._deleted)))}]::int[])"
            cursor = sql.execute(f"select * from {name}" + (where if name == EXTRA else ""))  # type: ignore[arg-type]
            columns = [one.name for one in cursor.description or ()]
            return columns, sorted((tuple(row) for row in cursor), key=repr)
