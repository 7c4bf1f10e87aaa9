"""Sources of every kind for the suite of sources: their writers, and the log that must result.

A `Side` takes changes as operations, writes them in its source's language, and records what the log
must contain. Not here: the cases (`tests/conformance/test_sources.py`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.faults.fake_source import FEATURES, Fake, Item
from harness.pipelines.extract import until
from harness.pipelines.pipeline import write_pipeline
from harness.servers.engines import Place
from harness.servers.oracle_place import OraclePlace
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.codec.columns import after_type, before_type, bits
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.run.extract_process import extract_options
from penstock.extract.extractor import Extractor, Outcome
from penstock.extract.report import Ended
from penstock.log import list_segments, open_chain
from penstock.log.layout import load_state
from penstock.log.order import merge_rows
from penstock.model import Marker, MarkerKind, Op, Relation, Run, TableName
from penstock.ports.config import Config
from penstock.ports.source import ExtractOptions, SourceEngine, extraction_of
from toy_engine.store import Row, Shape, Store

WAIT_S = 60.0
QUICK = {"flushIntervalSeconds": 0.2, "idleWaitSeconds": 0.3}
TARGET = "postgresql://unused@localhost/nowhere"  # of the file; no process connects to it
T, U, WIDE, OTHER = "t", "u", "wide", "other"
COLUMNS = {T: ("id", "name", "n"), U: ("id", "n"), WIDE: ("id", "n", "big"), OTHER: ("id", "n")}
Values = dict[str, Any]


# --- changes, and their expected form in the log --------------------------------------------------


@dataclass(frozen=True)
class Insert:
    """A row is inserted; columns that are not given are NULL."""

    table: str
    row: Values


@dataclass(frozen=True)
class Update:
    """The row with this id gets these values, possibly another id."""

    table: str
    id: int
    values: Values


@dataclass(frozen=True)
class Delete:
    """The row with this id is deleted."""

    table: str
    id: int


@dataclass(frozen=True)
class Undone:
    """Changes after a savepoint that are rolled back to it."""

    changes: tuple[Insert | Update | Delete, ...]


Operation = Insert | Update | Delete | Undone


@dataclass(frozen=True)
class Seen:
    """A row change.

    Attributes:
        key: Id of the row before the change.
        row: Row after the change, without unsent values.
    """

    op: str
    table: str
    key: int
    row: Values | None


@dataclass(frozen=True)
class Made:
    """A change with both rows."""

    op: Op
    table: str
    before: Values | None
    after: Values | None

    @property
    def expected_change(self) -> Seen:
        """Change as the log must have it."""
        known = self.before if self.before is not None else self.after
        assert known is not None
        return Seen(chr(self.op), self.table, known["id"], self.after)


class Book:
    """The tables as they must be.

    Attributes:
        rows: Rows by table and id.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Values]] = {table: {} for table in COLUMNS}
        self.columns = dict(COLUMNS)

    def take(self, operation: Insert | Update | Delete) -> Made:
        """Carry out an operation."""
        rows = self.rows[operation.table]
        if isinstance(operation, Insert):
            row: Values = {name: operation.row.get(name) for name in self.columns[operation.table]}
            rows[row["id"]] = row
            return Made(Op.INSERT, operation.table, None, row)
        before = rows.pop(operation.id)
        if isinstance(operation, Delete):
            return Made(Op.DELETE, operation.table, before, None)
        after = {**before, **operation.values}
        rows[after["id"]] = after
        return Made(Op.UPDATE, operation.table, before, after)

    def undone(self, changes: Sequence[Insert | Update | Delete]) -> list[Made]:
        """Return what these changes would have done."""
        other = copy.deepcopy(self)
        return [other.take(change) for change in changes]


