"""Comparison of tables: the part `verify`.

The queries that penstock passes around are opaque to it: the toy's are JSON, answered in Python.
The hashes have to be those that every engine computes (`Hasher.SHARED`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any

import numpy as np

from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.verify import (
    KEY_TEXT_LENGTH_MAX,
    PART_BYTES,
    ComparedCell,
    Dialect,
    Hasher,
    Hashes,
    Image,
    Part,
    SourcePoint,
    Verifier,
    VerifyReader,
    table_gone,
)
from toy_engine.store import Row, Store, ToyPosition


class ToyDialect(Dialect):
    """Dialect in which an image is the list of its cells, as JSON."""

    def column_name(self, name: str) -> str:
        return name

    def image(self, cells: Sequence[ComparedCell], key: Sequence[ComparedCell]) -> Image:
        return Image(key=_list_cells(key or cells), row=_list_cells(cells))

    def is_long(self, _type_text: str) -> bool:
        """Return False: a text may have any length."""
        return False

    def printed_images(
        self, _table: TableDefinition, _target_types: Mapping[str, str]
    ) -> tuple[Image, Image] | None:
        return None

    def bucket_query(self, image: Image, part: Part, buckets: int, _hasher: Hasher) -> str:
        return json.dumps(["buckets", [part.relation], image.key, image.row, buckets, []])

    def rows_query(
        self,
        image: Image,
        parts: Sequence[Part],
        buckets: int,
        differing: Sequence[int],
        _hasher: Hasher,
    ) -> str:
        tables = [part.relation for part in parts]
        return json.dumps(["rows", tables, image.key, image.row, buckets, list(differing)])

    def names_query(
        self, image: Image, parts: Sequence[Part], hashes: Sequence[int], _hasher: Hasher
    ) -> str:
        tables = [part.relation for part in parts]
        return json.dumps(["names", tables, image.key, image.row, 0, list(hashes)])

    def chosen_rows(self, *_what: Any) -> str:
        """Raise an error: only a repair needs it, which this engine cannot do."""
        raise NotImplementedError

    select_rows = chosen_rows


def _list_cells(cells: Sequence[ComparedCell]) -> str:
    return json.dumps([[cell.name, cell.is_any, cell.is_long] for cell in cells])


def _text(cells: list[tuple[str, bool, bool]], row: Row) -> str:
    """Return a row's image, as PostgreSQL computes it for its own rows."""
    found = []
    for name, is_any, is_long in cells:
        text = row[name]
        if text is None:
            found.append("N")
        elif is_long:
            found.append(sha256(text.encode()).hexdigest())
        else:
            found.append(f"{len(text)}:{text}" if is_any else text)
    return "|".join(found)


def _hashes(text: str) -> tuple[int, int]:
    digest = sha256(text.encode()).digest()
    return tuple(int.from_bytes(digest[at : at + 8], signed=True) for at in (0, 8))  # type: ignore[return-value]


class ToyVerifyReader(VerifyReader):
    """Reader of rows in memory.

    The constructor gets each table's rows as they were at that moment.
    """

    dialect = ToyDialect()

    def __init__(self, types: dict[TableName, dict[str, str]], rows: dict[Any, list[Row]]) -> None:
        self._types = types
        self._rows = rows
        self.executor = ThreadPoolExecutor(1)

    def hashers(self) -> Mapping[Hasher, str]:
        return {Hasher.SHARED: ""}

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        if table not in self._types:
            raise table_gone(table, side)
        return (Part(relation=table),), len(self._rows[table])

    def column_types(self, table: TableName) -> dict[str, str]:
        return self._types[table]

    def _answers(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield each row's hashes of key and image, and its key for display."""
        _, tables, key, row, _, _ = json.loads(query)
        key_cells, cells = json.loads(key), json.loads(row)
        for table in tables:
            for one in self._rows[TableName(*table)]:
                name = ",".join(one[cell[0]] or "" for cell in key_cells)
                hashes = (*_hashes(_text(key_cells, one)), *_hashes(_text(cells, one)))
                yield *hashes, f"({name})"[:KEY_TEXT_LENGTH_MAX]

    def fetch(self, query: str, _doing: str) -> list[tuple[Any, ...]]:
        what, _, _, _, buckets, wanted = json.loads(query)
        if what == "names":
            return [(one[0], one[1], one[4]) for one in self._answers(query) if one[0] in wanted]
        sums: dict[int, tuple[int, int]] = {}
        for one in self._answers(query):
            count, total = sums.get(one[0] & (buckets - 1), (0, 0))
            sums[one[0] & (buckets - 1)] = (count + 1, total + one[2])
        return [(bucket, count, total, 0) for bucket, (count, total) in sums.items()]

    def hashes(self, query: str, _doing: str) -> Iterator[Hashes]:
        _, _, _, _, buckets, differing = json.loads(query)
        found = [one[:4] for one in self._answers(query) if one[0] & (buckets - 1) in differing]
        if found:
            yield np.array(sorted(found), dtype=np.int64)

    def row_reader(self) -> Any:
        """Raise an error: only a repair needs it, which this engine cannot do."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Do nothing: no query takes long."""


class ToyVerifier(Verifier):
    """Verifier of a store."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        _tables: Callable[[], Sequence[TableDefinition]],
        _tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[ToyVerifyReader, SourcePoint]]:
        """Open a reader. Any position is a snapshot."""
        del sessions, part_bytes
        with closing(Store(config.source.url)) as store:
            end = store.end()
            with _open_reader(store, lambda table: store.rows_at(end, table)) as reader:
                yield reader, SourcePoint(position=end.ordinal, text=str(end))

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[ToyVerifyReader]:
        del sessions, part_bytes
        with closing(Store(url)) as store, _open_reader(store, store.rows) as reader:
            yield reader

    def nudge(self, url: str) -> None:
        """Do nothing: the log's end is always up to date."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        _tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        with closing(Store(config.source.url)) as store:
            found = store.log(commit=ToyPosition(since).commit)
        before = ToyPosition(point.position).commit
        commits = {line.commit for line in found if line.commit < before}
        return f"{len(commits)} transactions are not extracted" if commits else ""


@contextmanager
def _open_reader(store: Store, rows: Callable[[TableName], list[Row]]) -> Iterator[ToyVerifyReader]:
    shapes = store.shapes()
    types = {name: {c[0]: c[1] for c in shape.columns} for name, shape in shapes.items()}
    reader = ToyVerifyReader(types, {name: rows(name) for name in shapes})
    try:
        yield reader
    finally:
        reader.executor.shutdown()


VERIFIER = ToyVerifier()
