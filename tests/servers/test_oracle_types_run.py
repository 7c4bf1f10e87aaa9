"""`penstock run` with every type between the simulated Oracle and other engines.

Rows come by the bulk load and as changes, and verify compares them. Not here: the rules of the
types (`tests/unit/test_oracle_types.py`, `test_oracle_type_rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.pipelines.types_run import Pair, postgres_cases, tables_of, url_of
from harness.servers import mysql_types, postgres_types
from harness.servers.engines import FIRST, new_place
from plugins.mysql import kinds
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

_WHOLE = ("0", "1", "-1")
_TEXTS = ("'a'", "'it''s'", "'tail '", "'a' || CHR(10) || 'b'", "'back\\slash'")
_UNICODE = ("UNISTR('\\00e9\\d83d\\de00')",)
_DAYS = ("DATE '2020-02-29'", "DATE '1999-12-31'", "DATE '9999-12-31'", "DATE '1000-01-01'")
_MOMENT = "TIMESTAMP '2020-02-29 12:34:56'"
_MICROS = "TIMESTAMP '2020-02-29 12:34:56.123456'"
_NANOS = "TIMESTAMP '2020-02-29 12:34:56.123456789'"
CASES = {
    "NUMBER": (*_WHOLE, "3.14", "-0.001", "9" * 38, "123456789012345678901234.5678"),
    "NUMBER(4)": (*_WHOLE, "9999", "-9999"),
    "NUMBER(9)": (*_WHOLE, "999999999", "-999999999"),
    "NUMBER(18)": (*_WHOLE, "9" * 18, f"-{'9' * 18}"),
    "NUMBER(19)": (*_WHOLE, "9" * 19, f"-{'9' * 19}"),
    "NUMBER(38)": (*_WHOLE, "9" * 38, f"-{'9' * 38}"),
    "NUMBER(12,2)": (*_WHOLE, "9999999999.99", "-0.01"),
    "NUMBER(5,-2)": (*_WHOLE, "1234500"),
    "NUMBER(3,5)": ("0", "0.00123", "-0.00999"),
    "FLOAT": (*_WHOLE, "0.1", "-2.5"),
    "BINARY_FLOAT": (*_WHOLE, "0.5", "-2.25"),  # LogMiner rounds to nine digits
    "BINARY_DOUBLE": (*_WHOLE, "0.1", "-2.25"),
    "VARCHAR2(40)": (*_TEXTS, "NULL"),
    "VARCHAR2(40 CHAR)": (*_TEXTS, *_UNICODE),
    "VARCHAR2(4000)": (*_TEXTS, "RPAD('x', 4000, 'yz')"),
    "NVARCHAR2(40)": (*_TEXTS, *_UNICODE),
    "CHAR(10)": ("'a'", "'0123456789'"),
    "NCHAR(10)": ("'a'", *_UNICODE),
    "CLOB": (*_TEXTS, *_UNICODE, "TO_CLOB(RPAD('x', 4000, 'y')) || RPAD('x', 4000, 'z')"),
    "NCLOB": (*_TEXTS, *_UNICODE),
    "BLOB": ("HEXTORAW('00ff')", "HEXTORAW('61')"),
    "RAW(20)": ("HEXTORAW('00ff')", "HEXTORAW('61')"),
    "DATE": (*_DAYS, "TO_DATE('2024-01-02 03:04:05', 'YYYY-MM-DD HH24:MI:SS')"),
    "TIMESTAMP(0)": (_MOMENT,),
    "TIMESTAMP(3)": (_MOMENT, "TIMESTAMP '1999-12-31 23:59:59.999'"),
    "TIMESTAMP(6)": (_MOMENT, _MICROS, "TIMESTAMP '1969-12-31 23:59:59.999999'"),
    "TIMESTAMP(9)": (_MOMENT, _MICROS, _NANOS),
    "TIMESTAMP(6) WITH TIME ZONE": (f"{_MICROS[:-1]} +05:30'", f"{_MOMENT[:-1]} -08:00'"),
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": (_MOMENT, _MICROS),
    "INTERVAL YEAR(4) TO MONTH": ("TO_YMINTERVAL('12-03')", "TO_YMINTERVAL('-01-01')"),
    "INTERVAL DAY(4) TO SECOND(6)": (
        "TO_DSINTERVAL('1 02:03:04.5')", "TO_DSINTERVAL('-0 00:00:01')",
    ),
}  # fmt: skip


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Databases that are dropped afterwards."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    "target", [FIRST, *(pytest.param(kind, marks=pytest.mark.long) for kind in kinds())]
)
def test_to_another_engine(
    shared_servers: SharedServers, stack: ExitStack, tmp_path: Path, target: str
) -> None:
    """Every type arrives, by both ways."""
    source = stack.enter_context(new_place(shared_servers, "oracle"))
    into = stack.enter_context(new_place(shared_servers, target))
    Pair(tmp_path, source, into.url, into.namespace, tables_of(CASES)).check()


@pytest.mark.long
def test_to_a_lake(shared_servers: SharedServers, stack: ExitStack, tmp_path: Path) -> None:
    """Every type arrives in tables of Delta Lake, by both ways."""
    source = stack.enter_context(new_place(shared_servers, "oracle"))
    url = f"delta+file://{tmp_path / 'lake'}"
    Pair(tmp_path, source, url, "", tables_of(CASES)).check()


@pytest.mark.long
def test_from_postgres(shared_servers: SharedServers, stack: ExitStack, tmp_path: Path) -> None:
    """Every type of PostgreSQL arrives in Oracle, by both ways."""
    source = stack.enter_context(new_place(shared_servers, FIRST))
    target = stack.enter_context(new_place(shared_servers, "oracle"))
    source.run(postgres_types.SETUP)
    cases = postgres_cases(int(FIRST.removeprefix("pg")))
    Pair(tmp_path, source, url_of(target), target.namespace, tables_of(cases)).check()


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds())
def test_from_mysql(
    shared_servers: SharedServers, stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """Every type of MySQL and MariaDB arrives in Oracle, by both ways."""
    source = stack.enter_context(new_place(shared_servers, kind))
    target = stack.enter_context(new_place(shared_servers, "oracle"))
    cases = mysql_types.values_for(kind == "mariadb")
    Pair(tmp_path, source, url_of(target), target.namespace, tables_of(cases)).check()