class Side:
    """A source with the tables of COLUMNS; OTHER is not captured.

    Attributes:
        expected: Expected content of the log, by transaction.
        features: Features of the source.
        reads_at_point: The bulk load reads all rows at its point; else later, and all changes after
            the point are applied over them.
    """

    features = FEATURES
    reads_at_point = True
    big_size = 10  # length of the texts of a large transaction

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self.book = Book()
        self.expected: list[list[Seen]] = []
        self.patience_s = WAIT_S

    def commit(self, *operations: Operation, unsent: bool = False) -> None:
        """Commit one transaction. unsent: values that do not change are not sent."""
        parts: list[tuple[Operation, list[Made]]] = []
        for one in operations:
            if isinstance(one, Undone):
                parts.append((one, self.book.undone(one.changes)))
            else:
                parts.append((one, [self.book.take(one)]))
        self._write(parts, unsent=unsent)
        seen = [
            m.expected_change for one, made in parts if not isinstance(one, Undone) for m in made
        ]
        if captured := [one for one in seen if one.table != OTHER]:
            self.expected.append(captured)

    def roll_back(self, *operations: Insert | Update | Delete) -> None:
        """Roll back a transaction."""
        self._write([(Undone(operations), self.book.undone(operations))], unsent=False)

    def commit_many(self, count: int) -> None:
        """Commit one transaction with so many rows of WIDE, a power of two times 1000."""
        rows = [{"id": n, "n": 0, "big": "x" * self.big_size} for n in range(1, count + 1)]
        self._write_many(count, rows)
        made = [self.book.take(Insert(WIDE, row)) for row in rows]
        self.expected.append([one.expected_change for one in made])

    def truncate(self, table: str) -> None:
        """Empty a table."""
        self._truncate(table)
        self.book.rows[table].clear()
        self.expected.append([Seen("T", table, 0, None)])

    def add_column(self, table: str, name: str) -> None:
        """Add a column of whole numbers, NULL in the existing rows."""
        self._add_column(table, name)
        self.book.columns[table] = (*self.book.columns[table], name)
        for row in self.book.rows[table].values():
            row[name] = None

    # -- parts of each source ----------------------------------------------------------------

    def _write(self, parts: list[tuple[Operation, list[Made]]], *, unsent: bool) -> None:
        raise NotImplementedError

    def _write_many(self, count: int, rows: list[Values]) -> None:
        self._write(
            [(Insert(WIDE, r), [Made(Op.INSERT, WIDE, None, r)]) for r in rows], unsent=False
        )

    def _truncate(self, table: str) -> None:
        raise NotImplementedError

    def _add_column(self, table: str, name: str) -> None:
        raise NotImplementedError

    def forget_log(self) -> None:
        """Discard everything written so far, even if a reader has not read it."""
        raise NotImplementedError

    def keys(self, pipeline: str) -> dict[str, str]:
        """Return the keys of [changeExtractor] that let two pipelines read this source."""
        del pipeline
        return {}

    def drop_heartbeats(self) -> None:
        """Remove everything of heartbeats at the server outside the database."""


class SqlSide(Side):
    """A database of a real server, which may collect 32 MiB before it sends them."""

    big_size = 6000
    begin, savepoint, undo = "begin", "savepoint here", "rollback to savepoint here"

    def __init__(self, place: Place) -> None:
        super().__init__(place.url, place.namespace)
        self.place = place
        place.run(
            "create table t (id int primary key, name varchar(60), n int)",
            "create table u (id int primary key, n int)",
            "create table other (id int primary key, n int)",
        )
        place.make_wide(WIDE)

    def _write(self, parts: list[tuple[Operation, list[Made]]], *, unsent: bool) -> None:
        lines = [line for one, _ in parts for line in self._statements(one)]
        is_undone = all(isinstance(one, Undone) for one, _ in parts)
        before = self.place.unsent if unsent else ""
        end = "rollback" if is_undone else "commit"
        self.place.run("; ".join([*([before] if before else []), self.begin, *lines, end]))

    def _write_many(self, count: int, rows: list[Values]) -> None:
        lines = [_statement(Insert(WIDE, row)) for row in rows[:1000]]
        made = 1000
        while made < count:
            lines.append(f"insert into wide select id + {made}, n, big from wide order by id")
            made *= 2
        assert made == count
        self.place.run("; ".join([self.begin, *lines, "commit"]))

    def _truncate(self, table: str) -> None:
        self.place.run(f"truncate table {table}")

    def _add_column(self, table: str, name: str) -> None:
        self.place.run(f"alter table {table} add column {name} int")

    def forget_log(self) -> None:
        self.place.forget_log()

    def keys(self, pipeline: str) -> dict[str, str]:
        """Return a slot and a publication on PostgreSQL; other servers need neither."""
        if self.namespace != "public":
            return {}
        return {"replicationSlot": f"conform_{pipeline}", "publication": f"conform_{pipeline}"}

    def drop_heartbeats(self) -> None:
        """Drop the database `wirekite`, which holds the heartbeats on MySQL and MariaDB."""
        self.place.forget_penstock()

    def _statements(self, operation: Operation) -> list[str]:
        if isinstance(operation, Undone):
            inner = map(_statement, operation.changes)
            return [self.savepoint, *inner, self.undo]
        return [_statement(operation)]


