"""Commands of the pages, typed as they stand, on a pipeline that runs: each ends with success.

`tests/data/commands.toml` lists the commands of all pages and the tests that run them.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from harness.modules.pages import ROOT, commands
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import Ran, penstock, write_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = ("orders", "item", "audit", "coupon")
# Pages whose commands for shop.toml are run here, in this order.
PAGES = (
    "README.md",
    "docs/start.md",
    "docs/own-servers.md",
    "docs/troubleshooting.md",
    "docs/commands.md",
    "docs/tables.md",
    "docs/several.md",
    "docs/web.md",
    "docs/operations.md",
)
BEFORE, BESIDE, SERVING, LAST = "before", "beside", "serving", "last"
WHEN = {"doctor": BEFORE, "run": "", "web": SERVING, "reset": LAST}
WITHIN_S = 240.0


def penstock_commands() -> Iterator[list[str]]:
    """Yield each command of penstock on these pages, as words, without the program."""
    for name in PAGES:
        for command in commands((ROOT / name).read_text(encoding="utf-8")):
            words = shlex.split(command)
            if Path(words[0]).name == "penstock":
                yield words[1:]


def choose(when: str) -> list[list[str]]:
    """Return the commands for shop.toml whose turn this is, each once."""
    found = {
        tuple(words): words
        for words in penstock_commands()
        if "shop.toml" in words and WHEN.get(words[0], BESIDE) == when
    }
    return list(found.values())


def run_typed(*words: str) -> Ran:
    """Run a command; check that it succeeds."""
    done = penstock(*words, timeout_s=WITHIN_S)
    assert done.code == 0, (words, done.out[-2000:], done.err[-2000:])
    return done


@pytest.fixture
def shop(source_url: str, target_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """shop.toml and bank.toml in the working directory; the source has four tables."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"create table {table} (id int primary key, note text)".encode())
            connection.execute(f"insert into {table} values (1, 'a'), (2, 'b')".encode())
    captured = [f"public.{table}" for table in TABLES if table != "coupon"]
    path = write_pipeline(tmp_path, source_url, target_url, tables=captured)
    write_pipeline(
        tmp_path, source_url, target_url, name="bank", directory="bank", file="bank.toml"
    )
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.usefixtures("shop")
def test_commands_on_a_pipeline() -> None:
    """Doctor first; then all others beside a run; then web pages; then resets, from the last."""
    for words in choose(BEFORE):
        run_typed(*words)
    with ExitStack() as stack:
        run = stack.enter_context(Process(Path("shop.toml")))
        run.until(lambda: any("bulk load done" in one for one in run.events), "rows", WITHIN_S)
        for words in sorted(choose(BESIDE), key=lambda words: words[0] == "table"):
            run_typed(*words)
        for words in choose(SERVING):
            web = stack.enter_context(Process(Path(words[1]), words[0], *words[2:], "--port", "0"))
            web.until(lambda web=web: web.out, "its address", 60)
            web.stop(signal.SIGINT)
        run.stop(signal.SIGINT)
    resets = choose(LAST)
    assert [words[-1] for words in resets].count("--target") == 1
    for words in resets:
        run_typed(*words, "--yes")


def test_commands_with_two_urls(shop: Path, source_url: str, target_url: str) -> None:
    """`copy` and `init` of the pages, with these servers in place of the page's."""
    shop.unlink()
    found = [words for words in penstock_commands() if words[0] in ("copy", "init")]
    for _, source, target, *_ in found:
        assert source.startswith("postgresql://")
        assert target.partition("://")[0] in ("postgresql", "mysql")
    for command, *more in sorted({(one[0], *one[3:]) for one in found}):
        options = more if command == "copy" else ["--file", "written.toml", *more]
        run_typed(command, source_url, target_url, *options)
        with psycopg.connect(target_url, autocommit=True) as connection:
            if command == "copy":
                rows = connection.execute("select * from orders order by id").fetchall()
                assert rows == [(1, "a"), (2, "b")]
            connection.execute("drop schema public cascade; create schema public")
        Path("written.toml").unlink(missing_ok=True)
