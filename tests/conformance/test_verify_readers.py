"""Requirements of `penstock verify` for every engine, as the source's side and as the target's.

A new engine's part `verify` is complete when these pass. Not here: values of every type, which the
table of types covers (`test_types_across.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.servers.engines import ENGINES, FIRST, SIMULATED, Place, insert, name_in, new_place
from harness.servers.oracle_place import OraclePlace
from harness.servers.oracle_real import RealOraclePlace
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import server_pair, source_tables
from penstock.control.verify.compare import TablePair, TableResult, compare_tables, hasher_for
from penstock.engines.oracle.errors import SnapshotLost
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.target import target_name
from penstock.ports.verify import (
    Hasher,
    Part,
    ReadCancelled,
    TableChangedMeanwhile,
    TableGone,
    VerifyReader,
    verifier_of,
)
from plugins.shared import SharedServers

EVERY = (*ENGINES, *SIMULATED)
SESSIONS = 2
ROWS = 5000
SMALL_PART_BYTES = 4 * 8192  # so a table of ROWS rows has several parts
KEYED = "create table t (id int primary key, v varchar(40))"
# Long enough to be ended by the test, short enough not to stop a test run if it is not ended.
SLOW = "select count(*) /* slow */ from {0} a, {0} b, {0} c where c.{1} <= 40"
STARTED_TIMEOUT_S = 30.0

Open = Callable[..., AbstractContextManager[VerifyReader]]


def pipeline(directory: Path, source: Place, target: Place) -> Config:
    """Return a pipeline between two databases."""
    file = directory / "p.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "conform"
        mode = "data+change"
        directory = "p"
        [source]
        url = "{source.url}"
        tables = ["{source.namespace}.*"]
        [target]
        url = "{target.url}"
        map = {{ {source.namespace} = "{target.namespace}" }}
        """
    )
    return load_config(file)


def open_source(config: Config, **how: Any) -> AbstractContextManager[Any]:
    """Open the source's side of a pipeline, and its point."""
    return verifier_of(config.source.url).open_source(
        config, lambda: source_tables(config), lambda _text: None, sessions=SESSIONS, **how
    )


@dataclass(frozen=True)
class OneSide:
    """A database, and how a reader of it is opened. config: of a pipeline whose source it is.

    role: source or target.
    """

    place: Place
    config: Config
    role: str

    @contextmanager
    def open(self, **how: Any) -> Iterator[VerifyReader]:
        """Open a reader, for a with block."""
        if self.role == "source":
            with open_source(self.config, **how) as (reader, _):
                yield reader
        else:
            verifier = verifier_of(self.place.url)
            with verifier.open_target(self.place.url, sessions=SESSIONS, **how) as reader:
                yield reader

    def parts(self, reader: VerifyReader, table: str = "t") -> tuple[Part, ...]:
        """Return the parts of a table."""
        parts, _ = reader.parts(name_in(self.place, table), self.role)
        return parts

    def quote(self, *names: str) -> str:
        """Return a name that an engine with upper-case names would not find without quotes."""
        return ".".join(f'"{one}"' if has_quotes(self.place) else one for one in names)

    def fetch(self, reader: VerifyReader, part: Part, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a part's rows."""
        listed, table = ", ".join(map(self.quote, columns)), self.quote(*part.relation)
        scn = getattr(reader, "_scn", None)  # of a reader whose statements have their moment
        table += "" if scn is None else f" AS OF SCN {scn}"
        where = part.where or "1 = 1"
        return reader.fetch(f"select {listed} from {table} where {where}", "reading a part")


def has_quotes(place: Place) -> bool:
    """Return whether a place has its names in lower case, against its engine's habit."""
    return isinstance(place, OraclePlace | RealOraclePlace)


SIDES = [(engine, role) for engine in EVERY for role in ("source", "target")]


@pytest.fixture(params=SIDES, ids="-".join)
def side(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[OneSide]:
    """An engine as one of the sides."""
    engine, role = request.param
    with new_place(shared_servers, engine) as place:
        yield OneSide(place, pipeline(tmp_path, place, place), role)


@dataclass(frozen=True)
class BothSides:
    """A source and a target."""

    source: Place
    target: Place
    directory: Path

    def make(self, ddl: str, rows: Sequence[tuple[int | str | None, ...]]) -> None:
        """Create the same table with the same rows on both sides."""
        for place in (self.source, self.target):
            place.run(ddl)
            insert(place, "t", rows)
            place.count_rows("t")

    def compare(self) -> TableResult:
        """Compare all tables, of which there is one."""
        config = pipeline(self.directory, self.source, self.target)
        pairs = [
            TablePair(source=table, target=target_name(table.name, config.target.map))
            for table in source_tables(config)
        ]
        verifier = verifier_of(config.target.url)
        with (
            open_source(config, part_bytes=SMALL_PART_BYTES) as (source, _),
            verifier.open_target(
                config.target.url, sessions=SESSIONS, part_bytes=SMALL_PART_BYTES
            ) as target,
        ):
            [result] = compare_tables(pairs, source, target, servers=server_pair(config))
        return result


PAIRS = sorted({pair for engine in EVERY
                for pair in ((engine, engine), (engine, FIRST), (FIRST, engine))})  # fmt: skip


@pytest.fixture(params=PAIRS, ids="-to-".join)
def both(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[BothSides]:
    """Every engine paired with itself, and with the first one in both directions."""
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(new_place(shared_servers, engine)) for engine in request.param
        )
        yield BothSides(source, target, tmp_path)


# --- one side -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["id int", "id varchar(40)"])
def test_parts_cover_every_row_once(side: OneSide, key: str) -> None:
    """Any key may be used: no row is left out, and none is read twice."""
    side.place.run(f"create table t ({key} primary key, v varchar(40))")
    ids = [i if key == "id int" else f"{i % 7}k{i}" for i in range(ROWS)]
    insert(side.place, "t", [(one, "x" * 30) for one in ids])
    side.place.count_rows("t")
    with side.open(part_bytes=SMALL_PART_BYTES) as reader:
        parts = side.parts(reader)
        assert len(parts) > 1
        found = Counter(one for part in parts for (one,) in side.fetch(reader, part, "id"))
    assert found == Counter(ids)


def test_what_is_written_later_is_not_seen(side: OneSide) -> None:
    """All sessions see the moment at which the reader was opened."""
    side.place.run(KEYED)
    insert(side.place, "t", [(1, "a")])
    with side.open() as reader:
        insert(side.place, "t", [(2, "b")])
        side.place.run("update t set v = 'c' where id = 1")
        [part] = side.parts(reader)
        waiting = [reader.executor.submit(side.fetch, reader, part, "id", "v") for _ in range(4)]
        assert [one.result() for one in waiting] == [[(1, "a")]] * 4


def test_a_dropped_table_is_gone(side: OneSide) -> None:
    """The error names the table and the side, whether it was dropped later or never existed."""
    side.place.run(KEYED)
    with side.open() as reader:
        side.place.run("drop table t")
        for table in ("t", "nothing"):
            name = name_in(side.place, table)
            with pytest.raises(TableGone, match=rf"no table {name} in the {side.role}"):
                side.parts(reader, table)


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "keyless"])
def test_a_truncated_table_is_rewritten(side: OneSide, is_keyed: bool) -> None:
    """The result is an error, not a difference: to the snapshot the table would look empty."""
    if is_keyed:
        side.place.run(KEYED)
    else:
        side.place.make_keyless("t", "id int, v varchar(40)")
    insert(side.place, "t", [(i, "x") for i in range(10)])
    refused = SnapshotLost if has_quotes(side.place) else TableChangedMeanwhile
    said = r"was (altered or )?truncated|table definition has changed"
    with side.open() as reader:
        side.place.truncate("t")
        with pytest.raises(refused, match=said):
            [side.fetch(reader, part, "id") for part in side.parts(reader)]


