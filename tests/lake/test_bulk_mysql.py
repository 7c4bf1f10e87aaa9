"""The bulk load from MySQL and MariaDB into a lake: lines in the log's form, as Arrow."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from harness.lake.copying import Copying
from penstock.control.pipeline.config import load_config
from penstock.host.retry import Backoff
from penstock.load import chunk as chunks
from penstock.model import TableName
from penstock.ports.target import ValueRefused
from plugins.mysql import MySQLServer, database_of


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch, mysql_url: str, tmp_path: Path) -> Copying:
    """Return a pipeline that copies all tables of the database."""
    monkeypatch.setattr(chunks, "BACKOFF", Backoff(attempts=1))
    made = Copying(monkeypatch, mysql_url, tmp_path)
    file = made.config.path
    file.write_text(file.read_text().replace("public.*", f"{database_of(mysql_url)}.*"))
    made.config = load_config(file)
    return made


EXPECTED = {
    "id": 1,
    "large": Decimal(2**64 - 1),
    "price": Decimal("-12345.67"),
    "ratio": 0.1,
    "bits": 5,
    "note": "a\tb\\n\n\0ü",
    "latin": "é",
    "raw": b"\x00\xff\n",
    "day": date(9999, 12, 31),
    "at": datetime(2026, 1, 2, 3, 4, 5, 600000),  # noqa: DTZ001 - the column has no zone
    "moment": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "clock": "-838:59:59",
    "kind": "b",
}


def test_values_are_those_of_the_log(copying: Copying, mysql: MySQLServer, mysql_url: str) -> None:
    """Values are those of the log."""
    name = database_of(mysql_url)
    mysql.execute(
        f"create table {name}.shop (id int primary key, large bigint unsigned, "
        "price decimal(12,2), ratio double, bits bit(4), note varchar(50) character set utf8mb4, "
        "latin varchar(9) character set latin1, raw varbinary(9), day date, at datetime(1), "
        "moment timestamp null, clock time, kind enum('a', 'b'))"
    )
    mysql.execute(
        f"insert into {name}.shop values (1, 18446744073709551615, -12345.67, 0.1, b'101', "
        "'a\\tb\\\\n\\n\\0ü', 'é', x'00ff0a', '9999-12-31', '2026-01-02 03:04:05.6', "
        "from_unixtime(1767323045), '-838:59:59', 'b'), "
        "(2, null, null, null, null, null, null, null, null, null, null, null, null)"
    )
    assert copying.load().rows == {_name_table(name): 2}
    [first, second] = sorted(copying.store.rows(_name_table(name)), key=lambda row: row["id"])
    assert first == EXPECTED
    assert second == {**dict.fromkeys(EXPECTED), "id": 2}


def test_a_zero_date_is_refused_by_name(
    copying: Copying, mysql: MySQLServer, mysql_url: str
) -> None:
    """A zero date is refused by name."""
    name = database_of(mysql_url)
    mysql.execute(f"create table {name}.shop (id int primary key, due date)")
    mysql.execute(f"set session sql_mode = ''; insert into {name}.shop values (1, '0000-00-00')")
    with pytest.raises(ValueRefused, match=f"column due of {name}.shop"):
        copying.load()


def _name_table(database: str) -> TableName:
    return TableName(database, "shop")
