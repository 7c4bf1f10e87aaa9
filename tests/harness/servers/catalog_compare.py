"""A real server and the served catalogue side by side: the same tables, the same queries."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from harness.servers.catalog_tables import NAMES, TABLES, publications, relations_of
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.answers import Answer, ConnectionRow, SenderRow, Session, SlotRow
from penstock.serve.catalog.catalog import Catalog, split
from penstock.serve.saved_state import SavedState

QUERIES = Path(__file__).resolve().parents[2] / "data/catalog/queries.jsonl"
_PLACE = re.compile(
    r"\{((?:table|index|schema|publication|constraint|type|member) [^{}]*|database)\}"
)
_OIDS = (26, 2205, 28)


class FixedState:
    """A server where nothing happens."""

    def __init__(self) -> None:
        self.slot_rows: list[SlotRow] = []
        self.sender_rows: list[SenderRow] = []
        self.connection_rows: list[ConnectionRow] = []
        self.lsn = 0x1000028

    def slots(self) -> Sequence[SlotRow]:
        return self.slot_rows

    def senders(self) -> Sequence[SenderRow]:
        return self.sender_rows

    def connections(self) -> Sequence[ConnectionRow]:
        return self.connection_rows

    def position(self) -> int:
        return self.lsn

    def transaction_id(self) -> int:
        return 800

    def now_us(self) -> int:
        return 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer, with oids of the tests' objects as names, and sorted rows."""

    columns: tuple[tuple[str, int, int], ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One recorded statement."""

    client: str
    server: int
    sql: str
    parameters: tuple[str | None, ...]


def questions(version: int, client: str = "") -> list[Question]:
    """Return the queries that clients sent to a server of this version."""
    found = []
    for line in QUERIES.read_text(encoding="utf-8").splitlines():
        sql, parameters, clients = json.loads(line)
        found += [
            Question(name, version, sql, tuple(parameters))
            for name, servers in clients.items()
            if version in servers and name.startswith(client)
        ]
    return found


class Pair:
    """Both servers, with the same tables and publications."""

    def __init__(self, url: str, directory: Path, version: int) -> None:
        """Create the tables in an empty database; directory is for the catalogue's state."""
        self.version = version
        self.state = FixedState()
        self.real = psycopg.connect(
            url, autocommit=True, cursor_factory=psycopg.RawCursor, prepare_threshold=None
        )
        self.real.execute(TABLES)
        self.database = self.real.info.dbname
        self.catalog = Catalog(
            SavedState(directory, log_id="a"),
            database=self.database,
            users=["postgres"],
            state=self.state,
            version=version,
        )
        self.catalog.set_relations(relations_of(self.real))
        self.session = Session(user="postgres", database=self.database, process_id=1)
        for text in publications(version).values():
            self.real.execute(text)
            self.catalog.answer(text, self.session)
        rows = self.real.execute(NAMES).fetchall()
        self._real_names = {f"{oid}": name for oid, name in rows}
        self._our_names = {row[0]: row[1] for row in self.catalog.answer(NAMES, self.session).rows}
        self._real_names = _stable(self._real_names)
        self._our_names = _stable(self._our_names)

    def close(self) -> None:
        """Close the connection."""
        self.real.close()

    def on_real(self, sql: str, parameters: Sequence[str | None] = ()) -> Shown | str:
        """Return the real server's answer, or its SQLSTATE."""
        text, values = self._fill_in(sql, parameters, self._real_names)
        try:
            cursor = self.real.execute(text, values or None)
        except psycopg.Error as error:
            return error.sqlstate or "?"
        if cursor.description is None:
            return Shown((), ())
        shape = []
        result = cursor.pgresult
        assert result is not None
        for number, column in enumerate(cursor.description):
            shape.append((column.name, column.type_code, result.fmod(number)))
        rows = [
            tuple(
                None if (cell := result.get_value(row, number)) is None else cell.decode()
                for number in range(result.nfields)
            )
            for row in range(result.ntuples)
        ]
        return _show_rows(shape, rows, self._real_names)

    def on_ours(self, sql: str, parameters: Sequence[str | None] = ()) -> Shown | str:
        """Return the catalogue's answer, or its SQLSTATE."""
        text, values = self._fill_in(sql, parameters, self._our_names)
        try:
            if values:
                prepared = self.catalog.prepare(text, self.session)
                answers = [prepared.run(values, self.session)]
            else:
                answers = [self.catalog.answer(one, self.session) for one in split(text)]
        except Refused as refused:
            return refused.sqlstate
        answer = answers[-1] if answers else Answer(tag="")
        if answer.columns is None:
            return Shown((), ())
        shape = [(column.name, column.type_oid, column.typmod) for column in answer.columns]
        return _show_rows(shape, list(answer.rows), self._our_names)

    @staticmethod
    def _fill_in(
        sql: str, parameters: Sequence[str | None], names: dict[str, str]
    ) -> tuple[str, list[str | None]]:
        oids = {name: oid for oid, name in names.items()}

        def oid(match: re.Match[str]) -> str:
            return oids.get(match[1], "99999")

        values = [None if value is None else _PLACE.sub(oid, value) for value in parameters]
        return _PLACE.sub(oid, sql), values


def _stable(names: dict[str, str]) -> dict[str, str]:
    """Return names in which oids are replaced."""
    return {
        oid: re.sub(r"\d{5}", lambda match: names.get(match[0], match[0]), name)
        for oid, name in names.items()
    }


def _show_rows(
    shape: Sequence[tuple[str, int, int]], rows: Sequence[Any], names: dict[str, str]
) -> Shown:
    cells = []
    for row in rows:
        cells.append(
            tuple(
                names.get(cell, cell) if kind in _OIDS and cell is not None else _owner(cell)
                for cell, (_, kind, _) in zip(row, shape, strict=True)
            )
        )
    cells.sort(key=lambda row: [(cell is None, cell or "") for cell in row])
    return Shown(tuple(shape), tuple(cells))


def _owner(cell: str | None) -> str | None:
    """Return an owner; the owner of everything has another name here."""
    return "postgres" if cell == "penstock" else cell