class SQLServerSide(SqlSide):
    """A database of a SQL Server, which refuses to truncate a captured table."""

    features = FEATURES - {"truncate"}
    reads_at_point = False
    begin, savepoint = "begin transaction", "save transaction here"
    undo = "rollback transaction here"

    def __init__(self, place: SQLServerPlace) -> None:
        super().__init__(place)
        self._database = place

    def _add_column(self, table: str, name: str) -> None:
        """Add a column and capture the table once more: change tables keep their columns."""
        self.place.run(f"alter table {table} add {name} int")
        self._database.capture(table, f"dbo_{table}_{name}")


class OracleSide(SqlSide):
    """A database of Oracle, in which an empty text is NULL. Changes are made in the model."""

    big_size = 900  # characters that are in the row itself

    def __init__(self, place: OraclePlace) -> None:
        super().__init__(place)
        self._oracle = place

    def commit(self, *operations: Operation, unsent: bool = False) -> None:
        super().commit(*map(_without_empty, operations), unsent=unsent)

    def commit_many(self, count: int) -> None:
        """Commit rows of WIDE; each is an insert with an empty text, and an update with its own."""
        super().commit_many(count)
        rows = [(one, dict(one.row or {})) for one in self.expected.pop()]
        self.expected.append(
            [
                seen
                for one, row in rows
                for seen in (replace(one, row={**row, "big": ""}), replace(one, op="U"))
            ]
        )

    def _write(self, parts: list[tuple[Operation, list[Made]]], *, unsent: bool) -> None:
        transaction = self._oracle.database.begin()
        for one, made in parts:
            if isinstance(one, Undone):
                transaction.savepoint("HERE")
            for change in made:
                self._change(transaction, change)
            if isinstance(one, Undone):
                transaction.rollback_to("HERE")
        if all(isinstance(one, Undone) for one, _ in parts):
            transaction.rollback()
        else:
            transaction.commit()
        self._oracle.database.beat()

    def _change(self, transaction: Any, made: Made) -> None:
        table = self._oracle.table(made.table)
        if made.before is None:
            assert made.after is not None
            transaction.insert(table, made.after)
            return
        row_id = table.keys[(made.before["id"],)]
        if made.after is None:
            transaction.delete(table, row_id)
            return
        changed = {n: v for n, v in made.after.items() if v != made.before[n]}
        transaction.update(table, row_id, changed or {"id": made.after["id"]})

    def _write_many(self, count: int, rows: list[Values]) -> None:
        transaction = self._oracle.database.begin()
        table = self._oracle.table(WIDE)
        for row in rows:
            transaction.insert(table, row)
        transaction.commit()
        self._oracle.database.beat()

    def _add_column(self, table: str, name: str) -> None:
        self.place.run(f"alter table {table} add {name} int")


def _without_empty(operation: Operation) -> Operation:
    if isinstance(operation, Undone):
        changes = tuple(_without_empty(one) for one in operation.changes)
        return Undone(changes)  # type: ignore[arg-type]
    if isinstance(operation, Insert):
        return replace(operation, row={n: v if v != "" else None for n, v in operation.row.items()})
    if isinstance(operation, Update):
        values = {n: v if v != "" else None for n, v in operation.values.items()}
        return replace(operation, values=values)
    return operation


def side_of(place: Place) -> SqlSide:
    """Return the side of a database."""
    if isinstance(place, OraclePlace):
        return OracleSide(place)
    return SQLServerSide(place) if isinstance(place, SQLServerPlace) else SqlSide(place)


def _statement(operation: Insert | Update | Delete) -> str:
    table = operation.table
    if isinstance(operation, Insert):
        names = ", ".join(operation.row)
        values = ", ".join(map(_literal, operation.row.values()))
        return f"insert into {table} ({names}) values ({values})"
    if isinstance(operation, Delete):
        return f"delete from {table} where id = {operation.id}"
    pairs = ", ".join(f"{name} = {_literal(value)}" for name, value in operation.values.items())
    return f"update {table} set {pairs} where id = {operation.id}"


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"'{value}'"


