"""Answers of a lake about itself for plans: parts `tables`, `plan`, `plan_problems`, `plan_notes`.

A lake is a target only, so there are no tables to capture. Not here: types
(`codec/types/to_lake.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from penstock.codec.types import Engine, Server, feature_of
from penstock.engines.lake.jars import DELTA_JARS
from penstock.engines.lake.partitions import find_problems, show_terms
from penstock.engines.lake.url import DELTA, parse_url
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import PartMissing, engine_at
from penstock.ports.tables import Followed, Present, SourceFacts

V3 = 3
"""Iceberg's format whose deletions are deletion vectors."""


def server_of(url: str) -> Server:
    """Return the format as a server: Delta's release, or the version of Iceberg's format."""
    lake = parse_url(url)
    if lake.format == DELTA:
        release = tuple(map(int, DELTA_JARS[0].version.split(".")))
        return Server(engine=Engine.DELTA, version=release)
    return Server(engine=Engine.ICEBERG, version=(lake.format_version,))


def no_source(url: str) -> PartMissing:
    """Return the error for a lake that a pipeline file names as a source."""
    shown = engine_at(url).shown
    return PartMissing(
        f"{shown} is a target only, and [source] names it",
        hint="Name a database in [source]; docs/index.md says which can be source, and which "
        "target.",
    )


def _refuse(config: Config) -> NoReturn:
    raise no_source(config.source.url)


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Raise PartMissing: a lake is a target only."""
    del dropped
    _refuse(config)


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Raise PartMissing: a lake is a target only."""
    del added
    _refuse(config)


def present(config: Config, _patterns: Sequence[str], _known: Followed) -> Present | None:
    """Raise PartMissing: a lake is a target only."""
    _refuse(config)


def everything(_url: str) -> str:
    """Return an empty text: a lake is a target only."""
    return ""


def namespace(_url: str, _schema: str, *, is_same: bool) -> str:
    """Return an empty text: a table keeps its schema's name."""
    del is_same
    return ""


def shift(config: Config) -> int:
    """Raise PartMissing: a lake is a target only."""
    _refuse(config)


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Raise PartMissing: a lake is a target only."""
    del dropped
    _refuse(config)


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target, and 0: names of tables keep their case."""
    return server_of(config.target.url), 0


def problems_between(
    _config: Config, _tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Return nothing: a lake is a target only."""
    del planned
    return []


def list_problems(
    url: str, tables: Mapping[TableName, Mapping[str, str]], whole: bool, /
) -> Iterator[str]:
    """Yield why tables cannot be partitioned as the file says; see `ports.tables.plan_problems`."""
    lake = parse_url(url)
    kinds = {str(name): columns for name, columns in tables.items()}
    for name, terms in lake.partition.items():
        if name in kinds:
            for why in find_problems(terms, kinds[name], is_delta=lake.format == DELTA):
                yield f"[target] partition of {name}: {why}"
        elif whole:
            yield f"[target] partition names {name}, which is not a captured table"


def list_notes(url: str, types: Collection[str]) -> Iterator[str]:
    """Yield what readers of the lake must know, one sentence each. types: those of the columns."""
    lake = parse_url(url)
    yield "tables have no defaults, indexes, unique keys and foreign keys"
    for name, terms in lake.partition.items():
        yield f"{name} is partitioned by {show_terms(terms)}: filters on it skip files"
    if lake.format == DELTA:
        yield (
            "tables have the feature deletionVectors: delta-rs reads them with QueryBuilder, and "
            "its to_pyarrow_table refuses them; polars, Spark and Databricks read them"
        )
        features = {feature_of(one, Engine.DELTA) for one in types} - {""}
        if "timestampNtz" in features:
            yield (
                "tables with a timestamp without time zone have the feature timestampNtz: readers "
                "older than Delta 2.4 refuse them"
            )
        yield (
            "a column that is renamed, dropped or has one of ` ,;{}()=` in its name needs the "
            "feature columnMapping, which is switched on then: polars refuses it"
        )
        yield "a type that gets wider switches typeWidening on: delta-rs refuses it"
    elif lake.format_version == V3:
        yield (
            "tables have Iceberg's format 3: pyiceberg 0.12, polars 2.1, Spark with Iceberg 1.8 "
            "and newer ones read it; formatVersion = 2 is for older readers"
        )
    else:
        yield (
            "tables have Iceberg's format 2 with position deletes, which every reader reads; a new "
            "column with a value for existing rows has NULL in them"
        )
