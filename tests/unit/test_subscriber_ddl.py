"""Statements for a subscriber: types that it has, the published columns, the key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.cli import call_cli
from harness.pipelines.log import inserts, number_rows
from harness.pipelines.pipeline import write_pipeline
from harness.servers.serve import write_log
from penstock.model import Column, Relation
from penstock.serve.catalog.publications import Publication, PublishedTable
from penstock.serve.subscriber_ddl import subscriber_ddl
from penstock.serve.tables import served_relation

UNREACHABLE = "postgresql://u@127.0.0.1:1/shop"
SERVE = '[serve]\nlisten = "127.0.0.1:0"\nusers = { repl = "${SERVE_PASSWORD}" }\n'


def column(name: str, kind: str, **more: object) -> Column:
    """Return a column of a log without a neutral type of its own."""
    return Column(name=name, source_type=kind, neutral="string", **more)  # type: ignore[arg-type]


ORDERS = Relation(
    schema="public",
    name="orders",
    columns=(
        column("id", "integer", type_oid=23),
        column("Total", "numeric(12,2)", type_oid=1700, typmod=786438),
        column("mood", "public.mood", type_oid=99999),
        column("zip", "public.zip", base_type="character varying(5)", type_oid=99998),
        column("tags", "text[]", type_oid=1009),
        column("at", "timestamp with time zone", type_oid=1184),
    ),
    key=(0,),
    before=(0,),
)


def publication(**more: object) -> Publication:
    """Return a publication named p."""
    return Publication(name="p", oid=1, owner="u", **more)  # type: ignore[arg-type]


def test_types_of_postgresql() -> None:
    """A domain is the type below it; the user's other types are text, as the stream says."""
    [statement] = subscriber_ddl([ORDERS], [])
    assert statement == (
        "create table public.orders (\n"
        "    id integer,\n"
        '    "Total" numeric(12,2),\n'
        "    mood text,\n"
        "    zip character varying(5),\n"
        "    tags text[],\n"
        "    at timestamp with time zone,\n"
        "    primary key (id)\n"
        ");"
    )


def test_types_of_another_engine() -> None:
    """Columns have the types that a PostgreSQL target would have."""
    item = Relation(
        schema="shop",
        name="item",
        columns=(
            Column(name="id", source_type="bigint unsigned", neutral="uint64"),
            Column(name="flag", source_type="tinyint(1)", neutral="int16"),
            Column(name="at", source_type="datetime(6)", neutral="timestamp"),
        ),
        key=(0,),
        before=(0,),
    )
    announced = served_relation(item, "mysql").relation
    assert subscriber_ddl([announced], []) == [
        "create schema if not exists shop;",
        "create table shop.item (\n    id numeric(20,0),\n    flag smallint,\n"
        "    at timestamp(6) without time zone,\n    primary key (id)\n);",
    ]


def test_only_what_is_published() -> None:
    """A table outside of all publications is left out; column lists of several add up."""
    secret = replace(ORDERS, name="secret")
    first = publication(
        tables=(PublishedTable(schema="public", name="orders", columns=("id", "at")),)
    )
    second = publication(
        tables=(PublishedTable(schema="public", name="orders", columns=("mood",)),)
    )
    assert subscriber_ddl([ORDERS, secret], [first]) == [
        "create table public.orders (\n    id integer,\n    at timestamp with time zone,\n"
        "    primary key (id)\n);"
    ]
    [both] = subscriber_ddl([ORDERS, secret], [first, second])
    assert "mood text" in both
    [keyless] = subscriber_ddl([ORDERS], [second])
    assert "primary key" not in keyless


def test_the_command_reads_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log alone is enough; the answer says that the source was not read. Nothing is written."""
    monkeypatch.setenv("SERVE_PASSWORD", "of this test")
    file = write_pipeline(tmp_path, UNREACHABLE, None)
    words = ("plan", str(file), "--ddl")
    code, _, error = call_cli(capsys, *words, "--json")
    assert (code, json.loads(error)["code"]) == (1, "SV05")
    file.write_text(file.read_text() + SERVE)
    code, _, error = call_cli(capsys, *words, "--json")
    assert (code, json.loads(error)["code"]) == (1, "SV02")
    write_log(tmp_path / "shop" / "log", number_rows([inserts(2)]))
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = call_cli(capsys, *words)
    assert code == 0
    assert out.startswith("-- The source's tables were not read: ")
    assert "\ncreate table public.item (\n" in out
    assert sorted(tmp_path.rglob("*")) == before
    _, out, _ = call_cli(capsys, *words, "--json")
    assert len(json.loads(out)["statements"]) == 1
