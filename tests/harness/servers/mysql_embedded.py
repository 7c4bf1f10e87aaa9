"""MySQL and MariaDB servers for the tests and the benchmarks.

They are like `EmbeddedPostgres`: on 127.0.0.1 and a free port, in a separate folder, as an
unprivileged user, and end when the `with` block ends or the process is killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import quote

from harness.servers.mysql_binaries import MySQLInstallation, find_mysql_installation
from penstock.engines.mysql.connect import Flavour, ServerVersion
from penstock.host.server_process import (
    EmbeddedServerFailed,
    ServerFolder,
    TlsFiles,
    Watcher,
    end_process,
    free_port,
    log_tail,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

INITIALISE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
START_ATTEMPTS_MAX = 5
GREETING_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.02

BASE_SETTINGS: dict[str, str] = {
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "character_set_server": "utf8mb4",
    "default_time_zone": "+00:00",
    "skip_name_resolve": "ON",
    "max_connections": "150",
    "innodb_buffer_pool_size": "64M",
    "loose_innodb_log_file_size": "32M",  # loose: not every version has it
    "local_infile": "ON",
}
# Settings of a temporary server; `settings` of the caller override them.
THROWAWAY_SETTINGS: dict[str, str] = {
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_doublewrite": "OFF",
    "innodb_flush_method": "nosync",
    "sync_binlog": "0",
}


class _EmbeddedServer:
    """Common part of MySQL and MariaDB; see `EmbeddedMySQL`."""

    flavour: ClassVar[Flavour]
    own_settings: ClassVar[dict[str, str]]

    def __init__(
        self,
        *,
        basedir: Path | None = None,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
        tls: TlsFiles | None = None,
        password: str | None = None,
    ) -> None:
        self._basedir = basedir
        self._given_directory = directory
        throwaway = {} if durable else THROWAWAY_SETTINGS
        self._settings = {**BASE_SETTINGS, **self.own_settings, **throwaway, **(settings or {})}
        self._tls = tls
        self._folder: ServerFolder | None = None
        self._installation: MySQLInstallation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self.password = password if password is not None else secrets.token_urlsafe(12)
        self.port = 0
        self.directory = Path()

    # -- facts for others -----------------------------------------------------------------------
    @property
    def version(self) -> ServerVersion:
        """Flavour and version."""
        return self._known_installation.version

    @property
    def basedir(self) -> Path:
        """Folder of the programs."""
        return self._known_installation.basedir

    @property
    def running(self) -> bool:
        """Return whether the server is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def log_path(self) -> Path:
        """Error log of the server."""
        return self._home.root / "server.log"

    def url(self, database: str = "", user: str = "root", password: str | None = None) -> str:
        """Return the URL of a database; password defaults to the superuser's."""
        secret = self.password if password is None else password
        return (
            f"{self.flavour}://{quote(user, safe='')}:{quote(secret, safe='')}"
            f"@127.0.0.1:{self.port}/{quote(database, safe='')}"
        )

    # -- life -----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        """Make the data folder unless there is one already, and start the server."""
        try:
            folder = ServerFolder(self._given_directory, prefix=f"penstock-{self.flavour}-")
            self._folder = folder
            self.directory = folder.subfolder("data")
            self._installation = find_mysql_installation(self.flavour, self._basedir)
            is_new = not (self.directory / "mysql").is_dir()
            if self._tls is not None:
                self._install_tls(self._tls)
            if is_new:
                self._initialise()
            self._start(init_sql=self._first_statements() if is_new else [])
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
        """Stop the server; remove its folder if it was created here."""
        self._close()

    def start(self) -> None:
        """Start the server on its port (a free one the first time) and wait until it is ready."""
        self._start(init_sql=[])

    def stop(self) -> None:
        """Shut the server down and wait for its end; does nothing if it is stopped already."""
        self._finish((signal.SIGTERM, signal.SIGKILL))

    def crash(self) -> None:
        """Kill the server with SIGKILL, as the kernel's OOM killer would; start() recovers."""
        self._finish((signal.SIGKILL,))

    def set(self, **settings: str) -> None:
        """Change settings of the configuration file; they hold from the next start()."""
        self._settings.update(settings)

    def unset(self, *names: str) -> None:
        """Leave settings out of the configuration file, from the next start() on."""
        for name in names:
            self._settings.pop(name, None)

    # -- inside ---------------------------------------------------------------------------------
    @property
    def _known_installation(self) -> MySQLInstallation:
        if self._installation is None:
            raise RuntimeError("the server has not been entered")
        return self._installation

    @property
    def _home(self) -> ServerFolder:
        if self._folder is None:
            raise RuntimeError("the server has not been entered")
        return self._folder

    def _first_statements(self) -> list[str]:
        """Return statements that give the superuser a password, from 127.0.0.1 too, outside the
        binlog.
        """
        secret = self.password.replace("\\", "\\\\").replace("'", "\\'")
        return [
            "set sql_log_bin = 0",
            f"alter user 'root'@'localhost' identified by '{secret}'",
            f"create user if not exists 'root'@'127.0.0.1' identified by '{secret}'",
            f"alter user 'root'@'127.0.0.1' identified by '{secret}'",
            "grant all privileges on *.* to 'root'@'127.0.0.1' with grant option",
        ]

    def _write_settings(self, init_sql: list[str]) -> Path:
        root, installation = self._home.root, self._known_installation
        places = {
            "basedir": str(installation.basedir),
            "datadir": str(self.directory),
            # A server that starts removes the temporary tables of others from a shared folder.
            "tmpdir": str(self._home.subfolder("tmp")),
            "secure_file_priv": str(self._home.subfolder("tmp")),
            "lc_messages_dir": str(installation.share),
            "character_sets_dir": str(installation.share / "charsets"),
            "bind_address": "127.0.0.1",
            "port": str(self.port),
            "socket": str(root / "server.sock"),
            "pid_file": str(root / "server.pid"),
        }
        if init_sql:
            script = root / "init.sql"
            script.touch(0o600)
            self._home.own(script, 0o600)
            script.write_text("".join(f"{statement};\n" for statement in init_sql))
            places["init_file"] = str(script)
        lines = [f"{name} = {_escape(value)}" for name, value in (places | self._settings).items()]
        path = root / "my.cnf"
        path.write_text("\n".join(["[mysqld]", *lines, ""]))
        self._home.own(path, 0o600)
        return path

    def _install_tls(self, tls: TlsFiles) -> None:
        for source, name in ((tls.certificate, "server-cert.pem"), (tls.key, "server-key.pem")):
            place = self._home.root / name
            shutil.copyfile(source, place)
            self._home.own(place, 0o600)
        self._settings["ssl_cert"] = str(self._home.root / "server-cert.pem")
        self._settings["ssl_key"] = str(self._home.root / "server-key.pem")

    def _install_arguments(self, configuration: Path) -> list[str]:
        raise NotImplementedError

    def _initialise(self) -> None:
        arguments = self._install_arguments(self._write_settings([]))
        process = self._home.child(arguments, output=subprocess.PIPE)
        self._watch(process.pid)
        try:
            output, _ = process.communicate(timeout=INITIALISE_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._dismiss_watcher()
        if process.returncode:
            raise EmbeddedServerFailed(
                f"{self.version} could not make its data folder:\n"
                f"{output.decode(errors='replace')}",
                hint=f"Check that {self._home.root} has space and {self.basedir} is whole.",
            )

    def _start(self, *, init_sql: list[str]) -> None:
        if self.running:
            return
        fixed_port = self.port != 0
        deadline = time.monotonic() + START_TIMEOUT_S
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            if not fixed_port:
                self.port = free_port()
            if self._start_once(init_sql, deadline):
                (self._home.root / "init.sql").unlink(missing_ok=True)  # it contains the password
                return
            time.sleep(0.2 * attempt)  # a free port may be taken meanwhile
        raise EmbeddedServerFailed(
            f"{self.version} did not start in {self.directory}:\n{log_tail(self.log_path)}",
            hint=f"Read the whole log in {self.log_path}.",
        )

    def _start_once(self, init_sql: list[str], deadline: float) -> bool:
        """Start the server; return whether it became ready. If not, it is stopped again."""
        configuration = self._write_settings(init_sql)
        pid_file = self._home.root / "server.pid"
        pid_file.unlink(missing_ok=True)  # of a server that was killed
        with self.log_path.open("ab") as log:
            process = self._home.child(
                [str(self._known_installation.server), f"--defaults-file={configuration}"],
                output=log.fileno(),
            )
        self._process = process
        self._watch(process.pid)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if self._ready(pid_file):
                return True
            time.sleep(POLL_INTERVAL_S)
        self._finish((signal.SIGKILL,))
        return False

    def _ready(self, pid_file: Path) -> bool:
        """Return whether the server has written its pid and greets clients."""
        try:
            if pid_file.read_text().strip() != str(self.pid):
                return False
            with socket.create_connection(("127.0.0.1", self.port), GREETING_TIMEOUT_S) as probe:
                return bool(probe.recv(1))
        except OSError:
            return False

    def _finish(self, signals: tuple[signal.Signals, ...]) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, signals)
        self._dismiss_watcher()

    def _watch(self, pid: int) -> None:
        doomed = None if self._home.is_kept else self._home.root
        # A group, as the script that makes MariaDB's data folder starts a server.
        self._watcher = Watcher(pid, kill="KILL", doomed=doomed, is_group=True)

    def _dismiss_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.dismiss()

    def _close(self) -> None:
        folder = self._folder
        if folder is None:
            return
        try:
            if folder.is_kept:
                self.stop()
            else:
                self.crash()
        finally:
            folder.remove()


