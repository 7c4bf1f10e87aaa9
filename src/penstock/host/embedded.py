"""PostgreSQL servers of our own, for the demo, the tests and the benchmarks.

A server listens on 127.0.0.1 only, on a free port, in a folder of its own, and runs as an
unprivileged user. It never outlives the process that started it: leaving the `with` block stops
it, and should we be killed outright, a watcher that holds the other end of a pipe stops it and
removes the folder. Not here: anything that speaks to the server (see `penstock.host.connect`),
and where its binaries come from (`penstock.host.binaries`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self
from urllib.parse import quote

from penstock.host.binaries import (
    Account,
    Installation,
    enterable,
    find_installation,
    installation_for,
    unprivileged_account,
)
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
START_ATTEMPTS_MAX = 5
REMOVE_ATTEMPTS_MAX = 10
POLL_INTERVAL_S = 0.02
LOG_TAIL_LINES = 15
# Where everybody may make a private folder, should TMPDIR be closed to the server's user.
TEMPORARY_FOLDERS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - only mkdtemp below them

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: dict[str, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# What a throw-away server wants; `settings` of the caller comes on top.
THROWAWAY_SETTINGS: dict[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
}
BASE_SETTINGS: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "timezone": "UTC",
}

# Reads one line: "done" when the server was stopped by us. End of file means that we are dead.
_WATCHER = """
read word && exit 0
kill -QUIT "$1" 2>/dev/null
tries=0
while kill -0 "$1" 2>/dev/null && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
[ -z "$2" ] || rm -rf "$2"
"""


class EmbeddedServerFailed(PenstockError):
    """An embedded server could not be initialised or did not start; its own words are added."""

    code: ClassVar[str] = "HS41"
    retry = "operator"


class EmbeddedDirectoryUnusable(PenstockError):
    """The folder asked for can not be reached by the unprivileged user that runs the server."""

    code: ClassVar[str] = "HS42"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A server certificate and its private key, PEM; both are copied into the server's folder."""

    certificate: Path
    key: Path


