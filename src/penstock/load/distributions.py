"""The installed packages that Spark's workers need, and the archive for `spark.archives` of them.

It has penstock with its compiled kernels and its imports in workers, as they are installed here:
the same versions by construction. Not in it: Python itself, and pyspark, which is part of Spark.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import penstock
from penstock.host.files import REAL_FILES
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


OWN_SUFFIXES = frozenset({".py", ".so", ".typed"})


def write_archive(path: Path) -> dict[str, str]:
    """Write the archive, replacing an existing one; return its packages with their versions.

    Raises FileFailed, DiskFull.
    """
    found = {one.name: one for one in needed_by_workers()}
    making = path.with_name(f"{path.name}.tmp")
    try:
        with tarfile.open(making, "w:gz", compresslevel=1) as archive:
            for file in _own_files():
                archive.add(file, file.relative_to(_root().parent), filter=_anonymous)
            for one in found.values():
                for file, name in _files(one):
                    archive.add(file, name, filter=_anonymous)
        REAL_FILES.rename(making, path)
    finally:
        making.unlink(missing_ok=True)
    return {name: one.version for name, one in sorted(found.items())}


def properties(path: Path) -> dict[str, str]:
    """Return the Spark properties with which executors use it."""
    return {
        "spark.archives": f"{path.absolute()}#{OWN}",
        "spark.executorEnv.PYTHONPATH": OWN,
    }


def _root() -> Path:
    return Path(penstock.__file__).parent


def _own_files() -> Iterator[Path]:
    """Yield the files of the package itself, which may be a checkout."""
    for file in sorted(_root().rglob("*")):
        if file.suffix in OWN_SUFFIXES and "__pycache__" not in file.parts:
            yield file


def _files(found: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield a distribution's files, with their places below the folder of its installation."""
    for file in found.files or ():
        is_ours = found.name == OWN and ".dist-info" not in file.parts[0]
        if ".." in file.parts or "__pycache__" in file.parts or is_ours:
            continue
        path = Path(str(file.locate()))
        if path.is_file():
            yield path, str(file)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
