"""Known cases of SQL Server as a source: each has a test (`tests/data/sqlserver_cases.toml`)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sim_sqlserver.lexer import tokenize
from sim_sqlserver.texts import read_texts

TESTS = Path(__file__).parents[1]
CASES = tomllib.loads((TESTS / "data" / "sqlserver_cases.toml").read_text(encoding="utf-8"))
KNOWN = TESTS / "data" / "sqlserver_known_texts.sql"
CORRECTIONS = 18
SYSTEM_SCHEMAS = ("sys", "cdc", "msdb")


def test_every_correction_is_a_case() -> None:
    """S1 to S18 are all there."""
    assert {f"S{number}" for number in range(1, CORRECTIONS + 1)} <= CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_tests(case: str) -> None:
    """The named tests exist."""
    assert CASES[case]["about"]
    assert CASES[case]["tests"]
    for name in CASES[case]["tests"]:
        path, _, function = name.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), name


@pytest.mark.parametrize("text", read_texts(KNOWN), ids=lambda text: " ".join(text.split())[:50])
def test_texts_have_the_catalogues_spelling(text: str) -> None:
    """A case-sensitive database has its views, functions and variables under one spelling each."""
    tokens = [token.text for token in tokenize(text)]
    for schema, dot, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if schema.lower() in SYSTEM_SCHEMAS and dot == ".":
            assert schema == schema.lower()
            assert name.startswith("[") or name == name.lower(), name
    variables = {token for token in tokens if re.match(r"@[^@]", token)}
    assert len({one.lower() for one in variables}) == len(variables)
