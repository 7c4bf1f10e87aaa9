"""A change log that is served: written manually, read through blocks or by a client of the wire."""

from __future__ import annotations

import asyncio
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from harness.pipelines.log import SOURCE, Row, run_of
from penstock.base.held import Holder
from penstock.base.manifest import (
    BaseTable,
    Manifest,
    columns_schema,
    save_manifest,
    write_files,
)
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.scram import Verifier
from penstock.host.state_file import StateFile
from penstock.log import Writer, WriterOptions
from penstock.model import Relation, TableName
from penstock.serve.blocks import Blocks, Place, find_place
from penstock.serve.catalog.answers import Answer, AnswerColumn, Session
from penstock.serve.catalog.catalog import Catalog
from penstock.serve.catalog.publications import Publication, Publications
from penstock.serve.chunks import RowsReader, next_chunk
from penstock.serve.encode import Block, Unsaid, Views, encode
from penstock.serve.forms import Form, PgOutput
from penstock.serve.saved_state import FILE_NAME, SLOTS, SavedState, Shapes
from penstock.serve.server import Server
from penstock.serve.serving import Serving
from penstock.serve.settings import Limits, ServeSettings
from penstock.serve.slots import Retention, SavedSlots, Slots
from penstock.serve.source_log import SourceLog
from penstock.serve.statistics import State
from penstock.serve.welcome import CatalogWelcome

PASSWORD = "pässword"
EVERYTHING = Publication(name="p", oid=20_000, owner="repl", all_tables=True)


class Sent(NamedTuple):
    """A message in XLogData, as a client gets it."""

    kind: str
    position: int
    body: bytes


def parse_messages(data: bytes) -> list[Sent]:
    """Return the messages in a walsender's bytes."""
    found, at = [], 0
    while at < len(data):
        assert data[at : at + 1] == b"d"
        (length,) = struct.unpack_from(">I", data, at + 1)
        body = data[at + 5 : at + 1 + length]
        at += 1 + length
        if body[:1] == b"w":
            start, end, _ = struct.unpack_from(">QQq", body, 1)
            assert start == end
            found.append(Sent(chr(body[25]), start, body[26:]))
    assert at == len(data)
    return found


def write_log(
    directory: Path,
    rows: Sequence[Sequence[Row]],
    *,
    per_flush: int = 1,
    per_segment: int = 1000,
    links: Path | None = None,
) -> None:
    """Write transactions into a log: a flush after so many, a new segment after so many flushes."""
    options = WriterOptions(consumers=links)
    with Writer.open(directory, log_id=None, source=SOURCE, options=options) as writer:
        for flushes, at in enumerate(range(0, len(rows), per_flush), 1):
            batch = [row for group in rows[at : at + per_flush] for row in group]
            writer.write(run_of(batch))
            writer.flush()
            if flushes % per_segment == 0:
                writer.rotate()


def blocks_of(
    log: SourceLog, views: Views, position: int = 0, borders: frozenset[int] = frozenset()
) -> Iterator[tuple[Place, Block]]:
    """Yield every block after an LSN, in the order in which a client gets them."""
    place, head, reader = find_place(log, position), log.head(), RowsReader()
    while place.number < head.number or head.is_open:
        with log.segment(place.number, head) as segment:
            chunk = next_chunk(place.number, segment.entries, place.entry, place.counted, borders)
            if chunk is None:
                if not segment.is_closed or place.number >= head.number:
                    return
                place = Place(number=place.number + 1, entry=0, counted=place.counted)
                continue
            open_trx, unsaid, gsn, position = 0, Unsaid(), place.counted.gsn, 0
            while not position:
                block = encode(
                    segment, chunk, gsn, views, reader=reader, open_trx=open_trx, unsaid=unsaid
                )
                open_trx, unsaid, gsn = block.open_trx, block.unsaid, block.gsn
                position = block.position
                yield place, block
            place = Place(number=place.number, entry=chunk.last, counted=chunk.end)


