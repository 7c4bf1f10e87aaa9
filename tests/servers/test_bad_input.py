"""Bad input: a clear error with its code and the command to run, exit code 1, nothing changed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.postgres import Server

PASSWORD = "secret"
WAIT_S = 30.0


def name_of(url: str) -> str:
    """Return the database's name in a URL."""
    return urlsplit(url).path.lstrip("/")


class Stage:
    """A source with one valid table, a target and a folder, and a picture of all three."""

    def __init__(self, folder: Path, server: Server, source_url: str, target_url: str) -> None:
        self.folder = folder
        self.server = server
        self.source_url = source_url
        self.target_url = target_url
        self.sql("create table a (id int primary key, t text)")

    def sql(self, statement: str, *, target: bool = False) -> list[tuple[Any, ...]]:
        """Run SQL as superuser in the source, or in the target."""
        return self.server.execute(
            statement, name_of(self.target_url if target else self.source_url)
        )

    def file(self, **options: Any) -> Path:
        """Write a pipeline file over both databases."""
        source = options.pop("source", self.source_url)
        target = options.pop("target", self.target_url)
        return write_pipeline(self.folder, source, target, **options)

    def picture(self) -> dict[str, Any]:
        """Return everything that a refused command must leave unchanged."""
        relations = (
            "select n.nspname, c.relname, c.relreplident, c.relfilenode from pg_class c"
            " join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by 1, 2"
        )
        schemas = "select nspname from pg_namespace where nspname !~ '^pg_' order by 1"
        return {
            "slots": self.server.execute("select slot_name from pg_replication_slots order by 1"),
            "publications": self.sql("select pubname from pg_publication"),
            "source": (self.sql(relations), self.sql(schemas)),
            "target": (self.sql(relations, target=True), self.sql(schemas, target=True)),
            "files": {
                path.relative_to(self.folder): path.read_bytes() if path.is_file() else None
                for path in sorted(self.folder.rglob("*"))
                if path.suffix != ".toml"
            },
        }

    def check_refusal(self, path: Path, code: str, *said: str, command: str = "run") -> Ran:
        """Run it; check that it fails with this error and these words, and that nothing changed."""
        before = self.picture()
        ran = penstock(command, path, "--json")
        assert ran.code == 1, ran
        assert ran.error["code"] == code, ran.err
        text = f"{ran.error['error']} {ran.error['hint']}"
        for word in said:
            assert word in text, text
        assert ran.error["hint"], "every error names what to do"
        assert "Traceback" not in ran.err
        assert PASSWORD not in ran.err + ran.out
        assert self.picture() == before
        return ran


@pytest.fixture
def stage(tmp_path: Path, postgres: Server, source_url: str, target_url: str) -> Stage:
    """Valid input, which a test then breaks."""
    return Stage(tmp_path, postgres, source_url, target_url)


@pytest.fixture
def least(stage: Stage) -> Iterator[Callable[[str], str]]:
    """Function that returns the URL of a role that may only log in: `least(url)`."""
    role = f"bad_input_{time.monotonic_ns()}"
    stage.server.execute(f"create role {role} login password '{PASSWORD}'")
    yield lambda url: stage.server.url(name_of(url), role, PASSWORD)
    for url in (stage.source_url, stage.target_url):
        stage.server.execute(f"drop owned by {role} cascade", name_of(url))
    stage.server.execute(f"drop role {role}")


@pytest.mark.parametrize("side", ["source", "target"])
def test_wrong_url(stage: Stage, side: str) -> None:
    """A host or port where no process listens is refused."""
    path = stage.file(**{side: f"postgresql://u:{PASSWORD}@127.0.0.1:1/shop"})
    stage.check_refusal(path, "HS22", "127.0.0.1:1", "pg_isready")


@pytest.mark.parametrize("side", ["source", "target"])
def test_unknown_database(stage: Stage, side: str) -> None:
    """A database that does not exist is refused."""
    path = stage.file(**{side: stage.server.url("no_such_database")})
    stage.check_refusal(path, "HS24", "no_such_database")


@pytest.mark.parametrize("side", ["source", "target"])
def test_wrong_password(stage: Stage, side: str) -> None:
    """A password that the server refuses is not repeated."""
    url = stage.server.url(name_of(stage.source_url), "postgres", PASSWORD)
    stage.check_refusal(stage.file(**{side: url}), "HS23", "password")


def test_missing_privilege_at_the_source(stage: Stage, least: Callable[[str], str]) -> None:
    """The error for a role without REPLICATION has the ALTER ROLE to type."""
    path = stage.file(source=least(stage.source_url))
    stage.check_refusal(path, "PG05", "alter role", "replication")


def test_missing_privilege_in_the_target(stage: Stage, least: Callable[[str], str]) -> None:
    """The error for a role that may create nothing has the GRANT to type."""
    path = stage.file(target=least(stage.target_url))
    stage.check_refusal(path, "PK08", "grant create on database")


