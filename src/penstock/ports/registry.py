"""The engines that there are, by the schemes of their URLs: the one place where they are looked up.

An engine is a folder of `penstock.engines` or a package that is installed beside us and has an
entry point in the group `penstock.engines`; either gives a `Descriptor`. A descriptor imports
nothing: it names where each part is, and a part is imported when it is first used, so that no
driver is needed for an engine that a pipeline does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from penstock.host.errors import UrlInvalid, mask
from penstock.model import PenstockError

ENTRY_POINTS = "penstock.engines"
BUILT_IN = (
    "postgres",
    "mysql",
    "oracle",
    "sqlserver",
    "sqlite",
    "cockroach",
    "staged",
    "ignite",
    "merged",
    "yugabyte",
)


class EngineUnknown(UrlInvalid):
    """No engine is registered for the scheme of a URL."""

    code = "HS32"


class PartMissing(PenstockError):
    """An engine lacks the part that a pipeline needs, such as that of a source."""

    code = "HS33"
    retry = "operator"


class DriverMissing(PenstockError):
    """What an engine's part is written with is not installed."""

    code = "HS34"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What an engine is, without importing anything of it.

    name: of its folder. shown: its name for people. schemes: of its URLs, each with the engine's
    name in the table of types (`codec.types`). parts: by name, as `module` or `module:attribute`;
    an engine cannot be what it has no part for. options: keys of a section of the pipeline file
    that are this engine's alone. start_keys: those of them that say where a new log begins, which a
    handover finds automatically. begins: where a new change log of it begins, in words, and what to
    do in place of another engine's parameter. example: a URL. has_same_types: every type is the
    same in every version, so that between two of its servers nothing is translated or chosen.
    has_schemas: its tables are named by database, schema and name. names_alone: by a name alone.
    logs_computed: its log has the values that the server computes. worker_modules: what its tasks
    need in Spark's workers, imported before these are forked where its driver is installed.
    lends_snapshots: executors read a snapshot of it through the process that took it.
    has_nodes: [source] url may be a list, which parts get as one text (`split_urls`).
    has_table_requests: a log of it takes tables in, leaves them out and copies them again.
    sends_heartbeats: its extractor writes them, with heartbeatSeconds.
    has_later_points: its rows can be read at other moments than the log's beginning.
    extra: of our package, which installs the engine's driver; empty where there is none. libraries:
    names for `import` of what the extra installs.
    """

    name: str
    shown: str
    schemes: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, frozenset[str]] = field(default_factory=dict)
    start_keys: frozenset[str] = frozenset()
    begins: tuple[str, str] = ("", "")
    example: str = ""
    has_same_types: bool = False
    has_schemas: bool = False
    names_alone: bool = False
    logs_computed: bool = False
    worker_modules: tuple[str, ...] = ()
    has_nodes: bool = False
    lends_snapshots: bool = False
    has_table_requests: bool = True
    sends_heartbeats: bool = True
    has_later_points: bool = True
    extra: str = ""
    libraries: tuple[str, ...] = ()

    def part(self, name: str) -> Any:
        """Import a part. Raises PartMissing where the engine does not have it, DriverMissing."""
        where = self.parts.get(name)
        if where is None:
            raise PartMissing(
                f"{self.shown} has no part {name!r}; it has {', '.join(sorted(self.parts)) or 0}",
                hint="Name a database of another engine in the pipeline file; docs/index.md says "
                "which can be source, and which target.",
                engine=self.name,
                part=name,
            )
        module, _, attribute = where.partition(":")
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if not self.extra or str(error.name).startswith("penstock"):
                raise
            raise DriverMissing(
                f"{self.shown} needs the Python package {error.name}, which is not installed",
                hint=f"Run: pip install 'penstock[{self.extra}]'",
                engine=self.name,
            ) from error
        return getattr(found, attribute) if attribute else found


@cache
def engines() -> tuple[Descriptor, ...]:
    """All engines: ours, then those that are installed beside us."""
    ours = [import_module(f"{ENTRY_POINTS}.{name}").DESCRIPTOR for name in BUILT_IN]
    others = [point.load() for point in entry_points(group=ENTRY_POINTS)]
    return (*ours, *others)


def schemes() -> dict[str, Descriptor]:
    """The engine of each URL scheme."""
    return {scheme: engine for engine in engines() for scheme in engine.schemes}


def joined_urls(urls: Iterable[str]) -> str:
    """A list of nodes' URLs as one text: with a space behind each."""
    return "".join(f"{one} " for one in urls)


def is_list(text: str) -> bool:
    """Whether it is of joined_urls(), of one URL perhaps."""
    return text.endswith(" ")


def split_urls(text: str) -> list[str]:
    """The URLs of such a text; of one that is none, itself."""
    return re.split(r" (?=[a-z]+://)", text.removesuffix(" "))


def engine_at(url: str) -> Descriptor:
    """The engine that a URL names. Raises EngineUnknown."""
    scheme, separator, _ = url.partition("://")
    found = schemes().get(scheme.lower()) if separator else None
    if found is not None:
        return found
    *first, last = [f"{one}://" for one in _shown_schemes()]
    shown = f"begins with {scheme}://" if separator else "is a text without ://"
    raise EngineUnknown(
        f"url must begin with {', '.join(first)} or {last}, this {shown}",
        hint=f"Write it like {engines()[0].example}.",
        url=mask(url),
    )


def _shown_schemes() -> Iterator[str]:
    """One scheme for each name of the table of types: postgres:// is postgresql:// once more.

    Of engines that a pipeline file may name.
    """
    seen: set[str] = set()
    for engine in (one for one in engines() if "options" in one.parts):
        for scheme, types in engine.schemes.items():
            if types not in seen:
                seen.add(types)
                yield scheme


def part(url: str, name: str) -> Any:
    """A part of the engine that a URL names. Raises EngineUnknown, PartMissing."""
    return engine_at(url).part(name)


def engine_with_types(types: str) -> Descriptor:
    """The engine that has this name in the table of types."""
    return next(engine for engine in engines() if types in engine.schemes.values())


def types_at(url: str) -> str:
    """The name that the table of types has for the engine of a URL. Raises EngineUnknown."""
    scheme = url.partition("://")[0].lower()
    return engine_at(url).schemes[scheme]


def same_types(first: str, second: str) -> bool:
    """Whether two URLs name servers that have the same types."""
    alike = engine_at(first).has_same_types and engine_at(second).has_same_types
    return alike and types_at(first) == types_at(second)
