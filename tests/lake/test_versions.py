"""`penstock.lake`: all tables at one commit of the source, by every reader and every catalogue.

Money is moved between tables, so their sum is the same at every commit of the source, and nowhere
else. Not here: applying (`test_core_formats.py`), upkeep (`test_expiry.py`).
"""

from __future__ import annotations

import builtins
import gc
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from harness.lake.applying import LakeRun, create_table
from harness.lake.iceberg import Place, hadoop_place, postgres_place, rest_place, sqlite_place
from harness.lake.rest_catalogue import serve_rest_catalogue
from harness.lake.spark import lake_session
from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.pipeline import penstock as penstock_command
from harness.pipelines.pipeline import write_pipeline
from lake.test_iceberg import DRIVER_JARS
from penstock.control.status.lake_view import LakeCommit, NoCommit, TableNotInCommit
from penstock.control.status.log_view import LogTimeInvalid
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.lake import upkeep
from penstock.engines.lake.apply_files import rewrite_groups
from penstock.engines.lake.by_hand import LakeByHand
from penstock.engines.lake.format import Expired, Expiry, LakeFormat
from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS, class_path
from penstock.engines.lake.progress import read_table_facts
from penstock.engines.lake.upkeep import DEFAULT_LIMITS
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import UrlInvalid
from penstock.host.faults import FaultInjected
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.lake import (
    LakeTableUnknown,
    NotALake,
    ReaderFailed,
    ReaderMissing,
    UpkeepRefused,
    VersionExpired,
)
from plugins.postgres import first_server, versions
from plugins.shared import SharedServers, SharedSpark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    # py4j closes the connection of a thread that has ended only when it is collected.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

TABLES = ("bank.people", "bank.shops", "bank.funds")
ACCOUNTS, FIRST = 20, 1_000
TOTAL = len(TABLES) * ACCOUNTS * FIRST
ROUNDS = 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats and the drivers of catalogues."""
    shared_spark.close()
    jars = [class_path((*DELTA_JARS, *ICEBERG_JARS)), *map(str, DRIVER_JARS)]
    conf = {"spark.driver.extraClassPath": ":".join(jars)}
    with lake_session(tmp_path_factory.mktemp("spark"), conf, master="local[2]") as running:
        yield running


class Bank:
    """Source whose transactions move money between its tables, and the lake that follows it.

    Attributes:
        balances: By the number of a transaction the money of each table after it.
    """

    def __init__(
        self, folder: Path, session: Session, table_format: LakeFormat, place: Place | None
    ) -> None:
        """Create the tables, and apply a first batch that fills them."""
        self.session = session
        self.lake = folder / "lake"
        self.url = place.url() if place else f"delta+file://{self.lake}"
        self.place = place
        self.table_format = table_format
        if place is not None:
            place.register(session)
        self._folder = folder / "log"
        self._folder.mkdir()
        self.log = LogMaker(self._folder)
        self._random = random.Random(5)
        self._shapes = {
            name: relation(
                ("id", "bigint", "int64"),
                ("money", "bigint", "int64"),
                schema="bank",
                name=name.partition(".")[2],
            )
            for name in TABLES
        }
        self._money = {(name, id_): FIRST for name in TABLES for id_ in range(ACCOUNTS)}
        self.balances: dict[int, dict[str, int]] = {}
        catalogue = table_format.open(self.url, session, {})
        for shape in self._shapes.values():
            create_table(catalogue, shape)
        self._commit(
            (self._shapes[name], Change(op="I", gsn=0, after=(id_, FIRST)))
            for name, id_ in self._money
        )
        self.run = self.connect()
        self.run.run()

    def close(self) -> None:
        """End the loader, and the writer of the log."""
        self.run.close()
        self.log.writer.close()

    def connect(self) -> LakeRun:
        """Return a new loader."""
        return LakeRun(self.table_format, self.url, self._folder, jobs=self.session)

    def _commit(self, changes: Any) -> None:
        self.log.transaction(*changes)
        self.log.close_segment()
        balance = dict.fromkeys(TABLES, 0)
        for (name, _), money in self._money.items():
            balance[name] += money
        self.balances[self.log.trx] = balance

    def transfer(self) -> None:
        """Move money from one table to another in one transaction."""
        giving, taking = self._random.sample(TABLES, 2)
        amount = self._random.randint(1, 900)
        changed = []
        for name, signed in ((giving, -amount), (taking, amount)):
            key = (name, self._random.randrange(ACCOUNTS))
            self._money[key] += signed
            row = (key[1], self._money[key])
            changed.append((self._shapes[name], Change(op="U", gsn=0, after=row)))
        self._commit(changed)

    def cut_short(self) -> None:
        """Apply batches until one is killed after a table's commit, and drop the loader."""
        with faults.arming("lake.commit.before:2:error"), pytest.raises(FaultInjected):
            self.run.run(files_max=1)
        self.run.kill()

    def go_on(self) -> None:
        """Let another loader apply all that is left."""
        self.run = self.connect()
        self.run.run(files_max=2)

    def sum_of_newest(self) -> int:
        """Return the money in the newest versions, as a reader sees it who asks for no commit."""
        catalogue = self.table_format.open(self.url, self.session, {})
        newest: dict[str, int] = {}
        for name in TABLES:
            table = catalogue.find(TableName(*name.split(".")))
            assert table is not None
            newest[name] = table.snapshot(refresh=True).version
        found = penstock.lake(self.url).at_commit()
        # The same reader, at other versions: the difference is not the reader's.
        other = LakeCommit(
            versions=newest,
            gsn=0,
            trx=0,
            position=0,
            commit_time=None,
            _reader=found._reader,
        )
        return sum(sum(other.arrow(name)["money"].to_pylist()) for name in TABLES)