class EmbeddedPostgres:
    """A PostgreSQL server that lives as long as the `with` block.

    major: the version wanted (15, 16, 18 ...); None takes the newest that is found. bindir: use
    exactly these binaries. directory: where the cluster lives, kept afterwards; None makes one
    under the system's temporary folder and removes it. settings: lines of postgresql.conf on top
    of BASE_SETTINGS; durable: leave fsync on. tls: serve TLS too. password: of the superuser
    `postgres`; a random one when None.

    Not thread-safe, but independent servers may be started in parallel.
    Raises BinariesMissing, NoUnprivilegedAccount, EmbeddedDirectoryUnusable or
    EmbeddedServerFailed when entered.
    """

    def __init__(
        self,
        *,
        major: int | None = None,
        bindir: Path | None = None,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
        tls: TlsFiles | None = None,
        password: str | None = None,
    ) -> None:
        self._wanted = (major, bindir)
        self._given_directory = directory
        throwaway = {} if durable else THROWAWAY_SETTINGS
        self._settings = {**BASE_SETTINGS, **throwaway, **(settings or {})}
        self._tls = tls
        self._account: Account | None = None
        self._installation: Installation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._root: Path | None = None
        self.password = password if password is not None else secrets.token_urlsafe(12)
        self.port = 0
        self.directory = Path()

    # -- what others need to know ---------------------------------------------------------------
    @property
    def version(self) -> int:
        """The major version, as in 15 or 18."""
        return self._found.major

    @property
    def bindir(self) -> Path:
        """The folder of postgres, initdb and the clients that came with them."""
        return self._found.bindir

    @property
    def running(self) -> bool:
        """Whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self._base / "server.log"

    def url(
        self, database: str = "postgres", user: str = "postgres", password: str | None = None
    ) -> str:
        """The URL of a database; password defaults to the superuser's."""
        secret = self.password if password is None else password
        return (
            f"postgresql://{quote(user, safe='')}:{quote(secret, safe='')}"
            f"@127.0.0.1:{self.port}/{quote(database, safe='')}"
        )

    # -- life -----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        """Initialise the cluster unless the folder holds one already, and start it."""
        self._account = unprivileged_account()
        try:
            self._make_root()
            wanted = find_installation(*self._wanted)
            self._installation = installation_for(wanted, self._account, self._base / "binaries")
            if not (self.directory / "PG_VERSION").exists():
                self._initialise()
            self.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server; remove its folder if we made it."""
        self._close()

    def start(self) -> None:
        """Start the server on its port (a free one the first time) and wait until it is ready."""
        if self.running:
            return
        fixed_port = self.port != 0
        deadline = time.monotonic() + START_TIMEOUT_S
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            if not fixed_port:
                self.port = _free_port()
            if self._start_once(deadline):
                return
            # A free port may be taken meanwhile; after a crash the old backends may need a
            # moment to let go of the shared memory.
            time.sleep(0.2 * attempt)
        raise EmbeddedServerFailed(
            f"PostgreSQL {self.version} did not start in {self.directory}:\n{self._log_tail()}",
            hint=f"Read the whole log in {self.log_path}.",
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; does nothing when it is stopped already."""
        process, self._process = self._process, None
        if process is not None:
            self._end(process, _STOP_SIGNALS[mode])
        self._dismiss_watcher()

    def crash(self) -> None:
        """Kill the postmaster with SIGKILL, as the kernel's OOM killer would; start() recovers."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        self._dismiss_watcher()

    def set(self, **settings: str) -> None:
        """Change settings of postgresql.conf; they hold from the next start() or reload()."""
        self._settings.update(settings)
        self._write_settings()

    def reload(self) -> None:
        """Make the running server read its configuration files again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    # -- inside ---------------------------------------------------------------------------------
    @property
    def _found(self) -> Installation:
        if self._installation is None:
            raise RuntimeError("the server has not been entered")
        return self._installation

    @property
    def _base(self) -> Path:
        if self._root is None:
            raise RuntimeError("the server has not been entered")
        return self._root

    def _make_root(self) -> None:
        """Make the folder that holds the cluster, reachable by the server's user."""
        if self._given_directory is None:
            self._root = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=self._temporary()))
        else:
            self._root = self._given_directory.absolute()
            self._root.mkdir(parents=True, exist_ok=True)
            if not enterable(self._root.parent, self._account):
                raise EmbeddedDirectoryUnusable(
                    f"user {self._account.name if self._account else ''!r} can not enter "
                    f"{self._root.parent}",
                    hint="Name a folder below /tmp or /var/tmp, or run without root.",
                )
        self._own(self._root, 0o700)
        self.directory = self._root / "data"
        self.directory.mkdir(exist_ok=True)
        self._own(self.directory, 0o700)

    def _temporary(self) -> Path:
        for path in (Path(tempfile.gettempdir()), *TEMPORARY_FOLDERS):
            if path.is_dir() and enterable(path, self._account):
                return path
        raise EmbeddedDirectoryUnusable(
            f"no temporary folder that user {self._account.name if self._account else ''!r} "
            "can enter",
            hint="Set TMPDIR to a folder that every user can enter.",
        )

    def _own(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _child(self, arguments: list[str], *, output: int) -> subprocess.Popen[bytes]:
        """Start a program of the installation as the server's user, in a plain environment."""
        account = self._account
        return subprocess.Popen(
            arguments,
            cwd=self._base,
            env={"LC_ALL": "C", "TZ": "UTC", "HOME": str(self._base), "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its own session: Ctrl-C in the terminal is for us; we stop the server in our order.
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )

    def _initialise(self) -> None:
        secret = self._base / "password"
        secret.touch(0o600)
        self._own(secret, 0o600)
        secret.write_text(self.password + "\n")
        process = self._child(
            [
                str(self.bindir / "initdb"),
                f"--pgdata={self.directory}",
                "--username=postgres",
                "--encoding=UTF8",
                "--locale=C",
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                f"--pwfile={secret}",
                "--no-sync",
            ],
            output=subprocess.PIPE,
        )
        self._watch(process.pid)
        try:
            output, _ = process.communicate(timeout=START_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self._dismiss_watcher()
            secret.unlink()
        if process.returncode:
            raise EmbeddedServerFailed(
                f"initdb of PostgreSQL {self.version} failed:\n{output.decode(errors='replace')}",
                hint=f"Check that {self.directory.parent} has space and {self.bindir} is whole.",
            )
        if self._tls is not None:
            self._install_tls(self._tls)
        self._write_settings()

    def _install_tls(self, tls: TlsFiles) -> None:
        for source, name in ((tls.certificate, "server.crt"), (tls.key, "server.key")):
            shutil.copyfile(source, self.directory / name)
            self._own(self.directory / name, 0o600)
        self._settings["ssl"] = "on"

    def _write_settings(self) -> None:
        """Keep our settings in a file of their own, included at the end of postgresql.conf."""
        lines = [f"{name} = '{_escaped(value)}'" for name, value in self._settings.items()]
        own = self.directory / "penstock.conf"
        own.write_text("\n".join(lines) + "\n")
        self._own(own, 0o600)
        main = self.directory / "postgresql.conf"
        include = "include 'penstock.conf'"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(f"\n{include}\n")

    def _start_once(self, deadline: float) -> bool:
        """Start the postmaster and tell whether it became ready; if not, it is gone again."""
        with self.log_path.open("ab") as log:
            process = self._child(
                [str(self.bindir / "postgres"), "-D", str(self.directory), "-p", str(self.port)],
                output=log.fileno(),
            )
        self._process = process
        self._watch(process.pid)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if self._ready(process.pid):
                return True
            time.sleep(POLL_INTERVAL_S)
        self.stop("immediate")
        return False

    def _ready(self, pid: int) -> bool:
        """Read what the postmaster says of itself: line 1 its pid, line 8 its status."""
        try:
            lines = (self.directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        ready = len(lines) >= 8 and lines[7].strip() in {"ready", "standby"}
        return ready and lines[0].strip() == str(pid)

    def _watch(self, pid: int) -> None:
        """Let a small shell stop the server when our end of its pipe closes without a word."""
        doomed = str(self._base) if self._given_directory is None else ""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "penstock-watcher", str(pid), doomed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _dismiss_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        with contextlib.suppress(BrokenPipeError):  # it is gone already: nothing to dismiss
            watcher.communicate(b"done\n", timeout=STOP_TIMEOUT_S)

    def _end(self, process: subprocess.Popen[bytes], first: signal.Signals) -> None:
        """End the postmaster: as asked, then at once, then by force."""
        for number in (first, signal.SIGQUIT, signal.SIGKILL):
            if process.poll() is not None:
                return
            process.send_signal(number)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def _close(self) -> None:
        keep = self._given_directory is not None
        try:
            self.stop("fast" if keep else "immediate")
        finally:
            if self._root is not None and not keep:
                _remove(self._root)

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "(no log was written)"
        return "\n".join(lines[-LOG_TAIL_LINES:])


def _remove(root: Path) -> None:
    """Remove a folder in which the last backends of a crashed server may still be writing."""
    for attempt in range(1, REMOVE_ATTEMPTS_MAX + 1):
        try:
            shutil.rmtree(root)
        except FileNotFoundError:
            if not root.exists():
                return
        except OSError:
            if attempt == REMOVE_ATTEMPTS_MAX:
                raise
        else:
            return
        time.sleep(0.1 * attempt)


def _escaped(value: str) -> str:
    return value.replace("'", "''")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