class EmbeddedMySQL(_EmbeddedServer):
    """A MySQL server that lives as long as the `with` block.

    basedir: the folder of its programs; None uses the one that is found. directory: the folder of
    its data, kept afterwards; None makes one under the system's temporary folder and removes it.
    settings: lines of my.cnf in addition to BASE_SETTINGS. durable: flush at each commit. tls:
    serve this certificate (without it, MySQL creates one). password: of the superuser `root`; a
    random one when None.

    The binlog is on, in row format with full images and full metadata, without GTIDs unless the
    settings say so. Not thread-safe, but independent servers may be started in parallel. Raises
    BinariesMissing, NoUnprivilegedAccount, EmbeddedDirectoryUnusable or EmbeddedServerFailed when
    entered.
    """

    flavour = Flavour.MYSQL
    own_settings: ClassVar[dict[str, str]] = {"loose_mysqlx": "OFF"}

    def _install_arguments(self, configuration: Path) -> list[str]:
        return [
            str(self._known_installation.server),
            f"--defaults-file={configuration}",
            "--initialize-insecure",
            "--skip-log-bin",
        ]


class EmbeddedMariaDB(_EmbeddedServer):
    """A MariaDB server that lives as long as the `with` block; see `EmbeddedMySQL`.

    Changes from a primary are written into its binlog, too.
    """

    flavour = Flavour.MARIADB
    own_settings: ClassVar[dict[str, str]] = {"log_slave_updates": "ON", "gtid_domain_id": "0"}

    def _install_arguments(self, configuration: Path) -> list[str]:
        program = self._known_installation.install_program
        if program is None:
            raise EmbeddedServerFailed(
                f"{self.version} in {self.basedir} has no mariadb-install-db",
                hint="On Debian: `apt-get install mariadb-server-core mariadb-client-core`.",
            )
        return [
            str(program),
            f"--defaults-file={configuration}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-log-bin",
        ]


def _escape(value: str) -> str:
    """Return a value of my.cnf: quoted if a blank or a comment sign would end it."""
    if value and not any(character in value for character in " \t#;'\"\\"):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
