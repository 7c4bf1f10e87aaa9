"""Upkeep of a lake by hand: the part `upkeep`.

It has a JVM of its own, and its jobs run in this process.
It commits as any other program does that maintains the tables beside the loader: the format refuses
the second of two commits, so the loader looks its keys up again, and a compaction is repeated. Not
here: the loader's own upkeep (`upkeep.py`, `expiry.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.codec.types import NO_CHOICES
from penstock.engines.lake.batches import BATCHES, Promises, open_batches
from penstock.engines.lake.expiry import ExpiryRun, files_limit, make_expiry
from penstock.engines.lake.format import (
    FeatureUnknown,
    LakeFormat,
    LiveFile,
    Partition,
    check_writable,
)
from penstock.engines.lake.opened import OpenLake, facts_of
from penstock.engines.lake.own_java import open_java
from penstock.engines.lake.upkeep import replace_files
from penstock.engines.lake.url import DELTA, parse_url
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName
from penstock.model.policies import EVOLVE_ALL
from penstock.ports.lake import LakeTableUnknown, LakeUpkeep, TableFacts, UpkeepRefused

ATTEMPTS_MAX = 8
FILE_BYTES = 128 * 2**20
"""Size up to which files are joined."""

IN_SPARK = "Maintain it in Spark: OPTIMIZE and VACUUM, or rewrite_data_files and expire_snapshots."

DEAD_PART = 0.05
"""Part of a file's rows that may be deleted before the file is rewritten."""


class LakeByHand(LakeUpkeep):
    """Upkeep of lakes of one format."""

    def __init__(self, table_format: LakeFormat, *, clock: Clock = REAL_CLOCK) -> None:
        """Keep the format."""
        self._format = table_format
        self._clock = clock

    def refuse_beside(self, url: str) -> str:
        lake = parse_url(url)
        if lake.format == DELTA and not lake.is_local:
            return "Delta tables on an object store are safe with one writer only"
        return ""

    def read_tables(self, url: str) -> Mapping[str, TableFacts]:
        with self._open(url) as lake:
            state = lake.state.read_log()
            missing = {} if state is None else state.missing
            found = {}
            for name in self._names(lake, ()):
                facts = facts_of(
                    lake.snapshot(name), lake.count_versions(name), read_us=self._clock.now_us()
                )
                found[str(name)] = replace(facts, missing=missing.get(str(name), 0))
            return found

    def compact(self, url: str, tables: Sequence[TableName]) -> Iterator[tuple[TableName, int]]:
        with self._open(url) as lake:
            for name in self._own_names(lake, tables):
                if name != BATCHES:  # the loader itself joins its files
                    yield name, compact_table(lake, name)

    def expire(
        self, url: str, tables: Sequence[TableName], hours: float | None
    ) -> Iterator[tuple[TableName, int, int, int]]:
        with self._open(url) as lake:
            now_us = self._clock.now_us()
            promises = self._promises(lake, now_us)
            wanted = lake.vacuum_hours if hours is None else hours
            run = ExpiryRun(
                promises=promises,
                files_before_us=files_limit(promises, now_us, wanted),
                is_whole=not tables,
            )
            for name in self._own_names(lake, tables):
                done = lake.expire(name, make_expiry(name, run))
                yield name, done.version_count, done.file_count, done.size_bytes

    def _promises(self, lake: OpenLake, now_us: int) -> Promises:
        """Return what the table of batches names; nothing before the first batch."""
        if not lake.log_id or lake.catalogue.find(BATCHES) is None:
            return Promises(since_us=now_us)
        return open_batches(lake.catalogue, lake.log_id, lake.storage).read_promises(now_us)

    def _names(self, lake: OpenLake, wanted: Sequence[TableName]) -> list[TableName]:
        """Return these tables of the lake, or all that penstock can write.

        Raises LakeTableUnknown.
        """
        present = list(lake.catalogue.tables())
        for name in wanted:
            if name not in present:
                raise LakeTableUnknown(
                    f"the lake has no table {name}",
                    hint="List its tables: penstock lake status FILE",
                    table=str(name),
                )
        return [name for name in (wanted or present) if wanted or _is_known(lake, name)]

    def _own_names(self, lake: OpenLake, wanted: Sequence[TableName]) -> list[TableName]:
        """Return these tables, or all whose files penstock may replace and remove.

        Raises LakeTableUnknown, FeatureUnknown.
        """
        names = self._names(lake, wanted)
        for name in wanted:
            check_writable(name, lake.snapshot(name), hint=IN_SPARK)
        return [name for name in names if not lake.snapshot(name).unwritable]

    @contextmanager
    def _open(self, url: str) -> Iterator[OpenLake]:
        parsed = parse_url(url)
        with open_java(url, parsed.class_path) as java:
            lake = OpenLake(
                self._format, url, {}, choices=NO_CHOICES, policies=EVOLVE_ALL, clock=self._clock
            )
            lake.use(lambda: java)
            state = lake.state.read_log()
            lake.log_id = "" if state is None else state.log_id
            yield lake


def _is_known(lake: OpenLake, name: TableName) -> bool:
    """Return whether penstock can write a table; others in the folder are not its own."""
    try:
        lake.snapshot(name)
    except FeatureUnknown:
        return False
    return True


def compact_table(lake: OpenLake, name: TableName) -> int:
    """Join and rewrite the files of a table; return how many were replaced.

    Raises UpkeepRefused if other writers were faster each time.
    """
    for _ in range(ATTEMPTS_MAX):
        groups = choose_all(lake.snapshot(name, refresh=True).files)
        if not groups:
            return 0
        if count := replace_files(lake, {name: groups})[name]:
            return count
    raise UpkeepRefused(
        f"files of {name} were not joined: another writer was faster {ATTEMPTS_MAX} times",
        hint=f"Pause the table meanwhile: penstock table pause FILE {name}. The loader joins files "
        "between its batches, too.",
        table=str(name),
    )


def choose_all(
    files: Sequence[LiveFile], *, file_bytes: int = FILE_BYTES
) -> list[tuple[LiveFile, ...]]:
    """Return groups of files, each to be replaced by one.

    Small files are joined up to a size, and files with deleted rows are written without them.
    """
    groups: list[tuple[LiveFile, ...]] = []
    open_groups: dict[Partition, list[LiveFile]] = {}
    sizes: dict[Partition, int] = {}
    for file in files:
        live = file.size_bytes * (file.row_count - file.dead_count) // max(file.row_count, 1)
        if live > file_bytes // 2:
            if file.dead_count > file.row_count * DEAD_PART:
                groups.append((file,))
            continue
        if sizes.get(file.partition, 0) + live > file_bytes:
            groups.append(tuple(open_groups.pop(file.partition)))
            sizes[file.partition] = 0
        open_groups.setdefault(file.partition, []).append(file)
        sizes[file.partition] = sizes.get(file.partition, 0) + live
    for group in open_groups.values():
        if len(group) > 1 or group[0].dead_count:
            groups.append(tuple(group))
    return groups
