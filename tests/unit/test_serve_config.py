"""Section [serve] of a pipeline file: its valid values, and the source of its passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    ConfigPatternInvalid,
    ConfigValueInvalid,
)
from penstock.control.run.serve_process import serve_settings
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.serve.entries import PublicationInvalid, parse_entries

HEAD = """
[pipeline]
name = "shop"
directory = "shop"
[source]
url = "postgresql://u@h/d"
tables = ["public.*"]
[serve]
"""
USERS = 'users = { repl = "${SERVE_PASSWORD}" }\n'


def config(folder: Path, text: str) -> Config:
    """Return the configuration of a file with this [serve]."""
    path = folder / "shop.toml"
    path.write_text(HEAD + text)
    return load_config(path, {"SERVE_PASSWORD": "s3cret", "EMPTY": ""})


def test_the_documented_section(tmp_path: Path) -> None:
    """The section has every key; the shown configuration has no password."""
    text = (
        'listen = "127.0.0.1:5434"\n' + USERS + 'tls = { certificate = "c.pem", key = "k.pem" }\n'
        'server_version = "16.4"\ndialect = "yugabyte"\nmax_slot_wal_keep_size = 1000\n'
        'sync_slot_age = "1h"\n[serve.publications.shop]\ntables = ["public.*", "!public.x"]\n'
    )
    found = config(tmp_path, text)
    assert found.serve is not None
    assert found.serve.address == ("127.0.0.1", 5434)
    assert found.serve.publications["shop"].tables == ("public.*", "!public.x")
    assert "s3cret" not in repr(found.as_shown())
    assert "s3cret" not in repr(found)
    assert found.as_shown()["serve"]["users"] == {"repl": "***"}


def test_only_verifiers_go_on(tmp_path: Path) -> None:
    """The server gets nothing with which a client could log in."""
    found = config(tmp_path, USERS)
    assert found.serve is not None
    settings = serve_settings(found, found.serve)
    assert settings.tls is None
    assert "s3cret" not in settings.users["repl"].text()


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", ConfigKeyMissing, "users"),
        ("users = {}", ConfigValueInvalid, "at least"),
        ('users = { repl = "s3cret" }', ConfigValueInvalid, "stands in the file"),
        ('users = { repl = "${EMPTY}" }', ConfigValueInvalid, "empty"),
        (USERS + 'listen = "0.0.0.0:5434"', ConfigValueInvalid, "other machines"),
        (USERS + 'listen = "example.org:5434"', ConfigValueInvalid, "other machines"),
        (USERS + 'listen = "5434"', ConfigValueInvalid, "host:port"),
        (USERS + 'tls = "on"', ConfigValueInvalid, "off"),
        (USERS + 'tls = { certificate = "c" }', ConfigValueInvalid, "key"),
        (USERS + 'server_version = "13"', ConfigValueInvalid, "14 to 18"),
        (USERS + 'dialect = "oracle"', ConfigValueInvalid, "dialect"),
        (USERS + "max_slot_wal_keep_size = 0", ConfigValueInvalid, "-1"),
        (USERS + 'sync_slot_age = "soon"', ConfigValueInvalid, "duration"),
        (USERS + "port = 5434", ConfigKeyUnknown, "port"),
        (USERS + "[serve.publications.p]\n", ConfigKeyMissing, "tables"),
        (USERS + "[serve.publications.p]\ntables = []\nx = 1", ConfigKeyUnknown, "x"),
        (USERS + '[serve.publications.p]\ntables = ["item"]', ConfigPatternInvalid, "schema"),
        (
            USERS + '[serve.publications.p]\ntables = ["!public.a"]',
            ConfigPatternInvalid,
            "no table",
        ),
        (USERS + '[consumers.serve]\nclass = "a:B"', ConfigValueInvalid, "another name"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, error: type[PenstockError], says: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(error) as caught:
        config(tmp_path, text)
    assert says in caught.value.message + caught.value.hint


def test_off_loopback_without_tls_only_in_so_many_words(tmp_path: Path) -> None:
    """The file must say `off`."""
    assert config(tmp_path, USERS + 'listen = "0.0.0.0:1"\ntls = "off"').serve is not None


def test_entries_of_publications() -> None:
    """Entries have patterns, columns and conditions."""
    found = parse_entries(
        [
            "public.*",
            "!public.audit",
            'shop."Order lines" (id, "Total") where (total > 10 and note is not null)',
            "public.item(id)",
        ]
    )
    assert found.patterns == ("public.*", "!public.audit")
    first, second = found.tables
    assert (first.schema, first.name, first.columns) == ("shop", "Order lines", ("id", "Total"))
    assert first.row_filter == "total > 10 and note is not null"
    assert (second.name, second.columns, second.row_filter) == ("item", ("id",), "")


@pytest.mark.parametrize(
    "entry",
    [
        "public.* (id)",
        "!public.item (id)",
        "public.item (id, id)",
        "public.item where (now() > at)",
        "public.item where ()",
        "public.item where (a = (select 1))",
        "public.item (id) and more",
    ],
)
def test_entries_that_are_refused(entry: str) -> None:
    """Columns or conditions of many tables are refused, and conditions without an evaluation."""
    with pytest.raises(PublicationInvalid):
        parse_entries([entry])
