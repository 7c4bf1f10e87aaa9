"""Patterns of clients: matched in linear time, with the server's meaning, or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.pgwire_values import read_array
from penstock.serve.catalog.patterns import first_match, is_match, replace_matches

# Each letter more doubles the work of an engine that backtracks, or multiplies it by six.
SLOW = [
    ("~", "a" * 60 + "b", "^(a+)+$"),
    ("~*", "a" * 60 + "b", "^(a|a)*$"),
    ("~~", "a" * 5000 + "b", "%a%a%a%a%a%a%c"),
    ("~~*", "a" * 5000 + "b", "%A%a%A%a%A%a%c"),
]


@pytest.mark.parametrize(("operator", "text", "pattern"), SLOW)
def test_no_pattern_backtracks(operator: str, text: str, pattern: str) -> None:
    """The test runs in a process of its own, as an engine that backtracks would never end."""
    program = (
        "from penstock.serve.catalog.patterns import is_match\n"
        f"print(is_match({operator!r}, {text!r}, {pattern!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout == "False\n"


def test_arrays_of_spaces_are_read_once() -> None:
    """The array is not read again for each way to divide the spaces."""
    program = (
        "from penstock.serve.catalog.types import read_array\n"
        "try: read_array('{' + ' ' * 100_000 + '\"}')\n"
        "except Exception as error: print(error.sqlstate)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "22P02\n"


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("{}", []),
        ("{ }", []),
        ("{a, b c ,NULL}", ["a", "b c", None]),
        ('{"a,b" , "NULL","x\\"\\\\y"}', ["a,b", "NULL", 'x"\\y']),
        ('{"a\nb"}', ["a\nb"]),
    ],
)
def test_arrays(text: str, cells: list[str | None]) -> None:
    """Arrays are read as the server prints them, with spaces between."""
    assert read_array(text) == cells


@pytest.mark.parametrize("text", ["", "a", "{a,}", "{,}", '{"a}', '{"a"b}', "{{a}}", "{a}{"])
def test_arrays_that_are_none(text: str) -> None:
    """Invalid arrays are refused as the server does."""
    with pytest.raises(Refused) as caught:
        read_array(text)
    assert caught.value.sqlstate == "22P02"


@pytest.mark.parametrize(
    ("operator", "text", "pattern", "is_found"),
    [
        ("~", "pg_toast_1", "^pg_(toast|temp)", True),
        ("~", "a\nb", "a.b", True),
        ("~", "a\n", "a$", False),
        ("~", "b\na", "^a", False),
        ("~", "x]y", "[]]", True),
        ("~", "a[b", "[[]b", True),
        ("~", "a$b", r"a\$b", True),
        ("~", "a$b", "a[$]b", True),
        ("~", "aé", r"^\w+$", True),
        ("~", "aé", "^[[:alpha:]]+$", True),
        ("~", "a1", "^[[:alpha:]]+$", False),
        ("~", "a-1", r"^[\w-]+$", True),
        ("~", "one two", r"\ytwo\y", True),
        ("~", "onetwo", r"\ytwo\y", False),
        ("~*", "ABC", "b", True),
        ("~~", "a\nb", "a%b", True),
        ("~~", "abc", "b", False),
        ("~~", "a_c", r"a\_c", True),
        ("~~", "abc", r"a\_c", False),
        ("~~", "a.c", "a.c", True),
        ("~~", "abc", "a.c", False),
        ("~~*", "ABC", "a_c", True),
    ],
)
def test_matches(operator: str, text: str, pattern: str, is_found: bool) -> None:
    """The answers are the server's: `tests/servers/test_serve_sql.py` compares them with one."""
    assert is_match(operator, text, pattern) is is_found


def test_the_escape_of_like() -> None:
    """The escape may be another letter, or there may be none."""
    assert is_match("~~", "a%c", "a!%c", "!")
    assert not is_match("~~", "abc", "a!%c", "!")
    assert is_match("~~", "a\\bc", "a\\%", "")


@pytest.mark.parametrize(
    ("pattern", "state"),
    [
        ("(?=a)", "0A000"),
        ("(?i)a", "0A000"),
        ("***=a", "0A000"),
        (r"(a)\1", "0A000"),
        (r"\ma", "0A000"),
        (r"\ba", "0A000"),
        ("[[.a.]]", "0A000"),
        ("[[:word:]]", "0A000"),
        ("a{2000}", "0A000"),
        ("(a", "2201B"),
        ("[a", "2201B"),
        ("a\\", "2201B"),
        ("x" * 10_001, "54000"),
    ],
)
def test_patterns_that_are_refused(pattern: str, state: str) -> None:
    """RE2 would read them differently, or cannot read them."""
    with pytest.raises(Refused) as caught:
        is_match("~", "a", pattern)
    assert caught.value.sqlstate == state


def test_word_ends_beside_letters_that_are_not_ascii() -> None:
    """RE2 would find an end of a word before them."""
    with pytest.raises(Refused):
        is_match("~", "aé", r"a\y")


def test_what_is_found() -> None:
    """The match or its first group is returned."""
    assert first_match("foobar", "o+") == "oo"
    assert first_match("foobar", "o(b)(a)") == "b"
    assert first_match("foobar", "x") is None
    for pattern in ("a|ab", "a+?", "(a)?b", "(a)*"):  # the server takes the longest match
        with pytest.raises(Refused) as caught:
            first_match("ab", pattern)
        assert caught.value.sqlstate == "0A000"


def test_what_is_replaced() -> None:
    """The new text may contain parts of the match, and backslashes."""

    def replace_text(text: str, pattern: str, new: str, *, every: bool = True) -> str:
        return replace_matches(text, pattern, new, ignore_case=False, every=every)

    assert replace_text("foobar", "(o)(b)", r"<\2\1\&>") == "fo<boob>ar"
    assert replace_text("a.b.c", r"\.", "-") == "a-b-c"
    assert replace_text("a.b.c", r"\.", "-", every=False) == "a-b.c"
    assert replace_text("ab", "(a)", r"\2\\x") == "\\xb"
