"""Jars of the table formats, found in Maven's local repository and pinned by their checksums.

Only the driver's JVM needs them: workers read and write files without Java. Not here: fetching
them, which Maven does (`FETCH` has the command).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from penstock.model import PenstockError

READ_BYTES = 2**20
FETCH = "mvn dependency:get -Dtransitive=false -Dartifact="


class LakeJarsMissing(PenstockError):
    """A jar of the table format is not in Maven's local repository, or is another one."""

    code = "LK20"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """Jar of a released version.

    Attributes:
        sha256: Checksum of its bytes, hexadecimal.
    """

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """Return its name for Maven."""
        return f"{self.group}:{self.artifact}:{self.version}"

    def path_in(self, repository: Path) -> Path:
        """Return its path in a local repository."""
        folder = repository.joinpath(*self.group.split("."), self.artifact, self.version)
        return folder / f"{self.artifact}-{self.version}.jar"


DELTA_JARS = (
    Jar(
        group="io.delta",
        artifact="delta-spark_4.1_2.13",
        version="4.4.0",
        sha256="75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    ),
    Jar(
        group="io.delta",
        artifact="delta-storage",
        version="4.4.0",
        sha256="c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
)
ICEBERG_JARS = (
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-spark-runtime-4.1_2.13",
        version="1.12.0",
        sha256="3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
)
DELTA_S3_JARS = (
    # Of the Hadoop that pyspark has; `test_object_store.py` compares the versions.
    Jar(
        group="org.apache.hadoop",
        artifact="hadoop-aws",
        version="3.4.2",
        sha256="d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
    ),
    # Parts of Amazon's client that Hadoop's classes load, and S3_JARS, of the same version, lacks.
    Jar(
        group="software.amazon.awssdk",
        artifact="s3-transfer-manager",
        version="2.54.17",
        sha256="7bef0ea4efd5e0860bab63e08317040951edb51b72a5be734284c28b8324ab87",
    ),
    Jar(
        group="software.amazon.awssdk",
        artifact="apache-client",
        version="2.54.17",
        sha256="0b00ae3d55c3d1213ca47b5651dc4c2a0080fc9b6192dde3d53c3da6c1811bcb",
    ),
)
S3_JARS = (
    # Has Amazon's client, too, at a tenth of the size of Amazon's own bundle.
    Jar(
        group="org.apache.iceberg",
        artifact="iceberg-aws-bundle",
        version="1.12.0",
        sha256="dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    ),
)


def delta_jars(*, is_on_s3: bool) -> tuple[Jar, ...]:
    """Return the jars for Delta tables."""
    return (*DELTA_JARS, *DELTA_S3_JARS, *S3_JARS) if is_on_s3 else DELTA_JARS


def iceberg_jars(*, is_on_s3: bool) -> tuple[Jar, ...]:
    """Return the jars for Iceberg tables."""
    return (*ICEBERG_JARS, *S3_JARS) if is_on_s3 else ICEBERG_JARS


def find_repository() -> Path:
    """Return Maven's local repository.

    It is `maven.repo.local` of MAVEN_ARGS or MAVEN_OPTS, else the one of ~/.m2/settings.xml, else
    ~/.m2/repository.
    """
    for name in ("MAVEN_ARGS", "MAVEN_OPTS"):
        if given := re.search(r"-Dmaven\.repo\.local=(\S+)", os.environ.get(name, "")):
            return Path(given[1].strip("\"'"))
    home = Path.home() / ".m2"
    return _in_settings(home / "settings.xml") or home / "repository"


def _in_settings(path: Path) -> Path | None:
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return None
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    given = re.search(r"<localRepository>\s*([^<]+?)\s*</localRepository>", text)
    if given is None:
        return None
    path_text = given[1].replace("${user.home}", str(Path.home())).replace("${env.", "${")
    return Path(os.path.expandvars(path_text))


def find_jars(jars: Iterable[Jar]) -> tuple[Path, ...]:
    """Return the paths of jars. Raises LakeJarsMissing, which names all that are missing."""
    wanted = tuple(jars)
    repository = find_repository()
    if missing := [jar for jar in wanted if not jar.path_in(repository).is_file()]:
        commands = " && ".join(FETCH + jar.coordinates for jar in missing)
        raise LakeJarsMissing(
            f"{', '.join(jar.coordinates for jar in missing)} is not in Maven's local repository "
            f"{repository}",
            hint=f"Run: {commands}",
        )
    for jar in wanted:
        path = jar.path_in(repository)
        state = path.stat()
        if _checksum(path, state.st_mtime_ns, state.st_size) != jar.sha256:
            raise LakeJarsMissing(
                f"{path} has other bytes than the released {jar.coordinates}",
                hint=f"Remove the file, then run: {FETCH}{jar.coordinates}",
            )
    return tuple(jar.path_in(repository) for jar in wanted)


@lru_cache(maxsize=16)
def _checksum(path: Path, _changed_ns: int, _size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def class_path(jars: Iterable[Jar]) -> str:
    """Return jars as `spark.driver.extraClassPath` names them. Raises LakeJarsMissing."""
    return os.pathsep.join(str(path) for path in find_jars(jars))
