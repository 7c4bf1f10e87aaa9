"""The user that may run a server of ours, and the folders that this user can reach.

Database servers refuse to run as root, so root drops to an existing unprivileged user. Not here:
the paths of the programs (the engines' `server/binaries.py`).
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock.model import PenstockError

ACCOUNTS = ("postgres", "nobody", "daemon")  # the first that exists; initdb wants a named user
VERSION_TIMEOUT_S = 20.0  # limit for a program that prints its version


class BinariesMissing(PenstockError):
    """No server binaries of the requested kind and version are on this machine."""

    code: ClassVar[str] = "HS43"
    retry = "operator"


class NoUnprivilegedAccount(PenstockError):
    """We run as root, and there is no unprivileged user to run a server."""

    code: ClassVar[str] = "HS44"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """User that runs a server when we are root."""

    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Return the user to run servers as; None if we are not root: then we run them ourselves.

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
    """Return whether account may enter path and every folder above it; True for ourselves."""
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
