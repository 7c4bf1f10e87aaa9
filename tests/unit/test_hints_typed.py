"""Hints, typed as they are printed: each leads to where it says. No server is asked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psycopg
import pytest
from psycopg.pq import DiagnosticField

from harness.pipelines.cli import call_cli, commands
from penstock import cli
from penstock.codec.types import Engine, parse_choices
from penstock.control.status.log_view import LogNotFound, find_log
from penstock.engines.mysql.connect import server_error
from penstock.engines.postgres.checks import slot_checks
from penstock.engines.postgres.connect import statement_error
from penstock.engines.postgres.target.refusals import apply_error
from penstock.model import TableName
from penstock.ports.changelog import CHANGELOG_TYPES
from penstock.ports.checks import Severity

STAGE = """
[pipeline]
name = "feeds"
directory = "feeds"
[target]
url = "postgresql://u@127.0.0.1:1/t"
[stage]
listen = "127.0.0.1:0"
[staging]
url = "postgresql://u@127.0.0.1:1/s"
"""
SHARD = """
[pipeline]
name = "{name}"
directory = "{name}"
[source]
url = "postgresql://u@127.0.0.1:1/{name}"
tables = ["public.*"]
"""
MERGE = """
[pipeline]
name = "all"
directory = "all"
[merge]
logs = ["s0.toml", "s1.toml"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pipeline files of each kind; every server is unreachable."""
    (tmp_path / "stage.toml").write_text(STAGE)
    (tmp_path / "all.toml").write_text(MERGE)
    for name in ("s0", "s1"):
        (tmp_path / f"{name}.toml").write_text(SHARD.format(name=name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse_hint(hint: str) -> list[str]:
    """Return the arguments of the `penstock` command in a hint."""
    found = re.search(r"penstock ([^`]+)", hint)
    assert found, hint
    return shlex.split(found[1].strip().rstrip("."))


def is_parsed(arguments: list[str]) -> bool:
    """Return whether the command line takes these arguments."""
    command: click.Command = cli.cli
    context = click.Context(command)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments
        command, arguments = found, arguments[1:]
    try:
        command.make_context("x", arguments)
    except click.UsageError:
        return False
    return True


def refused_commands(file: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the hint of each command that answers CF12 for a file."""
    hints = {}
    about_a_source = {"extract", "load", "verify", "plan", "resend", "reset", "table"}
    if file == "all.toml":  # these read the merged log
        about_a_source -= {"extract", "load", "plan"}
    for name, command in commands(cli.cli):
        if name.split()[0] not in about_a_source:
            continue
        takes_names = any(one.name == "names" for one in command.params)
        arguments = [*name.split(), file, *(["public.item"] if takes_names else [])]
        _, _, told = call_cli(capsys, *arguments)
        if "error CF12" in told:
            hints[name] = told.partition("next: ")[2].strip()
    return hints


def test_a_command_about_a_source_names_one_that_takes_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint for a file with [stage] is `penstock stage` for a start, else `penstock status`."""
    hints = refused_commands("stage.toml", capsys)
    assert {"extract", "load", "verify", "plan", "table ls", "table add"} <= hints.keys()
    for name, hint in hints.items():
        following = "stage" if name in ("extract", "load") else "status"
        assert parse_hint(hint) == [following, "stage.toml"], name
        assert is_parsed(parse_hint(hint))


def test_a_command_about_one_source_names_a_merged_pipeline(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint is the same command for a pipeline whose log is merged, with its arguments."""
    hints = refused_commands("all.toml", capsys)
    assert {"verify", "table ls", "table add"} <= hints.keys()
    assert "reset" not in hints, "a merge is taken back as any pipeline"
    for name, hint in hints.items():
        arguments = parse_hint(hint)
        assert arguments[: len(name.split())] == name.split()
        assert str(folder / "s0.toml") in arguments
        assert is_parsed(arguments), name


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (psycopg.errors.DatetimeFieldOverflow, '"zero dates" = "null" in [target.types]'),
        (psycopg.errors.InvalidDatetimeFormat, '"zero dates" = "null" in [target.types]'),
        (psycopg.errors.CharacterNotInRepertoire, '"nul characters" = "remove" in [target.types]'),
        (psycopg.errors.NumericValueOutOfRange, "the type of the target's column"),
        (psycopg.errors.UndefinedTable, "penstock doctor"),
    ],
)
def test_a_refused_value_names_the_choice_its_table_and_its_column(
    error: type[psycopg.Error], hint: str
) -> None:
    """`penstock doctor` finds nothing about a value; the hint names a valid entry."""
    context = b'COPY orders, line 2, column made: "0000-00-00"'
    raised = statement_error(
        "copying chunk 3 of shop.orders",
        error("no such value", info={DiagnosticField.CONTEXT: context}),
    )
    assert raised.message.startswith("copying chunk 3 of shop.orders: ")
    assert raised.message.endswith("(column made of orders)")
    assert hint in raised.hint
    if found := re.search(r'"([^"]+)" = "([^"]+)"', raised.hint):
        parse_choices({found[1]: found[2]}, Engine.MYSQL)


