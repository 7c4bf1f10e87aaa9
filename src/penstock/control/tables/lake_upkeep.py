"""Upkeep of a lake by hand: `penstock lake status | compact | expire`.

Not here: the work, which the target's engine does (`ports/lake.py`); printing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.control.pipeline.config import need_target
from penstock.control.pipeline.running import processes
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.lake import UPKEEP_PART, LakeUpkeep, NotALake, TableFacts, UpkeepRefused
from penstock.ports.registry import engine_at


def read_lake(config: Config) -> Mapping[str, TableFacts]:
    """Return the facts of all tables of the lake, as its own metadata says.

    Raises NotALake, and the errors of the lake.
    """
    return _upkeep(config).read_tables(config.target.url)


def compact(config: Config, tables: Sequence[TableName]) -> Iterator[dict[str, Any]]:
    """Join and rewrite files; yield a dict for each table as it is done. tables: none for all.

    Raises NotALake, LakeTableUnknown, UpkeepRefused, and the errors of the lake.
    """
    upkeep = _upkeep(config)
    _check_alone(config, upkeep)
    for name, count in upkeep.compact(config.target.url, tables):
        yield {"table": str(name), "files_replaced": count}


def expire(
    config: Config, tables: Sequence[TableName], hours: float | None
) -> Iterator[dict[str, Any]]:
    """Remove earlier versions and files; yield a dict for each table as it is done.

    Args:
        config: The pipeline.
        tables: None for all.
        hours: Age at which removed files are deleted; None: as [target] says.

    Raises NotALake, LakeTableUnknown, UpkeepRefused, and the errors of the lake.
    """
    upkeep = _upkeep(config)
    _check_alone(config, upkeep)
    for name, versions, files, size in upkeep.expire(config.target.url, tables, hours):
        yield {
            "table": str(name),
            "versions_removed": versions,
            "files_removed": files,
            "bytes_removed": size,
        }


def facts_dict(tables: Mapping[str, TableFacts]) -> dict[str, Any]:
    """Return the facts of tables as `--json` prints them."""
    return {name: msgspec.to_builtins(facts) for name, facts in sorted(tables.items())}


def _upkeep(config: Config) -> LakeUpkeep:
    need_target(config, "there is no lake to look after", instead="Name another file")
    engine = engine_at(config.target.url)
    if UPKEEP_PART not in engine.parts:
        raise NotALake(
            f"the target is {engine.shown}, which keeps no versions of its tables",
            hint="Name a pipeline whose [target] is a lake: see docs/lake.md.",
        )
    return engine.part(UPKEEP_PART)


def _check_alone(config: Config, upkeep: LakeUpkeep) -> None:
    """Raise UpkeepRefused if the loader runs and must be alone."""
    reason = upkeep.refuse_beside(config.target.url)
    if reason and any(one.pid for one in processes(config) if one.name == "load"):
        raise UpkeepRefused(
            f"the loader runs, and {reason}",
            hint="The loader itself joins files and removes versions. To do it by hand, stop "
            "`penstock run` first.",
        )
