"""An Ignite node as the source of a change log: the log's content, and the expected content.

Not here: recordings and segments made manually (`harness/ignite/recordings.py`), live nodes
(`plugins/ignite_live.py`).
"""

from __future__ import annotations

import datetime
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.ignite.recordings import cdc_of, files_of
from penstock.codec.columns import after_type, before_type
from penstock.codec.ignite.values import UUID, Date, Enum, SqlDate, Time, Timestamp
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import extract_options
from penstock.engines.ignite import state
from penstock.extract.extractor import Extractor
from penstock.extract.report import Outcome
from penstock.log import list_segments, open_chain
from penstock.model import Marker, Relation
from penstock.ports.config import Config
from penstock.ports.source import extraction_of

ACTIVE = state._MODE_HEAD + b"CDC_UTILITY_ACTIVE"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def source_pipeline(
    folder: Path, work: Path, node: str = "node-1", *, tables: str = '"*"', source: str = ""
) -> Path:
    """Write a pipeline file without a target, over a node's directory."""
    file = folder / "node.toml"
    file.write_text(
        f'[pipeline]\nname = "node"\ndirectory = "{folder / "pipeline"}"\n[source]\n'
        f'url = "ignite://{work}?consistentId={node}"\ntables = [{tables}]\n{source}\n'
    )
    return file


def extract(
    path: Path, *, stop: Callable[[], bool] = lambda: False, flush_rows: int | None = None
) -> Outcome:
    """Extract until no more changes come."""
    config = load_config(path)
    options = replace(extract_options(config), exit_when_idle=True, idle_wait_s=0.05)
    if flush_rows is not None:
        options = replace(options, events_per_flush=flush_rows, operation_count_max=4 * flush_rows)
    opened = extraction_of(config).open_engine
    with opened(pipeline_of(config), options, tables=list, stop=stop) as engine:
        return Extractor(engine, config.directory, options=options, stop=stop).run()


@dataclass(frozen=True)
class Row:
    """A row change, or with op T a TRUNCATE.

    Attributes:
        values: Row after the change; the key for a delete.
    """

    op: str
    table: str
    values: dict[str, Any]
    trx: int
    relation: Relation | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of the row."""
        assert self.relation is not None
        return tuple(self.values[self.relation.columns[at].name] for at in self.relation.key)


def rows_of(config: Config) -> list[Row]:
    """Return the log's changes, in order."""
    return list(_rows(config))


def _rows(config: Config) -> Iterator[Row]:
    for segment in open_chain(list_segments(config.layout.log)):
        with segment:
            for item in segment.in_order():
                if isinstance(item, Marker):
                    for _, table in item.tables:
                        yield Row("T", table, {}, item.trx)
                    continue
                relation, index, batch = item
                row = batch.slice(index, 1)
                op = chr(row.column("op")[0].as_py())
                assert row.column("absent")[0].as_py() is None
                side = ("before", before_type) if op == "D" else ("after", after_type)
                values = row.column(side[0]).cast(side[1](relation))[0].as_py()
                yield Row(op, relation.name, values, row.column("trx")[0].as_py(), relation)


def fold_rows(rows: list[Row]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return the remaining rows of each table, by key."""
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for row in rows:
        table = found.setdefault(row.table, {})
        if row.op == "T":
            table.clear()
        else:
            table.pop(row.key, None)  # in the order of the last changes
            if row.op != "D":
                table[row.key] = row.values
    return found


def plain(value: Any) -> Any:
    """Return a decoded value in the form of the log's columns."""
    if isinstance(value, Timestamp):
        return EPOCH + datetime.timedelta(milliseconds=value.ms, microseconds=value.nanos // 1000)
    if isinstance(value, SqlDate):
        return (EPOCH + datetime.timedelta(milliseconds=value.ms)).date()
    if isinstance(value, Date):
        return EPOCH + datetime.timedelta(milliseconds=value.ms)
    if isinstance(value, Time):
        return (EPOCH + datetime.timedelta(milliseconds=value.ms)).time()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, UUID):
        return value.bytes
    return value


def near(order: int) -> bytes:
    """Return a transaction's number, as a node writes it."""
    return struct.pack("<Biiq", 1, 1, 1, order)


def text(value: str) -> bytes:
    """Return a marshalled string."""
    data = value.encode()
    return struct.pack("<Bi", 9, len(data)) + data


def number(value: int) -> bytes:
    """Return a marshalled int."""
    return struct.pack("<Bi", 3, value)


def make_work_directory(folder: Path, segments: dict[int, bytes], *caches: str) -> Path:
    """Make a work directory with these segments, of a node n that does not exist."""
    work = folder / "work"
    for name in ("db/n", "db/wal/cdc/n/state", "db/marshaller", "db/binary_meta/n"):
        (work / name).mkdir(parents=True, exist_ok=True)
    for cache in caches:
        place = work / "db/n" / f"cache-{cache}"
        place.mkdir(exist_ok=True)
        config = files_of("one")["db/node_1/cache-words/cache_data.dat"]
        (place / "cache_data.dat").write_bytes(config)
    for number, data in segments.items():
        (cdc_of(work, "n") / f"{number:016}.wal").write_bytes(data)
    (cdc_of(work, "n") / "state/cdc-mode.bin").write_bytes(ACTIVE)
    return work


if __name__ == "__main__":  # for tests that kill it
    extract(Path(sys.argv[1]), flush_rows=int(sys.argv[2]))