@pytest.fixture(scope="module")
def other_server(postgres_version: int) -> Iterator[Server]:
    """A server whose settings these tests break."""
    with EmbeddedPostgres(major=postgres_version) as embedded:
        server = Server(embedded=embedded)
        server.execute("create table a (id int primary key, t text)")
        yield server


def test_wal_level_replica(stage: Stage, other_server: Server) -> None:
    """A wal_level below logical is refused."""
    other_server.restart_with(wal_level="replica")
    try:
        stage.check_refusal(
            stage.file(source=other_server.url()), "PG02", "alter system set wal_level"
        )
        assert other_server.execute("select * from pg_publication") == []
    finally:
        other_server.restart_with(wal_level="logical")


def test_no_free_slot(stage: Stage, other_server: Server) -> None:
    """A run is refused if all slots of the server are in use."""
    other_server.restart_with(max_replication_slots="1")
    other_server.execute("select pg_create_physical_replication_slot('taken')")
    try:
        path = stage.file(source=other_server.url())
        stage.check_refusal(path, "PG03", "alter system set max_replication_slots")
        assert other_server.execute("select * from pg_publication") == []
    finally:
        other_server.execute("select pg_drop_replication_slot('taken')")
        other_server.restart_with(max_replication_slots="20")


@pytest.mark.parametrize("command", ["run", "extract", "load"])
def test_table_without_key(stage: Stage, command: str) -> None:
    """The error for a table without key under replica identity default has the ALTER to type."""
    stage.sql("create table loose (n int)")
    said = 'alter table "public"."loose" replica identity full'
    stage.check_refusal(stage.file(), "PG12", "public.loose", said, command=command)
    assert penstock("doctor", stage.file()).code == 1


def test_target_table_of_another_shape(stage: Stage) -> None:
    """An existing target table whose columns differ is refused."""
    stage.sql("create table a (id int primary key, t int)", target=True)
    stage.check_refusal(
        stage.file(), "PK12", "public.a", "t is integer, expected text", "alter table"
    )


def test_column_type_the_target_cannot_hold(stage: Stage) -> None:
    """A type that the target does not have and that cannot be created there is refused."""
    stage.sql('create collation odd from "C"; alter table a add c text collate odd')
    stage.check_refusal(stage.file(), "PK13", "odd")


def test_unknown_key(stage: Stage) -> None:
    """The error for a key that penstock does not know names the nearest one."""
    path = stage.file(sections={"changeLoader": {"maxFilePerBatch": 3}})
    stage.check_refusal(path, "CF04", "maxFilePerBatch", "maxFilesPerBatch", "[changeLoader]")


def test_starting_position_in_data_and_change(stage: Stage) -> None:
    """The handover captures the position, so a given one is refused."""
    path = stage.file(sections={"changeExtractor": {"startLsn": "0/1"}})
    stage.check_refusal(path, "CF10", "startLsn")


def test_no_table_matches(stage: Stage) -> None:
    """Patterns that match no table are refused."""
    stage.check_refusal(stage.file(tables=["publik.*"]), "PK06", "publik.*")


def extract_begun(path: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start an extractor, and wait until it has the log's lock and its slot."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "extract", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + WAIT_S
    while not (log / "LOCK").exists() or not (log.parent / "state" / "stream.json").exists():
        assert process.poll() is None, "the first extractor ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def test_two_extractors_on_one_directory(stage: Stage) -> None:
    """The second extractor is told which process has the directory; the first one continues."""
    path = stage.file(mode="change")
    first = extract_begun(path, stage.folder / "shop" / "log")
    try:
        for command in ("extract", "run"):
            ran = penstock(command, path, "--json")
            assert ran.code == 1
            assert ran.error["code"] == "CT02"
            assert str(first.pid) in ran.error["error"] + ran.error["hint"]
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(WAIT_S) == 0


def run_until_directory(stage: Stage, path: Path) -> None:
    """Run a pipeline until it has its directory, then end it."""
    extract = extract_begun(path, stage.folder / "shop" / "log")
    extract.send_signal(signal.SIGTERM)
    assert extract.wait(WAIT_S) == 0


def test_directory_of_another_pipeline(stage: Stage) -> None:
    """A directory belongs to the pipeline that was started in it."""
    run_until_directory(stage, stage.file(mode="change"))
    path = stage.file(mode="change", name="other")
    stage.check_refusal(path, "PG07", "belongs to the pipeline shop", "directory of its own")


def test_directory_of_another_source(stage: Stage, other_server: Server) -> None:
    """Positions of one server have no meaning on another server, or in another database."""
    run_until_directory(stage, stage.file(mode="change"))
    path = stage.file(mode="change", source=other_server.url())
    stage.check_refusal(path, "PG07", "system identifier")
    another = stage.server.make_database("another")
    try:
        stage.server.execute("create table a (id int primary key)", name_of(another))
        path = stage.file(mode="change", source=another)
        stage.check_refusal(path, "PG07", "database")
    finally:
        stage.server.drop_database(another)
