"""The registry of engines, by the schemes of their URLs: the one place for looking them up.

An engine is a folder of `penstock.engines` or a package that is installed beside us and has an
entry point in the group `penstock.engines`; either has a `Descriptor`. A descriptor imports
nothing: it names where each part is, and a part is imported when it is first used, so that no
driver is needed for an engine that a pipeline does not use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

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
    "delta",
    "feeds",
    "iceberg",
    "ignite",
    "merged",
    "yugabyte",
)


Kind = TypeVar("Kind")


class PartName(str, Generic[Kind]):
    """Name of a part of an engine. Its parameter is the type of the part."""

    __slots__ = ()


class EngineUnknown(UrlInvalid):
    """No engine is registered for the scheme of a URL."""

    code = "HS32"


class PartMissing(PenstockError):
    """An engine lacks the part that a pipeline needs, such as that of a source."""

    code = "HS33"
    retry = "operator"


class DriverMissing(PenstockError):
    """A package that an engine's part needs is not installed."""

    code = "HS34"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Description of an engine, without importing anything of it.

    An engine cannot have a role for which it has no part.

    Attributes:
        name: Name of its folder.
        shown: Its name for people.
        schemes: Schemes of its URLs, each with the engine's name in the table of types
            (`codec.types`).
        parts: By name, as `module` or `module:attribute`.
        options: Keys of a section of the pipeline file that only this engine has.
        start_keys: The options that say where a new log begins, which a handover finds
            automatically.
        begins: Where a new change log of it begins, in words, and what to do in place of another
            engine's parameter.
        example: A URL.
        has_same_types: Every type is the same in every version, so that between two of its servers
            nothing is translated or chosen.
        has_schemas: Its tables are named by database, schema and name.
        names_alone: Its tables are named by a name alone.
        logs_computed: Its log has the values that the server computes.
        worker_modules: Modules that its tasks need in Spark's workers, imported before these are
            forked if its driver is installed.
        has_nodes: [source] url may be a list, which parts get as one text (`split_urls`).
        lends_snapshots: Executors read a snapshot of it through the process that took it.
        has_table_requests: A log of it can add, leave out and copy tables by request.
        sends_heartbeats: Its extractor writes them, with heartbeatSeconds.
        has_later_points: Its rows can be read at other moments than the log's beginning.
        extra: The extra of our package that installs the engine's driver; empty if there is none.
        libraries: Names for `import` of the packages that the extra installs.
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

    def part(self, name: PartName[Kind]) -> Kind:
        """Import a part. Raises PartMissing if the engine does not have it, DriverMissing."""
        where = self.parts.get(name)
        if where is None:
            raise PartMissing(
                f"{self.shown} has no part {name!r}; it has {', '.join(sorted(self.parts)) or 0}",
                hint="Name a database of another engine in the pipeline file; docs/index.md says "
                "which can be source, and which target.",
                engine=self.name,
                part=str(name),
            )
        module, _, attribute = where.partition(":")
        try:
            imported: Any = import_module(module)
        except ModuleNotFoundError as error:
            if not self.extra or str(error.name).startswith("penstock"):
                raise
            raise DriverMissing(
                f"{self.shown} needs the Python package {error.name}, which is not installed",
                hint=f"Run: pip install 'penstock[{self.extra}]'",
                engine=self.name,
            ) from error
        found: Kind = getattr(imported, attribute) if attribute else imported
        return found


@cache
def engines() -> tuple[Descriptor, ...]:
    """Return all engines: ours, then those that are installed beside us."""
    ours = [import_module(f"{ENTRY_POINTS}.{name}").DESCRIPTOR for name in BUILT_IN]
    others = [point.load() for point in entry_points(group=ENTRY_POINTS)]
    return (*ours, *others)


def schemes() -> dict[str, Descriptor]:
    """Return the engine of each URL scheme."""
    return {scheme: engine for engine in engines() for scheme in engine.schemes}


def joined_urls(urls: Iterable[str]) -> str:
    """Return a list of nodes' URLs as one text: with a space after each."""
    return "".join(f"{one} " for one in urls)


def is_list(text: str) -> bool:
    """Return whether a text is from joined_urls(), perhaps of one URL."""
    return text.endswith(" ")


def split_urls(text: str) -> list[str]:
    """Return the URLs of such a text, or another text itself."""
    return re.split(r" (?=[a-z]+://)", text.removesuffix(" "))


def engine_at(url: str) -> Descriptor:
    """Return the engine that a URL names. Raises EngineUnknown."""
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
    """Yield one scheme for each name of the table of types: postgres:// is postgresql:// again.

    Only engines that a pipeline file may name are listed.
    """
    seen: set[str] = set()
    for engine in (one for one in engines() if "options" in one.parts):
        for scheme, types in engine.schemes.items():
            if types not in seen:
                seen.add(types)
                yield scheme


def part(url: str, name: PartName[Kind]) -> Kind:
    """Return a part of the engine that a URL names. Raises EngineUnknown, PartMissing."""
    return engine_at(url).part(name)


def engine_with_types(types: str) -> Descriptor:
    """Return the engine that has this name in the table of types."""
    return next(engine for engine in engines() if types in engine.schemes.values())


def types_at(url: str) -> str:
    """Return the name of a URL's engine in the table of types. Raises EngineUnknown."""
    scheme = url.partition("://")[0].lower()
    return engine_at(url).schemes[scheme]


def same_types(first: str, second: str) -> bool:
    """Return whether two URLs name servers that have the same types."""
    alike = engine_at(first).has_same_types and engine_at(second).has_same_types
    return alike and types_at(first) == types_at(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Requirements of a connection.

    Attributes:
        addresses: Host and port, one of which must answer.
        socket: A socket file, or empty.
        files: Paths of certificates and keys that the URL names.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    socket: str = ""
    files: tuple[str, ...] = ()


REACH_PART: PartName[Callable[[str], Reach]] = PartName("reach")
SPARK_PART: PartName[Callable[[str], Mapping[str, str]]] = PartName("spark")


def reach_of(url: str) -> Reach:
    """Return the requirements of a URL, empty if its engine names none. Raises EngineUnknown."""
    engine = engine_at(url)
    return engine.part(REACH_PART)(url) if REACH_PART in engine.parts else Reach()


def spark_needs(url: str) -> Mapping[str, str]:
    """Return the Spark properties that a target needs, empty if its engine names none.

    Raises EngineUnknown, and the engine's errors for files that are missing here.
    """
    engine = engine_at(url)
    return engine.part(SPARK_PART)(url) if SPARK_PART in engine.parts else {}
