"""Changefeeds received into a staging database of a real server, for a real target's tables."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest

from penstock.control.feeds.feed_process import receiving
from penstock.control.pipeline.config import load_config
from penstock.ports.feeds import staging_at
from plugins.postgres import Server

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/changefeed/samples.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]
# Samples that do not depend on the result of an earlier one.
SCENARIOS = (
    "basic",
    "types",
    "duplicates",
    "transaction",
    "hlc",
    "query_feed",
    "ndjson",
    "malformed",
)
TARGET = """
    create table customers (id uuid primary key);
    create table orders (region text, order_no int8, primary key (region, order_no));
    create table order_lines (
        region text, order_no int8, line_no int8, primary key (region, order_no, line_no)
    );
    create table all_types (id int8 primary key);
    create table blob_keys (k bytea primary key);
    create table accounts (balance int8, id int8 primary key);
    create table "audit-log" (id int8 primary key);
"""


def answer(url: str, body: str) -> tuple[int, str]:
    """Return status and text of an answer."""
    request = urllib.request.Request(url, body.encode(), method="POST")
    try:
        with urllib.request.urlopen(request) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def sum_counter(url: str, name: str) -> int:
    """Return the sum of a counter over its tables."""
    with urllib.request.urlopen(f"{url}/_/varz") as page:
        text = page.read().decode()
    return sum(int(float(one)) for one in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))


@pytest.mark.promise
def test_samples_are_staged_in_a_real_database(postgres: Server, tmp_path: Path) -> None:
    """Each sample has its answer, and the counters equal the tables' rows."""
    target = postgres.make_database("target")
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(TARGET)
        database = connection.info.dbname
    staging = postgres.make_database("staging")
    path = tmp_path / "cockroach.toml"
    path.write_text(
        f'[pipeline]\nname = "shop"\ndirectory = "shop"\n[staging]\nurl = "{staging}"\n'
        f'[target]\nurl = "{target}"\n'
        '[stage]\nlisten = "127.0.0.1:0"\nauthentication = "off"\nmode = "consistent"\n'
    )
    config = load_config(path, {})
    assert config.stage is not None
    base = staging_at(staging)
    base.create()
    expected = [0, 0]
    with receiving(config, config.stage, base) as (url, look):
        look()
        with urllib.request.urlopen(f"{url}/_/healthz") as page:
            assert page.read() == b"OK"
        for sample in SAMPLES:
            if sample["scenario"] not in SCENARIOS:
                continue
            expect = sample["expect"]
            where = sample["path"].replace("/shop/", f"/{database}/")
            where = f"/{database}/public" if where == "/shop/public" else where
            status, text = answer(url + where, sample["body"])
            told = (sample["n"], sample["note"], text)
            assert (status, expect.get("error_contains", "") in text) == (expect["status"], True), (
                told
            )
            expected[0] += expect.get("staged", 0)
            expected[1] += expect.get("duplicates", 0)
            found = [
                sum_counter(url, f"stage_{one}_total")
                for one in ("mutations", "duplicate_mutations")
            ]
            assert found == expected, told
    with psycopg.connect(staging) as connection:
        names = connection.execute(
            "select relname from pg_class where relkind = 'r' and relname like '\\_%'"
        ).fetchall()
        rows = 0
        for (name,) in names:
            count = connection.execute(f'select count(*) from "{name}"').fetchone()
            rows += 0 if count is None else count[0]
    assert rows == expected[0]
