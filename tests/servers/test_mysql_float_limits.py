"""FLOAT and DOUBLE at the limits of their ranges: the same bits in bulk and as changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.mysql_bulk import Here, between, load
from harness.pipelines.mysql_pipe import Pipe, empty_pipe
from penstock.control.pipeline.config import load_config
from plugins.mysql import MySQLServer, database_of

TABLES = ("id int primary key", "id int", "id int primary key, n int unique")
COLUMNS = "f float, g float(10,5), d double, e double(20,5)"
ROWS = (
    "(1, 3.402823466e38, 99999.99999, 1.7976931348623157e308, 99999.99999),"
    "(2, -3.402823466e38, -99999.99999, -1.7976931348623157e308, -12345.67891),"
    "(3, 1.401298464324817e-45, 12345.67891, 4.9406564584124654e-324, 0.00001),"
    "(4, 1.1754943508222875e-38, 0.00001, 2.2250738585072014e-308, 123456789012345.12345),"
    "(5, 16777217, 0.1, 0.1, 0.1)"
)


@pytest.fixture
def pipe(mysql: MySQLServer, tmp_path: Path) -> Iterator[Pipe]:
    """Two empty databases, and a pipeline between them."""
    with empty_pipe(mysql, tmp_path) as made:
        yield made


def make(server: MySQLServer, url: str) -> None:
    """Create tables with a key, without one, and with a second unique key."""
    for number, body in enumerate(TABLES):
        server.execute(f"create table t{number} ({body}, {COLUMNS})", database_of(url))


def fill(server: MySQLServer, url: str) -> None:
    """Insert the same rows into each."""
    for number in range(len(TABLES)):
        server.execute(f"insert into t{number} (id, f, g, d, e) values {ROWS}", database_of(url))


def check(server: MySQLServer, pipe: Pipe, count: int) -> None:
    """Check that both databases have equal doubles, as the server compares them."""
    source, target = database_of(pipe.source), database_of(pipe.target)
    for number in range(len(TABLES)):
        (found,) = server.execute(
            "select count(*), coalesce(sum(s.f + 0e0 = t.f + 0e0), 0),"
            " coalesce(sum(s.g + 0e0 = t.g + 0e0), 0), coalesce(sum(s.d = t.d), 0),"
            " coalesce(sum(s.e = t.e), 0)"
            f" from {source}.t{number} as s join {target}.t{number} as t on s.id = t.id"
        )
        assert [int(part) for part in found] == [count] * 5, f"t{number}"
        assert server.value(f"select count(*) from t{number}", target) == count


@pytest.mark.parametrize("files", ["ON", "OFF"])
def test_in_bulk(mysql: MySQLServer, pipe: Pipe, tmp_path: Path, files: str) -> None:
    """Values go by LOAD DATA, and by INSERT if the target takes no files."""
    make(mysql, pipe.source)
    fill(mysql, pipe.source)
    config = between(pipe.source, pipe.target, tmp_path)
    mapped = f'[target.map]\n{database_of(pipe.source)} = "{database_of(pipe.target)}"\n'
    text = config.path.read_text()
    config.path.write_text(text.replace("[dataLoader]", mapped + "[dataLoader]"))
    with mysql.globals(local_infile=files):
        load(load_config(config.path), Here())  # type: ignore[arg-type]
    check(mysql, pipe, 5)


@pytest.mark.parametrize("files", ["ON", "OFF"])
def test_as_changes(mysql: MySQLServer, pipe: Pipe, files: str) -> None:
    """Values are inserted, updated and deleted straight from files, and through merge tables."""
    for url in (pipe.source, pipe.target):
        make(mysql, url)
    pipe.extract()
    with mysql.globals(local_infile=files):
        fill(mysql, pipe.source)
        pipe.extract()
        pipe.load()
        check(mysql, pipe, 5)
        for number in range(len(TABLES)):
            pipe.run(
                f"update t{number} set f = -f, d = -d;"
                f"delete from t{number} where id = 2;"
                f"update t{number} set f = 3.402823466e38, d = -1.7976931348623157e308 where id = 5"
            )
        pipe.extract()
        pipe.load()
        check(mysql, pipe, 4)
