"""Extractions from MySQL and MariaDB in tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.pipelines.extract import QUICK
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.beginning import find_beginning
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.model.patterns import Selection
from plugins.mysql import MySQLServer, database_of

OPTIONS = replace(QUICK, idle_wait_s=0.4)


def engine_of(
    url: str,
    directory: Path,
    *,
    patterns: tuple[str, ...] = (),
    at: BinlogPosition | None = None,
    options: ExtractOptions = OPTIONS,
    **more: Any,
) -> MySQLEngine:
    """Return an engine for all tables of the URL's database, as `penstock extract` makes it."""
    patterns = patterns or (f"{database_of(url)}.*",)
    beginning = find_beginning(url, patterns, at=at)
    return MySQLEngine(
        url,
        tables=beginning.tables,
        options=options,
        beginning=beginning,
        task=str(directory),
        takes=Selection.parse(patterns).takes,
        **more,
    )


def extractor_of(
    url: str, directory: Path, *, options: ExtractOptions = OPTIONS, **more: Any
) -> Extractor:
    """Return an extractor of all tables of the URL's database."""
    kept = {key: more.pop(key) for key in ("recorder", "gate", "stop", "files") if key in more}
    engine = engine_of(url, directory, options=options, **more)
    return Extractor(engine, directory, options=options, **kept)


def sql(server: MySQLServer, url: str, text: str) -> None:
    """Run statements, separated by `;;`, in the URL's database."""
    for statement in filter(None, map(str.strip, text.split(";;"))):
        server.execute(statement, database_of(url))