class FakeSide(Side):
    """The engine in memory."""

    def __init__(self, fake: Fake) -> None:
        super().__init__(fake.url, "public")
        self.fake = fake
        self.features = fake.features
        for table in COLUMNS:
            fake.make(TableName("public", table), *_type_columns(COLUMNS[table]))

    def _relation(self, table: str) -> Relation:
        return self.fake.relations[TableName("public", table)]

    def _write(self, parts: list[tuple[Operation, list[Made]]], *, unsent: bool) -> None:
        items = [
            Item(
                op=made.op,
                relation=self._relation(made.table),
                before=made.before if _is_reported(made) else None,
                after=made.after,
                absent=_find_unchanged(made) if unsent else frozenset(),
                undone=isinstance(one, Undone),
            )
            for one, several in parts
            for made in several
        ]
        self.fake.commit(*items)

    def _truncate(self, table: str) -> None:
        self.fake.commit(Item(op=None, relation=self._relation(table)))

    def _add_column(self, table: str, name: str) -> None:
        columns = _type_columns((*self.book.columns[table], name))
        self.fake.make(TableName("public", table), *columns, version=2)

    def forget_log(self) -> None:
        self.fake.oldest = len(self.fake.commits) + 1


def _type_columns(names: Sequence[str]) -> list[tuple[str, str, str]]:
    texts = ("name", "big")
    return [(n, "text", "string") if n in texts else (n, "integer", "int32") for n in names]


def _is_reported(made: Made) -> bool:
    """Return whether there is a before image: for deletes, and if the key changes."""
    if made.before is None or made.after is None:
        return made.op is Op.DELETE
    return bool(made.before["id"] != made.after["id"])


def _find_unchanged(made: Made) -> frozenset[str]:
    before, after = made.before or {}, made.after or {}
    return frozenset(n for n in after if n != "id" and n in before and after[n] == before[n])


class ToySide(Side):
    """A file of the toy engine, which has neither rollbacks nor unsent values."""

    features = frozenset({"truncate", "shape", "elsewhere", "bulk"})

    def __init__(self, store: Store) -> None:
        super().__init__(store.url, "public")
        self.store = store
        for table in COLUMNS:
            self._make(table, COLUMNS[table], 1)

    def _make(self, table: str, names: Sequence[str], version: int) -> None:
        name = TableName("public", table)
        columns = tuple(_type_columns(names))
        self.store.make_table(Shape(table=name, version=version, columns=columns, key=("id",)))

    def _write(self, parts: list[tuple[Operation, list[Made]]], *, unsent: bool) -> None:
        assert not unsent
        done = [m for one, made in parts if not isinstance(one, Undone) for m in made]
        if done:
            self.store.commit(
                *(
                    (
                        made.op.name.lower(),
                        TableName("public", made.table),
                        _texts(made.before) if _is_reported(made) or made.before else None,
                        _texts(made.after),
                    )
                    for made in done
                )
            )

    def _truncate(self, table: str) -> None:
        self.store.commit(("truncate", TableName("public", table), None, None))

    def _add_column(self, table: str, name: str) -> None:
        self._make(table, (*self.book.columns[table], name), 2)


def _texts(row: Values | None) -> Row | None:
    if row is None:
        return None
    return {name: None if value is None else str(value) for name, value in row.items()}


# --- followers ------------------------------------------------------------------------------------