@dataclass
class Patterns:
    """Answers by the text of a query: instead of the catalogue if a test needs little of it."""

    given: dict[str, Answer] = field(default_factory=dict)

    def split(self, sql: str) -> list[str]:
        """Return one statement, or none."""
        return [sql.strip().rstrip(";")] if sql.strip().strip(";") else []

    def answer(self, statement: str, session: Session) -> Answer:
        """Return the answer that was given for it."""
        word = statement.split()[0].upper()
        if word == "BEGIN":
            session.transaction = "T"
            return Answer(tag="BEGIN")
        if word in ("COMMIT", "ROLLBACK"):
            session.transaction = "I"
            return Answer(tag=word)
        if "set_config" in statement:
            return answer_of([("set_config", 25)], [("",)])
        if word == "SHOW":
            return answer_of([(statement.split()[1], 25)], [("0700",)])
        if statement not in self.given:
            raise Refused("0A000", f"no answer to: {statement}")
        return self.given[statement]

    def prepare(self, sql: str, types: Sequence[int], session: Session) -> Ready:
        """Return a statement with as many parameters as types are given."""
        return Ready(self, sql, tuple(types))


@dataclass
class Ready:
    """A prepared statement of `Patterns`."""

    patterns: Patterns
    sql: str
    parameters: tuple[int, ...]

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Columns of its answer."""
        found = self.patterns.given.get(self.sql)
        return None if found is None else found.columns

    def run(self, values: Sequence[str | None], session: Session) -> Answer:
        """Return its answer."""
        return self.patterns.answer(self.sql, session)


def answer_of(columns: Sequence[tuple[str, int]], rows: Sequence[tuple[Any, ...]]) -> Answer:
    """Return an answer with rows."""
    made = tuple(AnswerColumn(name=name, type_oid=oid) for name, oid in columns)
    return Answer(tag=f"SELECT {len(rows)}", columns=made, rows=list(rows))


class Welcome:
    """Beginning of a session in a test."""

    def __init__(self, patterns: Patterns, version: str) -> None:
        self._patterns, self._version = patterns, version

    def answers(self) -> Patterns:
        """Return the test's answers in place of the catalogue."""
        return self._patterns

    def begin(self, session: Session, parameters: dict[str, str]) -> dict[str, str]:
        """Return the settings to report; those of the start-up packet are ignored."""
        return {
            "server_version": self._version,
            "client_encoding": "UTF8",
            "server_encoding": "UTF8",
            "integer_datetimes": "on",
            "standard_conforming_strings": "on",
            "DateStyle": "ISO, MDY",
            "TimeZone": "UTC",
        }


class Running:
    """A server in its own thread, over a log in a directory.

    Attributes:
        port: Port on which it listens.
    """

    def __init__(
        self,
        root: Path,
        *,
        publications: Publications | None = None,
        patterns: Patterns | None = None,
        settings: ServeSettings | None = None,
        welcome: Any = None,
        version: str = "15.0",
        relations: Sequence[Relation] = (),
    ) -> None:
        """Prepare a server; relations are tables of a real catalogue, instead of patterns, and of a
        base.
        """
        self.root, self.port = root, 0
        self.relations = relations
        self.state = State()
        self.publications = publications or make_publications(EVERYTHING)
        self.patterns = patterns or Patterns()
        self.settings = settings or settings_of()
        self._welcome, self._version = welcome, version
        self.serving: Serving
        self.server: Server
        self.error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="serve", daemon=True)

    def __enter__(self) -> Running:
        """Start, and wait until it listens."""
        self._thread.start()
        assert self._ready.wait(20)
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        """Stop in order."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        log = source_log(self.root)
        state = self.root / "state"
        state.mkdir(exist_ok=True)
        saved = SavedState(state, log_id=log.head().log_id)
        slots = Slots(saved, slots_max=self.settings.limits.slots)
        shapes = Shapes(saved)
        retention = Retention(log, keep_bytes=self.settings.keep_bytes)
        answering = ThreadPoolExecutor(1)
        catalog = None
        if self.relations:
            catalog = await self.loop.run_in_executor(answering, self._catalog, saved)
            shapes.begin(self.relations)
        async with Serving(
            self.settings,
            log,
            slots,
            retention,
            self.publications,
            shapes=shapes,
            table_oid=table_oid,
            answering=answering,
            holder=holder(self.root) if self.relations else None,
        ) as self.serving:
            self.state.of(self.serving)
            welcome = self._welcome or Welcome(self.patterns, self._version)
            if catalog is not None:
                welcome = CatalogWelcome(catalog)
            self.server = Server(self.serving, welcome)
            self.port = await self.server.start("127.0.0.1", 0)
            self._ready.set()
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stop, self.serving.failed], return_when=asyncio.FIRST_COMPLETED)
            if self.serving.failed.done():
                self.serving.failed.result()
            await self.server.stop()

    def _catalog(self, saved: SavedState) -> Catalog:
        dialect = self.settings.dialect
        made = Catalog(saved, database="shop", users=["repl"], state=self.state, dialect=dialect)
        made.set_relations(self.relations)
        return made

    def url(self, database: str = "shop", **more: str) -> str:
        """Return a connection string for libpq."""
        parts = {"host": "127.0.0.1", "port": str(self.port), "user": "repl", "dbname": database}
        return " ".join(f"{k}={v}" for k, v in {**parts, "password": PASSWORD, **more}.items())


def saved_slots(directory: Path) -> SavedSlots | None:
    """Return the slots in a server's state file; None if there is none."""
    saved = StateFile(directory / FILE_NAME, dict[str, Any]).load()
    if saved is None:
        return None
    return SavedState(directory, log_id=saved["log_id"]).load(SLOTS, SavedSlots)


