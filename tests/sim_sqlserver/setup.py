"""Preparation of a PostgreSQL database as a database of the simulator."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sim_sqlserver.sqltypes import FIXED_LENGTHS, NUMBERS

FOLDER = Path(__file__).parent / "sql"
FILES = ("base.sql", "cdc_state.sql", "catalogue.sql", "functions.sql", "cdc.sql")
_TEXTS = b"".join((FOLDER / name).read_bytes() for name in FILES)
TEMPLATE = f"sim_sqlserver_{hashlib.sha256(_TEXTS).hexdigest()[:12]}"
_PRECISIONS = {
    "tinyint": (3, 0), "smallint": (5, 0), "int": (10, 0), "bigint": (19, 0), "bit": (1, 0),
    "money": (19, 4), "smallmoney": (10, 4), "float": (53, 0), "real": (24, 0), "date": (10, 0),
    "datetime": (23, 3), "smalldatetime": (16, 0), "decimal": (38, 38), "numeric": (38, 38),
    "time": (16, 7), "datetime2": (27, 7), "datetimeoffset": (34, 7),
}  # fmt: skip
_LENGTHS = {
    "nvarchar": 8000, "nchar": 8000, "varchar": 8000, "char": 8000, "binary": 8000,
    "varbinary": 8000, "decimal": 17, "numeric": 17, "time": 5, "datetime2": 8,
    "datetimeoffset": 10, "timestamp": 8, "vector": 8,
}  # fmt: skip


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Create the simulator's schemas in the connection's database, if they are not there."""
    row = connection.execute("select to_regnamespace('sim')").fetchone()
    if row is not None and row[0] is not None:
        return
    with connection.transaction():
        connection.execute("set local check_function_bodies = off")
        for name in FILES:
            path = FOLDER / name
            connection.execute(path.read_bytes(), prepare=False)
            if name == "catalogue.sql":
                _add_types(connection)


def _add_types(connection: psycopg.Connection[Any]) -> None:
    for name, (system, user) in NUMBERS.items():
        length = _LENGTHS.get(name) or FIXED_LENGTHS[name]
        digits = _PRECISIONS.get(name, (0, 0))
        connection.execute(
            "insert into sim.system_types values (%s, %s, %s, %s, %s, %s)",
            (name, system, user, length, *digits),
        )


def make_template(dsn: str) -> None:
    """Create the template database of a server, if it is not there yet and whole."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(743201)")
        found = connection.execute(
            "select datistemplate from pg_database where datname = %s", (TEMPLATE,)
        ).fetchone()
        if found == (True,):
            return
        name = sql.Identifier(TEMPLATE)
        connection.execute(sql.SQL("drop database if exists {}").format(name))
        create = sql.SQL("create database {} template template0 encoding 'UTF8'")
        connection.execute(create.format(name))
        with psycopg.connect(dsn, dbname=TEMPLATE, autocommit=True) as inside:
            prepare(inside)
            inside.execute("drop schema public")  # SQL Server has none: a client may create it
        connection.execute(sql.SQL("alter database {} is_template true").format(name))


def make_database(dsn: str, name: str) -> None:
    """Create a database from the template."""
    make_template(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(743201)")
        statement = sql.SQL("create database {} template {}")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
