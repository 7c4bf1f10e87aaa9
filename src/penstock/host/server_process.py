"""Parts that every server of our own needs: a folder, an unprivileged user, an end with ours.

A server never outlives the process that started it: if we are killed, a watcher that
holds the other end of a pipe stops it and removes the folder. Database servers refuse to run as
root, so root drops to an existing unprivileged user. Not here: the kinds of servers and the paths
of their programs (`embedded.py` of each engine).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
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


STOP_TIMEOUT_S = 30.0
REMOVE_ATTEMPTS_MAX = 10
LOG_TAIL_LINES = 15
# Where every user may make a private folder, if the server's user has no access to TMPDIR.
TEMPORARY_FOLDERS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - new folders below them

# Reads one line: "done" if we stopped the server. End of file means that we are dead.
_WATCHER = """
read word && exit 0
kill -s "$3" -- "$1" 2>/dev/null
tries=0
while kill -s 0 -- "$1" 2>/dev/null && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
[ -z "$2" ] || rm -rf "$2"
"""


class EmbeddedServerFailed(PenstockError):
    """An embedded server could not be initialised or did not start; its own messages are added."""

    code: ClassVar[str] = "HS41"
    retry = "operator"


class EmbeddedDirectoryUnusable(PenstockError):
    """The unprivileged user that runs the server cannot reach the given folder."""

    code: ClassVar[str] = "HS42"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A server certificate and its private key, PEM; both are copied into the server's folder."""

    certificate: Path
    key: Path


class ServerFolder:
    """Folder of one server and the user that runs it.

    The constructor creates the folder: the given one, which `remove` keeps, or a new one below the
    system's temporary folder. Raises NoUnprivilegedAccount or EmbeddedDirectoryUnusable.

    Attributes:
        root: The folder.
        account: The user; None if we are not root and run the server ourselves.
        is_kept: True if the folder was given.
    """

    def __init__(self, given: Path | None, *, prefix: str) -> None:
        self.account: Account | None = unprivileged_account()
        self.is_kept = given is not None
        if given is not None:
            self.root = given.absolute()
            self.root.mkdir(parents=True, exist_ok=True)
            if not enterable(self.root.parent, self.account):
                raise EmbeddedDirectoryUnusable(
                    f"user {self.account.name if self.account else ''!r} cannot enter "
                    f"{self.root.parent}",
                    hint="Name a folder below /tmp or /var/tmp, or run without root.",
                )
            self.own(self.root, 0o700)
            return
        # The name is chosen first: a Ctrl-C inside mkdtemp would leave a folder without a name.
        self.root = self._temporary() / f"{prefix}{secrets.token_hex(8)}"
        try:
            self.root.mkdir(mode=0o700)
            self.own(self.root, 0o700)
        except BaseException:
            self.remove()
            raise

    def _temporary(self) -> Path:
        for path in (Path(tempfile.gettempdir()), *TEMPORARY_FOLDERS):
            if path.is_dir() and enterable(path, self.account):
                return path
        raise EmbeddedDirectoryUnusable(
            f"no temporary folder that user {self.account.name if self.account else ''!r} "
            "can enter",
            hint="Set TMPDIR to a folder that every user can enter.",
        )

    def own(self, path: Path, mode: int) -> None:
        """Give a file or folder to the server's user, with this mode."""
        path.chmod(mode)
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)

    def subfolder(self, name: str) -> Path:
        """Return a folder in it for the server alone; create it if it is missing."""
        path = self.root / name
        path.mkdir(exist_ok=True)
        self.own(path, 0o700)
        return path

    def child(self, arguments: Sequence[str], *, output: int) -> subprocess.Popen[bytes]:
        """Start a program as the server's user, in a plain environment; errors go to output."""
        account = self.account
        return subprocess.Popen(
            list(arguments),
            cwd=self.root,
            env={"LC_ALL": "C", "TZ": "UTC", "HOME": str(self.root), "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its own session: Ctrl-C in the terminal is for us; we stop the server in our order.
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )

    def remove(self) -> None:
        """Remove a folder that we made; a crashed server's last writers may still use it."""
        if self.is_kept:
            return
        for attempt in range(1, REMOVE_ATTEMPTS_MAX + 1):
            try:
                shutil.rmtree(self.root)
            except FileNotFoundError:
                if not self.root.exists():
                    return
            except OSError:
                if attempt == REMOVE_ATTEMPTS_MAX:
                    raise
            else:
                return
            time.sleep(0.1 * attempt)


class Watcher:
    """Small shell that ends a process when our end of its pipe closes without "done".

    Args:
        pid: The process.
        kill: The signal that it sends, as in QUIT.
        doomed: A folder that it removes afterwards.
        is_group: End all processes of the group that the process leads.
    """

    def __init__(self, pid: int, *, kill: str, doomed: Path | None, is_group: bool = False) -> None:
        self._process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _WATCHER,
                "penstock-watcher",
                f"-{pid}" if is_group else str(pid),
                str(doomed) if doomed is not None else "",
                kill,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the watcher, because we have ended the server that it watched."""
        with contextlib.suppress(BrokenPipeError):  # the watcher has ended: nothing to dismiss
            self._process.communicate(b"done\n", timeout=STOP_TIMEOUT_S)


def end_process(process: subprocess.Popen[bytes], signals: Sequence[signal.Signals]) -> None:
    """End a server: send the first signal, and each next one after STOP_TIMEOUT_S."""
    for number in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
        return


def log_tail(path: Path) -> str:
    """Return the last lines of a server's log, for its error."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(lines[-LOG_TAIL_LINES:])


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