def test_columns_are_found_by_their_names(side: OneSide) -> None:
    """Names have the engine's own spelling, and each column has a type."""
    side.place.run(KEYED)
    with side.open() as reader:
        types = reader.column_types(name_in(side.place, "t"))
        assert set(types) == {reader.dialect.column_name(name) for name in ("id", "v")}
        assert all(types.values())


def test_readers_of_one_server_share_the_fastest_hash(side: OneSide) -> None:
    """Two readers of one server use its fastest hash; every reader has the shared one."""
    side.place.run(KEYED)
    with side.open() as one, side.open() as other:
        assert Hasher.SHARED in one.hashers()
        assert hasher_for(one, other) is next(iter(one.hashers()))


def slow_query(side: OneSide) -> str:
    """Return SLOW in the side's notation."""
    return SLOW.format(side.quote(*name_in(side.place, "t")), side.quote("id"))


def start_query(side: OneSide, reader: VerifyReader) -> Future[list[tuple[Any, ...]]]:
    """Start a query that would run for long, and wait until it runs."""
    waiting = reader.executor.submit(reader.fetch, slow_query(side), "waiting")
    deadline = time.monotonic() + STARTED_TIMEOUT_S
    while not side.place.is_running("/* slow */"):
        assert time.monotonic() < deadline, "the query did not begin"
        time.sleep(0.01)
    return waiting


def fill_slow(side: OneSide) -> None:
    """Create and fill the table that SLOW reads."""
    side.place.run(KEYED)
    insert(side.place, "t", [(i, None) for i in range(ROWS)])


def test_cancel_ends_queries(side: OneSide) -> None:
    """Queries end that run now."""
    fill_slow(side)
    with side.open() as reader:
        waiting = start_query(side, reader)
        reader.cancel()
        with pytest.raises(PenstockError):
            waiting.result()
        assert not side.place.is_running("/* slow */")


def test_cancel_refuses_later_queries(side: OneSide) -> None:
    """A query that waits for a thread when the others are cancelled does not run."""
    side.place.run(KEYED)
    with side.open() as reader:
        reader.cancel()
        with pytest.raises(ReadCancelled):
            reader.fetch(f"select id from {name_in(side.place, 't')}", "reading")


