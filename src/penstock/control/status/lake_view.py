"""Lake of a pipeline at one commit of its source: `penstock.lake`.

The table of batches names the version that each table has after each batch. Not here: reading a
version, which the engine does (`ports/lake.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.control.status.log_view import Moment, to_microseconds
from penstock.model import PenstockError, TableName
from penstock.ports.config import OPTIONS_PART, TARGET_OPTIONS_PART, TargetSection
from penstock.ports.lake import VERSIONS_PART, NotALake, VersionReader
from penstock.ports.registry import engine_at

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


class NoCommit(PenstockError):
    """The table of batches has no row that names the versions of all tables."""

    code = "LK64"


class TableNotInCommit(PenstockError):
    """A commit names no version of a table."""

    code = "LK65"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeCommit:
    """Versions of all tables of a lake at one commit of the source.

    Attributes:
        versions: By the name of a table in the lake, such as "public.orders", Delta's version or
            Iceberg's snapshot id.
        gsn: Number of the last row change.
        trx: Number of the last transaction.
        position: Position of that transaction in the source's log; see docs/python.md.
        commit_time: Its commit by the source's clock, UTC; None if that is not known.
    """

    versions: Mapping[str, int]
    gsn: int
    trx: int
    position: int
    commit_time: datetime | None
    _reader: VersionReader = field(repr=False, compare=False)

    def table(self, name: str, session: SparkSession) -> DataFrame:
        """Return a table's rows at this commit as a DataFrame.

        Args:
            name: Such as "public.orders", as it is named in the lake.
            session: A Spark session with the format's jars. A session that does not know Iceberg's
                catalogue gets the properties of the pipeline file.

        Raises:
            TableNotInCommit: The commit names no such table.
            VersionExpired: The version was removed.
            ReaderFailed: Spark cannot read it.
        """
        found: DataFrame = self._reader.frame(_split(name), self._version(name), session)
        return found

    def arrow(self, name: str) -> pyarrow.Table:
        """Return a table's rows at this commit as an Arrow table, read without Spark.

        Args:
            name: Such as "public.orders", as it is named in the lake.

        Raises:
            TableNotInCommit: The commit names no such table.
            VersionExpired: The version was removed.
            ReaderMissing: The package `deltalake` or `pyiceberg` is not installed.
            ReaderFailed: The package cannot read it.
        """
        return self._reader.arrow(_split(name), self._version(name))

    def _version(self, name: str) -> int:
        if name not in self.versions:
            shown = ", ".join(sorted(self.versions)) or "none"
            raise TableNotInCommit(
                f"the commit at gsn {self.gsn} has no table {name!r}; its tables: {shown}",
                hint="Name a table as it is in the lake, such as public.orders. A table that was "
                "added later is in a later commit: .at_commit().",
            )
        return self.versions[name]


class Lake:
    """Lake whose tables are read at one commit of the source.

    It needs no process of the pipeline and takes no lock. `table` and `arrow` read at the commit
    that `at_commit` chose last; without it, at the commit that was the newest at the first read.
    """

    def __init__(self, reader: VersionReader) -> None:
        """Keep the reader; nothing is read yet."""
        self._reader = reader
        self._commit: LakeCommit | None = None

    def __repr__(self) -> str:
        return f"Lake({self._reader.place!r})"

    def at_commit(
        self, before: Moment | None = None, *, session: SparkSession | None = None
    ) -> LakeCommit:
        """Return the newest commit at which the versions of all tables are known.

        Args:
            before: Latest commit time at the source; a datetime with a time zone, or ISO text.
            session: A Spark session that reads the table of batches; by default a package does.

        Raises:
            NoCommit: There is no batch yet, or none so early.
            LogTimeInvalid: before cannot be read as a time.
            ReaderMissing: The package `deltalake` or `pyiceberg` is not installed.
            ReaderFailed: The package or Spark cannot read the table of batches.
        """
        before_us = to_microseconds("before", before)
        rows = self._reader.read_batches(session)
        if rows is None:
            raise NoCommit(
                f"{self._reader.place} has no table penstock.batches",
                hint="The first batch of changes creates it: see `penstock status`. In mode data "
                "there is none, so read the newest versions.",
            )
        named = [row for row in rows.to_pylist() if row["versions"] is not None]
        found = [row for row in named if before_us is None or _time_us(row) <= before_us]
        if not found:
            first = min((_time_us(row) for row in named), default=0)
            when = f"; the earliest is at {_time(first)}" if first else ""
            late = f" at or before {before}" if named else ""
            raise NoCommit(
                f"{self._reader.place} has no commit{late}{when}",
                hint="Choose a later time; [target] versionHours says for how long versions are "
                "kept."
                if named
                else "Wait until the loader has applied a batch: see `penstock status`.",
            )
        newest = max(found, key=_order)
        self._commit = LakeCommit(
            versions=MappingProxyType(json.loads(newest["versions"])),
            gsn=newest["gsn"],
            trx=newest["trx"],
            position=int(newest["position"]),
            commit_time=_time(_time_us(newest)),
            _reader=self._reader,
        )
        return self._commit

    def table(self, name: str, session: SparkSession) -> DataFrame:
        """Return a table's rows as a DataFrame; see `LakeCommit.table` and `at_commit`."""
        return self._choose(session).table(name, session)

    def arrow(self, name: str) -> pyarrow.Table:
        """Return a table's rows as an Arrow table; see `LakeCommit.arrow` and `at_commit`."""
        return self._choose(None).arrow(name)

    def _choose(self, session: SparkSession | None) -> LakeCommit:
        return self._commit or self.at_commit(session=session)


def lake(place: str | Path, *, conf: Mapping[str, str] | None = None) -> Lake:
    """Return the lake of a pipeline, for reading; nothing is read yet.

    Args:
        place: The pipeline's file, or the lake's URL, such as "delta+file:///data/lake" or
            "iceberg://lake/shop".
        conf: With a URL, the properties that [spark.conf] has: the catalogue's and the object
            store's.

    Raises:
        NotALake: The target is not a lake.
        UrlInvalid: The URL is wrong, or conf lacks the catalogue's properties. A pipeline file can
            raise the CF errors.
    """
    if isinstance(place, str) and "://" in place:
        url = _complete(place, conf or {})
    else:
        from penstock.control.pipeline.config import load_config

        url = load_config(Path(place)).target.url
    engine = engine_at(url)
    if VERSIONS_PART not in engine.parts:
        raise NotALake(
            f"the target is {engine.shown}, which keeps no versions of its tables",
            hint="Name a pipeline whose [target] is a lake: see docs/lake.md.",
        )
    return Lake(engine.part(VERSIONS_PART)(url))


def _complete(url: str, conf: Mapping[str, str]) -> str:
    engine = engine_at(url)
    if TARGET_OPTIONS_PART in engine.parts:
        url = engine.part(TARGET_OPTIONS_PART).complete_url(TargetSection(url=url), conf)
        engine.part(OPTIONS_PART).check_url(url)
    return url


def _split(name: str) -> TableName:
    schema, _, table = name.partition(".")
    return TableName(schema, table)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what rows of the table of batches are ordered by; a repair repeats the last one."""
    return row["gsn"], int(row["position"]), row["segment"], row["applied_at"]


def _time_us(row: Mapping[str, Any]) -> int:
    """Return the commit time of a row, microseconds since 1970 UTC; 0 if it is not known."""
    found: int = to_microseconds("commit_time", row["commit_time"]) or 0
    return found


def _time(time_us: int) -> datetime | None:
    return datetime.fromtimestamp(time_us / 1e6, UTC) if time_us else None