MakeBank = Callable[[str], Bank]


@pytest.fixture
def make_bank(
    session: Session, tmp_path: Path, shared_servers: SharedServers
) -> Iterator[MakeBank]:
    """Function that makes a bank in a catalogue of this kind."""
    with ExitStack() as stack:

        def make(kind: str) -> Bank:
            warehouse = tmp_path / "lake"
            if kind == "delta":
                bank = Bank(tmp_path, session, DELTA, None)
                stack.callback(bank.close)
                return bank
            if kind == "sqlite":
                place = sqlite_place(tmp_path)
            elif kind == "rest":
                uri = stack.enter_context(serve_rest_catalogue(session, warehouse))
                place = rest_place(warehouse, uri)
            elif kind == "postgres":
                server = first_server(shared_servers, versions()[-1])
                place = postgres_place(tmp_path, server.make_database("iceberg"))
            else:
                place = hadoop_place(warehouse)
            bank = Bank(tmp_path, session, ICEBERG, place)
            stack.callback(bank.close)
            return bank

        yield make


def spark_of(session: Session) -> SparkSession:
    """Return a user's session."""
    return SparkSession(session._context, session.spark)


def money_by_spark(commit: LakeCommit, name: str, spark: SparkSession) -> list[int]:
    """Return the money of a table as Spark reads it, in order of the accounts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves a socket to its collector
        rows = commit.table(name, spark).orderBy("id").toArrow()
        gc.collect()
        return rows["money"].to_pylist()


def check(commit: LakeCommit, bank: Bank, spark: SparkSession | None = None) -> None:
    """Compare the tables at a commit with the source at its transaction."""
    total = 0
    for name in TABLES:
        rows = commit.arrow(name).sort_by("id")
        money = rows["money"].to_pylist()
        assert rows["id"].to_pylist() == list(range(ACCOUNTS))
        assert sum(money) == bank.balances[commit.trx][name], (commit, name)
        total += sum(money)
        if spark is not None:
            assert money_by_spark(commit, name, spark) == money
    assert total == TOTAL


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_sum_is_the_same_at_every_commit(make_bank: MakeBank, kind: str) -> None:
    """Read while batches are cut short between two tables: the newest versions differ then."""
    bank = make_bank(kind)
    spark, torn = spark_of(bank.session), 0
    lake = penstock.lake(bank.url)
    check(lake.at_commit(), bank, spark)
    for number in range(ROUNDS):
        bank.transfer()
        bank.transfer()
        bank.cut_short()
        torn += bank.sum_of_newest() != TOTAL
        check(lake.at_commit(), bank, spark if number == 1 else None)
        bank.go_on()
        commit = lake.at_commit()
        assert commit.trx == bank.log.trx
        check(commit, bank)
    assert torn
    bank.run.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_commit_is_found_by_its_time(make_bank: MakeBank, kind: str) -> None:
    """Name a time, by text and by datetime; the commit time of a transaction is its number."""
    bank = make_bank(kind)
    for _ in range(4):
        bank.transfer()
        bank.run.run()
    lake = penstock.lake(bank.url)
    for trx in range(1, bank.log.trx + 1):
        moment = EPOCH + timedelta(microseconds=trx)
        commit = lake.at_commit(before=moment)
        assert (commit.trx, commit.commit_time) == (trx, moment)
        assert lake.at_commit(moment.isoformat()) == commit
        check(commit, bank)
    assert lake.at_commit("2999-01-01T00:00:00Z").trx == bank.log.trx
    with pytest.raises(NoCommit, match="the earliest is at 1970-01-01"):
        lake.at_commit(before=EPOCH)
    with pytest.raises(LogTimeInvalid, match="no time zone"):
        lake.at_commit(before="2026-11-27T12:00")
    bank.run.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_are_read_at_the_commit_that_was_chosen(make_bank: MakeBank, kind: str) -> None:
    """Apply batches between the reads of two tables; choose again."""
    bank = make_bank(kind)
    lake, spark = penstock.lake(bank.url), spark_of(bank.session)
    first = sum(lake.arrow(TABLES[0])["money"].to_pylist())
    for _ in range(3):
        bank.transfer()
        bank.run.run()
    rest = [sum(money_by_spark(lake, name, spark)) for name in TABLES[1:]]
    assert first + sum(rest) == TOTAL
    assert first == bank.balances[1][TABLES[0]]
    lake.at_commit()
    assert sum(lake.arrow(TABLES[0])["money"].to_pylist()) == bank.balances[4][TABLES[0]]
    bank.run.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
def test_other_catalogues_are_read_too(make_bank: MakeBank, kind: str) -> None:
    """Read without Spark and with it, without a library for the table of batches."""
    bank = make_bank(kind)
    bank.transfer()
    bank.cut_short()
    spark = spark_of(bank.session)
    lake = penstock.lake(bank.url)
    commit = lake.at_commit()
    assert commit.trx == 1
    check(commit, bank, spark)
    assert lake.at_commit(session=spark) == commit
    bank.go_on()
    assert lake.at_commit(session=spark).trx == lake.at_commit().trx == 2
    check(lake.at_commit(), bank, spark)
    bank.run.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_pipeline_file_and_a_bare_url_name_the_lake(
    make_bank: MakeBank, kind: str, tmp_path: Path
) -> None:
    """Open the lake by the file, and by its URL with the catalogue's properties beside it."""
    bank = make_bank(kind)
    conf: dict[str, str] = {}
    url = bank.url
    if bank.place is not None:
        url = f"iceberg://{bank.place.name}/{bank.place.namespace}"
        conf = {
            f"spark.sql.catalog.{bank.place.name}.type": "hadoop",
            f"spark.sql.catalog.{bank.place.name}.warehouse": str(bank.lake),
        }
    path = write_pipeline(
        tmp_path, "postgresql://u@nowhere:1/d", url, sections={"spark.conf": conf}
    )
    for lake in (penstock.lake(path), penstock.lake(str(path)), penstock.lake(url, conf=conf)):
        check(lake.at_commit(), bank)
    assert bank.lake.name in repr(penstock.lake(path)) or bank.place
    if bank.place is not None:
        with pytest.raises(UrlInvalid, match="no properties of the catalogue"):
            penstock.lake(url)
    bank.run.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_errors_name_the_next_step(
    make_bank: MakeBank, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ask for a table that is not there, without the library, and for a version that is gone."""
    bank = make_bank(kind)
    bank.transfer()
    bank.run.run()
    bank.run.close()
    commit = penstock.lake(bank.url).at_commit()
    spark = spark_of(bank.session)
    with pytest.raises(TableNotInCommit, match=r"bank\.funds, bank\.people, bank\.shops"):
        commit.arrow("people")
    with pytest.raises(TableNotInCommit):
        commit.table("bank.nobody", spark)
    wrong = LakeCommit(
        versions={TABLES[0]: 12_345},
        gsn=0,
        trx=0,
        position=0,
        commit_time=None,
        _reader=commit._reader,
    )
    with pytest.raises(VersionExpired, match=r"bank\.people at"):
        wrong.arrow(TABLES[0])
    with pytest.raises(VersionExpired, match=r"bank\.people at"):
        wrong.table(TABLES[0], spark).count()
    true_import = builtins.__import__

    def refuse(name: str, *more: Any, **how: Any) -> Any:
        if name.partition(".")[0] in ("deltalake", "pyiceberg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return true_import(name, *more, **how)

    monkeypatch.setattr("penstock.engines.lake.versions.import_module", lambda name: refuse(name))
    with pytest.raises(ReaderMissing, match="is not installed") as missing:
        penstock.lake(bank.url).at_commit()
    assert "pip install" in missing.value.hint
    assert penstock.lake(bank.url).at_commit(session=spark) == commit
    monkeypatch.undo()
    for file in bank.lake.rglob("bank/people/**/*.parquet"):
        file.unlink()
    with pytest.raises(VersionExpired, match="it was removed"):
        commit.arrow(TABLES[0])
    shutil.rmtree(bank.lake)
    with pytest.raises(NoCommit, match=r"no table penstock\.batches"):
        penstock.lake(bank.url).at_commit()
    with pytest.raises(NoCommit, match=r"no table penstock\.batches"):
        penstock.lake(bank.url).at_commit(session=spark)


def set_property(bank: Bank, name: str, value: str) -> None:
    """Set a property of all tables, as another program does."""
    for table in TABLES:
        where = f"delta.`{bank.lake}/{table.replace('.', '/')}`"
        if bank.place is not None:
            where = f"{bank.place.name}.{bank.place.namespace}.{table}"
        bank.session.spark.sql(
            f"alter table {where} set tblproperties ('{name}' = '{value}')"
        ).collect()


def expire_all(
    bank: Bank, commit: LakeCommit, *, files_before_s: float | None = None
) -> list[Expired]:
    """Remove all versions before a commit, whatever their age.

    files_before_s: Seconds from now until which files that were removed go; None: none go.
    """
    catalogue = bank.table_format.open(bank.url, bank.session, {})
    later_us = REAL_CLOCK.now_us() + 3_600_000_000
    done = []
    for name in TABLES:
        table = catalogue.find(TableName(*name.split(".")))
        assert table is not None
        table.snapshot()
        count = table.version_count
        expiry = Expiry(
            before_us=later_us,
            keeps=frozenset({commit.versions[name]}),
            files_before_us=None
            if files_before_s is None
            else REAL_CLOCK.now_us() + int(files_before_s * 1e6),
        )
        done.append(table.expire(expiry))
        assert table.version_count == count - done[-1].version_count
    return done


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_older_versions_are_removed_and_the_others_are_read(make_bank: MakeBank, kind: str) -> None:
    """Remove the versions before a commit; read it and later ones; go on with the same loader."""
    bank = make_bank(kind)
    if kind == "delta":
        set_property(bank, "delta.checkpointInterval", "3")
    else:
        set_property(bank, "history.expire.min-snapshots-to-keep", "1")
    lake = penstock.lake(bank.url)
    oldest = lake.at_commit()
    commits = []
    for _ in range(12):
        bank.transfer()
        bank.run.run()
        commits.append(lake.at_commit())
    middle = commits[8]
    done = expire_all(bank, middle)
    assert all(one.version_count for one in done)
    for commit in commits[8:]:
        check(commit, bank)
    for name in TABLES:
        with pytest.raises(VersionExpired):
            oldest.arrow(name)
    bank.transfer()
    bank.run.run()
    check(lake.at_commit(), bank)
    if kind == "delta":
        check_files_go(bank, lake.at_commit(), middle)
    bank.run.close()


def is_readable(commit: LakeCommit, name: str) -> bool:
    """Return whether a table can be read at a commit."""
    try:
        commit.arrow(name)
    except VersionExpired:
        return False
    return True


def check_files_go(bank: Bank, newest: LakeCommit, middle: LakeCommit) -> None:
    """Delete the files that only older versions have; those of the newest stay."""
    young = expire_all(bank, newest, files_before_s=-3600)
    assert not sum(one.file_count for one in young)
    done = expire_all(bank, newest, files_before_s=3600)
    assert sum(one.file_count for one in done)
    check(newest, bank)
    assert any(not is_readable(middle, name) for name in TABLES)
    catalogue = bank.table_format.open(bank.url, bank.session, {})
    for name in TABLES:
        table = catalogue.find(TableName(*name.split(".")))
        assert table is not None
        live = {Path(file.location).name for file in table.snapshot().files}
        assert {path.name for path in Path(table.location).glob("*.parquet")} == live
    bank.transfer()
    bank.run.run()
    check(penstock.lake(bank.url).at_commit(), bank)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_upkeep_by_hand_beside_a_loader(
    make_bank: MakeBank, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look at the tables, join their files and remove versions between two batches of a loader."""
    bank = make_bank(kind)
    bank.run.engine._limits = bank.run.target._limits = replace(DEFAULT_LIMITS, count=99)
    for _ in range(4):
        bank.transfer()
        bank.run.run()
    by_hand = LakeByHand(bank.table_format)
    monkeypatch.setattr(
        "penstock.engines.lake.by_hand.open_java", lambda *_: nullcontext(bank.session)
    )
    before = by_hand.read_tables(bank.url)
    written = read_table_facts(bank.url)
    assert {*TABLES, "penstock.batches"} == before.keys()
    for name in TABLES:
        assert before[name].rows - before[name].dead_rows == ACCOUNTS
        assert replace(written[name], read_us=0) == replace(before[name], read_us=0)
    lake = penstock.lake(bank.url)
    commits = [lake.at_commit()]
    replaced = dict(by_hand.compact(bank.url, ()))
    assert {str(name) for name in replaced} == set(TABLES)
    assert sum(replaced.values())
    after = by_hand.read_tables(bank.url)
    assert all((after[name].files, after[name].dead_rows) == (1, 0) for name in TABLES)
    check(lake.at_commit(), bank)
    bank.transfer()
    bank.run.run()  # its keys were looked up in files that are gone
    commits.append(lake.at_commit())
    done = list(by_hand.expire(bank.url, (), 24.0))
    assert len(done) == len(TABLES) + 1
    assert not any(files for _, _, files, _ in done)
    for commit in commits:
        check(commit, bank)
    with pytest.raises(LakeTableUnknown, match=r"bank\.nobody"):
        list(by_hand.compact(bank.url, (TableName("bank", "nobody"),)))
    assert by_hand.refuse_beside("delta+s3://bucket/lake")
    assert not by_hand.refuse_beside(bank.url)
    bank.run.close()


def test_a_compaction_that_is_always_slower_ends_by_name(
    make_bank: MakeBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the loader commit before each attempt's commit."""
    bank = make_bank("delta")
    bank.run.target._limits = replace(DEFAULT_LIMITS, count=99)
    by_hand = LakeByHand(bank.table_format)
    monkeypatch.setattr(
        "penstock.engines.lake.by_hand.open_java", lambda *_: nullcontext(bank.session)
    )
    bank.transfer()
    bank.run.run()
    true_rewrite = rewrite_groups

    def rewrite(*given: Any, **how: Any) -> Any:
        files = true_rewrite(*given, **how)
        for _ in range(3):
            bank.transfer()
        bank.run.run()
        return files

    monkeypatch.setattr(upkeep, "rewrite_groups", rewrite)
    monkeypatch.setattr("penstock.engines.lake.by_hand.ATTEMPTS_MAX", 2)
    with pytest.raises(UpkeepRefused, match="another writer was faster 2 times"):
        list(by_hand.compact(bank.url, ()))
    monkeypatch.undo()
    check(penstock.lake(bank.url).at_commit(), bank)
    bank.run.close()


def test_the_command_shows_the_lake(make_bank: MakeBank, tmp_path: Path) -> None:
    """Run `penstock lake status`, whose Java is its own."""
    bank = make_bank("delta")
    bank.run.close()
    path = write_pipeline(tmp_path, "postgresql://u@nowhere:1/d", bank.url)
    shown = penstock_command("lake", "status", path, "--json", timeout_s=900.0)
    assert shown.code == 0, shown.err
    tables = shown.result["tables"]
    assert {name: tables[name]["rows"] for name in TABLES} == dict.fromkeys(TABLES, ACCOUNTS)
    refused = penstock_command("lake", "expire", path, "--hours", "3", timeout_s=900.0)
    assert refused.code == 2


def test_a_database_is_no_lake(tmp_path: Path) -> None:
    """Name targets that keep no versions."""
    path = write_pipeline(tmp_path, "postgresql://u@h/a", "postgresql://u@h/b")
    for place in (path, "postgresql://u@h/b"):
        with pytest.raises(NotALake, match="PostgreSQL"):
            penstock.lake(place)


def test_a_warehouse_that_only_spark_reaches_is_named() -> None:
    """Refuse a warehouse on HDFS without a session."""
    conf = {
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "hdfs://name/lake",
    }
    with pytest.raises(ReaderFailed, match="with Spark only"):
        penstock.lake("iceberg://ice/shop", conf=conf).at_commit()