def test_cancel_before_the_query_is_not_lost(
    side: OneSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query ends whose session was taken before the cancel, and which reaches the server later.

    Servers forget a cancel while no query runs.
    """
    fill_slow(side)
    lend, lent, begins = LentSessions.lend, threading.Event(), threading.Event()

    @contextmanager
    def lend_and_wait(self: LentSessions[Any]) -> Iterator[Any]:
        with lend(self) as session:
            lent.set()
            assert begins.wait(STARTED_TIMEOUT_S)
            yield session

    monkeypatch.setattr(LentSessions, "lend", lend_and_wait)
    with side.open() as reader, ThreadPoolExecutor(1) as other:
        waiting = reader.executor.submit(reader.fetch, slow_query(side), "waiting")
        assert lent.wait(STARTED_TIMEOUT_S)
        cancelling = other.submit(reader.cancel)
        time.sleep(0.5)  # the server gets the first request before the query
        begins.set()
        with pytest.raises(PenstockError):
            waiting.result(STARTED_TIMEOUT_S)
        cancelling.result(STARTED_TIMEOUT_S)
        assert not side.place.is_running("/* slow */")


def test_an_exception_ends_queries(side: OneSide) -> None:
    """Ctrl-C does not wait until a table is read to its end."""
    fill_slow(side)
    with ExitStack() as opened:
        waiting = start_query(side, opened.enter_context(side.open()))
        opened.pop_all().__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(PenstockError):
        waiting.result()


@pytest.mark.parametrize("engine", EVERY)
def test_nothing_is_unread_before_anything_was_captured(
    engine: str, shared_servers: SharedServers, tmp_path: Path
) -> None:
    """A source without captured changes has nothing unread, and it may be nudged."""
    with new_place(shared_servers, engine) as place:
        place.run(KEYED)
        config = pipeline(tmp_path, place, place)
        verifier = verifier_of(place.url)
        with open_source(config) as (_, point):
            assert point.position
            assert point.text
            verifier.nudge(place.url)
            assert verifier.unread(config, point, lambda: source_tables(config), since=0) == ""


# --- both sides -----------------------------------------------------------------------------------


def test_equal_tables_are_equal(both: BothSides) -> None:
    """Tables with NULL, empty and long texts are equal whatever the order of their writes."""
    is_null = has_quotes(both.source) or has_quotes(both.target)  # of an empty text
    texts = (None, None if is_null else "", "x", "a|b", "é", "N")
    both.make(KEYED, [(i, texts[i % len(texts)]) for i in range(ROWS)])
    both.target.run("delete from t where id < 900")
    insert(both.target, "t", [(i, texts[i % len(texts)]) for i in reversed(range(900))])
    result = both.compare()
    assert result.equal
    assert (result.source_rows, result.target_rows) == (ROWS, ROWS)


@pytest.mark.parametrize(
    ("change", "kind", "key"),
    [
        ("update t set v = 'y' where id = {}", "different", ROWS - 1),
        ("delete from t where id = {}", "missing", 0),
        ("insert into t values ({}, 'x')", "surplus", 100_000),
    ],
)
def test_one_row_is_found_and_named(both: BothSides, change: str, kind: str, key: int) -> None:
    """A row at either end of the table is found, too."""
    both.make(KEYED, [(i, "x") for i in range(ROWS)])
    both.target.run(change.format(key))
    result = both.compare()
    assert [(one.kind, one.key) for one in result.named] == [(kind, f"({key})")]
    assert result.missing + result.surplus + result.different == 1


def test_null_and_empty_differ(both: BothSides) -> None:
    """NULL differs from the empty text and from the text that stands for NULL in an image.

    This holds in both directions. On Oracle an empty text is NULL.
    """
    made = {1: None, 2: "", 3: "N", 4: None, 5: ""}
    changed = {**made, 1: "", 2: None, 3: None, 4: "N"}
    both.make(KEYED, list(made.items()))
    for key, value in ((1, "''"), (2, "null"), (3, "null"), (4, "'N'")):
        both.target.run(f"update t set v = {value} where id = {key}")
    result = both.compare()
    assert {(one.kind, one.key) for one in result.named} == {
        ("different", f"({key})")
        for key in made
        if stored_text(both.source, made[key]) != stored_text(both.target, changed[key])
    }


def stored_text(place: Place, text: str | None) -> str | None:
    """Return what a server holds of a text."""
    return (text or None) if place.url.startswith("oracle:") else text


def test_duplicates_without_a_key_are_counted(both: BothSides) -> None:
    """Two missing copies of a row are two missing rows: a pair does not cancel itself out."""
    rows = [(1, None)] * 5 + [(2, "x"), (2, "y")]
    for place, lacking in ((both.source, 0), (both.target, 2)):
        place.make_keyless("t", "a int, v varchar(40)")
        insert(place, "t", rows[lacking:])
    insert(both.target, "t", [(3, "")])
    result = both.compare()
    assert (result.missing, result.surplus, result.different) == (2, 1, 0)
    assert not result.has_key
    assert Counter(one.kind for one in result.named) == {"missing": 2, "surplus": 1}
