"""Every command of every page is run by a test, or is listed with the reason why none runs it."""

from __future__ import annotations

import re
import tomllib
from functools import cache

import pytest

from harness.modules.pages import PAGES, ROOT, commands

LIST = ROOT / "tests/data/commands.toml"
VALUE = re.compile(r"(?:(read|same) (tests/\S+?\.py)(?:::(\w+))?|not run: (\S.+))")


@cache
def read_list() -> dict[str, dict[str, str]]:
    """Return what is listed: by page and command what runs it."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def find_shown() -> dict[str, list[str]]:
    """Return the commands that the pages show, by page."""
    found = {
        page.relative_to(ROOT).as_posix(): commands(page.read_text(encoding="utf-8"))
        for page in PAGES
    }
    return {page: some for page, some in found.items() if some}


def test_the_list_has_the_commands_of_the_pages_and_no_others() -> None:
    """A new command needs a line in tests/data/commands.toml: its test, or the reason."""
    wanted = {(page, command) for page, some in find_shown().items() for command in some}
    have = {(page, command) for page, some in read_list().items() for command in some}
    assert {"new": wanted - have, "gone": have - wanted} == {"new": set(), "gone": set()}


@pytest.mark.parametrize("page", sorted(read_list()))
def test_what_the_list_names_exists(page: str) -> None:
    """A test exists; one that reads the page names it, or takes all pages of a list with it."""
    for command, value in read_list()[page].items():
        match = VALUE.fullmatch(value)
        assert match is not None, f"{command}: {value}"
        how, file, function, _ = match.groups()
        if not how:
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        assert function is None or f"def {function}(" in text, value
        if how == "read":
            assert page.removeprefix("docs/") in text, f"{file} does not read {page}"


def test_commands_that_go_on_in_the_next_line() -> None:
    """A backslash and an open quote join lines; prompts of other programs are no commands."""
    text = (
        "```console\n$ one 'a # b' \\\n    --two  # three\n> four\n$ five -d '\n  {\"six\": 7}'\n"
        "shop=> select 8;\n```\n```sh\nnine\n# ten\n```\n```toml\n$ eleven\n```\n"
    )
    assert commands(text) == ["one 'a # b'     --two", "five -d '\n  {\"six\": 7}'", "nine"]