def test_text_that_only_mariadb_accepts_as_json_names_its_choice() -> None:
    """Another invalid text of PostgreSQL's has no entry: the column's type has to change."""
    refused = psycopg.errors.InvalidTextRepresentation
    raised = statement_error("applying", refused("invalid input syntax for type json"))
    found = re.search(r'"([^"]+)" = "([^"]+)"', raised.hint)
    assert found is not None
    assert "penstock table resync" in raised.hint
    parse_choices({found[1]: found[2]}, Engine.MARIADB)
    other = statement_error("applying", refused("invalid input syntax for type uuid"))
    assert "target.types" not in other.hint


def test_a_value_that_a_changelog_refuses_names_the_choices_of_flexcdc() -> None:
    """[target.types] says nothing about changelogs."""
    refused = apply_error(
        psycopg.errors.InvalidDatetimeFormat("no such day"),
        TableName("flexviews", "shop_t"),
        user="loader",
        naming={},
        section=CHANGELOG_TYPES,
    )
    assert 'Write "zero dates" = "null" in [flexcdc.types]. Otherwise' in refused.hint


@pytest.mark.parametrize(("log_end", "expected"), [(0, []), (17, ["PG10"])])
def test_a_slot_that_is_gone_is_an_error_of_doctor(
    monkeypatch: pytest.MonkeyPatch, log_end: int, expected: list[str]
) -> None:
    """`penstock lag` knew it, while doctor said that nothing stops the pipeline."""
    monkeypatch.setattr(slot_checks, "own_slot", lambda _: None)
    config = SimpleNamespace(
        path=Path("shop.toml"), change_extractor=SimpleNamespace(replication_slot="shop_slot")
    )
    probe: Any = SimpleNamespace(config=config, examined=SimpleNamespace(log_end=lambda: log_end))
    found = list(slot_checks.slot_state(probe))
    assert [one.code for one in found] == expected
    for one in found:
        assert one.severity is Severity.ERROR
        assert "penstock reset shop.toml --target, then penstock run shop.toml" in one.command


def test_the_log_of_changefeeds_is_found(folder: Path) -> None:
    """There is one for each target schema: the hint names them, and each is found."""
    with pytest.raises(LogNotFound) as none_yet:
        find_log(Path("stage.toml"))
    assert "penstock stage FILE" in none_yet.value.hint
    for place in ("feeds/feeds/shop.public/log", "feeds/groups/shop.public/log"):
        (folder / place).mkdir(parents=True)
    with pytest.raises(LogNotFound) as several:
        find_log(Path("stage.toml"))
    for name in several.value.hint.partition(": ")[2].split(", "):
        assert find_log(Path(name)).directory == Path(name) / "log"


@pytest.mark.parametrize("number", [1051, 1146])
def test_a_table_that_is_gone_at_a_mysql_source(number: int) -> None:
    """Doctor finds nothing about it: the next run reads the catalogue again."""
    raised = server_error("reading chunk 1 of shop.item", number, "42S02", "no such table")
    assert "Run the same command again" in raised.hint
    assert "doctor" not in raised.hint


def test_init_names_the_file_that_it_writes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors in the file to be written once named a draft.toml that does not exist."""
    urls = ("postgresql://u@127.0.0.1:1/d", "postgresql://u@127.0.0.1:1/t")
    _, _, told = call_cli(capsys, "init", *urls, "--tables", "item", "--file", "mine.toml")
    assert "mine.toml line 8, [source]" in told
    assert "draft" not in told