def holder(root: Path) -> Holder:
    """Return the holder of states of the base in `root/base`."""
    links = (root / "cdc" / "base", root / "cdc" / "serve")
    return Holder(root / "base", owner="serve", log=root / "log", links=links)


def write_base(root: Path, rows: Mapping[Relation, Sequence[tuple[Any, ...]]], log_id: str) -> None:
    """Write a base of tables with these rows, at the beginning of the log."""
    tables = {}
    for relation, some in rows.items():
        names = [column.name for column in relation.columns]
        found = [dict(zip(names, row, strict=True)) for row in some]
        tables[relation] = pa.Table.from_pylist(found, schema=columns_schema(relation))
    write_base_tables(root, tables, log_id)


def write_base_tables(root: Path, tables: Mapping[Relation, pa.Table], log_id: str) -> None:
    """Write a base of Arrow's tables."""
    directory = root / "base"
    directory.mkdir(exist_ok=True)
    kept = []
    for relation, table in tables.items():
        files = tuple(write_files(directory, relation, table.to_batches()))
        name = {"schema": relation.schema, "name": relation.name}
        kept.append(BaseTable(**name, relations=(relation,), files=files))
    manifest = Manifest(log_id=log_id, number=1, segment=0, gsn=0, tables=tuple(kept))
    save_manifest(directory, manifest)


def settings_of(**more: Any) -> ServeSettings:
    """Return settings with one user."""
    verifier = Verifier.of(PASSWORD, salt=b"0123456789abcdef", iterations=16)
    return ServeSettings(database="shop", users={"repl": verifier}, **more)


def limits(**more: Any) -> Limits:
    """Return limits that differ from the usual ones."""
    return Limits(**more)


def make_publications(*publications: Publication) -> Publications:
    """Return all publications, from the beginning of the log."""
    found = Publications()
    for one in publications:
        found.change(0, one.name, one)
    return found


def source_log(root: Path) -> SourceLog:
    """Return the log in `root/log` with the server's links in `root/cdc/serve`."""
    return SourceLog(root / "log", root / "cdc" / "serve", extension="ckt")


@contextmanager
def open_source_log(root: Path) -> Iterator[SourceLog]:
    """Open the same log, and close it afterwards."""
    with closing(source_log(root)) as log:
        yield log


def all_blocks(root: Path, views: Views, position: int = 0) -> list[Block]:
    """Return every block after an LSN."""
    with open_source_log(root) as log:
        return [block for _, block in blocks_of(log, views, position)]


def views_of(
    *publications: Publication,
    messages: bool = False,
    form: Form | None = None,
    shapes: Sequence[Relation] = (),
) -> Views:
    """Return the views of publications, over a log of PostgreSQL."""
    by_name = {TableName(one.schema, one.name): one for one in shapes}
    return Views(
        publications or (EVERYTHING,),
        "postgresql",
        form=form or PgOutput(messages=messages),
        last_known=by_name.get,
        table_oid=table_oid,
    )


def table_oid(name: TableName) -> int:
    """Return a number for a table."""
    return 20_000 + zlib.crc32(".".join(name).encode()) % 1_000_000


@contextmanager
def open_blocks(log: SourceLog, *, cache_bytes: int = 1 << 20) -> Iterator[Blocks]:
    """Open blocks with threads of their own."""
    blocks = Blocks(log, cache_bytes=cache_bytes)
    try:
        yield blocks
    finally:
        blocks.close()
