"""The installed packages that penstock's code in Spark's workers needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from penstock.ports.registry import engines

OWN = "penstock"
WITH_SPARK = frozenset({"pyspark", "py4j"})
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")


def needed_by_workers() -> Iterator[Distribution]:
    """Return penstock and its installed requirements in workers, without pyspark."""
    drivers = frozenset(engine.extra for engine in engines() if engine.extra)
    yield from _find_needed(OWN, drivers, set())


def _find_needed(name: str, extras: frozenset[str], seen: set[str]) -> Iterator[Distribution]:
    """Return a distribution and its installed requirements."""
    if name in WITH_SPARK or name in seen:
        return
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return  # of an extra that this machine does without, or of another platform
    seen.add(name)
    yield found
    for line in found.requires or ():
        match = _REQUIREMENT.match(line)
        assert match is not None, line
        needs, wanted, marker = match.groups(default="")
        asked = set(_EXTRA.findall(marker))
        if not asked or asked & extras:
            more = frozenset(text.strip() for text in wanted.split(",") if text.strip())
            yield from _find_needed(needs.lower().replace("_", "-"), more, seen)