@dataclass
class Follower:
    """A pipeline of mode change over a side, extracted in this process.

    Attributes:
        run_rows: Rows of each run that was written, and whether it ended with a transaction.
    """

    side: Side
    folder: Path
    name: str = "shop"
    run_rows: list[tuple[int, bool]] = field(default_factory=list)
    config: Config = field(init=False)
    engine: Any = None

    def __post_init__(self) -> None:
        """Write the pipeline's file."""
        names = [f"{self.side.namespace}.{table}" for table in (T, U, WIDE)]
        path = write_pipeline(
            self.folder,
            self.side.url,
            TARGET,
            mode="change",
            name=self.name,
            directory=self.name,
            file=f"{self.name}.toml",
            tables=names,
            sections={"changeExtractor": {**QUICK, **self.side.keys(self.name)}},
        )
        self.config = load_config(path)

    def follow(self, stop: Callable[[], bool] = lambda: False, *, idle: bool = True) -> Outcome:
        """Extract until no changes come, or until told to stop."""
        options = replace(extract_options(self.config), exit_when_idle=idle)
        directory = self.config.directory
        with self.open_engine(options, stop) as engine:
            self.engine = _Watched(engine, self.run_rows)
            return Extractor(self.engine, directory, options=options, stop=stop).run()

    def open_engine(
        self, options: ExtractOptions | None = None, stop: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[SourceEngine]:
        """Open the engine, with what it needs at the source."""
        config = self.config
        return extraction_of(config).open_engine(
            pipeline_of(config),
            options or extract_options(config),
            tables=lambda: source_tables(config),
            stop=stop,
        )

    @contextmanager
    def following(self) -> Iterator[threading.Event]:
        """Extract on a thread; setting the yielded event stops it, within the side's patience."""
        stop, ends, errors = threading.Event(), list[Outcome](), list[BaseException]()

        def work() -> None:
            try:
                ends.append(self.follow(stop.is_set, idle=False))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            thread.join(self.side.patience_s)
        assert not thread.is_alive(), "it does not end when it is told to"
        if errors:
            raise errors[0]
        assert [one.ended for one in ends] == [Ended.STOPPED]

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition, as long as the side allows."""
        until(condition, self.side.patience_s)

    def log(self) -> list[tuple[int, int, list[Seen]]]:
        """Return the log's transactions: number, position, changes."""
        found: dict[int, tuple[int, list[Seen]]] = {}
        for segment in open_chain(list_segments(self.config.layout.log)):
            with segment:
                for item in segment.in_order():
                    for trx, seen in _changes(item):
                        told = segment.transactions.find(trx)
                        assert told is not None, f"transaction {trx} has no place"
                        found.setdefault(trx, (told.position, []))[1].append(seen)
        return [(trx, position, seen) for trx, (position, seen) in found.items()]

    def gsns(self) -> list[int]:
        """Return the numbers of the log's rows, in order."""
        found: list[int] = []
        for segment in open_chain(list_segments(self.config.layout.log)):
            with segment:
                found += [gsn for group in merge_rows(segment) for gsn in group.gsns]
        return found

    def heartbeats(self) -> list[int]:
        """Return the times when the log's heartbeats were sent."""
        found: list[int] = []
        for segment in open_chain(list_segments(self.config.layout.log)):
            with segment:
                markers = [one for one in segment.markers() if one.kind is MarkerKind.HEARTBEAT]
                found += [int(one.data["sent_us"]) for one in markers]
        return found

    @property
    def engine_in_log(self) -> str:
        """Engine whose positions the log has, as it says."""
        state = load_state(self.config.layout.log)
        assert state is not None
        return state.source["engine"]

    def read_changes(self) -> list[list[Seen]]:
        """Return only the changes."""
        return [seen for _, _, seen in self.log()]


class _Watched:
    """An engine whose runs are counted."""

    def __init__(self, engine: Any, run_rows: list[tuple[int, bool]]) -> None:
        self._engine = engine
        self._run_rows = run_rows

    def saw(self, run: Run) -> None:
        rows = sum(rows.batch.num_rows for rows in run.rows)
        self._run_rows.append((rows, run.end is not None))
        self._engine.saw(run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _changes(item: Any) -> Iterator[tuple[int, Seen]]:
    """Yield the changes of one item in the log, with its transaction."""
    if isinstance(item, Marker):
        if item.kind is MarkerKind.TRUNCATE:
            for _, table in item.tables:
                yield item.trx, Seen("T", table, 0, None)
        return
    relation, index, batch = item
    row = batch.slice(index, 1)
    op = chr(row.column("op")[0].as_py())
    after = row.column("after").cast(after_type(relation))[0].as_py()
    before = row.column("before").cast(before_type(relation))[0].as_py()
    lacking = {relation.columns[at].name for at in bits(row.column("absent")[0].as_py())}
    kept = None if op == "D" else {n: v for n, v in after.items() if n not in lacking}
    key = (before if before is not None else after)["id"]
    yield row.column("trx")[0].as_py(), Seen(op, relation.name, key, kept)
